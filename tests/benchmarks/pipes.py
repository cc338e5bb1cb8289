"""A producer and a consumer of one topic, native or wrapped, with the calls that the rows of Kafka and Pulsar time."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import claimcheck
from tests.benchmarks.lab import KAFKA_MAX_MESSAGE_BYTES, Lab

WAIT_SECONDS = 60.0
_UNLIMITED = {"message.max.bytes": KAFKA_MAX_MESSAGE_BYTES}
# One payload at a time: nobody waits for company, and a partition's chunks are fetched several at once.
_LARGE_SENT, _LARGE_READ = {"linger.ms": 0}, {"max.partition.fetch.bytes": 16 << 20}
_READ_WHOLE = {**_UNLIMITED, "receive.message.max.bytes": KAFKA_MAX_MESSAGE_BYTES + (1 << 20)}
# What the consumer of the round before asked for is answered soon, not when a record comes; else the next would wait.
_READ = {"fetch.wait.max.ms": 10, "enable.auto.commit": False, "enable.auto.offset.store": False}


class KafkaPipe:
    """Clients with defaults, but for what whole records and large payloads need."""

    def __init__(
        self, servers: str, topic: str, cc: claimcheck.ClaimCheck | None = None, *, large: bool = False
    ) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        where: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 3}
        whole = large and cc is None
        self.topic = topic
        self._begin = [TopicPartition(topic, 0, 0)]
        sent = {"enable.idempotence": True, **(_UNLIMITED if whole else {}), **(_LARGE_SENT if large else {})}
        read = {"group.id": topic, **_READ, **(_READ_WHOLE if whole else {}), **(_LARGE_READ if large else {})}
        self.producer: Any = Producer({**where, **sent})
        self.consumer: Any = Consumer({**where, **read})
        if cc is not None:
            from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer

            self.producer = KafkaProducer(self.producer, cc)
            self.consumer = KafkaConsumer(self.consumer, cc)

    def send(self, payload: bytes, count: int = 1) -> None:
        """Hand all to the client, and wait for none."""
        produce, topic = self.producer.produce, self.topic
        for _ in range(count):
            produce(topic, payload)

    def stream(self, payload: bytes, count: int) -> None:
        """Send as a program does that goes on and on, and wait for all."""
        produce, poll, topic = self.producer.produce, self.producer.poll, self.topic
        for _ in range(count):
            produce(topic, payload)
            poll(0)
        self.flush()

    def deliver(self, payload: bytes) -> None:
        """Send one, and wait for it."""
        self.producer.produce(self.topic, payload)
        self.flush()

    def flush(self) -> None:
        self.producer.flush()

    def read(self, count: int, at_once: int = 0) -> None:
        """Take the first records of the topic, each with its value."""
        self.consumer.assign(self._begin)
        self.take(count, at_once)

    def fill(self) -> None:
        """Have the topic's records at the consumer, or nearly so, before it asks; the first shows that they come."""
        self.read(1)
        _quiet()

    def take(self, count: int, at_once: int = 0) -> None:
        if at_once:
            consume = self.consumer.consume
            for _ in range(count // at_once):
                for message in consume(at_once, WAIT_SECONDS):
                    message.value()
            return
        poll = self.consumer.poll
        for _ in range(count):
            poll(WAIT_SECONDS).value()

    def rest(self) -> None:
        self.consumer.unassign()
        time.sleep(0.03)

    def close(self) -> None:
        self.flush()
        self.consumer.close()


@contextlib.contextmanager
def kafka_pipes(lab: Lab, *wrapped: claimcheck.ClaimCheck | None, large: bool = False) -> Iterator[list[KafkaPipe]]:
    """Open pipes, each with a topic of its own, which is removed afterwards with all that it holds."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": lab.kafka})
    topics = [f"bench-{uuid.uuid4().hex}" for _ in wrapped]
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result()
    opened = [KafkaPipe(lab.kafka, topic, cc, large=large) for topic, cc in zip(topics, wrapped, strict=True)]
    try:
        yield opened
    finally:
        for pipe in opened:
            pipe.close()
        for gone in admin.delete_topics(topics).values():
            gone.result()


def _quiet() -> None:
    """Wait until the clients' own threads have nothing to do, for a while at most."""
    for _ in range(100):
        before = time.process_time()
        time.sleep(0.05)
        if time.process_time() - before < 0.003:
            return


class PulsarPipe:
    """Clients with these options; a context manager that closes them."""

    def __init__(
        self,
        client: Any,
        cc: claimcheck.ClaimCheck | None = None,
        *,
        topic: str = "",
        sent: dict[str, Any] | None = None,
        read: dict[str, Any] | None = None,
    ) -> None:
        topic = topic or f"bench-{uuid.uuid4().hex}"
        self.consumer = client.subscribe(topic, "s", **(read or {}))
        self.producer = client.create_producer(topic, **(sent or {}))
        if cc is not None:
            from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer

            self.consumer, self.producer = PulsarConsumer(self.consumer, cc), PulsarProducer(self.producer, cc)

    def __enter__(self) -> PulsarPipe:
        return self

    def __exit__(self, *exc: object) -> None:
        self.producer.close()
        self.consumer.close()

    def send(self, payload: bytes, count: int = 1) -> None:
        """Hand all to the client, and wait for none."""
        send = self.producer.send_async
        for _ in range(count):
            send(payload, _nothing)

    def empty(self, count: int) -> None:
        self.producer.flush()
        self.receive(count)

    def fill(self, payload: bytes, count: int) -> None:
        """Have them at the consumer, or nearly so, before it asks: one more than are asked for shows that they come."""
        self.send(payload, count + 1)
        self.empty(1)

    def receive(self, count: int = 1) -> None:
        receive, acknowledge = self.consumer.receive, self.consumer.acknowledge
        for _ in range(count):
            message = receive()
            message.data()
            acknowledge(message)

    def through(self, payload: bytes) -> None:
        """Send one, and receive it in another thread, while its messages still arrive."""
        with ThreadPoolExecutor(1) as thread:
            received = thread.submit(self.receive)
            self.producer.send(payload)
            received.result()


def _nothing(result: Any, message_id: Any) -> None:
    """Nobody wants to know."""
