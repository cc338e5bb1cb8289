"""Applications that send and receive with Pulsar; and one run of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pulsar

from claimcheck.errors import ClaimCheckError, PartialSendError
from claimcheck.transports.pulsar import AsyncPulsarConsumer, PulsarConsumer, PulsarProducer, SendDeadlineError
from tests.simulation import actors
from tests.simulation.actors import STRATEGIES, Run
from tests.simulation.ledger import Ledger, Sent, Unit
from tests.simulation.pulsar_model import DEFINITE, AsyncConsumerClient, ConsumerClient, ProducerClient, Subscription
from tests.simulation.scheduler import Scheduler

ACKS = ("each", "late", "cumulative", "some negatively")


class Sender(actors.Sender):
    """Sends through a wrapper, and waits for the answer or does not."""

    def open(self) -> None:
        self.client = ProducerClient(self.ledger, self.process)
        cc = self.configured(self.scheduler.choice(STRATEGIES))
        self.producer = PulsarProducer(self.client.wrapped(), cc)
        self.producer._bounded.window_bytes = self.scheduler.choice((1, 700, 1 << 20))

    def act(self) -> None:
        sent = self.new_payload()
        key = self.scheduler.choice((None, "k", "l"))
        try:
            if self.scheduler.chance(0.5):
                self.producer.send(sent.content, partition_key=key)
                sent.outcome = "sent"
            else:
                process = self.process

                def told(result: Any, _: Any) -> None:
                    if process.alive:
                        self._told(sent, result.name)

                self.producer.send_async(sent.content, told, None, key)
        except PartialSendError as error:
            sent.outcome = "unknown"
            sent.is_given_up = True
            self._replace_if_lost(error.__cause__)
        except ClaimCheckError as error:
            sent.outcome = "unknown" if isinstance(error, SendDeadlineError) else "failed"
            self._replace_if_lost(error)
        except pulsar.exceptions.PulsarException as error:
            sent.outcome = "failed" if type(error).__name__ in DEFINITE else "unknown"

    def finish(self) -> None:
        with contextlib.suppress(SendDeadlineError):
            self.producer.flush()
        self.scheduler.wait(lambda: all(each.outcome != "open" for each in self.ledger.sent), 200.0)
        self.producer.close()
        if self.client.is_lost:
            self.cannot_tell()  # the abort envelope has no answer either

    def _told(self, sent: Sent, result: str) -> None:
        sent.outcome = "sent" if result == "Ok" else "failed" if result in DEFINITE else "unknown"
        if result != "Ok":
            sent.is_given_up = True

    def _replace_if_lost(self, error: BaseException | None) -> None:
        """Close a producer that gets no answers, and open another one."""
        if isinstance(error, SendDeadlineError):
            self.producer.close()
            self.cannot_tell()  # the abort envelope has no answer either
            self.open()


class Receiver(actors.Receiver):
    """Receives with a wrapped consumer, and acknowledges in one of several ways."""

    def open(self) -> None:
        self.late: list[Any] = []
        self.client = ConsumerClient(self.group, self.process)
        kind, cc = getattr(pulsar.ConsumerType, self.group.kind), self.configured("external")
        client, options = AsyncConsumerClient(self.client), {"consumer_type": kind, "clock": self.scheduler.clock}
        if self.is_async:
            self.consumer: Any = self.made(AsyncPulsarConsumer, client, cc, **options)
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
        message = self._receive(millis)
        if message is not None:
            self._process(message)
        if self.late and (message is None or self.scheduler.chance(0.3)):
            self._acknowledge(self.late.pop(self.scheduler.random.randrange(len(self.late))))
        return message is not None

    def finish(self, *, busy: bool) -> bool:
        received = 0
        ready = getattr(self.consumer, "_blocking", self.consumer)._ready
        while (ready or self.group.next_for(self.client) is not None) and received < len(self.ledger.logs[0]):
            received += 1
            self.receive(0)
        if not (busy and received):
            received += self.receive(1000)
        while self.late:
            self._acknowledge(self.late.pop())
        return received > 0

    def _receive(self, millis: int) -> Any:
        if self.is_async:
            return self.call(self.consumer.receive, cancel_after=max(0.5, millis / 1000))
        try:
            return self.consumer.receive(millis)
        except pulsar.Timeout:
            return None

    def _process(self, message: Any) -> None:
        message_id, how = message.message_id(), self.options["ack"]
        number = getattr(message_id, "first", message_id).entry_id()
        unit = self.group.received((0, number), message, self.process)
        if how == "late":
            self.late.append(message)
        elif how == "some negatively" and self.scheduler.is_faulty and self.scheduler.chance(0.2):
            self.call(self.consumer.negative_acknowledge, message)
        elif how == "cumulative" and unit is not None:
            self._acknowledge_cumulatively(message, unit)
        else:
            self._acknowledge(message)

    def _acknowledge(self, message: Any) -> None:
        self.call(self.consumer.acknowledge, message.message_id() if self.scheduler.chance(0.3) else message)

    def _acknowledge_cumulatively(self, message: Any, unit: Unit) -> None:
        known = set(self.group.returned)
        self.call(self.consumer.acknowledge_cumulative, message)
        if unit in self.group.reported or not self.group.is_orderly:
            return
        for each in known:
            if each.last <= unit.last and each.is_complete and not self._is_acked(each):
                self.scheduler.violated(f"{self.group.name}: {each} is not acknowledged with {unit}, which is after it")

    def _is_acked(self, unit: Unit) -> bool:
        return unit in self.group.excused or self.group.acked.issuperset(unit.positions.values())

    def _seek(self) -> None:
        if not self.ledger.logs[0] or self.group.kind == "KeyShared":
            return
        number = self.scheduler.random.randrange(len(self.ledger.logs[0]))
        self.late.clear()
        self.group.excused.update(unit for unit in self.ledger.units if unit.positions and unit.first <= number)
        self.call(self.consumer.seek, pulsar.MessageId(-1, 1, number, -1))


class AsyncReceiver(Receiver):
    """The same with the asyncio wrapper; its task may be cancelled."""

    is_async = True


class PulsarRun(Run):
    senders = (Sender,)

    def __init__(self, scheduler: Scheduler) -> None:
        self.unloading = scheduler.choice((0.0, 0.03))
        super().__init__(scheduler, Ledger(scheduler))

    def group(self, name: str) -> Subscription:
        choice = self.scheduler.choice
        group = Subscription(name, self.ledger, kind=choice(("Exclusive", "Failover", "KeyShared")))
        options = {"ack": choice([each for each in ACKS if each != "cumulative" or group.kind != "KeyShared"])}
        kind, most = choice((Receiver, Receiver, AsyncReceiver)), 1 if group.kind == "Exclusive" else choice((1, 2))
        self.receiving += [kind(group, f"{name} consumer {n}", options) for n in range(most)]
        return group

    def disturb(self) -> None:
        if self.scheduler.strikes("topic is unloaded", self.unloading):
            receiver = self.scheduler.choice(self.receiving)
            self.scheduler.later(lambda: receiver.group.release(receiver.client))
