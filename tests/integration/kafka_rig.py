"""What the tests against a real Kafka share: a topic of their own, and whatever is wrapped on it."""

from __future__ import annotations

import contextlib
import logging
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, NewTopic

import claimcheck
from claimcheck._envelope import encode_chunk
from claimcheck.testing import FaultyStore
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer

LIMIT = 10_000
"""What the producers of the tests take in one record: so little that small payloads make many chunks."""

STRATEGIES = ("external", "chunking")
WITHIN_SECONDS = 30.0

SENT_AT = int(time.time() * 1000) - 60_000
"""A time that a record may say, not so long ago that retention would remove it at once."""

_quiet = logging.getLogger("kafka-client-of-tests")
_quiet.setLevel(logging.CRITICAL + 1)


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that are the same each time, and different for each seed."""
    return random.Random(f"{size} {seed}").randbytes(size)


def chunks_of(payload: bytes, count: int, identity: str | None = None) -> list[bytes]:
    """The published format, and nothing else: a payload in so many chunks."""
    size, identity = -(-len(payload) // count), identity or str(uuid.uuid4())
    return [encode_chunk(identity, n, count, payload[n * size : (n + 1) * size]) for n in range(count)]


class Clock:
    """The time, which a test can move forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Rig:
    """One topic, and whatever is wrapped on it; closed at the end."""

    def __init__(self, bootstrap_servers: str, topic: str, stack: contextlib.ExitStack) -> None:
        self.topic, self.group, self._stack = topic, f"group-{topic}", stack
        self.servers: dict[str, Any] = {"bootstrap.servers": bootstrap_servers}
        self.admin = AdminClient(self.servers, logger=_quiet)
        self.cc = self.claimcheck("external")

    def claimcheck(self, strategy: str, **more: Any) -> claimcheck.ClaimCheck:
        """A configuration; pointers of all of them lead to the same store."""
        stores = {"m": {"type": "memory", "space": self.topic}}
        return self._stack.enter_context(claimcheck.from_dict({"strategy": strategy, "stores": stores, **more}))

    def create(self, partitions: int = 1, name: str | None = None, **config: Any) -> str:
        """Create a topic, by default the rig's own."""
        name = name or self.topic
        told = {key.replace("_", "."): str(value) for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=told)])[name].result()
        return name

    def native(self, **conf: Any) -> Any:
        """The client's own producer, with a small limit."""
        named = {key.replace("_", "."): value for key, value in conf.items()}
        return kafka.Producer({**self.servers, "message.max.bytes": LIMIT, "linger.ms": 0, **named}, logger=_quiet)

    def producer(self, strategy: Any = "external", *, wrap: dict[str, Any] | None = None, **conf: Any) -> KafkaProducer:
        """A wrapped producer; the rest goes to the client."""
        cc = strategy if isinstance(strategy, claimcheck.ClaimCheck) else self.claimcheck(strategy)
        limit = conf.get("message_max_bytes", LIMIT)
        made = KafkaProducer(self.native(**conf), cc, **{"max_message_bytes": limit, **(wrap or {})})
        self._stack.callback(_quietly, made.close)
        return made

    def native_consumer(self, group: str | None = None, **conf: Any) -> Any:
        """The client's own consumer, from the beginning of the topic on."""
        named = {key.replace("_", "."): value for key, value in conf.items()}
        options = {"auto.offset.reset": "earliest", "enable.auto.offset.store": False, "enable.auto.commit": False}
        return kafka.Consumer({**self.servers, "group.id": group or self.group, **options, **named}, logger=_quiet)

    def consumer(
        self,
        *topics: str,
        group: str | None = None,
        cc: Any = None,
        wrap: dict[str, Any] | None = None,
        subscribe: bool = True,
        **conf: Any,
    ) -> KafkaConsumer:
        """A wrapped consumer, subscribed to topics, by default to the rig's own."""
        made = KafkaConsumer(self.native_consumer(group, **conf), cc or self.cc, **(wrap or {}))
        self._stack.callback(_quietly, made.close)
        if subscribe:
            made.subscribe(list(topics) or [self.topic])
        return made

    def send_raw(self, *values: bytes | None, partition: int = 0, **arguments: Any) -> list[int]:
        """Send records as they are, and give their offsets."""
        offsets: list[int] = []
        native = self.native(message_max_bytes=2_000_000)
        for value in values:
            native.produce(
                self.topic, value, partition=partition, on_delivery=lambda _, m: offsets.append(m.offset()), **arguments
            )
        assert native.flush(WITHIN_SECONDS) == 0
        return offsets

    def remove_below(self, offset: int, partition: int = 0) -> None:
        """Do what retention does: remove all records below an offset."""
        at = kafka.TopicPartition(self.topic, partition, offset)
        self.admin.delete_records([at])[at].result()

    def end(self, partition: int = 0) -> int:
        """The offset behind the last record."""
        consumer = self.native_consumer()
        try:
            return int(consumer.get_watermark_offsets(kafka.TopicPartition(self.topic, partition), WITHIN_SECONDS)[1])
        finally:
            consumer.close()

    def commit(self, offset: int, partition: int = 0) -> None:
        """Commit an offset of the group, which nobody is a member of."""
        consumer = self.native_consumer()
        try:
            consumer.commit(offsets=[kafka.TopicPartition(self.topic, partition, offset)], asynchronous=False)
        finally:
            consumer.close()

    def committed(self, partition: int = 0, group: str | None = None) -> Any:
        """What the group has committed of one partition."""
        consumer = self.native_consumer(group)
        try:
            return consumer.committed([kafka.TopicPartition(self.topic, partition)], timeout=WITHIN_SECONDS)[0]
        finally:
            consumer.close()


@contextlib.contextmanager
def rig(broker: Any, topic: str, partitions: int = 1) -> Iterator[Rig]:
    """A topic to work on; 0 partitions for one that is still to be created."""
    with contextlib.ExitStack() as stack:
        lab = Rig(broker.bootstrap_servers, topic, stack)
        if partitions:
            lab.create(partitions)
        yield lab


def unavailable(lab: Rig) -> FaultyStore:
    """Send one stored payload, of ``content(3 * LIMIT)``, whose store cannot be read until it heals."""
    store = FaultyStore(store={"type": "memory"})
    store.context = lab.cc.store("m").context
    lab.cc._open.stores["m"] = store
    producer = lab.producer(lab.cc)
    producer.produce(lab.topic, content(3 * LIMIT))
    assert producer.flush(WITHIN_SECONDS) == 0
    store.fail("read")
    return store


def receive(consumer: Any, count: int, within: float = WITHIN_SECONDS) -> list[Any]:
    """So many messages, or fewer if they do not come."""
    found: list[Any] = []
    end = time.monotonic() + within
    while len(found) < count and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message)
    return found


def values(messages: list[Any]) -> list[Any]:
    """What is in them."""
    return [message.value() for message in messages]


def nothing_comes(consumer: Any, seconds: float = 1.0) -> bool:
    """Whether there is nothing more."""
    return not receive(consumer, 1, seconds)


def _quietly(close: Any) -> None:
    with contextlib.suppress(Exception):
        close()
