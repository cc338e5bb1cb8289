"""Helpers for the tests against a real Kafka: a topic for each test, with producers and consumers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AclBinding, AclPermissionType, AdminClient, NewTopic, ResourcePatternType
from confluent_kafka.aio import AIOConsumer, AIOProducer

import claimcheck
from claimcheck.stores import memory
from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer, KafkaConsumer, KafkaProducer
from tests.kit.transport_harness import chunks_of as chunks_of
from tests.kit.transport_harness import content as content
from tests.real.kafka_broker import KafkaBroker
from tests.real.process import wait_until

LIMIT = 10_000
"""Maximum record size of the tests' producers: so small that small payloads are sent as many chunks."""

STRATEGIES = ("external", "chunking")
WITHIN_SECONDS = 30.0

_quiet = logging.getLogger("kafka-client-of-tests")
_quiet.setLevel(logging.CRITICAL + 1)


class Rig:
    """One topic with producers and consumers, which are closed at the end."""

    def __init__(self, bootstrap_servers: str, topic: str, stack: contextlib.ExitStack) -> None:
        self.topic, self.group, self._stack = topic, f"group-{topic}", stack
        self.servers: dict[str, Any] = {"bootstrap.servers": bootstrap_servers}
        self.admin = AdminClient(self.servers, logger=_quiet)
        self.cc = self.claimcheck("external")

    def claimcheck(self, strategy: str, **more: Any) -> claimcheck.ClaimCheck:
        """Return a `ClaimCheck`; all of them share one store."""
        stores = {"m": {"type": "memory", "space": self.topic}}
        return self._stack.enter_context(claimcheck.from_dict({"strategy": strategy, "stores": stores, **more}))

    def create(self, partitions: int = 1, name: str | None = None, **config: Any) -> str:
        """Create a topic, by default the rig's own."""
        name = name or self.topic
        named = {key.replace("_", "."): str(value) for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=named)])[name].result()
        wait_until(lambda: name in self.admin.list_topics(timeout=10).topics, "the broker knows the topic")
        return name

    def native(self, **conf: Any) -> Any:
        """Return a native producer with a small limit."""
        named = {key.replace("_", "."): value for key, value in conf.items()}
        return kafka.Producer({**self.servers, "message.max.bytes": LIMIT, "linger.ms": 0, **named}, logger=_quiet)

    def producer(self, strategy: Any = "external", *, wrap: dict[str, Any] | None = None, **conf: Any) -> KafkaProducer:
        """Return a wrapped producer; ``conf`` configures the client."""
        cc = strategy if isinstance(strategy, claimcheck.ClaimCheck) else self.claimcheck(strategy)
        limit = conf.get("message_max_bytes", LIMIT)
        made = KafkaProducer(self.native(**conf), cc, **{"max_message_bytes": limit, **(wrap or {})})
        self._stack.callback(_quietly, made.close)
        return made

    def native_consumer(self, group: str | None = None, **conf: Any) -> Any:
        """Return a native consumer that starts at the beginning of the topic."""
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
        """Return a wrapped consumer, subscribed to topics, by default to the rig's own."""
        made = KafkaConsumer(self.native_consumer(group, **conf), cc or self.cc, **(wrap or {}))
        self._stack.callback(_quietly, made.close)
        if subscribe:
            made.subscribe(list(topics) or [self.topic])
        return made

    def send_raw(self, *values: bytes | None, partition: int = 0, **arguments: Any) -> list[int]:
        """Send records unchanged; returns their offsets."""
        offsets: list[int] = []
        native = self.native(message_max_bytes=2_000_000)
        for value in values:
            native.produce(
                self.topic, value, partition=partition, on_delivery=lambda _, m: offsets.append(m.offset()), **arguments
            )
        assert native.flush(WITHIN_SECONDS) == 0
        return offsets

    def remove_below(self, offset: int, partition: int = 0) -> None:
        """Remove all records below an offset, as retention does."""
        at = kafka.TopicPartition(self.topic, partition, offset)
        self.admin.delete_records([at])[at].result()

    def end(self, partition: int = 0) -> int:
        """Return the offset after the last record."""
        consumer = self.native_consumer()
        try:
            return int(consumer.get_watermark_offsets(kafka.TopicPartition(self.topic, partition), WITHIN_SECONDS)[1])
        finally:
            consumer.close()

    def commit(self, offset: int, partition: int = 0) -> None:
        """Commit an offset for the group, which must have no members."""
        consumer = self.native_consumer()
        try:
            consumer.commit(offsets=[kafka.TopicPartition(self.topic, partition, offset)], asynchronous=False)
        finally:
            consumer.close()

    def committed(self, partition: int = 0, group: str | None = None) -> Any:
        """Return the group's committed offset of one partition."""
        consumer = self.native_consumer(group)
        try:
            return consumer.committed([kafka.TopicPartition(self.topic, partition)], timeout=WITHIN_SECONDS)[0]
        finally:
            consumer.close()


