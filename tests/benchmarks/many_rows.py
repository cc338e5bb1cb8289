"""Many payloads at once: tasks, iterators and consumers at the end of a line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from claimcheck import ClaimCheck, Pointer
from tests.benchmarks.lab import Lab, checksum_of
from tests.benchmarks.rounds import OURS, Variant, payload_of
from tests.benchmarks.rows import Rows

ROWS = Rows()
_TASKS = 1000
_FAR_MS, _NEAR_MS = 20, 5  # round trips
_STORED = 20  # payloads, read in turns
_CONNECTIONS = 100  # of the peer, as many as redis-py allows by default
_THREADS = 32
_FAR, _NEAR = f"{_TASKS} tasks, {_FAR_MS} ms", f"{_NEAR_MS} ms"


@ROWS.ratio(_FAR + ": cc.aresolve from Redis, of redis.asyncio's rate, {size}", 1 / 16, operations=_TASKS)
def _redis_reads(lab: Lab, size: int) -> Sequence[Variant]:
    cc, pointers = _stored(lab, lab.afar(lab.redis, _FAR_MS), size)
    sealed, loop = [cc.seal(pointer) for pointer in pointers], lab.enter(asyncio.Runner())
    peer = _peer(lab, loop)
    by_hand = _tasks("redis.asyncio GET", loop, lambda n: peer.get(f"{pointers[n % _STORED].key}-0"))
    return by_hand, _tasks(OURS, loop, lambda n: cc.aresolve(sealed[n % _STORED]))


@ROWS.ratio(_FAR + ": store.awrite to Redis, of redis.asyncio's rate, {size}", 1 / 16, operations=_TASKS)
def _redis_writes(lab: Lab, size: int) -> Sequence[Variant]:
    store, payload, written = (
        lab.store(type="redis", url=lab.afar(lab.redis, _FAR_MS)),
        payload_of(size),
        list[Pointer](),
    )
    near, loop = lab.redis_store(), lab.enter(asyncio.Runner())
    peer = _peer(lab, loop)

    async def write(_: int) -> None:
        written.append(await store.awrite(payload))

    def clean(_: object) -> None:
        while written:
            near.rollback(written.pop())

    by_hand = _tasks("redis.asyncio SET", loop, lambda n: peer.set(f"peer-{n}", payload, ex=600))
    return by_hand, _tasks(OURS, loop, write, clean)


@ROWS.ratio(_FAR + ": store.aread with obstore, of its own async rate, {size}", 1 / 16, operations=_TASKS)
def _obstore_reads(lab: Lab, size: int) -> Sequence[Variant]:
    import obstore

    url, loop = lab.afar(lab.s3, _FAR_MS), lab.enter(asyncio.Runner())
    store, peer = lab.obstore_at(url), lab.bare_obstore(url)
    written = [store.write(payload_of(size)) for _ in range(_STORED)]
    pattern = checksum_of(memoryview(obstore.get(peer, written[0].key).bytes()))  # the server keeps sizes only
    pointers = [replace(pointer, checksum=pattern) for pointer in written]

    async def get(n: int) -> None:
        await (await obstore.get_async(peer, pointers[n % _STORED].key)).bytes_async()

    return _tasks("obstore get_async", loop, get), _tasks(OURS, loop, lambda n: store.aread(pointers[n % _STORED]))


@ROWS.ratio(f"{_NEAR}: cc.resolve_many, of {_THREADS} threads' rate, {{size}}", 1 / 16, operations=_TASKS)
def _resolve_many(lab: Lab, size: int) -> Sequence[Variant]:
    cc, pointers = _stored(lab, lab.afar(lab.redis, _NEAR_MS), size)
    many = pointers * (_TASKS // _STORED)
    sealed = [cc.seal(pointer) for pointer in many]

    def ours() -> None:
        for resolution in cc.resolve_many(sealed):
            assert len(resolution.payload or b"") == size

    return _threads(lab, cc, many), Variant(OURS, ours)


# What the rows share -------------------------------------------------------------------------------------------


def _stored(lab: Lab, url: str, size: int) -> tuple[ClaimCheck, list[Pointer]]:
    """Return a configuration with the store at the end of a line, and payloads that are in it."""
    payload, near = payload_of(size), lab.redis_store()
    return lab.cc(type="redis", url=url), [near.write(payload) for _ in range(_STORED)]


def _threads(lab: Lab, cc: ClaimCheck, pointers: Sequence[Pointer]) -> Variant:
    """Read all of them by threads, as people do by hand."""
    store, threads = cc.store("hot"), lab.enter(ThreadPoolExecutor(_THREADS))
    return Variant(f"store.read, {_THREADS} threads", lambda: list(map(len, threads.map(store.read, pointers))))


def _tasks(
    name: str,
    loop: asyncio.Runner,
    one: Callable[[int], Awaitable[Any]],
    clean: Callable[[Any], object] = lambda _: None,
) -> Variant:
    """A thousand tasks that start together, on a loop that stays open between rounds, as its connections do."""

    async def together() -> None:
        await asyncio.gather(*(one(n) for n in range(_TASKS)))

    return Variant(name, lambda: loop.run(together()), clean)


def _peer(lab: Lab, loop: asyncio.Runner) -> Any:
    """Make a client as people do: one pool for all tasks, which waits for a free connection."""
    from redis import asyncio as redis

    url = lab.afar(lab.redis, _FAR_MS)
    pool = redis.BlockingConnectionPool.from_url(url, max_connections=_CONNECTIONS, timeout=None)
    lab.at_end(lambda: loop.run(pool.disconnect()))
    return redis.Redis(connection_pool=pool)
