"""Kafka through the wrappers, against the native producer and consumer on the same broker in the same run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import claimcheck
from tests.benchmarks.kafka_pipe import Pipe, pipes
from tests.benchmarks.lab import HERE, Lab
from tests.benchmarks.redis_rows import OURS
from tests.benchmarks.rounds import MIB, Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import Series, times_as_fast

NATIVE = "native"
_WHOLE, _CHUNKS, _POINTERS = "whole records", "chunks", "pointers through Redis"
_AT_ONCE = {1: 200, 64: 25}  # records of so many KiB
_BEST = "between the best rounds of each; in the others the client's own threads took their part of the time"
_RAISED = "whole records need limits that are raised in broker, producer and consumer, and a heap of 3 GB; ours do not"
_FROM_ASSIGNMENT = f"{_RAISED}; a round begins with the assignment, whose time make compare leaves out"


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    small = [step for kib in (1, 64) for step in (_rates(effort, kib), _added(effort, kib))]
    large = [step for mib in (20, 100) for step in (_produced(effort, mib), _consumed(effort, mib))]
    memory = [
        _memory(effort, "send-pointer", "producer of a pointer", 8, "MiB"),
        _memory(effort, "send-chunks", "producer of chunks", 32, "MiB"),
        _memory(effort, "receive-pointer", "consumer of a pointer", 0.2, "payloads"),
        _memory(effort, "receive-chunks", "consumer of chunks", 1.2, "payloads"),
    ]
    return [*small, *large, *memory]


# Small records -------------------------------------------------------------------------------------------------


def _rates(effort: Effort, kib: int) -> Step:
    what = f"Kafka records of {kib} KiB below the threshold"
    produce = Target(f"kafka-produce-{kib}k", f"{what}, produce, of the native rate", 0.97)
    poll = Target(f"kafka-poll-{kib}k", f"{what}, poll, of the native rate", 0.97)
    consume = Target(f"kafka-consume-{kib}k", f"{what}, consume({_AT_ONCE[kib]}), of the native rate", 0.97)
    return Step((produce, poll, consume), partial(_measure_rates, kib=kib, count=_count(effort, kib)))


def _added(effort: Effort, kib: int) -> Step:
    what = f"Kafka records of {kib} KiB below the threshold, added per"
    bounds = {"produce": 0.2, "poll": 0.3} if kib == 1 else {}
    targets = tuple(
        Target(f"kafka-added-{key}-{kib}k", f"{what} {said}", bounds.get(key, 1.0), "us", at_most=True)
        for key, said in (("produce", "produce"), ("poll", "poll"), ("consume", f"record of consume({_AT_ONCE[kib]})"))
    )
    return Step(targets, partial(_measure_added, kib=kib, count=_count(effort, kib)))


def _count(effort: Effort, kib: int) -> int:
    """So many that they make a round worth its name, and that the consumer's queue of 64 MiB holds them."""
    return {1: 20_000, 64: 800}[kib] // (4 if effort.divisor > 1 else 1)


def _measure_rates(lab: Lab, kib: int, count: int) -> Findings:
    payload, at_once = payload_of(kib * 1024), _AT_ONCE[kib]
    with _small(lab) as (native, ours):
        produced = _both(lab, native, ours, count, "produce", lambda pipe: pipe.stream(payload, count))
    with _small(lab, payload, count) as (native, ours):
        polled = _both(lab, native, ours, count, "poll", lambda pipe: pipe.read(count), Pipe.rest)
        consumed = _both(lab, native, ours, count, "consume", lambda pipe: pipe.read_many(count, at_once), Pipe.rest)
    pairs = produced, polled, consumed
    return _findings(tuple(times_as_fast(*pair) for pair in pairs), pairs, "produce and poll(0) for each, then flush")


def _measure_added(lab: Lab, kib: int, count: int) -> Findings:
    """Produce in many short rounds: in long ones of 64 KiB each, native differs from native by several microseconds."""
    payload, at_once, few = payload_of(kib * 1024), _AT_ONCE[kib], count // 20
    with _small(lab) as (native, ours):
        produced = _both(lab, native, ours, few, "produce", lambda pipe: pipe.send(payload, few), Pipe.flush)
    with _small(lab, payload, count + 1) as (native, ours):
        polled = _both(lab, native, ours, count, "poll", lambda pipe: pipe.take(count), Pipe.fill)
        consumed = _both(lab, native, ours, count, "consume", lambda pipe: pipe.take_many(count, at_once), Pipe.fill)
    pairs = produced, polled, consumed
    measured = tuple((our.seconds.best - base.seconds.best) / base.amount * 1e6 for our, base in pairs)
    return _findings(measured, pairs, _BEST)


def _findings(measured: tuple[float, ...], pairs: tuple[tuple[Series, Series], ...], note: str) -> Findings:
    return Findings(measured, tuple(series for pair in pairs for series in pair), note)


