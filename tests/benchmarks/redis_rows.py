"""Redis against the raw socket, and against redis-py as people use it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from functools import partial
from typing import Any

import claimcheck
from claimcheck import Pointer
from tests.benchmarks.children import fresh, peak_extra
from tests.benchmarks.lab import RECYCLING, Lab
from tests.benchmarks.rounds import MIB, OURS, Variant, compare, payload_of, reading, times_as_fast, writing
from tests.benchmarks.rows import Findings, Rows

ROWS, MEMORY = Rows(), Rows()
_SMALL_AT_ONCE = 50
_HIREDIS = "redis-py with hiredis, which checks nothing; the server reuses memory"
_REUSED = f"the server reuses memory that it has freed (MALLOC_CONF={RECYCLING}); the sink has one warm buffer"
_FRESH = "the server has its default settings; the sink receives into memory that nobody has touched yet"


@ROWS.ratio("Redis write {size}, of a raw socket's rate", 1, 16, 64, note=_REUSED)
def _write(lab: Lab, size: int) -> Sequence[Variant]:
    payload = payload_of(size)
    return Variant("raw socket", lambda: lab.socket.write(payload)), writing(lab.redis_store(), payload)


@ROWS.ratio("Redis write {size}, of a raw socket's rate into fresh memory", 64, note=_FRESH)
def _write_fresh(lab: Lab, size: int) -> Sequence[Variant]:
    store, payload = lab.store(type="redis", url=lab.redis_by_default), payload_of(size)
    raw = Variant("raw socket, fresh memory", lambda: lab.socket.write(payload, fresh=True))
    return raw, writing(store, payload)


@ROWS.ratio("Redis read {size} into a reused buffer, of raw recv_into's rate", 1, 16, 64, 256)
def _read_into(lab: Lab, size: int) -> Sequence[Variant]:
    store, room = lab.redis_store(), memoryview(bytearray(size))
    pointer = lab.stored(store, payload_of(size))
    raw = Variant("raw recv_into", lambda: lab.socket.read_into(room))
    return raw, Variant(OURS, lambda: store.read_into(pointer, room))


@ROWS.ratio("Redis read {size} to new bytes, of the rate of raw recv into fresh memory", 1, 16, 64, 256)
def _read(lab: Lab, size: int) -> Sequence[Variant]:
    store = lab.redis_store()
    raw = Variant("raw recv_into, new bytes", lambda: lab.socket.read(size))
    return raw, reading(store, lab.stored(store, payload_of(size)))


@ROWS.ratio(
    "Redis write and read {size}, against SET and GET", 1 / 256, 1 / 16, 1, note=_HIREDIS, operations=_SMALL_AT_ONCE
)
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


@ROWS.ratio("Redis write {size}, against SET", 64, note=_HIREDIS)
def _against_set(lab: Lab, size: int) -> Sequence[Variant]:
    client, payload = lab.enter(_redis_py(lab)), payload_of(size)
    by_hand = Variant("redis-py SET", lambda: client.set("whole", payload, ex=600), lambda _: client.delete("whole"))
    return by_hand, writing(lab.redis_store(), payload)


@ROWS.findings("Redis read {size} to bytes, against GET", "Redis stream {size}, against GET", mib=64)
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

    return contextlib.closing(redis.Redis.from_url(lab.redis))


# Memory, each figure of a process of its own ---------------------------------------------------------------------


def _measure(lab: Lab, size: int, job: str) -> Findings:
    taken = fresh(_peak, job, lab.redis, size)
    return Findings(
        (taken / (size if job == "read" else MIB),),
        note="VmHWM of a fresh process, after a warm-up with a small payload",
    )


for _job, _what, _unit in (
    ("write", "write of bytes", "MiB"),
    ("read", "read to bytes", "payloads"),
    ("stream", "stream read", "MiB"),
):
    MEMORY.findings(f"Redis {_what} {{size}}, peak extra memory", mib=256, unit=_unit)(partial(_measure, job=_job))


def _peak(job: str, url: str, size: int) -> int:
    config = {"strategy": "external", "stores": {"hot": {"type": "redis", "url": url}}}
    with claimcheck.from_dict(config) as cc:
        _once(cc.store("hot"), job, MIB // 16)
        return _once(cc.store("hot"), job, size)


def _once(store: claimcheck.Store, job: str, size: int) -> int:
    payload = payload_of(size)
    if job == "write":
        pointers: list[claimcheck.Pointer] = []
        taken = peak_extra(lambda: pointers.append(store.write(payload)))
        store.rollback(pointers[0])
        return taken
    pointer = store.write(payload)
    if job == "read":
        taken = peak_extra(lambda: store.read(pointer))
    else:
        taken = peak_extra(lambda: stream(store.open(pointer), bytearray(MIB)))
    store.rollback(pointer)
    return taken
