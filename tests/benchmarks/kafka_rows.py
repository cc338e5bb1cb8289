"""Kafka through the wrappers, against the native producer and consumer on the same broker in the same run."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import claimcheck
from tests.benchmarks.lab import KAFKA_MAX_MESSAGE_BYTES, Lab
from tests.benchmarks.rounds import OURS, Series, Variant, compare, payload_of, times_as_fast
from tests.benchmarks.rows import BEST, Findings, Rows

ROWS = Rows()
_WHOLE, _CHUNKS, _POINTERS = "whole records", "chunks", "pointers through Redis"
_AT_ONCE = {1: 200, 64: 25}  # records of so many KiB
_COUNTS = {1: 20_000, 64: 800}  # a round worth its name, which the consumer's queue of 64 MiB holds
_RAISED = "whole records need limits that are raised in broker, producer and consumer, and a heap of 3 GB; ours do not"
_FROM_ASSIGNMENT = f"{_RAISED}; a round begins with the assignment, whose time make compare leaves out"


# The clients ---------------------------------------------------------------------------------------------------

_WAIT_SECONDS = 60.0
# What the consumer of the round before asked for is answered soon, not when a record comes; else the next would wait.
_READ = {"fetch.wait.max.ms": 10, "enable.auto.commit": False, "enable.auto.offset.store": False}


class Pipe:
    """Clients with defaults, but for what whole records and large payloads need."""

    def __init__(
        self, servers: str, topic: str, cc: claimcheck.ClaimCheck | None = None, *, large: bool = False
    ) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        where: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 3}
        self.topic = topic
        self._begin = [TopicPartition(topic, 0, 0)]
        sent, read = {**where, "enable.idempotence": True}, {**where, "group.id": topic, **_READ}
        if large:  # one payload at a time: nobody waits for company, and several chunks are fetched at once
            sent["linger.ms"], read["max.partition.fetch.bytes"] = 0, 16 << 20
        if large and cc is None:
            sent["message.max.bytes"] = read["message.max.bytes"] = KAFKA_MAX_MESSAGE_BYTES
            read["receive.message.max.bytes"] = KAFKA_MAX_MESSAGE_BYTES + (1 << 20)
        self.producer: Any = Producer(sent)
        self.consumer: Any = Consumer(read)
        if cc is not None:
            from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer

            self.producer = KafkaProducer(self.producer, cc)
            self.consumer = KafkaConsumer(self.consumer, cc)

    def send(self, payload: bytes, count: int = 1) -> None:
        """Hand all to the client, and wait for none."""
        produce, topic = self.producer.produce, self.topic
        for _ in range(count):
            produce(topic, payload)

    def deliver(self, payload: bytes) -> None:
        """Send one, and wait for it."""
        self.producer.produce(self.topic, payload)
        self.flush()

    def flush(self) -> None:
        self.producer.flush()

    def read(self, count: int) -> None:
        """Take the first records of the topic, each with its value."""
        self.consumer.assign(self._begin)
        self.take(count)

    def fill(self) -> None:
        """Have the topic's records at the consumer, or nearly so, before it asks; the first shows that they come."""
        self.read(1)
        _quiet()

    def take(self, count: int, at_once: int = 0) -> None:
        if at_once:
            consume = self.consumer.consume
            for _ in range(count // at_once):
                for message in consume(at_once, _WAIT_SECONDS):
                    message.value()
            return
        poll = self.consumer.poll
        for _ in range(count):
            poll(_WAIT_SECONDS).value()

    def rest(self) -> None:
        self.consumer.unassign()
        time.sleep(0.03)

    def close(self) -> None:
        self.flush()
        self.consumer.close()


@contextlib.contextmanager
def _pipes(lab: Lab, *wrapped: claimcheck.ClaimCheck | None, large: bool = False) -> Iterator[list[Pipe]]:
    """Open pipes, each with a topic of its own, which is removed afterwards with all that it holds."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": lab.kafka})
    topics = [f"bench-{uuid.uuid4().hex}" for _ in wrapped]
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result()
    opened = [Pipe(lab.kafka, topic, cc, large=large) for topic, cc in zip(topics, wrapped, strict=True)]
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


def _added(lab: Lab, size: int, kib: int) -> Findings:
    """Produce in many short rounds: in long ones of 64 KiB each, native differs from native by several microseconds."""
    payload, at_once, count = payload_of(kib * 1024), _AT_ONCE[kib], _count(lab, kib)
    few, there = count // 20, [payload] * (count + 1)
    pairs = (
        _pair(lab, "produce", few, lambda pipe: pipe.send(payload, few), Pipe.flush),
        _pair(lab, "poll", count, lambda pipe: pipe.take(count), Pipe.fill, there=there),
        _pair(lab, "consume", count, lambda pipe: pipe.take(count, at_once), Pipe.fill, there=there),
    )
    measured = tuple((ours.seconds.best - base.seconds.best) / base.amount * 1e6 for base, ours in pairs)
    return Findings(measured, sum(pairs, ()), BEST)


def _count(lab: Lab, kib: int) -> int:
    return _COUNTS[kib] // (4 if lab.effort.is_quick else 1)


def _pair(
    lab: Lab,
    what: str,
    count: int,
    run: Callable[[Pipe], None],
    clean: Callable[[Pipe], object] = lambda pipe: None,
    *,
    there: Sequence[bytes] = (),
) -> tuple[Series, ...]:
    """Measure a native and a wrapped pipe, with these records in their topics, and at their consumers."""
    cc = lab.enter(claimcheck.from_dict({"strategy": "external", "stores": {"m": {"type": "memory"}}}))
    with _pipes(lab, None, cc) as opened:
        for pipe in opened if there else ():
            for payload in there:
                pipe.send(payload)
            pipe.flush()
            pipe.fill()
        variants = [
            Variant(f"{name}, {what}", partial(run, pipe), lambda _, pipe=pipe: clean(pipe))  # type: ignore[misc]
            for name, pipe in zip(("native", OURS), opened, strict=True)
        ]
        return compare(lab.effort, count, *variants, counts="operations")


for _kib in (1, 64):
    _what, _calls = (
        f"Kafka records of {_kib} KiB below the threshold",
        ("produce", "poll", f"consume({_AT_ONCE[_kib]})"),
    )
    ROWS.findings(*(f"{_what}, added per {call}" for call in _calls), unit="us", kib=_kib)(_added)


# Large payloads ------------------------------------------------------------------------------------------------


def _large(lab: Lab, size: int, verb: str) -> Findings:
    """Send or receive a payload in each of the ways that it may go."""
    store, payload = {"type": "redis", "url": lab.redis, "ttl_seconds": 600}, payload_of(size)
    chunks = lab.enter(claimcheck.from_dict({"strategy": "chunking"}))
    pointers = lab.enter(claimcheck.from_dict({"strategy": "external", "stores": {"hot": store}}))
    with _pipes(lab, None, chunks, pointers, large=True) as opened:
        variants = []
        for name, pipe in zip((_WHOLE, _CHUNKS, _POINTERS), opened, strict=True):
            if verb == "consume":
                pipe.deliver(payload)
                variants.append(Variant(name, partial(pipe.read, 1), lambda _, pipe=pipe: pipe.rest()))  # type: ignore[misc]
            else:
                clean = lab.forget if pipe is opened[-1] else lambda _: None
                variants.append(Variant(name, partial(pipe.deliver, payload), clean))
        whole, in_chunks, by_pointer = series = compare(lab.effort, size, *variants)
        lab.forget()
    note = _RAISED if verb == "produce" else _FROM_ASSIGNMENT
    return Findings((times_as_fast(by_pointer, whole), times_as_fast(in_chunks, whole)), series, note)


for _mib in (20, 100):
    for _verb in ("produce", "consume"):
        _of = f"{_verb} {{size}}, against {_WHOLE}"
        ROWS.findings(f"Kafka {_POINTERS}, {_of}", f"Kafka {_CHUNKS}, {_of}", mib=_mib, verb=_verb)(_large)
