"""Redis, S3 and files against the vendors' clients; then memory, and the path of a payload.

The S3 server keeps nothing: what the client costs, not the server.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import claimcheck
from claimcheck import Pointer, Store
from tests.benchmarks.children import fresh, peak_extra
from tests.benchmarks.lab import BUCKET, RECYCLING, THRESHOLD, Lab
from tests.benchmarks.rounds import MIB, OURS, Variant, compare, payload_of, reading, writing
from tests.benchmarks.rows import BEST, Findings, Rows

REDIS, S3, FILE, MEMORY, PATH = Rows(), Rows(), Rows(), Rows(), Rows()

# Redis -----------------------------------------------------------------------------------------------------------

_SMALL_AT_ONCE = 50
_HIREDIS = f"redis-py with hiredis, which checks nothing; the server reuses memory (MALLOC_CONF={RECYCLING})"


@REDIS.ratio(
    "Redis write and read {size}, against SET and GET", 1 / 256, 1 / 16, 1, note=_HIREDIS, operations=_SMALL_AT_ONCE
)
def _small(lab: Lab, size: int) -> Sequence[Variant]:
    store, client, payload = lab.redis_store(), lab.redis_client, payload_of(size)

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


@REDIS.ratio("Redis write {size}, against SET", 64, note=_HIREDIS)
def _against_set(lab: Lab, size: int) -> Sequence[Variant]:
    client, payload = lab.redis_client, payload_of(size)
    by_hand = Variant("redis-py SET", lambda: client.set("whole", payload, ex=600), lambda _: client.delete("whole"))
    return by_hand, writing(lab.redis_store(), payload)


@REDIS.ratio(
    ("Redis read {size} to bytes, against GET", "Redis stream {size}, against GET"),
    64,
    pairs=((1, 0), (2, 0)),
    note=_HIREDIS,
)
def _against_get(lab: Lab, size: int) -> Sequence[Variant]:
    store, client, payload, room = lab.redis_store(), lab.redis_client, payload_of(size), bytearray(MIB)
    pointer = lab.stored(store, payload)
    client.set("whole", payload, ex=600)
    lab.at_end(lambda: client.delete("whole"))
    return (
        Variant("redis-py GET", lambda: client.get("whole")),
        reading(store, pointer, f"{OURS}, to bytes"),
        Variant(f"{OURS}, stream through 1 MiB", lambda: _stream(store.open(pointer), room)),
    )


def _stream(file: io.BufferedReader, room: bytearray) -> None:
    """Read a file to its end through one buffer."""
    with file:
        while file.readinto(room):
            pass


# S3 --------------------------------------------------------------------------------------------------------------

_CHECKED = "the server returns as many x as were written, and only x were: every byte is checked"
_THREADS = 8
_OBJECTS = 160
_FEW = 20


@S3.ratio("S3 get {size} into a buffer, against boto3", 64, 256, note=_CHECKED)
def _get(lab: Lab, size: int) -> Sequence[Variant]:
    store, client, room = lab.s3_store(single=size), lab.boto3(), memoryview(bytearray(size))
    client.put_object(Bucket=BUCKET, Key="whole", Body=payload_of(size))
    pointer = lab.stored(store, b"x" * size)
    by_boto3 = Variant("boto3", lambda: client.get_object(Bucket=BUCKET, Key="whole")["Body"].read())
    return by_boto3, Variant(OURS, lambda: store.read_into(pointer, room))


@S3.ratio(
    ("S3 put {size}, against boto3 put_object", "S3 put {size}, against boto3 upload_fileobj"),
    64,
    pairs=((2, 0), (2, 1)),
    note="boto3's defaults",
)
def _against_boto3(lab: Lab, size: int) -> Sequence[Variant]:
    client, payload, place = lab.boto3(), payload_of(size), {"Bucket": BUCKET, "Key": "whole"}
    return (
        Variant("boto3 put_object", lambda: client.put_object(Body=payload, **place)),
        Variant("boto3 upload_fileobj", lambda: client.upload_fileobj(io.BytesIO(payload), **place)),
        writing(lab.s3_store(single=size), payload),
    )


@S3.ratio(
    (
        "S3 put and get {size}, one thread, of boto3's rate",
        "S3 put and get {size}, one thread, through obstore, of bare obstore's rate",
    ),
    1 / 16,
    pairs=((2, 0), (3, 1)),
    note=_CHECKED,
    operations=2 * _FEW,
)
def _one_thread(lab: Lab, size: int) -> Sequence[Variant]:
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
        return Variant(name, lambda: [one() for _ in range(_FEW)], lambda results: list(map(clean, results)))

    ours = [
        variant(name, partial(by_us, store, lab.stored(store, b"x" * size)), store.rollback)
        for name, store in ((OURS, lab.s3_store()), (f"{OURS} obstore", lab.obstore_at(lab.s3)))
    ]
    return variant("boto3", by_boto3), variant("obstore", by_obstore), *ours


_MANY = f"S3 {{size}} objects, {_THREADS} at once, obstore engine"


@S3.ratio(f"{_MANY}, put, against boto3", 1 / 16, operations=_OBJECTS)
def _puts(lab: Lab, size: int) -> Sequence[Variant]:
    client, store, payload = lab.boto3(), lab.obstore_at(lab.s3), payload_of(size)
    threads = lab.enter(ThreadPoolExecutor(_THREADS))
    by_boto3 = _for_all(threads, lambda i: client.put_object(Bucket=BUCKET, Key=f"many-{i}", Body=payload))
    ours = _for_all(threads, lambda _: store.write(payload))
    return Variant("boto3", by_boto3), Variant(OURS, ours, lambda made: list(threads.map(store.rollback, made)))


@S3.ratio(f"{_MANY}, get, against boto3", 1 / 16, operations=_OBJECTS, note=_CHECKED)
def _gets(lab: Lab, size: int) -> Sequence[Variant]:
    client, store, threads = lab.boto3(), lab.obstore_at(lab.s3), lab.enter(ThreadPoolExecutor(_THREADS))
    client.put_object(Bucket=BUCKET, Key="many", Body=payload_of(size))
    pointer = lab.stored(store, b"x" * size)
    by_boto3 = _for_all(threads, lambda _: len(client.get_object(Bucket=BUCKET, Key="many")["Body"].read()))
    return Variant("boto3", by_boto3), Variant(OURS, _for_all(threads, lambda _: len(store.read(pointer))))


def _for_all(threads: ThreadPoolExecutor, work: Callable[[int], Any]) -> Callable[[], list[Any]]:
    """Return a function that does this for all objects, each thread for its share.

    To hand out each object would cost as much as some of them do.
    """

    def share(first: int) -> list[Any]:
        return [work(i) for i in range(first, _OBJECTS, _THREADS)]

    return lambda: [result for part in threads.map(share, range(_THREADS)) for result in part]


# Files -----------------------------------------------------------------------------------------------------------


@FILE.ratio("file write {size} without fsync, against open().write", 64)
def _file_write(lab: Lab, size: int) -> Sequence[Variant]:
    path, payload = lab.folder / "plain", payload_of(size)
    plain = Variant("open().write", lambda: path.write_bytes(payload), lambda _: path.unlink())
    return plain, writing(lab.store(type="filesystem", path=str(lab.folder / "claims"), create=True), payload)


# Memory, each figure of a process of its own ---------------------------------------------------------------------


def _taken(lab: Lab, size: int, job: str) -> Findings:
    taken = fresh(_peak, job, lab.redis, size)
    return Findings((taken / MIB,), note="VmHWM of a fresh process, after a warm-up with a small payload")


for _job, _what in (("write", "write of bytes"), ("stream", "stream read")):
    MEMORY.findings(f"Redis {_what} {{size}}, peak extra memory", mib=256, unit="MiB", job=_job)(_taken)


def _peak(job: str, url: str, size: int) -> int:
    config = {"strategy": "external", "stores": {"hot": {"type": "redis", "url": url}}}
    with claimcheck.from_dict(config) as cc:
        _once(cc.store("hot"), job, MIB // 16)
        return _once(cc.store("hot"), job, size)


def _once(store: Store, job: str, size: int) -> int:
    payload, pointers = payload_of(size), list[Pointer]()
    if job == "write":
        taken = peak_extra(lambda: pointers.append(store.write(payload)))
    else:
        pointers.append(store.write(payload))
        taken = peak_extra(lambda: _stream(store.open(pointers[0]), bytearray(MIB)))
    store.rollback(pointers[0])
    return taken


# The path through the decorator ----------------------------------------------------------------------------------

_CALLS = 2000


def _publish(value: bytes) -> bytes:
    """A produce call that costs nothing."""
    return value


@PATH.findings("a payload below the threshold through cc.offload, without a copy, time added", unit="us")
def _below(lab: Lab, size: int) -> Findings:
    payload = bytes(THRESHOLD // 2)
    publish = lab.cc(type="memory").offload(payload="value")(_publish)
    assert publish(payload) is payload, "a payload below the threshold was copied"

    def calls(function: Callable[[bytes], bytes]) -> None:
        for _ in range(_CALLS):
            function(payload)

    variants = [
        Variant(name, partial(calls, each))
        for name, each in (("the bare function", _publish), ("claimcheck, decorated", publish))
    ]
    bare, decorated = series = compare(lab.effort, _CALLS, *variants, counts="operations")
    return Findings(((decorated.seconds.best - bare.seconds.best) / _CALLS * 1e6,), series, BEST)
