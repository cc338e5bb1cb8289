"""S3 against raw HTTP and against boto3, at a server that keeps nothing: what the client costs, not the server."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from claimcheck import Store
from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer
from tests.benchmarks.lab import BUCKET, REGION, Lab, stored
from tests.benchmarks.redis_rows import OURS
from tests.benchmarks.rounds import Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast

PATTERN = "the server gives a pattern; the pointer has the pattern's checksum, so that every byte is still checked"
_THREADS = 8
_OBJECTS = 160
_SMALL_AT_ONCE = 20
_RAW = "raw http.client"


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    return [*_puts_of_one(effort), *_gets_of_one(effort), _small(effort), *_many(effort)]


def _puts_of_one(effort: Effort) -> list[Step]:
    def put(mib: int) -> Step:
        target = Target(f"s3-put-{mib}", f"S3 put {size_text(effort.size(mib))}, of raw HTTP's rate", 0.80)
        return Step((target,), partial(_put, size=effort.size(mib), single=True))

    size, large = effort.size(64), effort.size(256)
    against = (
        Target("s3-boto3-put-64", f"S3 put {size_text(size)}, against boto3 put_object", 5),
        Target("s3-boto3-upload-64", f"S3 put {size_text(size)}, against boto3 upload_fileobj", 8),
    )
    multipart = Target("s3-multipart-256", f"S3 multipart put {size_text(large)}, of raw HTTP's rate", 0.70)
    parts = Step((multipart,), partial(_put, size=large, single=False))
    return [put(64), put(256), Step(against, partial(_against_boto3, size=size)), parts]


def _gets_of_one(effort: Effort) -> list[Step]:
    def get(mib: int) -> Step:
        target = Target(
            f"s3-get-{mib}", f"S3 get {size_text(effort.size(mib))} into a buffer, of raw HTTP's rate", 0.75
        )
        return Step((target,), partial(_get, size=effort.size(mib)))

    return [get(64), get(256)]


def _small(effort: Effort) -> Step:
    size = effort.size(1 / 16)
    what = f"S3 put and get {size_text(size)}, one thread"
    targets = (
        Target("s3-small", f"{what}, of boto3's rate", 1.15),
        Target("s3-small-obstore", f"{what}, through obstore, of bare obstore's rate", 0.7),
    )
    return Step(targets, partial(_puts_and_gets, size=size))


def _many(effort: Effort) -> list[Step]:
    size = effort.size(1 / 16)
    what = f"S3 {size_text(size)} objects, {_THREADS} at once, obstore engine"
    put = Target("s3-many-put", f"{what}, put, against boto3", 10)
    get = Target("s3-many-get", f"{what}, get, against boto3", 10)
    return [Step((put,), partial(_puts, size=size)), Step((get,), partial(_gets, size=size))]


def _put(lab: Lab, size: int, *, single: bool) -> Findings:
    store, raw, payload = lab.s3_store(single=size if single else 0), lab.http("raw"), payload_of(size)
    base, ours = compare(
        lab.effort,
        size,
        Variant(_RAW, lambda: raw.put(payload)),
        Variant(OURS, lambda: store.write(payload), store.rollback),
    )
    return Findings((times_as_fast(ours, base),), (base, ours))


def _against_boto3(lab: Lab, size: int) -> Findings:
    store, client, payload = lab.s3_store(single=size), lab.boto3(), payload_of(size)
    place = {"Bucket": BUCKET, "Key": "whole"}
    put, upload, ours = compare(
        lab.effort,
        size,
        Variant("boto3 put_object", lambda: client.put_object(Body=payload, **place)),
        Variant("boto3 upload_fileobj", lambda: client.upload_fileobj(io.BytesIO(payload), **place)),
        Variant(OURS, lambda: store.write(payload), store.rollback),
    )
    return Findings((times_as_fast(ours, put), times_as_fast(ours, upload)), (put, upload, ours), "boto3's defaults")


def _get(lab: Lab, size: int) -> Findings:
    store, raw, room = lab.s3_store(single=size), lab.http("raw"), memoryview(bytearray(size))
    raw.put(payload_of(size))
    with patterned(lab, store, size) as pointer:
        base, ours = compare(
            lab.effort,
            size,
            Variant(_RAW, lambda: raw.get_into(room)),
            Variant(OURS, lambda: store.read_into(pointer, room)),
        )
    return Findings((times_as_fast(ours, base),), (base, ours), PATTERN)


def _puts_and_gets(lab: Lab, size: int) -> Findings:
    payload, client, bare = payload_of(size), lab.boto3(), lab.bare_obstore(lab.s3)

    def by_boto3() -> None:
        for _ in range(_SMALL_AT_ONCE):
            client.put_object(Bucket=BUCKET, Key="small", Body=payload)
            client.get_object(Bucket=BUCKET, Key="small")["Body"].read()

    def by_obstore() -> None:
        for _ in range(_SMALL_AT_ONCE):
            bare.put("small", payload)
            bare.get("small").bytes().to_bytes()

    def ours(name: str, store: Store, pointer: Pointer) -> Variant:
        def run() -> list[Pointer]:
            written = []
            for _ in range(_SMALL_AT_ONCE):
                written.append(store.write(payload))
                store.read(pointer)
            return written

        return Variant(name, run, lambda written: list(map(store.rollback, written)))

    s3, engine = lab.s3_store(), _obstore(lab)
    with patterned(lab, s3, size) as pointer, patterned(lab, engine, size) as other:
        peers = Variant("boto3", by_boto3), Variant("obstore", by_obstore)
        found = ours(OURS, s3, pointer), ours(f"{OURS} obstore", engine, other)
        series = compare(lab.effort, 2 * _SMALL_AT_ONCE, *peers, *found, counts="operations")
    return Findings((times_as_fast(series[2], series[0]), times_as_fast(series[3], series[1])), series, PATTERN)


def _puts(lab: Lab, size: int) -> Findings:
    client, store, payload = lab.boto3(), _obstore(lab), payload_of(size)
    with ThreadPoolExecutor(_THREADS) as threads:
        every = partial(_for_all, threads)
        base, ours = compare(
            lab.effort,
            _OBJECTS,
            Variant("boto3", lambda: every(lambda i: client.put_object(Bucket=BUCKET, Key=f"many-{i}", Body=payload))),
            Variant(OURS, lambda: every(lambda _: store.write(payload)), partial(_remove, threads, store)),
            counts="operations",
        )
    return Findings((times_as_fast(ours, base),), (base, ours))


def _gets(lab: Lab, size: int) -> Findings:
    client, store = lab.boto3(), _obstore(lab)
    client.put_object(Bucket=BUCKET, Key="many", Body=payload_of(size))
    with ThreadPoolExecutor(_THREADS) as threads, patterned(lab, store, size) as pointer:
        every = partial(_for_all, threads)
        base, ours = compare(
            lab.effort,
            _OBJECTS,
            Variant("boto3", lambda: every(lambda _: len(client.get_object(Bucket=BUCKET, Key="many")["Body"].read()))),
            Variant(OURS, lambda: every(lambda _: len(store.read(pointer)))),
            counts="operations",
        )
    return Findings((times_as_fast(ours, base),), (base, ours), PATTERN)


def _obstore(lab: Lab) -> Store:
    return lab.store(type="obstore", url=f"s3://{BUCKET}/claims", endpoint_url=lab.s3, region_name=REGION)


@contextmanager
def patterned(lab: Lab, store: Store, size: int) -> Iterator[Pointer]:
    """Put something of this size, with a pointer to what the server gives in its place."""
    raw, room = lab.http("pattern"), bytearray(size)
    raw.put(bytes(size))
    raw.get_into(memoryview(room))
    with stored(store, bytes(size)) as pointer:
        yield replace(pointer, checksum=digest_of(room))


def _for_all(threads: ThreadPoolExecutor, work: Callable[[int], Any]) -> list[Any]:
    """Share the objects among the threads beforehand: handing out each would cost as much as some of them do."""

    def share(first: int) -> list[Any]:
        return [work(i) for i in range(first, _OBJECTS, _THREADS)]

    return list(chain.from_iterable(threads.map(share, range(_THREADS))))


def _remove(threads: ThreadPoolExecutor, store: Store, pointers: list[Pointer]) -> None:
    list(threads.map(store.rollback, pointers))
