"""Redis against the raw socket, and against redis-py as people use it."""

from __future__ import annotations

import contextlib
import io
from functools import partial
from typing import Any

from claimcheck._wire.pointer import Pointer
from tests.benchmarks.lab import RECYCLING, Lab, stored
from tests.benchmarks.rounds import MIB, Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast

OURS = "claimcheck"
_READ_SIZES = (1, 16, 64, 256)
_SMALL_AT_ONCE = 50


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    return [*_writes(effort), *_reads(effort), *_against_redis_py(effort)]


def _writes(effort: Effort) -> list[Step]:
    def step(mib: int, bound: float, *more: Target) -> Step:
        size = effort.size(mib)
        target = Target(f"redis-write-{mib}", f"Redis write {size_text(size)}, of a raw socket's rate", bound)
        return Step((target, *more), partial(_write, size=size, with_cpu=bool(more)))

    size = effort.size(64)
    cpu = Target("redis-write-cpu", f"Redis write {size_text(size)}, client CPU", 130, "ms/GB", at_most=True)
    what = f"Redis write {size_text(size)}, default server, of a raw socket's rate into fresh memory"
    fresh = Step((Target("redis-write-fresh-64", what, 0.95),), partial(_write_fresh, size=size))
    return [step(1, 0.80), step(16, 0.75), step(64, 0.65, cpu), fresh]


def _reads(effort: Effort) -> list[Step]:
    def into(mib: int) -> Step:
        what = f"Redis read {size_text(effort.size(mib))} into a reused buffer, of raw recv_into's rate"
        return Step((Target(f"redis-read-into-{mib}", what, 0.85),), partial(_read_into, size=effort.size(mib)))

    def new(mib: int) -> Step:
        what = f"Redis read {size_text(effort.size(mib))} to new bytes, of the rate of raw recv into fresh memory"
        return Step((Target(f"redis-read-{mib}", what, 0.90),), partial(_read, size=effort.size(mib)))

    return [*map(into, _READ_SIZES), *map(new, _READ_SIZES)]


def _against_redis_py(effort: Effort) -> list[Step]:
    def write(mib: int) -> Step:
        what = f"Redis write {size_text(effort.size(mib))}, against SET"
        return Step((Target(f"redis-py-set-{mib}", what, 3.5),), partial(_against_set, size=effort.size(mib)))

    def small(kib: int) -> Step:
        size = effort.size(kib / 1024)
        what = f"Redis write and read {size_text(size)}, against SET and GET"
        return Step((Target(f"redis-py-small-{kib}k", what, 0.8),), partial(_small, size=size))

    size = effort.size(64)
    reads = (
        Target("redis-py-get-64", f"Redis read {size_text(size)} to bytes, against GET", 2.2),
        Target("redis-py-stream-64", f"Redis stream {size_text(size)}, against GET", 8),
        Target("redis-stream-cpu", f"Redis stream {size_text(size)}, client CPU", 100, "ms/GB", at_most=True),
    )
    return [small(4), small(64), write(16), write(64), Step(reads, partial(_against_get, size=size))]


def stream(file: io.BufferedReader, room: bytearray) -> None:
    """Read a file to its end through one buffer."""
    with file:
        while file.readinto(room):
            pass


def _write(lab: Lab, size: int, *, with_cpu: bool) -> Findings:
    store, raw, payload = lab.redis_store(), lab.socket, payload_of(size)
    base, ours = compare(
        lab.effort,
        size,
        Variant("raw socket", lambda: raw.write(payload)),
        Variant(OURS, lambda: store.write(payload), store.rollback),
    )
    note = f"the server reuses memory that it has freed (MALLOC_CONF={RECYCLING}); the sink has one warm buffer"
    return Findings((times_as_fast(ours, base), *([ours.cpu_ms] if with_cpu else [])), (base, ours), note)


