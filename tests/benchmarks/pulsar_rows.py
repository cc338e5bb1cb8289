"""Pulsar through the wrappers, against the native producer and consumer on the same broker in the same run."""

from __future__ import annotations

import threading
import uuid
from functools import partial
from typing import Any

import claimcheck
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests.benchmarks.children import fresh, peak_extra
from tests.benchmarks.lab import Lab, pulsar_client
from tests.benchmarks.memory_rows import NOTE
from tests.benchmarks.path_rows import BEST
from tests.benchmarks.rounds import OURS, Variant, compare, payload_of, reading, times_as_fast
from tests.benchmarks.rows import Findings, Rows, Target

ROWS = Rows()
_CHUNKING = "the client's own chunking"
_TOGETHER = (
    "one process sends, and receives in another thread while chunks still arrive; make compare measures sending, "
    "and then reading what is in the topic"
)


# Small messages ------------------------------------------------------------------------------------------------


def _small(lab: Lab, size: int, kib: int) -> Findings:
    payload, count = payload_of(kib * 1024), max(50, 2000 // kib // (16 if lab.effort.divisor > 1 else 1))
    pipes = [("native", _Pipe(lab, wrapped=False, queue=2 * count)), (OURS, _Pipe(lab, wrapped=True, queue=2 * count))]
    sending = [
        Variant(name, partial(pipe.send, payload, count), lambda _, pipe=pipe: pipe.empty(count))  # type: ignore[misc]
        for name, pipe in pipes
    ]
    sent = compare(lab.effort, count, *sending, counts="operations")
    for _, pipe in pipes:
        pipe.fill(payload, count)
    receiving = [
        Variant(f"{name}, receive", partial(pipe.receive, count), lambda _, pipe=pipe: pipe.fill(payload, count))  # type: ignore[misc]
        for name, pipe in pipes
    ]
    received = compare(lab.effort, count, *receiving, counts="operations")
    added = tuple((ours.seconds.best - native.seconds.best) / count * 1e6 for native, ours in (sent, received))
    return Findings(added, (*sent, *received), BEST)


for _kib, _send in ((1, 1.5), (64, 2.5)):
    _what = f"Pulsar messages of {_kib} KiB below the threshold"
    ROWS.findings(
        Target(f"pulsar-send-{_kib}k", f"{_what}, added per send", _send, "us", at_most=True),
        Target(f"pulsar-receive-{_kib}k", f"{_what}, added per receive", 1.5, "us", at_most=True),
        kib=_kib,
    )(_small)


class _Pipe:
    """A producer and a consumer of one topic, native or wrapped."""

    def __init__(self, lab: Lab, *, wrapped: bool, queue: int) -> None:
        topic = f"bench-{uuid.uuid4().hex}"
        self.consumer = lab.pulsar_client.subscribe(topic, "s", receiver_queue_size=queue)
        self.producer = lab.pulsar_client.create_producer(topic, max_pending_messages=queue)
        if wrapped:
            cc = lab.cc(type="memory")
            limits = claimcheck.from_dict({"strategy": "external", "stores": {"m": {"type": "memory"}}})
            self.consumer, self.producer = PulsarConsumer(self.consumer, cc), PulsarProducer(self.producer, limits)

    def send(self, payload: bytes, count: int) -> None:
        send = self.producer.send_async
        for _ in range(count):
            send(payload, _nothing)

    def empty(self, count: int) -> None:
        self.producer.flush()
        self.receive(count)

    def fill(self, payload: bytes, count: int) -> None:
        """Have them at the consumer, or nearly so, before it asks: one more than are asked for shows that they come."""
        self.send(payload, count + 1)
        self.producer.flush()
        self.receive(1)

    def receive(self, count: int) -> None:
        receive, acknowledge = self.consumer.receive, self.consumer.acknowledge
        for _ in range(count):
            message = receive()
            message.data()
            acknowledge(message)


def _nothing(result: Any, message_id: Any) -> None:
    """Nobody wants to know."""


# Large payloads ------------------------------------------------------------------------------------------------


def _large(lab: Lab, size: int, strategy: str) -> Findings:
    payload = payload_of(size)
    store = {"type": "redis", "url": lab.redis} if strategy == "external" else {"type": "memory"}
    cc = lab.enter(claimcheck.from_dict(
        {"strategy": strategy, "stores": {"hot": store}, "limits": {"max_payload_bytes": 1 << 30},
         "chunking": {"max_payload_bytes": 1 << 30, "max_pending_bytes": 1 << 30}}
    ))  # fmt: skip
    client, topics = lab.pulsar_client, [f"bench-{uuid.uuid4().hex}" for _ in range(2)]
    native = client.create_producer(topics[0], chunking_enabled=True), client.subscribe(topics[0], "s")
    ours = (
        PulsarProducer(client.create_producer(topics[1]), cc),
        PulsarConsumer(client.subscribe(topics[1], "s", receiver_queue_size=16), cc),
    )
    base, wrapped = compare(
        lab.effort,
        size,
        Variant(_CHUNKING, lambda: _through(*native, payload)),
        Variant(OURS, lambda: _through(*ours, payload), lambda _: _forget(lab, strategy)),
    )
    for one in (*native, *ours):
        one.close()
    return Findings((times_as_fast(wrapped, base),), (base, wrapped), _TOGETHER)


for _strategy, _what, _mib, _bound in (
    ("chunking", "chunks", 20, 1.3),
    ("external", "pointers through Redis", 20, 4),
    ("chunking", "chunks", 100, 1.2),
    ("external", "pointers through Redis", 100, 3),
):
    _target = Target(f"pulsar-{_what.split()[0]}-{_mib}", f"Pulsar {_what} {{size}}, against {_CHUNKING}", _bound)
    ROWS.findings(_target, mib=_mib, strategy=_strategy)(_large)


def _through(producer: Any, consumer: Any, payload: bytes) -> None:
    got: list[int] = []

    def receive() -> None:
        message = consumer.receive(60_000)
        got.append(len(message.data()))
        consumer.acknowledge(message)

    receiver = threading.Thread(target=receive)
    receiver.start()
    producer.send(payload)
    receiver.join()
    assert got == [len(payload)]


def _forget(lab: Lab, strategy: str) -> None:
    """What was read is not wanted any more; the server would keep it for its life."""
    if strategy == "external":
        with lab.redis_client() as redis:
            redis.flushdb()


# Memory --------------------------------------------------------------------------------------------------------


def _memory(lab: Lab, size: int, job: str) -> Findings:
    taken = fresh(_peak, job, lab.pulsar_url, lab.redis, f"bench-{uuid.uuid4().hex}", size)
    return Findings((taken / size,), note=NOTE)


for _job, _what, _most in (
    ("send-chunks", "sender of chunks above the payload, {size}", 0.4),
    ("receive-chunks", "receiver of chunks, {size}", 2.2),
    ("receive-pointer", "receiver of a pointer, {size}", 1.2),
):
    _target = Target(f"pulsar-memory-{_job}", f"Pulsar {_what}, peak", _most, "payloads", at_most=True)
    ROWS.findings(_target, mib=100, job=_job)(_memory)


def _opened(job: str, url: str, redis: str) -> tuple[Any, claimcheck.ClaimCheck]:
    strategy = "external" if job.endswith("pointer") else "chunking"
    store = {"type": "redis", "url": redis, "ttl_seconds": 60}
    return pulsar_client(url), claimcheck.from_dict({"strategy": strategy, "stores": {"hot": store}})


def _peak(job: str, url: str, redis: str, topic: str, size: int) -> int:
    client, cc = _opened(job, url, redis)
    producer = PulsarProducer(client.create_producer(topic), cc)
    if job.startswith("send"):
        producer.send(payload_of(1000))
        payload = payload_of(size)
        taken = peak_extra(lambda: producer.send(payload))
    else:
        consumer = PulsarConsumer(client.subscribe(topic, "s", receiver_queue_size=16), cc)
        producer.send(b"warm")
        consumer.acknowledge(consumer.receive())
        sender = threading.Thread(target=fresh, args=(_feed, job, url, redis, topic, size))
        taken = peak_extra(lambda: _take(sender, consumer))
        sender.join()
    client.close()
    return taken


def _take(sender: threading.Thread, consumer: Any) -> Any:
    """Receive what another process sends."""
    sender.start()
    message = consumer.receive()
    message.data()
    consumer.acknowledge(message)
    return message


def _feed(job: str, url: str, redis: str, topic: str, size: int) -> None:
    client, cc = _opened(job, url, redis)
    PulsarProducer(client.create_producer(topic), cc).send(payload_of(size))
    client.close()


# A side topic --------------------------------------------------------------------------------------------------


@ROWS.findings(
    Target("pulsar-side", "Pulsar side topic, 20 chunks read, time of a plain reader loop", 2, "x", at_most=True),
    mib=1,
)
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
