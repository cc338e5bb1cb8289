"""A producer and a consumer of one Kafka topic, native or wrapped, with what a round of a benchmark does to them."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import claimcheck
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer
from tests.benchmarks.compare.kafka import FETCH_BYTES
from tests.benchmarks.lab import KAFKA_MAX_MESSAGE_BYTES, Lab

WAIT_SECONDS = 60.0
_WHOLE = {"message.max.bytes": KAFKA_MAX_MESSAGE_BYTES}
# One payload at a time: nobody waits for company, and a partition's chunks are fetched several at once.
_LARGE_SENT, _LARGE_READ = {"linger.ms": 0}, {"max.partition.fetch.bytes": FETCH_BYTES}
_READ_WHOLE = {**_WHOLE, "receive.message.max.bytes": KAFKA_MAX_MESSAGE_BYTES + (1 << 20)}
# What the consumer of the round before asked for is answered soon, not when a record comes; else the next would wait.
_READ = {"fetch.wait.max.ms": 10, "enable.auto.commit": False, "enable.auto.offset.store": False}


class Pipe:
    """One topic of one partition; clients have their defaults, but for what whole records need.

    Args:
        servers: Where the broker is.
        topic: There already.
        cc: To wrap with; without one the clients stay native.
        whole: Whether they take records of any size.
        large: Whether they are there for one large payload at a time.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        cc: claimcheck.ClaimCheck | None = None,
        *,
        whole: bool = False,
        large: bool = False,
    ) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        where: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 3}
        self.topic = topic
        self._begin = [TopicPartition(topic, 0, 0)]
        sent = {"enable.idempotence": True, **(_WHOLE if whole else {}), **(_LARGE_SENT if large else {})}
        read = {"group.id": topic, **_READ, **(_READ_WHOLE if whole else {}), **(_LARGE_READ if large else {})}
        self.producer: Any = Producer({**where, **sent})
        self.consumer: Any = Consumer({**where, **read})
        if cc is not None:
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
        """Wait until all landed."""
        self.producer.flush()

    def rewind(self) -> None:
        """Go to the first record of the topic."""
        self.consumer.assign(self._begin)

    def read(self, count: int) -> None:
        """Take the first records of the topic, each with its value."""
        self.rewind()
        self.take(count)

    def read_many(self, count: int, at_once: int) -> None:
        """Do the same, several at once."""
        self.rewind()
        self.take_many(count, at_once)

    def fill(self) -> None:
        """Have the topic's records at the consumer, or nearly so, before it asks; the first shows that they come."""
        self.rewind()
        self.take(1)
        _quiet()

    def take(self, count: int) -> None:
        """Take what is there, one by one."""
        poll = self.consumer.poll
        for _ in range(count):
            poll(WAIT_SECONDS).value()

    def take_many(self, count: int, at_once: int) -> None:
        """Take what is there, several at once."""
        consume = self.consumer.consume
        for _ in range(count // at_once):
            for message in consume(at_once, WAIT_SECONDS):
                message.value()

    def rest(self) -> None:
        """Ask for nothing more."""
        self.consumer.unassign()
        time.sleep(0.03)

    def close(self) -> None:
        """Close both."""
        self.flush()
        self.consumer.close()


@contextlib.contextmanager
def pipes(lab: Lab, *wrapped: claimcheck.ClaimCheck | None, whole: bool = False) -> Iterator[list[Pipe]]:
    """Open pipes, each with a topic of its own, which is removed afterwards with all that it holds."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": lab.kafka})
    topics = [f"bench-{uuid.uuid4().hex}" for _ in wrapped]
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result()
    opened = [
        Pipe(lab.kafka, topic, cc, whole=whole and cc is None, large=whole)
        for topic, cc in zip(topics, wrapped, strict=True)
    ]
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
