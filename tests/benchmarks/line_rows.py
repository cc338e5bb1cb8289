"""S3 and Redis at the end of a line like a cloud's: a round trip, and a rate for each connection.

The S3 server is versitygw, which keeps what it gets. Peers: what boto3 does by itself, its managed transfers, those of
the AWS CRT, obstore and smart_open, all with their defaults.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from claimcheck import Store
from tests.benchmarks.lab import BUCKET, Lab, stored
from tests.benchmarks.redis_rows import OURS
from tests.benchmarks.rounds import Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import Series, times_as_fast

REDIS_LINE = (1.0, 600.0)  # milliseconds, MB/s of each connection
KEY = "line"
_SIZES = (1, 4, 16, 32, 64, 256)
_STREAM_BYTES = 64 << 10
_NEAR_SIZES = (32, 64, 256)
_ENGINE = "claimcheck obstore"
_BEFORE = "claimcheck, one connection"


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    return [
        *(_step(effort, "put", mib, _put, 1.0) for mib in _SIZES),
        *(_step(effort, "get", mib, _get, 1.0) for mib in _SIZES),
        _stream_step(effort),
        _range_step(effort),
        *(_near_step(effort, way, mib) for way in ("put", "get") for mib in _NEAR_SIZES),
        *(_redis_step(effort, way) for way in ("put", "get")),
    ]


def _step(effort: Effort, way: str, mib: int, measure: Callable[..., Findings], bound: float) -> Step:
    text = f"S3 {way} {size_text(effort.size(mib))} over a line"
    targets = (
        Target(f"line-s3-{way}-{mib}", f"{text}, of the fastest peer's rate", bound),
        Target(f"line-obstore-{way}-{mib}", f"{text} through obstore, of the fastest peer's rate", bound),
    )
    return Step(targets, partial(measure, size=effort.size(mib)))


def _stream_step(effort: Effort) -> Step:
    what = f"S3 stream {size_text(effort.size(64))} over a line by reads of 64 KiB"
    targets = (
        Target("line-s3-stream", f"{what}, against one connection", 3),
        Target("line-s3-stream-peers", f"{what}, of the fastest peer's rate", 1),
    )
    return Step(targets, partial(_stream, size=effort.size(64)))


def _range_step(effort: Effort) -> Step:
    what = f"S3 range of {size_text(effort.size(32))} over a line, of the fastest peer's rate"
    return Step((Target("line-s3-range", what, 1),), partial(_range, size=effort.size(64)))


def _near_step(effort: Effort, way: str, mib: int) -> Step:
    what = f"S3 {way} {size_text(effort.size(mib))} on loopback, of one connection's rate"
    measure = partial(_near, size=effort.size(mib), way=way)
    return Step((Target(f"line-s3-near-{way}-{mib}", what, 0.97),), measure)


def _redis_step(effort: Effort, way: str) -> Step:
    what = f"Redis {way} {size_text(effort.size(16))} over a line, of the line's rate"
    return Step((Target(f"line-redis-{way}", what, 0.85),), partial(_redis, size=effort.size(16), way=way))


@dataclass(frozen=True, slots=True)
class Peer:
    """Another library.

    Attributes:
        name: As it is printed.
        put: Sends a payload.
        get: Returns what was sent.
        stream: Reads it by a number of bytes; returns how many there were.
        range: Returns the first bytes.
    """

    name: str
    put: Callable[[bytes], Any]
    get: Callable[[], bytes]
    stream: Callable[[int], int] | None = None
    range: Callable[[int], bytes] | None = None


@functools.cache
def _peers(lab: Lab) -> list[Peer]:
    """Return the peers, whose connections stay open for the whole run."""
    return [_plain(lab), _managed(lab), _crt(lab), _obstore(lab), _smart_open(lab)]


def _plain(lab: Lab) -> Peer:
    client, place = lab.boto3(lab.cloud_s3), {"Bucket": BUCKET, "Key": KEY}

    def get(**options: str) -> bytes:
        body: bytes = client.get_object(**place, **options)["Body"].read()
        return body

    def stream(count: int) -> int:
        return _count(client.get_object(**place)["Body"], count)

    return Peer(
        "boto3",
        lambda payload: client.put_object(Body=payload, **place),
        get,
        stream,
        lambda stop: get(Range=f"bytes=0-{stop - 1}"),
    )


def _managed(lab: Lab) -> Peer:
    client = lab.boto3(lab.cloud_s3)

    def get() -> bytes:
        with io.BytesIO() as file:
            client.download_fileobj(BUCKET, KEY, file)
            return file.getvalue()

    return Peer("boto3 managed", lambda payload: client.upload_fileobj(io.BytesIO(payload), BUCKET, KEY), get)


def _crt(lab: Lab) -> Peer:
    manager = lab.crt_afar

    def get() -> bytes:
        with io.BytesIO() as file:
            manager.download(BUCKET, KEY, file).result()
            return file.getvalue()

    return Peer("boto3[crt]", lambda payload: manager.upload(io.BytesIO(payload), BUCKET, KEY).result(), get)


def _obstore(lab: Lab) -> Peer:
    import obstore

    there = lab.bare_obstore(lab.cloud_s3)
    return Peer(
        "obstore",
        lambda payload: obstore.put(there, KEY, payload),
        lambda: obstore.get(there, KEY).bytes().to_bytes(),
        lambda count: _count(obstore.open_reader(there, KEY), count),
        lambda stop: obstore.get_range(there, KEY, start=0, end=stop).to_bytes(),
    )


def _smart_open(lab: Lab) -> Peer:
    from smart_open import open as smart_open

    url, client = f"s3://{BUCKET}/{KEY}", {"client": lab.boto3(lab.cloud_s3)}

    def put(payload: bytes) -> None:
        with smart_open(url, "wb", transport_params=client) as file:
            file.write(payload)

    def read(read: Callable[[Any], Any]) -> Any:
        with smart_open(url, "rb", transport_params=client) as file:
            return read(file)

    return Peer(
        "smart_open",
        put,
        lambda: read(lambda file: file.read()),
        lambda count: read(lambda file: _count(file, count)),
        lambda stop: read(lambda file: file.read(stop)),
    )


def _count(file: Any, count: int) -> int:
    """Read to the end by so many bytes."""
    total = 0
    while piece := file.read(count):
        total += len(piece)
    return total


@functools.cache
def _stores(lab: Lab) -> list[tuple[str, Store]]:
    """Return our stores, which remember how many connections are good."""
    return [(OURS, lab.s3_store_at(lab.cloud_s3)), (_ENGINE, lab.obstore_afar())]


def _put(lab: Lab, size: int) -> Findings:
    payload = payload_of(size)
    ours = [Variant(name, partial(store.write, payload), store.rollback) for name, store in _stores(lab)]
    peers = [Variant(peer.name, partial(peer.put, payload)) for peer in _peers(lab)]
    return _of_best(compare(lab.effort, size, *ours, *peers), 2)


def _get(lab: Lab, size: int) -> Findings:
    with _written(lab, size) as (stores, peers):
        ours = [Variant(name, partial(store.read, pointer)) for name, store, pointer in stores]
        return _of_best(compare(lab.effort, size, *ours, *(Variant(peer.name, peer.get) for peer in peers)), 2)


def _stream(lab: Lab, size: int) -> Findings:
    with _written(lab, size) as (stores, peers):
        [(_, store, pointer), *_] = stores

        def stream(store: Store) -> int:
            with store.open(pointer) as file:
                return _count(file, _STREAM_BYTES)

        one = lab.s3_store_at(lab.cloud_s3, transfer_bytes=0)
        ours = [Variant(OURS, partial(stream, store)), Variant(_BEFORE, partial(stream, one))]
        theirs = [Variant(peer.name, partial(peer.stream, _STREAM_BYTES)) for peer in peers if peer.stream]
        series = compare(lab.effort, size, *ours, *theirs)
    best = _of_best((series[0], *series[2:]), 1)
    return Findings((times_as_fast(series[0], series[1]), *best.measured), series, best.note)


def _range(lab: Lab, size: int) -> Findings:
    stop = size // 2
    with _written(lab, size) as (stores, peers):
        [(_, store, pointer), *_] = stores
        ours = Variant(OURS, lambda: store.read_range(pointer, 0, stop))
        theirs = [Variant(peer.name, partial(peer.range, stop)) for peer in peers if peer.range]
        return _of_best(compare(lab.effort, stop, ours, *theirs), 1)


@contextmanager
def _written(lab: Lab, size: int) -> Iterator[tuple[list[tuple[str, Store, Any]], list[Peer]]]:
    """Write a payload for each of our stores, and one for all peers."""
    payload, peers = payload_of(size), _peers(lab)
    stores = [(name, store, store.write(payload)) for name, store in _stores(lab)]
    try:
        peers[0].put(payload)
        yield stores, peers
    finally:
        for _, store, pointer in stores:
            store.rollback(pointer)


def _near(lab: Lab, size: int, way: str) -> Findings:
    """Compare new stores, so that the rounds include the search for the number of connections."""
    payload = payload_of(size)
    one = lab.s3_store_at(lab.near_s3, transfer_bytes=0)
    stores = (_BEFORE, one), (OURS, lab.s3_store_at(lab.near_s3))
    if way == "put":
        series = compare(
            lab.effort, size, *(Variant(name, partial(s.write, payload), s.rollback) for name, s in stores)
        )
    else:
        with stored(one, payload) as pointer:
            series = compare(lab.effort, size, *(Variant(name, partial(s.read, pointer)) for name, s in stores))
    return Findings((times_as_fast(series[1], series[0]),), series)


def _of_best(series: tuple[Series, ...], ours: int) -> Findings:
    """Compare the first ``ours`` series with the fastest of the others."""
    best = min(series[ours:], key=lambda one: one.seconds.median)
    ratios = tuple(times_as_fast(one, best) for one in series[:ours])
    return Findings(ratios, series, f"the fastest peer was {best.name}")


def _redis(lab: Lab, size: int, way: str) -> Findings:
    milliseconds, megabytes = REDIS_LINE
    store, payload = lab.store(type="redis", url=lab.redis_afar(milliseconds, megabytes)), payload_of(size)
    if way == "put":
        (ours,) = compare(lab.effort, size, Variant(OURS, lambda: store.write(payload), store.rollback))
    else:
        pointer = store.write(payload)
        (ours,) = compare(lab.effort, size, Variant(OURS, lambda: store.read(pointer)))
        store.rollback(pointer)
    return Findings((size / megabytes / 1e6 / ours.seconds.median,), (ours,))
