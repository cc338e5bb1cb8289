"""Pulsar through the wrappers, against the native producer and consumer on the same broker in the same run."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import claimcheck
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests.benchmarks.lab import Lab
from tests.benchmarks.rounds import OURS, Variant, compare, payload_of, reading, times_as_fast
from tests.benchmarks.rows import BEST, Findings, Rows

ROWS = Rows()
_CHUNKING = "the client's own chunking"
_QUEUE = {"receiver_queue_size": 16}
_TOGETHER = (
    "one process sends, and receives in another thread while chunks still arrive; make compare measures sending, "
    "and then reading what is in the topic"
)


class Pipe:
    """Clients with these options."""

    def __init__(
        self,
        client: Any,
        cc: claimcheck.ClaimCheck | None = None,
        *,
        sent: dict[str, Any] | None = None,
        read: dict[str, Any] | None = None,
    ) -> None:
        topic = f"bench-{uuid.uuid4().hex}"
        self.consumer = client.subscribe(topic, "s", **(read or {}))
        self.producer = client.create_producer(topic, **(sent or {}))
        if cc is not None:
            self.consumer, self.producer = PulsarConsumer(self.consumer, cc), PulsarProducer(self.producer, cc)

    def close(self) -> None:
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

    def receive(self, count: int) -> None:
        receive, acknowledge = self.consumer.receive, self.consumer.acknowledge
        for _ in range(count):
            message = receive()
            message.data()
            acknowledge(message)

    def through(self, payload: bytes) -> None:
        """Send one, and receive it in another thread, while its messages still arrive."""
        with ThreadPoolExecutor(1) as thread:
            received = thread.submit(self.consumer.receive, 60_000)
            self.producer.send(payload)
            message = received.result()
            message.data()
            self.consumer.acknowledge(message)


def _nothing(result: Any, message_id: Any) -> None:
    """Nobody wants to know."""


# Small messages ------------------------------------------------------------------------------------------------


def _small(lab: Lab, size: int, kib: int) -> Findings:
    payload, count = payload_of(kib * 1024), max(50, 2000 // kib // (16 if lab.effort.is_quick else 1))
    queues = {"sent": {"max_pending_messages": 2 * count}, "read": {"receiver_queue_size": 2 * count}}
    cc = lab.enter(claimcheck.from_dict({"strategy": "external", "stores": {"m": {"type": "memory"}}}))
    native, ours = (lab.enter(closing(Pipe(lab.pulsar_client, each, **queues))) for each in (None, cc))
    pipes = {"native": native, OURS: ours}
    sending = [
        Variant(name, partial(pipe.send, payload, count), lambda _, pipe=pipe: pipe.empty(count))  # type: ignore[misc]
        for name, pipe in pipes.items()
    ]
    sent = compare(lab.effort, count, *sending, counts="operations")
    for pipe in pipes.values():
        pipe.fill(payload, count)
    receiving = [
        Variant(f"{name}, receive", partial(pipe.receive, count), lambda _, pipe=pipe: pipe.fill(payload, count))  # type: ignore[misc]
        for name, pipe in pipes.items()
    ]
    received = compare(lab.effort, count, *receiving, counts="operations")
    added = tuple((ours.seconds.best - native.seconds.best) / count * 1e6 for native, ours in (sent, received))
    return Findings(added, (*sent, *received), BEST)


for _kib in (1, 64):
    _what = f"Pulsar messages of {_kib} KiB below the threshold"
    ROWS.findings(f"{_what}, added per send", f"{_what}, added per receive", unit="us", kib=_kib)(_small)


# Large payloads ------------------------------------------------------------------------------------------------


def _large(lab: Lab, size: int, strategy: str) -> Findings:
    payload, client = payload_of(size), lab.pulsar_client
    limits = {"limits": {"max_payload_bytes": 1 << 30},
              "chunking": {"max_payload_bytes": 1 << 30, "max_pending_bytes": 1 << 30}}  # fmt: skip
    store = {"type": "redis", "url": lab.redis, "ttl_seconds": 600}
    cc = lab.enter(claimcheck.from_dict({"strategy": strategy, "stores": {"hot": store}, **limits}))
    native = lab.enter(closing(Pipe(client, sent={"chunking_enabled": True})))
    ours = lab.enter(closing(Pipe(client, cc, read=_QUEUE)))
    base, wrapped = compare(
        lab.effort,
        size,
        Variant(_CHUNKING, lambda: native.through(payload)),
        Variant(OURS, lambda: ours.through(payload), lab.forget if strategy == "external" else lambda _: None),
    )
    return Findings((times_as_fast(wrapped, base),), (base, wrapped), _TOGETHER)


for _mib in (20, 100):
    ROWS.findings(f"Pulsar chunks {{size}}, against {_CHUNKING}", mib=_mib, strategy="chunking")(_large)
    ROWS.findings(f"Pulsar pointers through Redis {{size}}, against {_CHUNKING}", mib=_mib, strategy="external")(_large)


# A side topic --------------------------------------------------------------------------------------------------


@ROWS.findings("Pulsar side topic, 20 chunks read, time of a plain reader loop", mib=1)
def _side(lab: Lab, size: int) -> Findings:
    chunk, topic = size - 1024, f"bench-{uuid.uuid4().hex}"
    store = lab.store(type="pulsar-topic", url=lab.pulsar_url, topic=topic, segment_bytes=chunk)
    pointer = store.write(payload_of(20 * chunk))
    plain = f"{topic}-plain"
    producer = lab.pulsar_client.create_producer(plain)
    first, *_ = [producer.send(payload_of(chunk)) for _ in range(20)]
    loop = Variant("a reader loop", lambda: _loop(lab.pulsar_client, plain, first))
    base, ours = compare(lab.effort, 20 * chunk, loop, reading(store, pointer))
    return Findings((1 / times_as_fast(ours, base),), (base, ours), "the loop joins nothing and checks nothing")


def _loop(client: Any, topic: str, first: Any) -> None:
    reader = client.create_reader(topic, first, start_message_id_inclusive=True, receiver_queue_size=20)
    for _ in range(20):
        reader.read_next().data()
    reader.close()
