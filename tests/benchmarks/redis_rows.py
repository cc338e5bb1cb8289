"""Redis against the raw socket, and against redis-py as people use it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

from claimcheck import Pointer
from tests.benchmarks.lab import RECYCLING, Lab
from tests.benchmarks.rounds import MIB, OURS, Variant, compare, payload_of, reading, times_as_fast, writing
from tests.benchmarks.rows import Findings, Rows, Target

ROWS = Rows()
_SMALL_AT_ONCE = 50
_HIREDIS = "redis-py with hiredis, which checks nothing; the server reuses memory"
_REUSED = f"the server reuses memory that it has freed (MALLOC_CONF={RECYCLING}); the sink has one warm buffer"
_FRESH = "the server has its default settings; the sink receives into memory that nobody has touched yet"


@ROWS.ratio("redis-write-{}", "Redis write {size}, of a raw socket's rate", {1: 0.8, 16: 0.75, 64: 0.65}, note=_REUSED)
def _write(lab: Lab, size: int) -> Sequence[Variant]:
    payload = payload_of(size)
    return Variant("raw socket", lambda: lab.socket.write(payload)), writing(lab.redis_store(), payload)


@ROWS.ratio(
    "redis-write-fresh-{}", "Redis write {size}, of a raw socket's rate into fresh memory", {64: 0.95}, note=_FRESH
)
def _write_fresh(lab: Lab, size: int) -> Sequence[Variant]:
    store, payload = lab.store(type="redis", url=lab.redis_by_default), payload_of(size)
    raw = Variant("raw socket, fresh memory", lambda: lab.socket.write(payload, fresh=True))
    return raw, writing(store, payload)


@ROWS.ratio(
    "redis-read-into-{}",
    "Redis read {size} into a reused buffer, of raw recv_into's rate",
    {1: 0.85, 16: 0.85, 64: 0.85, 256: 0.85},
)
def _read_into(lab: Lab, size: int) -> Sequence[Variant]:
    store, room = lab.redis_store(), memoryview(bytearray(size))
    pointer = lab.stored(store, payload_of(size))
    raw = Variant("raw recv_into", lambda: lab.socket.read_into(room))
    return raw, Variant(OURS, lambda: store.read_into(pointer, room))


@ROWS.ratio(
    "redis-read-{}",
    "Redis read {size} to new bytes, of the rate of raw recv into fresh memory",
    {1: 0.9, 16: 0.9, 64: 0.9, 256: 0.9},
)
def _read(lab: Lab, size: int) -> Sequence[Variant]:
    store = lab.redis_store()
    raw = Variant("raw recv_into, new bytes", lambda: lab.socket.read(size))
    return raw, reading(store, lab.stored(store, payload_of(size)))


@ROWS.ratio(
    "redis-py-small-{}", "Redis write and read {size}, against SET and GET", {1 / 256: 0.8, 1 / 16: 0.8, 1: 0.8},
    note=_HIREDIS, operations=_SMALL_AT_ONCE,
)  # fmt: skip
def _small(lab: Lab, size: int) -> Sequence[Variant]:
    store, client, payload = lab.redis_store(), lab.enter(_redis_py(lab)), payload_of(size)

    def by_hand() -> None:
        for number in range(_SMALL_AT_ONCE):
            client.set(f"small-{number}", payload, ex=60)
            client.get(f"small-{number}")

    def ours() -> list[Pointer]:
        pointers = [store.write(payload) for _ in range(_SMALL_AT_ONCE)]
        for pointer in pointers:
            store.read(pointer)
        return pointers

    return Variant("redis-py SET, GET", by_hand), Variant(OURS, ours, lambda made: list(map(store.rollback, made)))


@ROWS.ratio("redis-py-set-{}", "Redis write {size}, against SET", {16: 3.5, 64: 3.5}, note=_HIREDIS)
def _against_set(lab: Lab, size: int) -> Sequence[Variant]:
    client, payload = lab.enter(_redis_py(lab)), payload_of(size)
    by_hand = Variant("redis-py SET", lambda: client.set("whole", payload, ex=600), lambda _: client.delete("whole"))
    return by_hand, writing(lab.redis_store(), payload)


@ROWS.findings(
    Target("redis-py-get-64", "Redis read {size} to bytes, against GET", 2.2),
    Target("redis-py-stream-64", "Redis stream {size}, against GET", 8),
    mib=64,
)
def _against_get(lab: Lab, size: int) -> Findings:
    store, client, payload, room = lab.redis_store(), lab.enter(_redis_py(lab)), payload_of(size), bytearray(MIB)
    pointer = lab.stored(store, payload)
    client.set("whole", payload, ex=600)
    base, ours, streamed = series = compare(
        lab.effort,
        size,
        Variant("redis-py GET", lambda: client.get("whole")),
        reading(store, pointer, f"{OURS}, to bytes"),
        Variant(f"{OURS}, stream through 1 MiB", lambda: stream(store.open(pointer), room)),
    )
    client.delete("whole")
    return Findings((times_as_fast(ours, base), times_as_fast(streamed, base)), series, _HIREDIS)


def stream(file: io.BufferedReader, room: bytearray) -> None:
    """Read a file to its end through one buffer."""
    with file:
        while file.readinto(room):
            pass


def _redis_py(lab: Lab) -> contextlib.closing[Any]:
    import redis
    from redis.utils import HIREDIS_AVAILABLE

    if not HIREDIS_AVAILABLE:
        raise RuntimeError("hiredis is not installed: pip install hiredis")
    return contextlib.closing(redis.Redis.from_url(lab.redis))
