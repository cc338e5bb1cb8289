"""A model of Pulsar: a topic with subscriptions, acknowledgements and redelivery; and the clients that talk to it.

It does what was measured on a broker of version 4.2 with the client 3.13.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pulsar

from claimcheck.transports.pulsar import _send
from tests.harness.async_clients import PulsarMessageOf
from tests.harness.kafka_callbacks import TOPIC
from tests.simulation.ledger import ABORT, Group, Ledger
from tests.simulation.scheduler import Process, Scheduler

DEFINITE = ("ProducerQueueIsFull", "MessageTooBig")


class Message(PulsarMessageOf):
    """A native message."""

    consumer: Any

    def __init__(self, number: int, sent: Any, count: int) -> None:
        super().__init__(number, sent.data, sent.key)
        self._properties, self._count = sent.properties, count

    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    def redelivery_count(self) -> int:
        return self._count


@dataclass
class Entry:
    owner: int
    data: bytes
    key: str
    properties: dict[str, str]


class Broker(Ledger):
    """One topic without partitions."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.log: list[Entry] = []

    def append(self, entry: Entry) -> int:
        self.log.append(entry)
        self.appended(entry.owner, TOPIC, len(self.log) - 1, entry.data)
        return len(self.log) - 1

    def append_markers(self) -> None:
        marker = self.new_payload()
        marker.outcome = "sent"
        self.append(Entry(marker.number, marker.content, "", {}))


@dataclass(eq=False)
class Subscription(Group):
    """What is acknowledged, and which consumer has what is not."""

    broker: Any = None
    kind: str = "Exclusive"
    acked: set[int] = field(default_factory=set)
    held: dict[int, Any] = field(default_factory=dict)
    delayed: dict[int, Any] = field(default_factory=dict)  # negatively acknowledged, and to be redelivered later
    counts: dict[int, int] = field(default_factory=dict)
    consumers: list[Any] = field(default_factory=list)

    def next_for(self, consumer: Any) -> int | None:
        """The first message that this consumer gets now."""
        for number, entry in enumerate(self.broker.log):
            free = number not in self.acked and number not in self.held and number not in self.delayed
            if free and self._receiver_of(entry) is consumer:
                return number
        return None

    def _receiver_of(self, entry: Entry) -> Any:
        if not self.consumers:
            return None
        if self.kind != "KeyShared":
            return self.consumers[0]
        for number, holder in self.held.items():  # messages with one key stay together until all are acknowledged
            if self.broker.log[number].key == entry.key:
                return holder
        return self.consumers[zlib.crc32(entry.key.encode()) % len(self.consumers)]

    def release(self, consumer: Any) -> None:
        """The connection of a consumer ends: what it has not acknowledged is redelivered."""
        self.is_orderly = False
        self.delayed = {number: holder for number, holder in self.delayed.items() if holder is not consumer}
        for number in [number for number, holder in self.held.items() if holder is consumer]:
            del self.held[number]
            self.counts[number] = self.counts.get(number, 0) + (self.kind == "KeyShared")

    def acknowledge(self, number: int) -> None:
        unit = self.broker.unit_at(TOPIC, number)
        if unit is not None and number not in self.acked and not self.broker.may_pass(self, unit):
            text = f"{self.name} acknowledged {number}, a message of {unit}, which no earlier call returned"
            self.broker.scheduler.violated(text)
        self.acked.add(number)
        self.held.pop(number, None)

    def redeliver(self, number: int) -> None:
        self.delayed.pop(number, None)
        self.counts[number] = self.counts.get(number, 0) + (self.kind == "KeyShared")


class ConsumerClient:
    """A `pulsar.Consumer`, and the inner object of a `pulsar.asyncio.Consumer`."""

    def __init__(self, group: Subscription, process: Process) -> None:
        self.group, self.process, self.scheduler = group, process, process.scheduler
        self._consumer, self._schema = self, pulsar.schema.BytesSchema()
        group.consumers.append(self)
        self.redelivery_seconds = self.scheduler.choice((1.0, 10.0, 60.0))

    def receive(self, timeout_millis: int | None = None) -> Message:
        self.process.check()
        self.scheduler.point()
        seconds = 1e6 if timeout_millis is None else max(0.001, timeout_millis / 1000)
        if not self.scheduler.wait(lambda: self.group.next_for(self) is not None, seconds):
            raise pulsar.Timeout("simulated")
        self.process.check()
        return self.take()

    def take(self) -> Message:
        number = self.group.next_for(self)
        assert number is not None
        self.group.held[number] = self
        self.scheduler.now += 0.001
        message = Message(number, self.group.broker.log[number], self.group.counts.get(number, 0))
        message.consumer = self
        return message

    def acknowledge(self, message: Any) -> None:
        self._reach()
        self.group.acknowledge(_number(message))

    def acknowledge_cumulative(self, message: Any) -> None:
        self._reach()
        if self.group.kind == "KeyShared":
            raise pulsar.exceptions.CumulativeAcknowledgementNotAllowedError("simulated")
        for number in range(_number(message) + 1):
            if number not in self.group.acked:
                self.group.acknowledge(number)

    def negative_acknowledge(self, message: Any) -> None:
        self._reach()
        group, number = self.group, _number(message)
        if number not in group.acked and group.held.get(number) is self:
            del group.held[number]
            group.delayed[number] = self
            group.is_orderly = False
            self.scheduler.later(lambda: group.redeliver(number), self.redelivery_seconds)

    def redeliver_unacknowledged_messages(self) -> None:
        self.group.release(self)

    def seek(self, target: Any) -> None:
        self._reach()
        group, number = self.group, _number(target)
        group.held.clear()
        group.is_orderly = False
        group.acked = set(range(number + 1))

    def close(self) -> None:
        self.process.check()
        self.leave()

    def leave(self) -> None:
        if self in self.group.consumers:
            self.group.consumers.remove(self)
        self.group.release(self)

    def topic(self) -> str:
        return TOPIC

    def subscription_name(self) -> str:
        return self.group.name

    def _reach(self) -> None:
        self.process.check()
        self.scheduler.point()
        self.process.check()


