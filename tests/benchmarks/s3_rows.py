"""S3 against raw HTTP and against boto3, at a server that keeps nothing: what the client costs, not the server."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from claimcheck import Pointer, Store
from tests.benchmarks.lab import BUCKET, Lab, checksum_of
from tests.benchmarks.rounds import OURS, Variant, compare, payload_of, times_as_fast, writing
from tests.benchmarks.rows import Findings, Rows

ROWS = Rows()
PATTERN = "the server gives a pattern; the pointer has the pattern's checksum, so that every byte is still checked"
_THREADS = 8
_OBJECTS = 160
_SMALL_AT_ONCE = 20
_RAW = "raw http.client"


def _raw_put(lab: Lab, size: int, *, single: bool) -> Sequence[Variant]:
    store, raw, payload = lab.s3_store(single=size if single else 0), lab.http("raw"), payload_of(size)
    return Variant(_RAW, lambda: raw.put(payload)), writing(store, payload)


ROWS.ratio("S3 put {size}, of raw HTTP's rate", 64, 256)(partial(_raw_put, single=True))
ROWS.ratio("S3 multipart put {size}, of raw HTTP's rate", 256)(partial(_raw_put, single=False))


@ROWS.ratio("S3 get {size} into a buffer, of raw HTTP's rate", 64, 256, note=PATTERN)
def _get(lab: Lab, size: int) -> Sequence[Variant]:
    store, raw, room = lab.s3_store(single=size), lab.http("raw"), memoryview(bytearray(size))
    raw.put(payload_of(size))
    pointer = patterned(lab, store, size)
    return Variant(_RAW, lambda: raw.get_into(room)), Variant(OURS, lambda: store.read_into(pointer, room))


@ROWS.findings("S3 put {size}, against boto3 put_object", "S3 put {size}, against boto3 upload_fileobj", mib=64)
def _against_boto3(lab: Lab, size: int) -> Findings:
    store, client, payload = lab.s3_store(single=size), lab.boto3(), payload_of(size)
    place = {"Bucket": BUCKET, "Key": "whole"}
    put, upload, ours = series = compare(
        lab.effort,
        size,
        Variant("boto3 put_object", lambda: client.put_object(Body=payload, **place)),
        Variant("boto3 upload_fileobj", lambda: client.upload_fileobj(io.BytesIO(payload), **place)),
        writing(store, payload),
    )
    return Findings((times_as_fast(ours, put), times_as_fast(ours, upload)), series, "boto3's defaults")


@ROWS.findings(
    "S3 put and get {size}, one thread, of boto3's rate",
    "S3 put and get {size}, one thread, through obstore, of bare obstore's rate",
    mib=1 / 16,
)
def _small(lab: Lab, size: int) -> Findings:
    payload, client, bare = payload_of(size), lab.boto3(), lab.bare_obstore(lab.s3)

    def by_boto3() -> None:
        client.put_object(Bucket=BUCKET, Key="small", Body=payload)
        client.get_object(Bucket=BUCKET, Key="small")["Body"].read()

    def by_obstore() -> None:
        bare.put("small", payload)
        bare.get("small").bytes().to_bytes()

    def by_us(store: Store, pointer: Pointer) -> Pointer:
        written = store.write(payload)
        store.read(pointer)
        return written

    def variant(name: str, one: Callable[[], Any], clean: Callable[[Any], object] = lambda result: None) -> Variant:
        return Variant(name, lambda: [one() for _ in range(_SMALL_AT_ONCE)], lambda results: list(map(clean, results)))

    ours = [
        variant(name, partial(by_us, store, patterned(lab, store, size)), store.rollback)
        for name, store in ((OURS, lab.s3_store()), (f"{OURS} obstore", lab.obstore_at(lab.s3)))
    ]
    variants = variant("boto3", by_boto3), variant("obstore", by_obstore), *ours
    series = compare(lab.effort, 2 * _SMALL_AT_ONCE, *variants, counts="operations")
    return Findings((times_as_fast(series[2], series[0]), times_as_fast(series[3], series[1])), series, PATTERN)


_MANY = f"S3 {{size}} objects, {_THREADS} at once, obstore engine"


@ROWS.ratio(f"{_MANY}, put, against boto3", 1 / 16, operations=_OBJECTS)
def _puts(lab: Lab, size: int) -> Sequence[Variant]:
    client, store, payload, threads = (
        lab.boto3(),
        lab.obstore_at(lab.s3),
        payload_of(size),
        lab.enter(ThreadPoolExecutor(_THREADS)),
    )
    by_boto3 = _for_all(threads, lambda i: client.put_object(Bucket=BUCKET, Key=f"many-{i}", Body=payload))
    ours = _for_all(threads, lambda _: store.write(payload))
    return Variant("boto3", by_boto3), Variant(OURS, ours, lambda made: list(threads.map(store.rollback, made)))


@ROWS.ratio(f"{_MANY}, get, against boto3", 1 / 16, operations=_OBJECTS, note=PATTERN)
def _gets(lab: Lab, size: int) -> Sequence[Variant]:
    client, store, threads = lab.boto3(), lab.obstore_at(lab.s3), lab.enter(ThreadPoolExecutor(_THREADS))
    client.put_object(Bucket=BUCKET, Key="many", Body=payload_of(size))
    pointer = patterned(lab, store, size)
    by_boto3 = _for_all(threads, lambda _: len(client.get_object(Bucket=BUCKET, Key="many")["Body"].read()))
    return Variant("boto3", by_boto3), Variant(OURS, _for_all(threads, lambda _: len(store.read(pointer))))


def patterned(lab: Lab, store: Store, size: int) -> Pointer:
    """Put something of this size for a step, with a pointer to what the server gives in its place."""
    raw, room = lab.http("pattern"), bytearray(size)
    raw.put(bytes(size))
    raw.get_into(memoryview(room))
    return replace(lab.stored(store, bytes(size)), checksum=checksum_of(room))


def _for_all(threads: ThreadPoolExecutor, work: Callable[[int], Any]) -> Callable[[], list[Any]]:
    """Return a function that does this for all objects, each thread for its share.

    To hand out each object would cost as much as some of them do.
    """

    def share(first: int) -> list[Any]:
        return [work(i) for i in range(first, _OBJECTS, _THREADS)]

    return lambda: [result for part in threads.map(share, range(_THREADS)) for result in part]