@contextlib.contextmanager
def rig(broker: Any, topic: str, partitions: int = 1) -> Iterator[Rig]:
    """Create a topic; with 0 partitions the test creates it."""
    with contextlib.ExitStack() as stack:
        lab = Rig(broker.bootstrap_servers, topic, stack)
        if partitions:
            lab.create(partitions)
        yield lab


def receive(consumer: Any, count: int, within: float = WITHIN_SECONDS) -> list[Any]:
    """Return ``count`` messages, or fewer on time-out."""
    messages: list[Any] = []
    end = time.monotonic() + within
    while len(messages) < count and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def values(messages: list[Any]) -> list[Any]:
    """Return the values of messages."""
    return [message.value() for message in messages]


def nothing_comes(consumer: Any, seconds: float = 1.0) -> bool:
    """Whether no message arrives in time."""
    return not receive(consumer, 1, seconds)


def _quietly(close: Any) -> None:
    with contextlib.suppress(Exception):
        close()


# With asyncio --------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def producing(lab: Rig, **conf: Any) -> AsyncIterator[AsyncKafkaProducer]:
    """A wrapped producer, closed at the end; its native buffer is disabled, because it would never be flushed."""
    named = {key.replace("_", "."): value for key, value in conf.items()}
    options = {**lab.servers, "message.max.bytes": LIMIT, "logger": _quiet, **named}
    native = AIOProducer(options, buffer_timeout=0)
    async with AsyncKafkaProducer(native, lab.claimcheck("external"), max_message_bytes=LIMIT) as made:
        yield made


@contextlib.asynccontextmanager
async def consuming(
    lab: Rig,
    *,
    cc: Any = None,
    wrap: dict[str, Any] | None = None,
    callbacks: dict[str, Any] | None = None,
    **conf: Any,
) -> AsyncIterator[AsyncKafkaConsumer]:
    """A wrapped consumer that is subscribed to the rig's topic; closed at the end."""
    named = {key.replace("_", "."): value for key, value in conf.items()}
    options = {"auto.offset.reset": "earliest", "enable.auto.offset.store": False, "enable.auto.commit": False}
    native = AIOConsumer({**lab.servers, "group.id": lab.group, "logger": _quiet, **options, **named})
    async with AsyncKafkaConsumer(native, cc or lab.cc, **(wrap or {})) as made:
        await made.subscribe([lab.topic], **(callbacks or {}))
        yield made


def on_a_loop(test: Any) -> Any:
    """Make a test of a coroutine function; what waits for ever is an error."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 2 * WITHIN_SECONDS))

    return run


async def soon(awaitable: Any) -> Any:
    """Return the result; raises `TimeoutError` instead of waiting forever."""
    return await asyncio.wait_for(awaitable, WITHIN_SECONDS)


async def send(producer: AsyncKafkaProducer, topic: str, value: Any, **arguments: Any) -> Any:
    """Send a payload and wait for its report."""
    return await soon(await soon(producer.produce(topic, value, **arguments)))


async def poll(consumer: AsyncKafkaConsumer, count: int) -> list[Any]:
    """Return ``count`` messages."""
    return [await soon(consumer.poll()) for _ in range(count)]


def stored(lab: Rig) -> int:
    """Return the number of payloads in the rig's store."""
    return len(memory._SPACES.get(lab.topic, {}))


# With passwords and ACLs: the fixture `secure_kafka` ----------------------------------------------------------------

PASSWORD = "correct-horse"


def authority_of(broker: KafkaBroker) -> Path:
    """Return the certificate of the broker's authority, in the server's folder."""
    assert broker.server is not None
    return broker.server.location.folder / "ca.crt"


def login(broker: KafkaBroker, user: str = "operator") -> dict[str, Any]:
    """Return a client's settings. The operator, who may do everything, has a password; any other name is believed."""
    common = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(authority_of(broker)),
    }
    if user == "operator":
        return common | {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": PASSWORD}
    unsigned = "enable.sasl.oauthbearer.unsecure.jwt"  # codespell:ignore
    token = {"sasl.oauthbearer.config": f"principal={user}", unsigned: "true"}
    return common | {"sasl.mechanism": "OAUTHBEARER", **token}


def grant(admin: AdminClient, user: str, rules: Iterable[tuple[Any, str, Any]]) -> list[AclBinding]:
    """Let a user do operations, each with the kind and the name of its resource; returns the rules."""
    literal, may = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    bindings = [AclBinding(kind, name, literal, f"User:{user}", "*", each, may) for kind, name, each in rules]
    for created in admin.create_acls(bindings).values() if bindings else ():
        created.result(30)
    return bindings