class AsyncConsumerClient:
    """A `pulsar.asyncio.Consumer`; like that, it loses a message if its ``receive`` is cancelled."""

    def __init__(self, client: ConsumerClient) -> None:
        self.client = self._consumer = client
        self._schema = client._schema

    async def receive(self) -> Message:
        while self.client.group.next_for(self.client) is None:
            await asyncio.sleep(0.2)
        self.client.process.check()
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[Message] = loop.create_future()
        taken = self.client.take()
        self.client.scheduler.later(lambda: loop.call_soon_threadsafe(_set, arrived, taken), 0.01)
        return await arrived

    async def close(self) -> None:
        self.client.close()


class ProducerClient:
    """The inner object of a `pulsar.Producer`; ``owner`` is the payload that its caller sends at the moment."""

    def __init__(self, broker: Broker, process: Process, faults: float) -> None:
        self.broker, self.process, self.scheduler, self.faults = broker, process, process.scheduler, faults
        self.owner, self._open, self.is_lost = -1, 0, False
        self._queue: list[tuple[Entry, Any]] = []
        self._flushes: list[Future[None]] = []

    def wrapped(self) -> Any:
        """The `pulsar.Producer` that has this object inside."""
        producer: Any = pulsar.Producer()
        producer._producer, producer._schema, producer._client = self, pulsar.schema.BytesSchema(), None
        return producer

    def send_async(self, message: Any, callback: Any) -> None:
        self.process.check()
        self.scheduler.point()
        entry = Entry(self.owner, message.data(), message.partition_key(), dict(message.properties()))
        self.broker.attempted(entry.data)
        if self.scheduler.strikes("queue is full", self.faults):
            callback(pulsar.Result.ProducerQueueIsFull, _id(-1))
            return
        self.broker.launched(entry.owner, entry.data)
        self._queue.append((entry, callback))
        self._open += 1
        self.scheduler.later(self._send_next, self.scheduler.choice((0.0, 0.001, 0.05)))

    def flush(self) -> Future[None]:
        """Return a future that is done when every message has its answer, in place of a thread that waits."""
        self.process.check()
        flushed: Future[None] = Future()
        self._flushes.append(flushed)
        self._note_flushed()
        return flushed

    def close(self) -> None:
        self.process.check()

    def topic(self) -> str:
        return TOPIC

    def producer_name(self) -> str:
        return "simulated"

    def _send_next(self) -> None:
        """Send the oldest message of the queue; the answer is lost, late, wrong, or what it should be."""
        (entry, callback), strikes = self._queue.pop(0), self.scheduler.strikes
        self._open -= 1
        result, number = pulsar.Result.Ok, -1
        if not self.process.alive:
            if self.scheduler.chance(0.5):
                self.broker.append(entry)
            return
        if strikes("broker refuses a message", self.faults / 2):
            self.broker.refused(entry.owner, entry.data)
            result = pulsar.Result.MessageTooBig
        elif strikes("answer of the broker is lost", self.faults):
            self.broker.append(entry)
            result = pulsar.Result.Timeout
        elif strikes("message arrives after its timeout", self.faults):
            self.scheduler.later(lambda: self.broker.append(entry), 3.0)
            result = pulsar.Result.Timeout
        elif not entry.data.startswith(ABORT) and strikes("no answer ever", self.faults / 4):
            self._open += 1
            self.is_lost = True
            return
        else:
            number = self.broker.append(entry)
            if strikes("message is stored twice", self.faults):
                self.scheduler.later(lambda: self.broker.append(entry), self.scheduler.choice((0.0, 0.1)))
        callback(result, _id(number))
        self._note_flushed()

    def _note_flushed(self) -> None:
        while self._flushes and not self._open:
            self._flushes.pop().set_result(None)


def _id(number: int) -> Any:
    return pulsar.MessageId(-1, 1 if number >= 0 else -1, number, -1)._msg_id


def _number(message: Any) -> int:
    """The place in the topic of a message or its id."""
    message_id = message.message_id() if hasattr(message, "message_id") else message
    return int(message_id.entry_id())


def _set(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


@contextlib.contextmanager
def clients() -> Iterator[None]:
    """The wrappers take the clients above as they are, except that no thread waits for a flush."""
    module: Any = _send
    real, module._flush_in_thread = module._flush_in_thread, lambda producer: producer._producer.flush()
    try:
        yield
    finally:
        module._flush_in_thread = real
