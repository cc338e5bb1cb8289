"""Shared by the tests against a real Pulsar: configurations, topics with wrapped clients, and for Spark."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pulsar

import claimcheck
from claimcheck._wire.envelope import encode_chunk
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests import servers
from tests.kit.transport_harness import content as content

LIMIT = 102_400
"""The test broker's limit for one message."""

STRATEGIES = ("external", "chunking")
CERTIFICATES = "CLAIMCHECK_TEST_CERTIFICATES"
UUID = "00000000-0000-4000-8000-00000000000{}"
SHARED, KEYED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared


def certified() -> dict[str, Any]:
    """Return arguments for a client that logs in with the certificate in the folder that a variable names."""
    paths = [f"{os.environ[CERTIFICATES]}/server.{kind}" for kind in ("crt", "key")]
    names = zip(("tls_certificate_file_path", "tls_private_key_file_path"), paths, strict=True)
    return {"authentication": pulsar.AuthenticationTLS(*paths), **dict(names)}


def opened(strategy: str, **more: Any) -> claimcheck.ClaimCheck:
    """Return a configuration with one in-memory store."""
    return claimcheck.from_dict({"strategy": strategy, "stores": {"m": {"type": "memory"}}, **more})


class Rig:
    """One topic, and the wrapped clients on it; closed at the end."""

    def __init__(self, broker: Any, client: Any, topic: str, stack: contextlib.ExitStack) -> None:
        self.broker, self.client, self.topic, self._stack = broker, client, topic, stack
        self.cc = stack.enter_context(opened("external"))

    def claimcheck(self, strategy: str, **more: Any) -> claimcheck.ClaimCheck:
        """Return another configuration; all of them use the same store."""
        cc = self._stack.enter_context(opened(strategy, **more))
        if "stores" not in more:
            cc._open.stores["m"] = self.cc.store("m")
        return cc

    def producer(self, strategy: str = "external", *, wrap: dict[str, Any] | None = None, **native: Any) -> Any:
        """Return a wrapped producer; `native` are options of the client."""
        made = self.client.create_producer(self.topic, **native)
        cc = strategy if isinstance(strategy, claimcheck.ClaimCheck) else self.claimcheck(strategy)
        wrapped = PulsarProducer(made, cc, **{"max_message_bytes": LIMIT, **(wrap or {})})
        self._stack.callback(_quietly, wrapped.close)
        return wrapped

    def subscribe(self, name: str = "s", **native: Any) -> Any:
        """Return a native consumer that starts at the beginning of the topic."""
        options = {"initial_position": pulsar.InitialPosition.Earliest, "negative_ack_redelivery_delay_ms": 100}
        made = self.client.subscribe(self.topic, name, **{**options, **native})
        self._stack.callback(_quietly, made.close)
        return made

    def consumer(self, name: str = "s", *, wrap: dict[str, Any] | None = None, cc: Any = None, **native: Any) -> Any:
        """Return a wrapped consumer that knows its subscription type."""
        told = {"consumer_type": native.get("consumer_type", pulsar.ConsumerType.Exclusive)}
        return PulsarConsumer(self.subscribe(name, **native), cc or self.cc, **{**told, **(wrap or {})})

    def settled(self, name: str = "s", *, backlog: int = 0) -> None:
        """Wait until a subscription has this backlog; for 0, no unacknowledged holes may be left either."""
        wanted = (backlog,) if backlog else (0, "")
        servers.wait_until(lambda: self._left(name)[: len(wanted)] == wanted, f"the backlog of {name} is {backlog}")

    def _left(self, name: str) -> tuple[int, str]:
        holes, backlog = "", 0
        for topic in self.client.get_topic_partitions(self.topic):
            backlog += self.broker.stats(topic)["subscriptions"][name]["msgBacklog"]
            cursor = self.broker.internal_stats(topic)["cursors"][name]
            holes += cursor["individuallyDeletedMessages"].strip("[]")
        return backlog, holes


@contextlib.contextmanager
def rig(broker: Any, client: Any, topic: str) -> Iterator[Rig]:
    """Open a `Rig` on a topic."""
    with contextlib.ExitStack() as stack:
        yield Rig(broker, client, topic, stack)


def receive(consumer: Any, count: int, *, seconds: float = 10) -> list[Any]:
    """Receive exactly this many payloads."""
    return [consumer.receive(int(seconds * 1000)) for _ in range(count)]


def nothing_comes(consumer: Any, millis: int = 300) -> bool:
    """Return whether no payload is received for a while."""
    try:
        consumer.receive(millis)
    except pulsar.Timeout:
        return True
    return False


def chunk(which: int, position: int, count: int, piece: bytes) -> bytes:
    """Return one chunk of a payload."""
    return encode_chunk(UUID.format(which), position, count, memoryview(piece))


def rig_on(lab: Rig, topic: str) -> Rig:
    """Return a rig on another topic, with the same stores."""
    other = Rig(lab.broker, lab.client, topic, lab._stack)
    other.cc = lab.cc
    return other


def _quietly(close: Any) -> None:
    with contextlib.suppress(pulsar.exceptions.AlreadyClosed, ValueError):  # the test did so itself
        close()


# Spark ----------------------------------------------------------------------------------------------------------------


class Topic:
    """One topic of the broker, and the options of queries on it."""

    def __init__(self, broker: Any, client: Any, name: str) -> None:
        self.broker, self.client, self.name = broker, client, name
        self.full = f"persistent://public/default/{name}"
        self._producers: dict[bool, Any] = {}

    def options(self, **more: Any) -> dict[str, str]:
        """For a stream, or for a batch with ``subscription=None``."""
        told = {"serviceUrl": self.broker.service_url, "topic": self.name, "subscription": "spark", **more}
        return {name: str(value) for name, value in told.items() if value is not None}

    def send(self, numbers: Any, *, batched: bool = False, **more: Any) -> list[bytes]:
        """Send numbers as text, the batched ones in about as many entries as there are partitions."""
        if batched not in self._producers:
            told = {"batching_enabled": batched, "batching_max_publish_delay_ms": 50, "block_if_queue_full": True}
            mode = pulsar.PartitionsRoutingMode.RoundRobinDistribution
            self._producers[batched] = self.client.create_producer(self.name, message_routing_mode=mode, **told)
        producer, results = self._producers[batched], set()
        sent = [b"%d" % number for number in numbers]
        for value in sent:
            producer.send_async(value, lambda result, _: results.add(result), **more)
        producer.flush()
        assert results <= {pulsar.Result.Ok}
        return sent

    def ledgers(self) -> list[int]:
        """Return the ledgers that the broker keeps."""
        return [each["ledgerId"] for each in self.broker.internal_stats(self.name)["ledgers"]]

    def keep(self) -> None:
        """Keep all messages: without a subscription the broker deletes old ledgers, at a time of its own."""
        self.client.subscribe(self.name, "keeps", initial_position=pulsar.InitialPosition.Earliest).close()

    def roll(self) -> None:
        """Begin a new ledger, so that the broker may delete the old one."""
        self.broker.unload(self.name)