def _write_fresh(lab: Lab, size: int) -> Findings:
    store, raw, payload = lab.store(type="redis", url=lab.redis_by_default), lab.socket, payload_of(size)
    base, ours = compare(
        lab.effort,
        size,
        Variant("raw socket, fresh memory", lambda: raw.write(payload, fresh=True)),
        Variant(OURS, lambda: store.write(payload), store.rollback),
    )
    note = "the server has its default settings; the sink receives into memory that nobody has touched yet"
    return Findings((times_as_fast(ours, base),), (base, ours), note)


def _read_into(lab: Lab, size: int) -> Findings:
    store, raw, room = lab.redis_store(), lab.socket, memoryview(bytearray(size))
    with stored(store, payload_of(size)) as pointer:
        base, ours = compare(
            lab.effort,
            size,
            Variant("raw recv_into", lambda: raw.read_into(room)),
            Variant(OURS, lambda: store.read_into(pointer, room)),
        )
    return Findings((times_as_fast(ours, base),), (base, ours), "the buffer is warm: the same one each time")


def _read(lab: Lab, size: int) -> Findings:
    store, raw = lab.redis_store(), lab.socket
    with stored(store, payload_of(size)) as pointer:
        base, ours = compare(
            lab.effort,
            size,
            Variant("raw recv_into, new bytes", lambda: raw.read(size)),
            Variant(OURS, lambda: store.read(pointer)),
        )
    return Findings((times_as_fast(ours, base),), (base, ours))


def _against_set(lab: Lab, size: int) -> Findings:
    with _redis_py(lab) as client:
        store, payload = lab.redis_store(), payload_of(size)
        base, ours = compare(
            lab.effort,
            size,
            Variant("redis-py SET", lambda: client.set("whole", payload, ex=600), lambda _: client.delete("whole")),
            Variant(OURS, lambda: store.write(payload), store.rollback),
        )
    return Findings((times_as_fast(ours, base),), (base, ours), "redis-py with hiredis; the server reuses memory")


def _small(lab: Lab, size: int) -> Findings:
    store, payload = lab.redis_store(), payload_of(size)

    def by_hand() -> None:
        for number in range(_SMALL_AT_ONCE):
            client.set(f"small-{number}", payload, ex=600)
            client.get(f"small-{number}")

    def ours() -> list[Pointer]:
        pointers = [store.write(payload) for _ in range(_SMALL_AT_ONCE)]
        for pointer in pointers:
            store.read(pointer)
        return pointers

    def clean(pointers: list[Pointer]) -> None:
        for pointer in pointers:
            store.rollback(pointer)

    with _redis_py(lab) as client:
        base, found = compare(
            lab.effort,
            size * _SMALL_AT_ONCE,
            Variant("redis-py SET, GET", by_hand),
            Variant(OURS, ours, clean),
        )
        client.delete(*(f"small-{number}" for number in range(_SMALL_AT_ONCE)))
    note = f"{_SMALL_AT_ONCE} payloads in turn, in one thread; redis-py with hiredis, which checks nothing"
    return Findings((times_as_fast(found, base),), (base, found), note)


def _against_get(lab: Lab, size: int) -> Findings:
    store, payload, room = lab.redis_store(), payload_of(size), bytearray(min(size, MIB))
    with _redis_py(lab) as client, stored(store, payload) as pointer:
        client.set("whole", payload, ex=600)
        base, ours, streamed = compare(
            lab.effort,
            size,
            Variant("redis-py GET", lambda: client.get("whole")),
            Variant(f"{OURS}, to bytes", lambda: store.read(pointer)),
            Variant(f"{OURS}, stream through 1 MiB", lambda: stream(store.open(pointer), room)),
        )
        client.delete("whole")
    measured = (times_as_fast(ours, base), times_as_fast(streamed, base), streamed.cpu_ms)
    return Findings(measured, (base, ours, streamed), "redis-py with hiredis")


def _redis_py(lab: Lab) -> contextlib.closing[Any]:
    import redis
    from redis.utils import HIREDIS_AVAILABLE

    if not HIREDIS_AVAILABLE:
        raise RuntimeError("hiredis is not installed: pip install hiredis")
    return contextlib.closing(redis.Redis.from_url(lab.redis))
