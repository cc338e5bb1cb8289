"""A model of Pulsar: a topic with subscriptions, acknowledgements and redelivery; and the clients that talk to it.

It does what was measured on a broker of version 4.2 with the client 3.13.
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from typing import Any

import pulsar
import pulsar.asyncio

from tests.harness import topic
from tests.harness.scheduler import Process, settle
from tests.harness.topic import TOPIC, Record, Topic

SCHEMA = pulsar.schema.BytesSchema()


class Message:
    """A native message."""

    consumer: Any = None

    def __init__(self, number: int, sent: Record, count: int = 0) -> None:
        self._message = pulsar._pulsar.MessageBuilder().content(sent.value).build()
        self._schema, self._id = SCHEMA, pulsar.MessageId(-1, 1, number, -1)
        self._sent, self._count = sent, count

    def data(self) -> bytes:
        return self._sent.value

    def message_id(self) -> Any:
        return self._id

    def properties(self) -> dict[str, str]:
        return dict(self._sent.headers or {})

    def partition_key(self) -> str:
        return self._sent.key or ""

    def redelivery_count(self) -> int:
        return self._count

    def topic_name(self) -> str:
        return TOPIC

    def ordering_key(self) -> str:
        return ""

    def schema_version(self) -> bytes:
        return b""

    producer_name = ordering_key

    def publish_timestamp(self) -> int:
        return 0

    event_timestamp = publish_timestamp

    def has_null_value(self) -> bool:
        return False


class Subscription:
    """What is acknowledged, and which consumer has what is not."""

    def __init__(self, name: str, log: Topic, kind: str = "Exclusive") -> None:
        self.name, self.log, self.kind = name, log, kind
        self.acked: set[int] = set()
        self.held: dict[int, ConsumerClient] = {}
        self.delayed: dict[int, ConsumerClient] = {}  # negatively acknowledged, and to be redelivered later
        self.counts: dict[int, int] = {}
        self.consumers: list[ConsumerClient] = []
        self.is_orderly = True  # nothing happened that may deliver a message twice

    def next_for(self, consumer: Any) -> int | None:
        """The first message that this consumer gets now."""
        for number, entry in enumerate(self.log.logs[0]):
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
            if self.log.logs[0][number].key == entry.key:
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
        self.acked.add(number)
        self.held.pop(number, None)

    def redeliver(self, number: int) -> None:
        self.delayed.pop(number, None)
        self.counts[number] = self.counts.get(number, 0) + (self.kind == "KeyShared")


class ConsumerClient:
    """A `pulsar.Consumer`, and the inner object of a `pulsar.asyncio.Consumer`."""

    def __init__(self, group: Subscription, process: Process) -> None:
        self.group, self.process, self.scheduler = group, process, process.scheduler
        self._consumer, self._schema, self.closed = self, SCHEMA, False
        group.consumers.append(self)
        self.redelivery_seconds = self.scheduler.choice((1.0, 10.0, 60.0))

    def receive(self, timeout_millis: int | None = None) -> Message:
        self.process.reach()
        seconds = 1e6 if timeout_millis is None else max(0.001, timeout_millis / 1000)
        if not self.scheduler.wait(lambda: self.group.next_for(self) is not None, seconds):
            raise pulsar.Timeout("simulated")
        self.process.check()
        return self.take()

    def batch_receive(self) -> list[Message]:
        self.process.reach()
        return [self.take() for _ in self.group.log.logs[0] if self.group.next_for(self) is not None]

    def take(self) -> Message:
        number = self.group.next_for(self)
        assert number is not None
        self.group.held[number] = self
        self.scheduler.now += 0.001
        message = Message(number, self.group.log.logs[0][number], self.group.counts.get(number, 0))
        message.consumer = self
        return message

    def acknowledge(self, message: Any) -> None:
        self.process.reach()
        self.group.acknowledge(_number(message))

    def acknowledge_cumulative(self, message: Any) -> None:
        self.process.reach()
        for number in range(_number(message) + 1):
            if number not in self.group.acked:
                self.group.acknowledge(number)

    def negative_acknowledge(self, message: Any) -> None:
        self.process.reach()
        group, number = self.group, _number(message)
        if number not in group.acked and group.held.get(number) is self:
            del group.held[number]
            group.delayed[number] = self
            group.is_orderly = False
            self.scheduler.spawn(lambda: group.redeliver(number), None, self.redelivery_seconds)

    def redeliver_unacknowledged_messages(self) -> None:
        self.group.release(self)

    def seek(self, target: Any) -> None:
        self.process.reach()
        group, number = self.group, _number(target)
        group.held.clear()
        group.delayed.clear()
        group.is_orderly = False
        group.acked = set(range(number + 1))

    def close(self) -> None:
        self.process.check()
        self.closed = True
        self.leave()

    def leave(self) -> None:
        if self in self.group.consumers:
            self.group.consumers.remove(self)
        self.group.release(self)

    def topic(self) -> str:
        return TOPIC

    def subscription_name(self) -> str:
        return self.group.name


class AsyncConsumerClient:
    """A `pulsar.asyncio` consumer or reader; like that, it loses a message if its ``receive`` is cancelled."""

    def __init__(self, client: ConsumerClient) -> None:
        self._consumer = self._reader = client
        self._schema = client._schema

    async def receive(self) -> Message:
        client, loop = self._consumer, asyncio.get_running_loop()
        while client.group.next_for(client) is None:
            await asyncio.sleep(0.2)
        client.process.check()
        arrived: asyncio.Future[Message] = loop.create_future()
        arrive = functools.partial(loop.call_soon, settle, arrived.set_result, client.take())
        client.scheduler.spawn(arrive, None, 0.01)
        return await arrived

    read_next = receive

    async def close(self) -> None:
        self._consumer.close()


class ProducerClient(topic.ProducerClient):
    """The inner object of a `pulsar.Producer`."""

    may_hang = True

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
        self.take(Record(message.data(), message.partition_key(), dict(message.properties()), callback=callback))

    def flush(self) -> None:
        self.process.check()
        self.scheduler.wait(lambda: not self.open)

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


def _id(number: int) -> Any:
    return pulsar.MessageId(-1, 1 if number >= 0 else -1, number, -1)._msg_id


def _number(message: Any) -> int:
    """The place in the topic of a message or its id."""
    message_id = message.message_id() if hasattr(message, "message_id") else message
    return int(message_id.entry_id())
