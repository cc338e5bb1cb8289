"""Applications that send and receive with Pulsar; and one run of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pulsar

from claimcheck.errors import ClaimCheckError, PartialSendError
from claimcheck.transports.pulsar import (
    AsyncPulsarConsumer,
    AsyncPulsarProducer,
    PulsarConsumer,
    PulsarProducer,
    SendDeadlineError,
)
from tests.harness import pulsar_model
from tests.harness.pulsar_model import AsyncConsumerClient, ConsumerClient, ProducerClient
from tests.harness.scheduler import Scheduler
from tests.simulation import actors
from tests.simulation.actors import STRATEGIES, Run
from tests.simulation.ledger import Handed, Ledger, Sent, Unit

DEFINITE = ("ProducerQueueIsFull", "MessageTooBig")
ACKS = ("each", "late", "cumulative", "some negatively")


class Subscription(Handed, pulsar_model.Subscription):
    """A subscription, with checks of what it acknowledges."""

    log: Ledger

    def held_at(self) -> object:
        return sorted(set(range(len(self.log.logs[0]))) - self.acked)[:5]

    def acknowledge(self, number: int) -> None:
        unit = self.log.at.get((0, number))
        if unit is not None and number not in self.acked and not self.may_pass(unit):
            text = f"{self.name} acknowledged {number}, a message of {unit}, which no earlier call returned"
            self.log.scheduler.violated(text)
        super().acknowledge(number)


class Sender(actors.Sender):
    """Sends through a wrapper, and waits for the answer or does not."""

    def open(self) -> None:
        self.client, cc = ProducerClient(self.log, self.process), self.configured(self.scheduler.choice(STRATEGIES))
        self.producer = self.call(AsyncPulsarProducer if self.is_async else PulsarProducer, self.client.wrapped(), cc)
        blocking = getattr(self.producer, "_blocking", self.producer)
        blocking._bounded.window_bytes = self.scheduler.choice((1, 700, 1 << 20))

    def send(self, sent: Sent) -> None:
        process, key = self.process, self.scheduler.choice((None, "k", "l"))
        is_cancelled = self.is_async and self.scheduler.strikes("send is cancelled", 0.1)
        cancel_after = self.scheduler.choice((0, 0.0005, 0.01)) if is_cancelled else None

        def told(result: Any, _: Any) -> None:
            if process.alive:
                sent.outcome = "sent" if result.name == "Ok" else "failed" if result.name in DEFINITE else "unknown"
                sent.is_given_up |= result.name != "Ok"

        try:
            if self.is_async or self.scheduler.chance(0.5):
                message_id = self.call(self.producer.send, sent.content, partition_key=key, cancel_after=cancel_after)
                sent.outcome = "unknown" if message_id is None else "sent"
            else:
                self.producer.send_async(sent.content, told, None, key)
        except (ClaimCheckError, pulsar.exceptions.PulsarException, pulsar.asyncio.PulsarException) as error:
            sent.outcome = _outcome(error)
            sent.is_given_up |= isinstance(error, PartialSendError)
            if SendDeadlineError in map(type, (error, error.__cause__)):  # the abort envelope has no answer either
                self.call(self.producer.close)
                self.cannot_tell()
                self.open()

    def finish(self) -> None:
        with contextlib.suppress(SendDeadlineError):
            self.call(self.producer.flush)
        self.scheduler.wait(lambda: all(each.outcome != "open" for each in self.log.sent), 200.0)
        self.call(self.producer.close)
        if self.client.is_lost:
            self.cannot_tell()


class AsyncSender(Sender):
    """Sends through the asyncio wrapper; its task may be cancelled."""

    is_async = True


def _outcome(error: Any) -> Any:
    if isinstance(error, ClaimCheckError):
        return "unknown" if isinstance(error, PartialSendError | SendDeadlineError) else "failed"
    name = error.error().name if isinstance(error, pulsar.asyncio.PulsarException) else type(error).__name__
    return "failed" if name in DEFINITE else "unknown"


class Receiver(actors.Receiver):
    """Receives with a wrapped consumer, and acknowledges in one of several ways."""

    def open(self) -> None:
        self.late: list[tuple[Any, Unit | None]] = []
        self.client = ConsumerClient(self.group, self.process)
        kind, cc = getattr(pulsar.ConsumerType, self.group.kind), self.configured("external")
        client, options = AsyncConsumerClient(self.client), {"consumer_type": kind, "clock": self.scheduler.clock}
        if self.is_async:
            self.consumer: Any = self.call(AsyncPulsarConsumer, client, cc, **options)
        else:
            prefetch = self.scheduler.choice((None, 0, 2000))
            self.consumer = PulsarConsumer(self.client, cc, prefetch_bytes=prefetch, **options)

    def end(self) -> None:
        self.client.leave()

    def act(self) -> None:
        chance = self.scheduler.random.random()
        if chance < 0.02:
            self._seek()
        elif chance < 0.03:
            self.call(self.consumer.close)
            self.start()
        else:
            self.receive(self.scheduler.choice((0, 100, 1000, 5000)))

    def receive(self, millis: int) -> int:
        messages = self._receive(millis)
        for message, unit in [(message, self._received(message)) for message in messages]:
            self._process(message, unit)
        if self.late and (not messages or self.scheduler.chance(0.3)):
            self._acknowledge(*self.late.pop(self.scheduler.random.randrange(len(self.late))))
        return len(messages)

    def read_on(self, found: list[bool], *, busy: bool) -> None:
        received = 0
        ready = getattr(self.consumer, "_blocking", self.consumer)._ready
        while (ready or self.group.next_for(self.client) is not None) and received < len(self.log.logs[0]):
            received += 1
            self.receive(0)
        if not (busy and received):
            received += self.receive(1000)
        while self.late:
            self._acknowledge(*self.late.pop())
        found.append(received > 0)

    def _receive(self, millis: int) -> list[Any]:
        if self.is_async:
            message = self.call(self.consumer.receive, cancel_after=max(0.5, millis / 1000))
            return [] if message is None else [message]
        with contextlib.suppress(pulsar.Timeout):
            return self.consumer.batch_receive() if self.options["batch"] else [self.consumer.receive(millis)]
        return []

    def _received(self, message: Any) -> Any:
        message_id = message.message_id()
        number = getattr(message_id, "first", message_id).entry_id()
        return self.group.received((0, number), message, self.process)

    def _process(self, message: Any, unit: Unit | None) -> None:
        how = self.options["ack"]
        if how == "late" or (how == "cumulative" and self.scheduler.chance(0.3)):
            self.late.append((message, unit))
        elif how == "some negatively" and self.scheduler.is_faulty and self.scheduler.chance(0.2):
            self.call(self.consumer.negative_acknowledge, message)
        else:
            self._acknowledge(message, unit)

    def _acknowledge(self, message: Any, unit: Unit | None) -> None:
        which = message.message_id() if self.scheduler.chance(0.3) else message
        if self.options["ack"] != "cumulative" or unit is None:
            self.call(self.consumer.acknowledge, which)
            return
        known = set(self.group.returned)
        self.call(self.consumer.acknowledge_cumulative, which)
        if unit in self.group.reported or not self.group.is_orderly:
            return
        for each in known:
            if each.last <= unit.last and each.is_complete and not self._is_acked(each):
                self.scheduler.violated(f"{self.group.name}: {each} is not acknowledged with {unit}, which is after it")

    def _is_acked(self, unit: Unit) -> bool:
        return unit in self.group.excused or self.group.acked.issuperset(unit.positions.values())

    def _seek(self) -> None:
        if not self.log.logs[0] or self.group.kind == "KeyShared":
            return
        number = self.scheduler.random.randrange(len(self.log.logs[0]))
        self.late.clear()
        self.group.excused.update(unit for unit in self.log.units if unit.positions and unit.first <= number)
        self.call(self.consumer.seek, pulsar.MessageId(-1, 1, number, -1))


class AsyncReceiver(Receiver):
    """The same with the asyncio wrapper; its task may be cancelled."""

    is_async = True


class PulsarRun(Run):
    senders = (Sender, Sender, AsyncSender)

    def __init__(self, scheduler: Scheduler) -> None:
        self.unloading = scheduler.choice((0.0, 0.03))
        super().__init__(scheduler, Ledger(scheduler))

    def group(self, name: str) -> Subscription:
        choice = self.scheduler.choice
        group = Subscription(name, self.log, kind=choice(("Exclusive", "Failover", "KeyShared")))
        acks = [each for each in ACKS if each != "cumulative" or group.kind != "KeyShared"]
        options = {"ack": choice(acks), "batch": self.scheduler.chance(0.4)}
        kind, most = choice((Receiver, Receiver, AsyncReceiver)), 1 if group.kind == "Exclusive" else choice((1, 2))
        self.receiving += [kind(group, f"{name} consumer {n}", options) for n in range(most)]
        return group

    def disturb(self) -> None:
        if self.scheduler.strikes("topic is unloaded", self.unloading):
            group = self.scheduler.choice(self.log.groups)
            self.scheduler.spawn(lambda: [group.release(each) for each in group.consumers[:1]], None)
