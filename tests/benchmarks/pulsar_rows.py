"""Pulsar through the wrappers, against the native producer and consumer on the same broker in the same run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from functools import partial
from typing import Any

import claimcheck
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests.benchmarks.lab import HERE, Lab
from tests.benchmarks.redis_rows import OURS
from tests.benchmarks.rounds import Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast

NATIVE = "native"
_CHUNKING = "the client's own chunking"
_BEST = "between the best rounds of each; in the others the client's own threads took their part of the time"
_TOGETHER = (
    "one process sends, and receives in another thread while chunks still arrive; make compare measures sending, "
    "and then reading what is in the topic"
)


def steps(effort: Effort) -> list[Step]:
    """List the runs."""

    def large(key: str, what: str, mb: int, bound: float, strategy: str) -> Step:
        size = effort.size(mb)
        target = Target(f"pulsar-{key}-{mb}", f"Pulsar {what} {size_text(size)}, against {_CHUNKING}", bound)
        return Step((target,), partial(_large, size=size, strategy=strategy))

    def memory(job: str, what: str, most: float) -> Step:
        size = effort.size(100)
        target = Target(
            f"pulsar-memory-{job}", f"Pulsar {what} {size_text(size)}, peak", most, "payloads", at_most=True
        )
        return Step((target,), partial(_memory, job=job, size=size))

    return [
        *(_small(effort, kib) for kib in (1, 64)),
        large("chunks", "chunks", 20, 1.3, "chunking"),
        large("chunks", "chunks", 100, 1.2, "chunking"),
        large("pointers", "pointers through Redis", 20, 4, "external"),
        large("pointers", "pointers through Redis", 100, 3, "external"),
        memory("send-chunks", "sender of chunks above the payload,", 0.4),
        memory("receive-chunks", "receiver of chunks,", 2.2),
        memory("receive-pointer", "receiver of a pointer,", 1.2),
        _interleaved(effort),
        _side(effort),
    ]


# Small messages ------------------------------------------------------------------------------------------------


def _small(effort: Effort, kib: int) -> Step:
    what = f"Pulsar messages of {kib} KiB below the threshold"
    sends = Target(f"pulsar-send-{kib}k", f"{what}, added per send", 1.5 if kib == 1 else 2.5, "us", at_most=True)
    receives = Target(f"pulsar-receive-{kib}k", f"{what}, added per receive", 1.5, "us", at_most=True)
    count = max(50, 2000 // kib // (16 if effort.divisor > 1 else 1))
    return Step((sends, receives), partial(_measure_small, size=kib * 1024, count=count))


def _measure_small(lab: Lab, size: int, count: int) -> Findings:
    payload = payload_of(size)
    native, ours = (_Pipe(lab, wrapped=wrapped, queue=2 * count) for wrapped in (False, True))
    sent = compare(
        lab.effort,
        count,
        Variant(NATIVE, lambda: native.send(payload, count), lambda _: native.empty(count)),
        Variant(OURS, lambda: ours.send(payload, count), lambda _: ours.empty(count)),
        counts="operations",
    )
    native.fill(payload, count)
    ours.fill(payload, count)
    received = compare(
        lab.effort,
        count,
        Variant(f"{NATIVE}, receive", lambda: native.receive(count), lambda _: native.fill(payload, count)),
        Variant(f"{OURS}, receive", lambda: ours.receive(count), lambda _: ours.fill(payload, count)),
        counts="operations",
    )
    added = [(b.seconds.best - a.seconds.best) / count * 1e6 for a, b in (sent, received)]
    return Findings((added[0], added[1]), (*sent, *received), _BEST)


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
        """Hand all to the client, and wait for none."""
        send, landed = self.producer.send_async, _nothing
        for _ in range(count):
            send(payload, landed)

    def empty(self, count: int) -> None:
        """Have all of them landed, received and acknowledged."""
        self.producer.flush()
        self.receive(count)

    def fill(self, payload: bytes, count: int) -> None:
        """Have them at the consumer, or nearly so, before it asks: one more than are asked for shows that they come."""
        self.send(payload, count + 1)
        self.producer.flush()
        self.receive(1)

    def receive(self, count: int) -> None:
        """Take what is there."""
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
    cc = claimcheck.from_dict(
        {"strategy": strategy, "stores": {"hot": store}, "limits": {"max_payload_bytes": 1 << 30},
         "chunking": {"max_payload_bytes": 1 << 30, "max_pending_bytes": 1 << 30}}
    )  # fmt: skip
    client, topics = lab.pulsar_client, [f"bench-{uuid.uuid4().hex}" for _ in range(2)]
    native = client.create_producer(topics[0], chunking_enabled=True), client.subscribe(topics[0], "s")
    ours = (
        PulsarProducer(client.create_producer(topics[1]), cc),
        PulsarConsumer(client.subscribe(topics[1], "s", receiver_queue_size=16), cc),
    )
    with cc:
        base, wrapped = compare(
            lab.effort,
            size,
            Variant(_CHUNKING, lambda: _through(*native, payload)),
            Variant(OURS, lambda: _through(*ours, payload), lambda _: _forget(cc, strategy)),
        )
    for one in (*native, *ours):
        one.close()
    return Findings((times_as_fast(wrapped, base),), (base, wrapped), _TOGETHER)


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


def _forget(cc: claimcheck.ClaimCheck, strategy: str) -> None:
    """What was read is not wanted any more; the server would keep it for its life."""
    if strategy == "external":
        cc.store("hot")._server.client.flushdb()  # type: ignore[attr-defined]


# Memory --------------------------------------------------------------------------------------------------------


def _memory(lab: Lab, job: str, size: int, unit: int | None = None) -> Findings:
    what = {
        "job": job,
        "size": size,
        "bound": unit,
        "url": lab.pulsar_url,
        "redis": lab.redis,
        "topic": f"bench-{uuid.uuid4().hex}",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "pulsar_child.py"), json.dumps(what)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return Findings((float(done.stdout.strip().splitlines()[-1]) / (unit or size),), note="VmHWM of a fresh process")


def _interleaved(effort: Effort) -> Step:
    size = effort.size(50)
    what = f"Pulsar receiver of 20 interleaved payloads of {size_text(size)}, peak, of its bound in bytes"
    target = Target("pulsar-memory-interleaved", what, 1.2, "x", at_most=True)
    return Step((target,), partial(_memory, job="receive-interleaved", size=size, unit=effort.size(256)))


# A side topic --------------------------------------------------------------------------------------------------


def _side(effort: Effort) -> Step:
    target = Target(
        "pulsar-side", "Pulsar side topic, 20 chunks read, time of a plain reader loop", 2, "x", at_most=True
    )
    return Step((target,), partial(_measure_side, chunk=effort.size(1) - 1024))


def _measure_side(lab: Lab, chunk: int) -> Findings:
    topic = f"bench-{uuid.uuid4().hex}"
    store = lab.store(type="pulsar-topic", url=lab.pulsar_url, topic=topic, segment_bytes=chunk)
    pointer = store.write(payload_of(20 * chunk))
    plain = f"{topic}-plain"
    producer = lab.pulsar_client.create_producer(plain)
    first, *_ = [producer.send(payload_of(chunk)) for _ in range(20)]
    base, ours = compare(
        lab.effort,
        20 * chunk,
        Variant("a reader loop", lambda: _loop(lab.pulsar_client, plain, first)),
        Variant(OURS, lambda: store.read(pointer)),
    )
    return Findings((1 / times_as_fast(ours, base),), (base, ours), "the loop joins nothing and checks nothing")


def _loop(client: Any, topic: str, first: Any) -> None:
    reader = client.create_reader(topic, first, start_message_id_inclusive=True, receiver_queue_size=20)
    for _ in range(20):
        reader.read_next().data()
    reader.close()