@contextlib.contextmanager
def _small(lab: Lab, payload: bytes = b"", count: int = 0) -> Iterator[list[Pipe]]:
    """Open a native and a wrapped pipe, with so many records in their topics, and at their consumers."""
    cc = claimcheck.from_dict({"strategy": "external", "stores": {"m": {"type": "memory"}}})
    with cc, pipes(lab, None, cc) as opened:
        for pipe in opened if count else ():
            pipe.send(payload, count)
            pipe.flush()
            pipe.fill()
        yield opened


def _both(
    lab: Lab,
    native: Pipe,
    ours: Pipe,
    count: int,
    what: str,
    run: Callable[[Pipe], None],
    clean: Callable[[Pipe], object] = lambda pipe: None,
) -> tuple[Series, Series]:
    """Give ours, then the native one."""
    base, wrapped = compare(
        lab.effort,
        count,
        Variant(f"{NATIVE}, {what}", lambda: run(native), lambda _: clean(native)),
        Variant(f"{OURS}, {what}", lambda: run(ours), lambda _: clean(ours)),
        counts="operations",
    )
    return wrapped, base


# Large payloads ------------------------------------------------------------------------------------------------


def _produced(effort: Effort, mib: int) -> Step:
    return Step(_targets(effort, mib, "produce", 4, 1.0), partial(_measure_produced, size=effort.size(mib)))


def _consumed(effort: Effort, mib: int) -> Step:
    return Step(_targets(effort, mib, "consume", 1.5, 0.8), partial(_measure_consumed, size=effort.size(mib)))


def _targets(effort: Effort, mib: int, verb: str, pointers: float, chunks: float) -> tuple[Target, Target]:
    of = f"{verb} {size_text(effort.size(mib))}, against {_WHOLE}"
    return (
        Target(f"kafka-pointers-{verb}-{mib}", f"Kafka {_POINTERS}, {of}", pointers),
        Target(f"kafka-chunks-{verb}-{mib}", f"Kafka {_CHUNKS}, {of}", chunks),
    )


def _measure_produced(lab: Lab, size: int) -> Findings:
    payload = payload_of(size)
    with _large(lab) as opened:
        return _against_whole(lab, size, [_sending(lab, name, pipe, payload) for name, pipe in opened.items()])


def _sending(lab: Lab, name: str, pipe: Pipe, payload: bytes) -> Variant:
    return Variant(name, lambda: pipe.deliver(payload), lambda _: _forget(lab) if name == _POINTERS else None)


def _forget(lab: Lab) -> None:
    """Nobody wants what was stored; the server would keep it for its life."""
    import redis

    with contextlib.closing(redis.Redis.from_url(lab.redis)) as client:
        client.flushdb()


def _measure_consumed(lab: Lab, size: int) -> Findings:
    with _large(lab) as opened:
        for pipe in opened.values():
            pipe.deliver(payload_of(size))
        reading = [_reading(name, pipe) for name, pipe in opened.items()]
        return _against_whole(lab, size, reading, _FROM_ASSIGNMENT)


def _reading(name: str, pipe: Pipe) -> Variant:
    return Variant(name, lambda: pipe.read(1), lambda _: pipe.rest())


def _against_whole(lab: Lab, size: int, variants: list[Variant], note: str = _RAISED) -> Findings:
    whole, chunks, pointers = series = compare(lab.effort, size, *variants)
    return Findings((times_as_fast(pointers, whole), times_as_fast(chunks, whole)), series, note)


@contextlib.contextmanager
def _large(lab: Lab) -> Iterator[dict[str, Pipe]]:
    """Open a pipe for each way that a large payload may go."""
    store = {"type": "redis", "url": lab.redis, "ttl_seconds": 600}
    chunks = claimcheck.from_dict({"strategy": "chunking"})
    pointers = claimcheck.from_dict({"strategy": "external", "stores": {"hot": store}})
    with chunks, pointers, pipes(lab, None, chunks, pointers, whole=True) as opened:
        yield dict(zip((_WHOLE, _CHUNKS, _POINTERS), opened, strict=True))
        _forget(lab)


# Memory --------------------------------------------------------------------------------------------------------


def _memory(effort: Effort, job: str, who: str, most: float, unit: str) -> Step:
    size = effort.size(100)
    what = f"Kafka {who} above the payload, {size_text(size)}, peak"
    target = Target(f"kafka-memory-{job}", what, most, unit, at_most=True)
    return Step((target,), partial(_measure_memory, job=job, size=size, unit=MIB if unit == "MiB" else size))


def _measure_memory(lab: Lab, job: str, size: int, unit: int) -> Findings:
    """A producer's payload was there before; a consumer's is part of what it takes."""
    with pipes(lab, None) as [pipe]:
        what = {"job": job, "size": size, "servers": lab.kafka, "topic": pipe.topic, "redis": lab.redis}
        if job.startswith("receive"):
            _child({**what, "job": job.replace("receive", "send")})
        above = _child(what) - (size if job.startswith("receive") else 0)
    return Findings((above / unit,), note="VmHWM of a fresh process")


def _child(what: dict[str, Any]) -> int:
    command = [sys.executable, str(HERE / "kafka_child.py"), json.dumps(what)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return int(done.stdout.strip().splitlines()[-1])
