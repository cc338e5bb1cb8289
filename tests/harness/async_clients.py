"""Scripted clients of `confluent_kafka.aio` and `pulsar.asyncio`, which answer from threads of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as kafka
import pulsar
import pulsar.asyncio

from claimcheck.transports.kafka import _asyncio, _client
from tests.simulation.scheduler import Patch, settle

TOPIC = "t"
SCHEMA = pulsar.schema.BytesSchema()

# Kafka -----------------------------------------------------------------------------------------------------------


class KafkaProducerClient:
    """Has a report for each record at the next `poll` or `flush`."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._open: deque[tuple[Any, Any]] = deque()
        self._lock = threading.Lock()
        self.closed = False

    def produce(self, topic: str, value: Any, key: Any = None, partition: int = -1, **options: Any) -> None:
        if self.closed:
            raise RuntimeError("Producer closed")
        with self._lock:
            report = kafka.Message(topic=topic, partition=0, offset=len(self.sent), value=value, timestamp=(1, 1))
            self.sent.append(value)
            self._open.append((options["on_delivery"], report))

    def poll(self, timeout: float = -1) -> int:
        served = 0
        while self._open:
            callback, report = self._open.popleft()
            if callback is not None:
                callback(None, report)
            served += 1
        return served

    def flush(self, timeout: float = -1) -> int:
        self.poll()
        return 0

    def close(self) -> None:
        self.closed = True

    def __len__(self) -> int:
        return len(self._open)


class AioClient:
    """What `AIOProducer` and `AIOConsumer` share: calls run in threads; `close` closes the client and ends them."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.executor = concurrent.futures.ThreadPoolExecutor(4, thread_name_prefix="scripted-client")

    async def _call(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work, *args)

    async def close(self) -> None:
        await self._call(self.client.close)
        self.executor.shutdown(wait=False)


class KafkaConsumerClient:
    """Returns its records one after the other; notices calls at the same time, which the client does not allow."""

    def __init__(self, values: list[bytes]) -> None:
        self._values, self._at = values, 0
        self._pending: Callable[..., None] | None = None
        self._busy, self.clashes, self.closed = threading.Lock(), 0, False

    def subscribe(self, topics: list[str], on_assign: Any, **_: Any) -> None:
        self._pending = on_assign

    def incremental_assign(self, partitions: list[Any]) -> None:
        pass

    def store_offsets(self, offsets: list[Any]) -> None:
        pass

    def committed(self, partitions: list[Any], timeout: float = -1) -> list[Any]:
        return [kafka.TopicPartition(TOPIC, 0, kafka.OFFSET_INVALID)]

    def poll(self, timeout: float = -1) -> Any:
        return next(iter(self.consume(1, timeout)), None)

    def consume(self, count: int = 1, timeout: float = -1) -> list[Any]:
        with self._alone():
            if self.closed:
                raise RuntimeError("Consumer closed")
            if self._pending is not None:
                self._pending(self, [kafka.TopicPartition(TOPIC, 0)])
                self._pending = None
            begin, self._at = self._at, min(len(self._values), self._at + count)
            return [
                kafka.Message(topic=TOPIC, partition=0, offset=offset, value=self._values[offset], timestamp=(1, 1))
                for offset in range(begin, self._at)
            ]

    def close(self) -> None:
        with self._alone():
            self.closed = True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        free = self._busy.acquire(blocking=False)
        self.clashes += not free
        try:
            yield
        finally:
            if free:
                self._busy.release()


def kafka_clients(consumer: type, producer: type) -> list[Patch]:
    """What lets the wrappers take clients of other classes."""
    client = types.SimpleNamespace(**{**vars(kafka), "Consumer": consumer, "Producer": producer})
    return [(_client, "vendor", lambda: client), (_asyncio, "native_client", lambda wrapper, kind: wrapper.client)]


# Pulsar ----------------------------------------------------------------------------------------------------------


class PulsarInner:
    """The inner object of a consumer, reader or producer; answers in a thread, as the client does."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages, self.sent = deque(messages), list[bytes]()
        self._consumer, self._schema = None, SCHEMA
        self.executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="scripted-client")
        self.closed = False

    def send_async(self, message: Any, callback: Callable[[Any, Any], None]) -> None:
        self.sent.append(message.data())
        self.executor.submit(callback, pulsar.Result.Ok, pulsar.MessageId(-1, 1, len(self.sent), -1)._msg_id)

    def topic(self) -> str:
        return TOPIC

    def producer_name(self) -> str:
        return "scripted"

    subscription_name = consumer_name = producer_name

    def flush(self) -> None:
        self.executor.submit(int).result()

    def close(self) -> None:
        self.closed = True
        self.executor.shutdown(wait=False)

    def acknowledge(self, message_id: Any) -> None:
        pass

    def receive(self, timeout_millis: int | None = None) -> Any:
        if not self.messages:
            raise pulsar.Timeout("nothing more")
        return self.messages.popleft()

    def batch_receive(self) -> list[Any]:
        return [self.messages.popleft() for _ in range(len(self.messages))]


class PulsarReceiverClient:
    """A `pulsar.asyncio` consumer or reader with messages; a cancelled receive loses its message, as in the client."""

    def __init__(self, messages: list[Any]) -> None:
        self._consumer = self._reader = PulsarInner(messages)
        self._schema = SCHEMA

    async def receive(self) -> Any:
        loop = asyncio.get_running_loop()
        if not self._consumer.messages:
            await loop.create_future()  # nothing comes any more
        message: asyncio.Future[Any] = loop.create_future()
        taken = self._consumer.messages.popleft()
        self._consumer.executor.submit(loop.call_soon_threadsafe, settle, message.set_result, taken)
        return await message

    read_next = receive

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._consumer.close)


class PulsarMessageOf:
    """A native message of a topic."""

    def __init__(self, number: int, data: bytes, key: str = "") -> None:
        self._message = pulsar._pulsar.MessageBuilder().content(data).build()
        self._schema, self._id = SCHEMA, pulsar.MessageId(-1, 1, number, -1)
        self._data, self._key = data, key

    def data(self) -> bytes:
        return self._data

    def message_id(self) -> Any:
        return self._id

    def properties(self) -> dict[str, str]:
        return {}

    def topic_name(self) -> str:
        return TOPIC

    def partition_key(self) -> str:
        return self._key

    def ordering_key(self) -> str:
        return ""

    def schema_version(self) -> bytes:
        return b""

    producer_name = ordering_key

    def redelivery_count(self) -> int:
        return 0

    publish_timestamp = event_timestamp = redelivery_count

    def has_null_value(self) -> bool:
        return False


def pulsar_messages(values: list[bytes]) -> list[PulsarMessageOf]:
    """Return native messages."""
    return [PulsarMessageOf(number, value) for number, value in enumerate(values)]
