"""A model of Pulsar: a topic with subscriptions, acknowledgements and redelivery; and the clients that talk to it.

It does what was measured on a broker of version 4.2 with the client 3.13.
"""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pulsar

from claimcheck.transports.pulsar import _send
from tests.harness.async_clients import SCHEMA, PulsarMessageOf
from tests.simulation import ledger
from tests.simulation.ledger import TOPIC, Group, Ledger, Record
from tests.simulation.scheduler import Patch, Process, settle

DEFINITE = ("ProducerQueueIsFull", "MessageTooBig")


class Message(PulsarMessageOf):
    """A native message."""

    consumer: Any

    def __init__(self, number: int, sent: Any, count: int) -> None:
        super().__init__(number, sent.value, sent.key)
        self._properties, self._count = sent.headers, count

    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    def redelivery_count(self) -> int:
        return self._count


@dataclass(eq=False)
class Subscription(Group):
    """What is acknowledged, and which consumer has what is not."""

    kind: str = "Exclusive"
    acked: set[int] = field(default_factory=set)
    held: dict[int, Any] = field(default_factory=dict)
    delayed: dict[int, Any] = field(default_factory=dict)  # negatively acknowledged, and to be redelivered later
    counts: dict[int, int] = field(default_factory=dict)
    consumers: list[Any] = field(default_factory=list)

    def is_done(self) -> bool:
        return len(self.acked) == len(self.ledger.logs[0])

    def place(self) -> object:
        return sorted(set(range(len(self.ledger.logs[0]))) - self.acked)[:5]

    def next_for(self, consumer: Any) -> int | None:
        """The first message that this consumer gets now."""
        for number, entry in enumerate(self.ledger.logs[0]):
            free = number not in self.acked and number not in self.held and number not in self.delayed
            if free and self._receiver_of(entry) is consumer:
                return number
        return None

    def _receiver_of(self, entry: Record) -> Any:
        if not self.consumers:
            return None
        if self.kind != "KeyShared":
            return self.consumers[0]
        for number, holder in self.held.items():  # messages with one key stay together until all are acknowledged
            if self.ledger.logs[0][number].key == entry.key:
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
        unit = self.ledger.at.get((0, number))
        if unit is not None and number not in self.acked and not self.may_pass(unit):
            text = f"{self.name} acknowledged {number}, a message of {unit}, which no earlier call returned"
            self.ledger.scheduler.violated(text)
        self.acked.add(number)
        self.held.pop(number, None)

    def redeliver(self, number: int) -> None:
        self.delayed.pop(number, None)
        self.counts[number] = self.counts.get(number, 0) + (self.kind == "KeyShared")


class ConsumerClient:
    """A `pulsar.Consumer`, and the inner object of a `pulsar.asyncio.Consumer`."""

    def __init__(self, group: Subscription, process: Process) -> None:
        self.group, self.process, self.scheduler = group, process, process.scheduler
        self._consumer, self._schema = self, SCHEMA
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
        message = Message(number, self.group.ledger.logs[0][number], self.group.counts.get(number, 0))
        message.consumer = self
        return message

    def acknowledge(self, message: Any) -> None:
        self._reach()
        self.group.acknowledge(_number(message))

    def acknowledge_cumulative(self, message: Any) -> None:
        self._reach()
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
        group.delayed.clear()
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
        self.client.scheduler.later(lambda: loop.call_soon(settle, arrived.set_result, taken), 0.01)
        return await arrived

    async def close(self) -> None:
        self.client.close()


class ProducerClient(ledger.ProducerClient):
    """The inner object of a `pulsar.Producer`."""

    may_hang = True

    def __init__(self, ledger: Ledger, process: Process) -> None:
        super().__init__(ledger, process)
        self._flushes: list[Future[None]] = []

    def wrapped(self) -> Any:
        """The `pulsar.Producer` that has this object inside."""
        producer: Any = pulsar.Producer()
        producer._producer, producer._schema, producer._client = self, SCHEMA, None
        return producer

    def send_async(self, message: Any, callback: Any) -> None:
        self.reach(message.data())
        if self.scheduler.strikes("queue is full", self.faults):
            callback(pulsar.Result.ProducerQueueIsFull, _id(-1))
            return
        headers = dict(message.properties())
        self.take(Record(self.owner, message.data(), message.partition_key(), headers, callback=callback))

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

    def answer(self, record: Record, result: str, position: int) -> None:
        self.open -= 1
        results = {"ok": pulsar.Result.Ok, "refused": pulsar.Result.MessageTooBig, "timeout": pulsar.Result.Timeout}
        record.callback(results[result], _id(position))
        self._note_flushed()

    def _note_flushed(self) -> None:
        while self._flushes and not self.open:
            self._flushes.pop().set_result(None)


def _id(number: int) -> Any:
    return pulsar.MessageId(-1, 1 if number >= 0 else -1, number, -1)._msg_id


def _number(message: Any) -> int:
    """The place in the topic of a message or its id."""
    message_id = message.message_id() if hasattr(message, "message_id") else message
    return int(message_id.entry_id())


CLIENTS: list[Patch] = [(_send, "_flush_in_thread", lambda producer: producer._producer.flush())]
"""The wrappers take the clients above as they are, except that no thread waits for a flush."""
