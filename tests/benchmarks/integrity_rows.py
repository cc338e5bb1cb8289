"""What it costs that every byte is checked: the same operation with and without the checksum."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from claimcheck import Store
from claimcheck._wire.pointer import Pointer
from tests.benchmarks.lab import Lab, stored
from tests.benchmarks.redis_rows import stream
from tests.benchmarks.rounds import MIB, Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast

Reader = Callable[[Store, Pointer, bytearray], Any]


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    size = effort.size(64)

    def step(key: str, what: str, measure: Callable[[Lab], Findings]) -> Step:
        what = f"{what} {size_text(size)} with its check, of the rate without"
        return Step((Target(f"check-{key}", what, 0.90),), measure)

    return [
        step("redis-write", "Redis write", lambda lab: _write(lab, lab.redis_store(), size)),
        step("redis-stream", "Redis stream", lambda lab: _read(lab, lab.redis_store(), _stream, size, MIB)),
        step("file-write", "file write", lambda lab: _write(lab, lab.file_store(), size)),
        step("file-read", "file read to bytes", lambda lab: _read(lab, lab.file_store(), _whole, size)),
        step("file-read-into", "file read into a buffer", lambda lab: _read(lab, lab.file_store(), _into, size, size)),
        step("s3-put", "S3 put", lambda lab: _write(lab, lab.s3_store(single=size), size)),
    ]


def _write(lab: Lab, store: Store, size: int) -> Findings:
    payload = payload_of(size)
    _prove(store)
    without, checked = compare(
        lab.effort,
        size,
        Variant("without", lambda: _unchecked(lambda: store.write(payload)), store.rollback),
        Variant("with the check", lambda: store.write(payload), store.rollback),
    )
    return Findings((times_as_fast(checked, without),), (without, checked), _engine())


def _read(lab: Lab, store: Store, read: Reader, size: int, buffer_bytes: int = 0) -> Findings:
    room = bytearray(buffer_bytes)
    _prove(store)
    with stored(store, payload_of(size)) as pointer:
        bare = replace(pointer, checksum=None)
        without, checked = compare(
            lab.effort,
            size,
            Variant("without", lambda: _unchecked(lambda: read(store, bare, room))),
            Variant("with the check", lambda: read(store, pointer, room)),
        )
    return Findings((times_as_fast(checked, without),), (without, checked), _engine())


def _stream(store: Store, pointer: Pointer, room: bytearray) -> None:
    stream(store.open(pointer), room)


def _whole(store: Store, pointer: Pointer, room: bytearray) -> bytes:
    return store.read(pointer)


def _into(store: Store, pointer: Pointer, room: bytearray) -> int:
    return store.read_into(pointer, room)


def _no_checksums() -> AbstractContextManager[Any]:
    return mock.patch("claimcheck._wire.checksum.crc32", _zero)


def _zero(data: Any, value: int = 0, /) -> int:
    return 0


def _unchecked(work: Callable[[], Any]) -> Any:
    with _no_checksums():
        return work()


def _prove(store: Store) -> None:
    """Without the check there must really be none, or the figures would mean nothing."""
    pointer = _unchecked(lambda: store.write(payload_of(MIB)))
    try:
        if pointer.checksum != "crc32:00000000":
            raise RuntimeError("checksums are made elsewhere than by claimcheck._wire.checksum.crc32")
        _unchecked(lambda: store.read(pointer))  # an integrity error, if a reader makes its own
    finally:
        store.rollback(pointer)


def _engine() -> str:
    from claimcheck._wire import checksum

    return f"CRC-32 by {checksum.crc32.__module__}"
