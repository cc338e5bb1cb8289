"""Kafka through the wrappers, against the native producer and consumer on the same broker in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import claimcheck
from tests.benchmarks.children import fresh, peak_extra
from tests.benchmarks.lab import Lab
from tests.benchmarks.memory_rows import NOTE
from tests.benchmarks.path_rows import BEST
from tests.benchmarks.pipes import KafkaPipe, kafka_pipes
from tests.benchmarks.rounds import MIB, OURS, Series, Variant, compare, payload_of, times_as_fast
from tests.benchmarks.rows import Findings, Rows

ROWS = Rows()
_WHOLE, _CHUNKS, _POINTERS = "whole records", "chunks", "pointers through Redis"
_AT_ONCE = {1: 200, 64: 25}  # records of so many KiB
_COUNTS = {1: 20_000, 64: 800}  # a round worth its name, which the consumer's queue of 64 MiB holds
_RAISED = "whole records need limits that are raised in broker, producer and consumer, and a heap of 3 GB; ours do not"
_FROM_ASSIGNMENT = f"{_RAISED}; a round begins with the assignment, whose time make compare leaves out"


# Small records -------------------------------------------------------------------------------------------------


def _rates(lab: Lab, size: int, kib: int) -> Findings:
    payload, at_once, count = payload_of(kib * 1024), _AT_ONCE[kib], _count(lab, kib)
    pairs = (
        _pair(lab, "produce", count, lambda pipe: pipe.stream(payload, count)),
        _pair(lab, "poll", count, lambda pipe: pipe.read(count), KafkaPipe.rest, there=[payload] * count),
        _pair(lab, "consume", count, lambda pipe: pipe.read(count, at_once), KafkaPipe.rest, there=[payload] * count),
    )
    measured = tuple(times_as_fast(ours, base) for base, ours in pairs)
    return Findings(measured, sum(pairs, ()), "produce and poll(0) for each, then flush")


def _added(lab: Lab, size: int, kib: int) -> Findings:
    """Produce in many short rounds: in long ones of 64 KiB each, native differs from native by several microseconds."""
    payload, at_once, count = payload_of(kib * 1024), _AT_ONCE[kib], _count(lab, kib)
    few, there = count // 20, [payload] * (count + 1)
    pairs = (
        _pair(lab, "produce", few, lambda pipe: pipe.send(payload, few), KafkaPipe.flush),
        _pair(lab, "poll", count, lambda pipe: pipe.take(count), KafkaPipe.fill, there=there),
        _pair(lab, "consume", count, lambda pipe: pipe.take(count, at_once), KafkaPipe.fill, there=there),
    )
    measured = tuple((ours.seconds.best - base.seconds.best) / base.amount * 1e6 for base, ours in pairs)
    return Findings(measured, sum(pairs, ()), BEST)


def _count(lab: Lab, kib: int) -> int:
    return _COUNTS[kib] // (4 if lab.effort.is_quick else 1)


def _pair(
    lab: Lab,
    what: str,
    count: int,
    run: Callable[[KafkaPipe], None],
    clean: Callable[[KafkaPipe], object] = lambda pipe: None,
    *,
    there: Sequence[bytes] = (),
) -> tuple[Series, ...]:
    """Measure a native and a wrapped pipe, with these records in their topics, and at their consumers."""
    cc = lab.enter(claimcheck.from_dict({"strategy": "external", "stores": {"m": {"type": "memory"}}}))
    with kafka_pipes(lab, None, cc) as opened:
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
    ROWS.findings(*(f"{_what}, {call}, of the native rate" for call in _calls), kib=_kib)(_rates)
    ROWS.findings(*(f"{_what}, added per {call}" for call in _calls), unit="us", kib=_kib)(_added)


# Large payloads ------------------------------------------------------------------------------------------------


def _large(lab: Lab, size: int, verb: str) -> Findings:
    """Send or receive a payload in each of the ways that it may go."""
    store, payload = {"type": "redis", "url": lab.redis, "ttl_seconds": 600}, payload_of(size)
    chunks = lab.enter(claimcheck.from_dict({"strategy": "chunking"}))
    pointers = lab.enter(claimcheck.from_dict({"strategy": "external", "stores": {"hot": store}}))
    with kafka_pipes(lab, None, chunks, pointers, large=True) as opened:
        variants = []
        for name, pipe in zip((_WHOLE, _CHUNKS, _POINTERS), opened, strict=True):
            if verb == "consume":
                pipe.deliver(payload)
                variants.append(Variant(name, partial(pipe.read, 1), lambda _, pipe=pipe: pipe.rest()))  # type: ignore[misc]
            else:
                clean = lab.forget if pipe is opened[-1] else _nothing
                variants.append(Variant(name, partial(pipe.deliver, payload), clean))
        whole, in_chunks, by_pointer = series = compare(lab.effort, size, *variants)
        lab.forget()
    note = _RAISED if verb == "produce" else _FROM_ASSIGNMENT
    return Findings((times_as_fast(by_pointer, whole), times_as_fast(in_chunks, whole)), series, note)


def _nothing(result: object) -> None:
    """Do nothing."""


for _mib in (20, 100):
    for _verb in ("produce", "consume"):
        _of = f"{_verb} {{size}}, against {_WHOLE}"
        ROWS.findings(f"Kafka {_POINTERS}, {_of}", f"Kafka {_CHUNKS}, {_of}", mib=_mib, verb=_verb)(_large)


# Memory --------------------------------------------------------------------------------------------------------


def _memory(lab: Lab, size: int, role: str, strategy: str) -> Findings:
    with kafka_pipes(lab, None) as [pipe]:
        where = strategy, lab.kafka, pipe.topic, lab.redis, size
        taken = fresh(_peak, "producer", *where) / MIB
        if role == "consumer":  # of what was sent
            taken = (fresh(_peak, role, *where) - size) / size
    return Findings((taken,), note=NOTE)


for _role, _unit in (("producer", "MiB"), ("consumer", "payloads")):
    for _way, _strategy in (("a pointer", "external"), ("chunks", "chunking")):
        ROWS.findings(
            f"Kafka {_role} of {_way} above the payload, {{size}}, peak",
            mib=100,
            unit=_unit,
            role=_role,
            strategy=_strategy,
        )(_memory)


def _peak(role: str, strategy: str, servers: str, topic: str, redis: str, size: int) -> int:
    store = {"type": "redis", "url": redis, "ttl_seconds": 60}
    with claimcheck.from_dict({"strategy": strategy, "stores": {"hot": store}}) as cc:
        pipe = KafkaPipe(servers, topic, cc)
        if role == "producer":
            pipe.deliver(payload_of(2 * MIB))
            payload = payload_of(size)
            taken = peak_extra(lambda: pipe.deliver(payload))
        else:  # the payload lies in the topic already: the client reads as far ahead as it may
            pipe.read(1)
            pipe.rest()
            taken = peak_extra(lambda: pipe.read(2))
        pipe.close()
    return taken
