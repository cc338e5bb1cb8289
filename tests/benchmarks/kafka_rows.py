"""Kafka through the wrappers, against the native producer and consumer on the same broker in the same run."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import claimcheck
from tests.benchmarks.children import fresh, peak_extra
from tests.benchmarks.lab import KAFKA_MAX_MESSAGE_BYTES, Lab
from tests.benchmarks.memory_rows import NOTE
from tests.benchmarks.path_rows import BEST
from tests.benchmarks.rounds import MIB, OURS, Series, Variant, compare, payload_of, times_as_fast
from tests.benchmarks.rows import Findings, Rows, Target

ROWS = Rows()
_WHOLE, _CHUNKS, _POINTERS = "whole records", "chunks", "pointers through Redis"
_AT_ONCE = {1: 200, 64: 25}  # records of so many KiB
_COUNTS = {1: 20_000, 64: 800}  # a round worth its name, which the consumer's queue of 64 MiB holds
_RAISED = "whole records need limits that are raised in broker, producer and consumer, and a heap of 3 GB; ours do not"
_FROM_ASSIGNMENT = f"{_RAISED}; a round begins with the assignment, whose time make compare leaves out"


WAIT_SECONDS = 60.0
_UNLIMITED = {"message.max.bytes": KAFKA_MAX_MESSAGE_BYTES}
# One payload at a time: nobody waits for company, and a partition's chunks are fetched several at once.
_LARGE_SENT, _LARGE_READ = {"linger.ms": 0}, {"max.partition.fetch.bytes": 16 << 20}
_READ_WHOLE = {**_UNLIMITED, "receive.message.max.bytes": KAFKA_MAX_MESSAGE_BYTES + (1 << 20)}
# What the consumer of the round before asked for is answered soon, not when a record comes; else the next would wait.
_READ = {"fetch.wait.max.ms": 10, "enable.auto.commit": False, "enable.auto.offset.store": False}


class Pipe:
    """A producer and a consumer of one topic, native or wrapped; with defaults, but for what whole records need."""

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

    def rewind(self) -> None:
        self.consumer.assign(self._begin)

    def read(self, count: int) -> None:
        """Take the first records of the topic, each with its value."""
        self.rewind()
        self.take(count)

    def read_many(self, count: int, at_once: int) -> None:
        self.rewind()
        self.take_many(count, at_once)

    def fill(self) -> None:
        """Have the topic's records at the consumer, or nearly so, before it asks; the first shows that they come."""
        self.rewind()
        self.take(1)
        _quiet()

    def take(self, count: int) -> None:
        poll = self.consumer.poll
        for _ in range(count):
            poll(WAIT_SECONDS).value()

    def take_many(self, count: int, at_once: int) -> None:
        consume = self.consumer.consume
        for _ in range(count // at_once):
            for message in consume(at_once, WAIT_SECONDS):
                message.value()

    def rest(self) -> None:
        self.consumer.unassign()
        time.sleep(0.03)

    def close(self) -> None:
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


# Small records -------------------------------------------------------------------------------------------------


def _declare_small(kib: int, produce: float, poll: float) -> None:
    what, consume = f"Kafka records of {kib} KiB below the threshold", f"consume({_AT_ONCE[kib]})"
    ROWS.findings(
        *(Target(f"kafka-{name.partition('(')[0]}-{kib}k", f"{what}, {name}, of the native rate", 0.97)
          for name in ("produce", "poll", consume))
    )(partial(_rates, kib=kib))  # fmt: skip
    bounds = {"produce": produce, "poll": poll, consume: 1.0}
    ROWS.findings(
        *(Target(f"kafka-added-{name.partition('(')[0]}-{kib}k", f"{what}, added per {name}", bound, "us", at_most=True)
          for name, bound in bounds.items())
    )(partial(_added, kib=kib))  # fmt: skip


def _rates(lab: Lab, size: int, kib: int) -> Findings:
    payload, at_once, count = payload_of(kib * 1024), _AT_ONCE[kib], _count(lab, kib)
    sent = _pair(lab, "produce", count, lambda pipe: pipe.stream(payload, count))
    polled = _pair(lab, "poll", count, lambda pipe: pipe.read(count), Pipe.rest, payload=payload, there=count)
    consumed = _pair(
        lab, "consume", count, lambda pipe: pipe.read_many(count, at_once), Pipe.rest, payload=payload, there=count
    )
    pairs = sent, polled, consumed
    measured = tuple(times_as_fast(ours, base) for base, ours in pairs)
    return Findings(measured, sent + polled + consumed, "produce and poll(0) for each, then flush")


def _added(lab: Lab, size: int, kib: int) -> Findings:
    """Produce in many short rounds: in long ones of 64 KiB each, native differs from native by several microseconds."""
    payload, at_once, count = payload_of(kib * 1024), _AT_ONCE[kib], _count(lab, kib)
    few, there = count // 20, count + 1
    sent = _pair(lab, "produce", few, lambda pipe: pipe.send(payload, few), Pipe.flush)
    polled = _pair(lab, "poll", count, lambda pipe: pipe.take(count), Pipe.fill, payload=payload, there=there)
    consumed = _pair(
        lab, "consume", count, lambda pipe: pipe.take_many(count, at_once), Pipe.fill, payload=payload, there=there
    )
    pairs = sent, polled, consumed
    measured = tuple((ours.seconds.best - base.seconds.best) / base.amount * 1e6 for base, ours in pairs)
    return Findings(measured, sent + polled + consumed, BEST)


def _count(lab: Lab, kib: int) -> int:
    return _COUNTS[kib] // (4 if lab.effort.divisor > 1 else 1)


def _pair(
    lab: Lab,
    what: str,
    count: int,
    run: Callable[[Pipe], None],
    clean: Callable[[Pipe], object] = lambda pipe: None,
    *,
    payload: bytes = b"",
    there: int = 0,
) -> tuple[Series, Series]:
    """Measure a native and a wrapped pipe, with so many records in their topics, and at their consumers."""
    cc = lab.enter(claimcheck.from_dict({"strategy": "external", "stores": {"m": {"type": "memory"}}}))
    with pipes(lab, None, cc) as opened:
        for pipe in opened if there else ():
            pipe.send(payload, there)
            pipe.flush()
            pipe.fill()
        variants = [
            Variant(f"{name}, {what}", partial(run, pipe), lambda _, pipe=pipe: clean(pipe))  # type: ignore[misc]
            for name, pipe in zip(("native", OURS), opened, strict=True)
        ]
        native, ours = compare(lab.effort, count, *variants, counts="operations")
    return native, ours


_declare_small(1, produce=0.2, poll=0.3)
_declare_small(64, produce=1.0, poll=1.0)


# Large payloads ------------------------------------------------------------------------------------------------


def _large(lab: Lab, size: int, verb: str) -> Findings:
    """Send or receive a payload in each of the ways that it may go."""
    store, payload = {"type": "redis", "url": lab.redis, "ttl_seconds": 600}, payload_of(size)
    chunks = lab.enter(claimcheck.from_dict({"strategy": "chunking"}))
    pointers = lab.enter(claimcheck.from_dict({"strategy": "external", "stores": {"hot": store}}))
    with pipes(lab, None, chunks, pointers, whole=True) as opened:
        named = dict(zip((_WHOLE, _CHUNKS, _POINTERS), opened, strict=True))
        for pipe in opened if verb == "consume" else ():
            pipe.deliver(payload)
        variants = [_variant(lab, *each, payload if verb == "produce" else None) for each in named.items()]
        whole, in_chunks, by_pointer = series = compare(lab.effort, size, *variants)
        _forget(lab)
    note = _RAISED if verb == "produce" else _FROM_ASSIGNMENT
    return Findings((times_as_fast(by_pointer, whole), times_as_fast(in_chunks, whole)), series, note)


def _variant(lab: Lab, name: str, pipe: Pipe, payload: bytes | None) -> Variant:
    if payload is None:
        return Variant(name, lambda: pipe.read(1), lambda _: pipe.rest())
    return Variant(name, lambda: pipe.deliver(payload), lambda _: _forget(lab) if name == _POINTERS else None)


def _forget(lab: Lab) -> None:
    """Nobody wants what was stored; the server would keep it for its life."""
    with lab.redis_client() as client:
        client.flushdb()


for _verb, _mib, _pointers, _bound in (
    ("produce", 20, 4, 1.0),
    ("consume", 20, 1.5, 0.8),
    ("produce", 100, 4, 1.0),
    ("consume", 100, 1.5, 0.8),
):
    _of = f"{_verb} {{size}}, against {_WHOLE}"
    ROWS.findings(
        Target(f"kafka-pointers-{_verb}-{_mib}", f"Kafka {_POINTERS}, {_of}", _pointers),
        Target(f"kafka-chunks-{_verb}-{_mib}", f"Kafka {_CHUNKS}, {_of}", _bound),
        mib=_mib,
        verb=_verb,
    )(_large)


# Memory --------------------------------------------------------------------------------------------------------


def _memory(lab: Lab, size: int, job: str, unit: str) -> Findings:
    with pipes(lab, None) as [pipe]:
        where = lab.kafka, pipe.topic, lab.redis, size
        taken = fresh(_peak, job.replace("receive", "send"), *where)  # a consumer reads what was sent
        if job.startswith("receive"):
            taken = fresh(_peak, job, *where) - size
    return Findings((taken / (MIB if unit == "MiB" else size),), note=NOTE)


for _job, _who, _most, _unit in (
    ("send-pointer", "producer of a pointer", 8, "MiB"),
    ("send-chunks", "producer of chunks", 32, "MiB"),
    ("receive-pointer", "consumer of a pointer", 0.2, "payloads"),
    ("receive-chunks", "consumer of chunks", 1.2, "payloads"),
):
    _target = Target(
        f"kafka-memory-{_job}", f"Kafka {_who} above the payload, {{size}}, peak", _most, _unit, at_most=True
    )
    ROWS.findings(_target, mib=100, job=_job, unit=_unit)(_memory)


def _peak(job: str, servers: str, topic: str, redis: str, size: int) -> int:
    strategy = "external" if job.endswith("pointer") else "chunking"
    store = {"type": "redis", "url": redis, "ttl_seconds": 60}
    with claimcheck.from_dict({"strategy": strategy, "stores": {"hot": store}}) as cc:
        pipe = Pipe(servers, topic, cc)
        if job.startswith("send"):
            pipe.deliver(payload_of(2 * MIB))
            payload = payload_of(size)
            taken = peak_extra(lambda: pipe.deliver(payload))
        else:  # the payload lies in the topic already: the client reads as far ahead as it may
            pipe.read(1)
            pipe.rest()
            taken = peak_extra(lambda: pipe.read(2))
        pipe.close()
    return taken
