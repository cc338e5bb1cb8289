"""Applications that send and receive with Pulsar; and one run of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pulsar

from claimcheck.errors import ClaimCheckError, PartialSendError
from claimcheck.transports.pulsar import AsyncPulsarConsumer, PulsarConsumer, PulsarProducer, SendDeadlineError
from tests.harness.kafka_callbacks import TOPIC
from tests.simulation.kafka_actors import CALM, STRATEGIES, Actor, Run
from tests.simulation.ledger import Sent, Unit
from tests.simulation.pulsar_model import (
    DEFINITE,
    AsyncConsumerClient,
    Broker,
    ConsumerClient,
    ProducerClient,
    Subscription,
)
from tests.simulation.scheduler import Loop, Scheduler

ACKS = ("each", "late", "cumulative", "some negatively")


class Sender(Actor):
    """Sends through a wrapper, and waits for the answer or does not."""

    crashes = 0.004
    faults = 0.03

    def open(self) -> None:
        self.mine: set[int] = set()
        self.client = ProducerClient(self.broker, self.process, self.faults)
        cc = self.configured(self.scheduler.choice(STRATEGIES))
        window = self.scheduler.choice((1, 700, 1 << 20))
        self.producer = PulsarProducer(self.client.wrapped(), cc)
        self.producer._bounded.window_bytes = window

    def end(self) -> None:
        for sent in self.broker.sent:
            if sent.outcome == "open" and sent.number in self.mine:
                sent.outcome = "unknown"
        self.broker.given_up -= self.mine

    def act(self) -> None:
        sent = self.broker.new_payload()
        self.mine.add(sent.number)
        self.client.owner = self.store.owner = sent.number
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
            self.broker.given_up.add(sent.number)
            self._replace_if_lost(error.__cause__)
        except ClaimCheckError as error:
            sent.outcome = "unknown" if isinstance(error, SendDeadlineError) else "failed"
            self._replace_if_lost(error)
        except pulsar.exceptions.PulsarException as error:
            sent.outcome = "failed" if type(error).__name__ in DEFINITE else "unknown"

    def finish(self) -> None:
        with contextlib.suppress(SendDeadlineError):
            self.producer.flush()
        self.scheduler.wait(lambda: all(each.outcome != "open" for each in self.broker.sent), 200.0)
        self.producer.close()
        if self.client.is_lost:
            self.broker.given_up -= self.mine  # the abort envelope has no answer either

    def _told(self, sent: Sent, result: str) -> None:
        sent.outcome = "sent" if result == "Ok" else "failed" if result in DEFINITE else "unknown"
        if result != "Ok":
            self.broker.given_up.add(sent.number)

    def _replace_if_lost(self, error: BaseException | None) -> None:
        """Close a producer that gets no answers, and open another one."""
        if isinstance(error, SendDeadlineError):
            self.producer.close()
            self.broker.given_up -= self.mine  # the abort envelope has no answer either
            self.open()


class Receiver(Actor):
    """Receives with a wrapped consumer, and acknowledges in one of several ways."""

    crashes = 0.002

    def __init__(self, broker: Broker, group: Subscription, name: str, how: str) -> None:
        self.group, self.how = group, how
        self.late: list[tuple[Any, Unit]] = []
        super().__init__(broker, name)

    def open(self) -> None:
        self.late.clear()
        self.client = ConsumerClient(self.group, self.process)
        self.consumer: Any = self._consumer(prefetch_bytes=self.scheduler.choice((None, 0, 2000)))

    def _consumer(self, **options: Any) -> Any:
        kind = getattr(pulsar.ConsumerType, self.group.kind)
        cc, clock = self.configured("external"), self.scheduler.clock
        return PulsarConsumer(self.client, cc, consumer_type=kind, clock=clock, **options)

    def end(self) -> None:
        self.client.leave()

    def act(self) -> None:
        chance = self.scheduler.random.random()
        if chance < 0.02:
            self._seek()
        elif chance < 0.03:
            self._call(self.consumer.close)
            self.start()
        else:
            self.receive(self.scheduler.choice((0, 100, 1000, 5000)))

    def receive(self, millis: int) -> int:
        message = self._receive(millis)
        if message is not None:
            self._process(message)
        if self.late and (message is None or self.scheduler.chance(0.3)):
            late = self.late.pop(self.scheduler.random.randrange(len(self.late)))
            self._acknowledge(*late)
        return message is not None

    def finish(self, *, busy: bool) -> int:
        """Receive what there is, without faults; ``busy``: never wait when there is nothing."""
        received = 0
        ready = getattr(self.consumer, "_blocking", self.consumer)._ready
        while (ready or self.group.next_for(self.client) is not None) and received < len(self.broker.log):
            received += 1
            self.receive(0)
        received += 0 if busy and received else self.receive(1000)
        while self.late:
            self._acknowledge(*self.late.pop())
        return received

    def _receive(self, millis: int) -> Any:
        try:
            return self.consumer.receive(millis)
        except pulsar.Timeout:
            return None

    def _process(self, message: Any) -> None:
        message_id = message.message_id()
        number = getattr(message_id, "first", message_id).entry_id()
        unit = self.broker.unit_at(TOPIC, number)
        self.broker.returned(self.group, unit, number, message, self.process)
        assert unit is not None
        if self.how == "late":
            self.late.append((message, unit))
        elif self.how == "some negatively" and self.scheduler.is_faulty and self.scheduler.chance(0.2):
            self._call(self.consumer.negative_acknowledge, message)
        elif self.how == "cumulative":
            self._acknowledge_cumulatively(message, unit)
        else:
            self._acknowledge(message, unit)

    def _acknowledge(self, message: Any, unit: Unit) -> None:
        what = message.message_id() if self.scheduler.chance(0.3) else message
        self._call(self.consumer.acknowledge, what)

    def _acknowledge_cumulatively(self, message: Any, unit: Unit) -> None:
        known = set(self.group.returned)
        self._call(self.consumer.acknowledge_cumulative, message)
        if unit in self.group.reported or not self.group.is_orderly:
            return
        for each in known:
            if each.last <= unit.last and each.is_complete and not self._is_acked(each):
                self.scheduler.violated(f"{self.group.name}: {each} is not acknowledged with {unit}, which is after it")

    def _is_acked(self, unit: Unit) -> bool:
        return unit in self.group.excused or self.group.acked.issuperset(unit.positions.values())

    def _seek(self) -> None:
        if not self.broker.log or self.group.kind == "KeyShared":
            return
        number = self.scheduler.random.randrange(len(self.broker.log))
        self.late.clear()
        self.group.excused.update(unit for unit in self.broker.units if unit.positions and unit.first <= number)
        self._call(self.consumer.seek, pulsar.MessageId(-1, 1, number, -1))

    def _call(self, method: Any, *args: Any) -> Any:
        return method(*args)


class AsyncReceiver(Receiver):
    """The same with the asyncio wrapper; its task may be cancelled."""

    def open(self) -> None:
        self.loop = Loop(self.scheduler)
        super().open()

    def _consumer(self, **options: Any) -> Any:
        kind = getattr(pulsar.ConsumerType, self.group.kind)
        cc, clock = self.configured("external"), self.scheduler.clock

        async def made() -> Any:
            client: Any = AsyncConsumerClient(self.client)
            return AsyncPulsarConsumer(client, cc, consumer_type=kind, clock=clock)

        return self.loop.run_until_complete(made())

    def end(self) -> None:
        super().end()
        self.loop.abandon()

    def _receive(self, millis: int) -> Any:
        async def receive() -> Any:
            task = asyncio.ensure_future(self.consumer.receive())
            await asyncio.wait([task], timeout=max(0.5, millis / 1000))
            if task.done():
                return task.result()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                return await task

        return self.loop.run_until_complete(receive())

    def _call(self, method: Any, *args: Any) -> Any:
        async def call() -> Any:
            return await method(*args)

        return self.loop.run_until_complete(call())


class PulsarRun(Run):
    """One run: builds the actors, lets them act in any order, then lets everything end."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, choice = scheduler, scheduler.choice
        self.broker = Broker(scheduler)
        self.broker.medium.fails = choice((0.0, 0.03, 0.1))
        self.senders = [Sender(self.broker, f"sender {n}") for n in range(choice((1, 2)))]
        self.receivers: list[Receiver] = []
        self.spoiling, self.unloading, self.is_busy = (
            choice((0.0, 0.0, 0.03)),
            choice((0.0, 0.03)),
            scheduler.chance(0.5),
        )
        for number in range(choice((1, 1, 2))):
            self._add_group(f"subscription {number}")

    def _add_group(self, name: str) -> None:
        choice = self.scheduler.choice
        group = Subscription(name, broker=self.broker, kind=choice(("Exclusive", "Failover", "KeyShared")))
        self.broker.groups.append(group)
        how = choice([each for each in ACKS if each != "cumulative" or group.kind != "KeyShared"])
        kind = choice((Receiver, Receiver, AsyncReceiver))
        for number in range(1 if group.kind == "Exclusive" else choice((1, 2))):
            self.receivers.append(kind(self.broker, group, f"{name} consumer {number}", how))

    def step(self) -> None:
        scheduler = self.scheduler
        if scheduler.strikes("payload is lost or damaged", self.spoiling):
            self.broker.medium.spoil()
        if scheduler.strikes("topic is unloaded", self.unloading):
            receiver = scheduler.choice(self.receivers)
            scheduler.later(lambda: receiver.group.release(receiver.client))
        self.act()

    def finish(self) -> None:
        self.finish_sending()
        self.broker.append_markers()
        self._calm_down()
        for group in self.broker.groups:
            if not self._is_empty(group):
                left = set(range(len(self.broker.log))) - group.acked  # type: ignore[attr-defined]
                self.scheduler.violated(f"{group.name} never acknowledged {sorted(left)[:5]}")
        self.broker.check_at_rest()
        for receiver in self.receivers:
            receiver._call(receiver.consumer.close)

    def _calm_down(self) -> None:
        """Let all groups read on."""
        for _ in range(CALM):
            if self.is_busy:
                self.broker.append_markers()
            received = sum(receiver.finish(busy=self.is_busy) for receiver in self.receivers)
            for group in self.broker.groups:
                self.broker.read_again(group)
            if (
                self.broker.is_at_rest()
                and all(map(self._is_empty, self.broker.groups))
                and (self.is_busy or not received)
            ):
                return
            self.scheduler.wait(lambda: False, 6.0)

    def _is_empty(self, group: Any) -> bool:
        """Whether the subscription has no backlog."""
        return len(group.acked) == len(self.broker.log) and not any(receiver.late for receiver in self.receivers)
