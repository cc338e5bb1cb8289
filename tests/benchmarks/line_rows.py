"""S3 at the end of a line like a cloud's, and many payloads at once.

A line has a round trip, and a rate for each connection. The S3 server is versitygw, which keeps what it gets. Peers:
what boto3 does by itself, its managed transfers, those of the AWS CRT, obstore and smart_open, all with their defaults.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from claimcheck import ClaimCheck, Pointer, Store
from tests.benchmarks.lab import BUCKET, REGION, Lab
from tests.benchmarks.rounds import OURS, Series, Variant, compare, payload_of, reading, times_as_fast, writing
from tests.benchmarks.rows import Findings, Rows

LINE, MANY = Rows(), Rows()
_KEY = "line"
_SIZES = (1, 4, 16, 32, 64, 256)


# The peers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """Another library: how it sends a payload, returns it, and returns its beginning."""

    name: str
    put: Callable[[bytes], Any]
    get: Callable[[], bytes]
    range: Callable[[int], bytes] | None = None


@functools.cache
def _peers(lab: Lab) -> list[Peer]:
    """Return the peers that are installed, whose connections stay open for the whole run."""
    peers = []
    for make in (_plain, _managed, _crt, _obstore, _smart_open):
        with contextlib.suppress(ImportError):
            peers.append(make(lab))
    return peers


def _plain(lab: Lab) -> Peer:
    client, place = lab.boto3(lab.cloud_s3), {"Bucket": BUCKET, "Key": _KEY}

    def get(**options: str) -> bytes:
        body: bytes = client.get_object(**place, **options)["Body"].read()
        return body

    return Peer(
        "boto3",
        lambda payload: client.put_object(Body=payload, **place),
        get,
        lambda stop: get(Range=f"bytes=0-{stop - 1}"),
    )


def _into_file(download: Callable[[io.BytesIO], Any]) -> bytes:
    with io.BytesIO() as file:
        download(file)
        return file.getvalue()


def _managed(lab: Lab) -> Peer:
    client = lab.boto3(lab.cloud_s3)
    return Peer(
        "boto3 managed",
        lambda payload: client.upload_fileobj(io.BytesIO(payload), BUCKET, _KEY),
        lambda: _into_file(lambda file: client.download_fileobj(BUCKET, _KEY, file)),
    )


def _crt(lab: Lab) -> Peer:
    """Set its transfers up by hand: boto3 itself takes no address for them."""
    import botocore.session
    from s3transfer import crt

    session = botocore.session.Session()
    credentials = crt.BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
    serializer = crt.BotocoreCRTRequestSerializer(session, {"region_name": REGION, "endpoint_url": lab.cloud_s3})
    manager = crt.CRTTransferManager(crt.create_s3_crt_client(REGION, credentials, use_ssl=False), serializer)
    return Peer(
        "boto3[crt]",
        lambda payload: manager.upload(io.BytesIO(payload), BUCKET, _KEY).result(),
        lambda: _into_file(lambda file: manager.download(BUCKET, _KEY, file).result()),
    )


def _obstore(lab: Lab) -> Peer:
    import obstore

    there = lab.bare_obstore(lab.cloud_s3)
    return Peer(
        "obstore",
        lambda payload: obstore.put(there, _KEY, payload),
        lambda: obstore.get(there, _KEY).bytes().to_bytes(),
        lambda stop: obstore.get_range(there, _KEY, start=0, end=stop).to_bytes(),
    )


def _smart_open(lab: Lab) -> Peer:
    from smart_open import open as smart_open

    url, client = f"s3://{BUCKET}/{_KEY}", {"client": lab.boto3(lab.cloud_s3)}

    def opened(mode: str, use: Callable[[Any], Any]) -> Any:
        with smart_open(url, mode, transport_params=client) as file:
            return use(file)

    return Peer(
        "smart_open",
        lambda payload: opened("wb", lambda file: file.write(payload)),
        lambda: opened("rb", lambda file: file.read()),
        lambda stop: opened("rb", lambda file: file.read(stop)),
    )


@functools.cache
def _stores(lab: Lab) -> list[tuple[str, Store]]:
    """Return our stores, which remember how many connections are good."""
    return [(OURS, lab.s3_store_at(lab.cloud_s3)), ("claimcheck obstore", lab.obstore_at(lab.cloud_s3))]


def _of_best(series: tuple[Series, ...], ours: int) -> Findings:
    """Compare the first ``ours`` series with the fastest of the others."""
    best = min(series[ours:], key=lambda one: one.seconds.median)
    ratios = tuple(times_as_fast(one, best) for one in series[:ours])
    return Findings(ratios, series, f"the fastest peer was {best.name}")


# S3 ------------------------------------------------------------------------------------------------------------


def _put(lab: Lab, size: int) -> Findings:
    payload = payload_of(size)
    ours = [writing(store, payload, name) for name, store in _stores(lab)]
    return _of_best(
        compare(lab.effort, size, *ours, *(Variant(each.name, partial(each.put, payload)) for each in _peers(lab))), 2
    )


def _get(lab: Lab, size: int) -> Findings:
    payload, peers = payload_of(size), _peers(lab)
    peers[0].put(payload)
    ours = [reading(store, lab.stored(store, payload), name) for name, store in _stores(lab)]
    return _of_best(compare(lab.effort, size, *ours, *(Variant(each.name, each.get) for each in peers)), 2)


for _way, _measure in (("put", _put), ("get", _get)):
    for _mib in _SIZES:
        LINE.findings(
            f"S3 {_way} {{size}} over a line, of the fastest peer's rate",
            f"S3 {_way} {{size}} over a line, through obstore, of the same",
            mib=_mib,
        )(_measure)


@LINE.findings("S3 range of {size} over a line, of the fastest peer's rate", mib=32)
def _range(lab: Lab, size: int) -> Findings:
    payload, store = payload_of(2 * size), _stores(lab)[0][1]
    pointer = lab.stored(store, payload)
    _peers(lab)[0].put(payload)
    ours = Variant(OURS, lambda: store.read_range(pointer, 0, size))
    theirs = [Variant(each.name, partial(each.range, size)) for each in _peers(lab) if each.range]
    return _of_best(compare(lab.effort, size, ours, *theirs), 1)


# Many payloads at once ------------------------------------------------------------------------------------------

_TASKS = 1000
_FAR_MS, _NEAR_MS = 20, 5  # round trips
_STORED = 20  # payloads, read in turns
_CONNECTIONS = 100  # of the peer, as many as redis-py allows by default
_THREADS = 32
_FAR, _NEAR = f"{_TASKS} tasks, {_FAR_MS} ms", f"{_NEAR_MS} ms"


@MANY.ratio(_FAR + ": cc.aresolve from Redis, of redis.asyncio's rate, {size}", 1 / 16, operations=_TASKS)
def _redis_reads(lab: Lab, size: int) -> Sequence[Variant]:
    cc, pointers = _stored(lab, lab.afar(lab.redis, _FAR_MS), size)
    sealed, loop = [cc.seal(pointer) for pointer in pointers], lab.enter(asyncio.Runner())
    peer = _peer(lab, loop)
    by_hand = _tasks("redis.asyncio GET", loop, lambda n: peer.get(f"{pointers[n % _STORED].key}-0"))
    return by_hand, _tasks(OURS, loop, lambda n: cc.aresolve(sealed[n % _STORED]))


@MANY.ratio(_FAR + ": store.awrite to Redis, of redis.asyncio's rate, {size}", 1 / 16, operations=_TASKS)
def _redis_writes(lab: Lab, size: int) -> Sequence[Variant]:
    store, payload = lab.store(type="redis", url=lab.afar(lab.redis, _FAR_MS)), payload_of(size)
    near, loop, written = lab.redis_store(), lab.enter(asyncio.Runner()), list[Pointer]()
    peer = _peer(lab, loop)

    async def write(_: int) -> None:
        written.append(await store.awrite(payload))

    def clean(_: object) -> None:
        while written:
            near.rollback(written.pop())

    by_hand = _tasks("redis.asyncio SET", loop, lambda n: peer.set(f"peer-{n}", payload, ex=600))
    return by_hand, _tasks(OURS, loop, write, clean)


@MANY.ratio(f"{_NEAR}: cc.resolve_many, of {_THREADS} threads' rate, {{size}}", 1 / 16, operations=_TASKS)
def _resolve_many(lab: Lab, size: int) -> Sequence[Variant]:
    cc, pointers = _stored(lab, lab.afar(lab.redis, _NEAR_MS), size)
    many = pointers * (_TASKS // _STORED)
    sealed = [cc.seal(pointer) for pointer in many]

    def ours() -> None:
        for resolution in cc.resolve_many(sealed):
            assert len(resolution.payload or b"") == size

    return _threads(lab, cc, many), Variant(OURS, ours)


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
