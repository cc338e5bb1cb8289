"""Files against a plain file, and what it costs that every byte is checked: with a checksum, and with SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from claimcheck import Pointer, Store
from tests.benchmarks.lab import Lab
from tests.benchmarks.redis_rows import stream
from tests.benchmarks.rounds import MIB, Variant, payload_of, writing
from tests.benchmarks.rows import Rows

FILE, CHECKS = Rows(), Rows()
_CHECKED = "with the check"
_STORES: dict[str, Callable[[Lab], Store]] = {
    "Redis": Lab.redis_store,
    "file": Lab.file_store,
    "S3": lambda lab: lab.s3_store(single=lab.effort.size(64)),
}
_READS: dict[str, Callable[[Store, Pointer], Any]] = {
    "Redis stream": lambda store, pointer: stream(store.open(pointer), bytearray(MIB)),
    "file read": lambda store, pointer: store.read(pointer),
}


@FILE.ratio("file-write-{}", "file write {size} without fsync, against open().write", {64: 1.3})
def _file_write(lab: Lab, size: int) -> Sequence[Variant]:
    path, payload = lab.folder / "plain", payload_of(size)
    return Variant("open().write", lambda: _plain(path, payload), lambda _: path.unlink()), writing(
        lab.file_store(), payload
    )


def _plain(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)


def _check_write(lab: Lab, size: int, name: str) -> Sequence[Variant]:
    store, payload = _STORES[name](lab), payload_of(size)
    _prove(store)
    without = Variant("without", lambda: _unchecked(lambda: store.write(payload)), store.rollback)
    return without, writing(store, payload, _CHECKED)


def _check_read(lab: Lab, size: int, name: str) -> Sequence[Variant]:
    store, way = _STORES[name.split()[0]](lab), _READS[name]
    _prove(store)
    pointer = lab.stored(store, payload_of(size))
    bare = replace(pointer, checksum=None)
    without = Variant("without", lambda: _unchecked(lambda: way(store, bare)))
    return without, Variant(_CHECKED, lambda: way(store, pointer))


def _sha256(lab: Lab, size: int, name: str) -> Sequence[Variant]:
    store, payload = _STORES[name](lab), payload_of(size)
    store.context = replace(store.context, checksum="sha256")
    alone = Variant("hashlib.sha256", lambda: hashlib.sha256(payload))
    return alone, writing(store, payload, "write with SHA-256")


for _name in _STORES:
    _what = _name + " write {size} with its check, of the rate without"
    CHECKS.ratio(f"check-{_name.lower()}-write", _what, {64: 0.9})(partial(_check_write, name=_name))
for _name in _READS:
    _what = _name + " {size} with its check, of the rate without"
    CHECKS.ratio(f"check-{_name.lower().replace(' ', '-')}", _what, {64: 0.9})(partial(_check_read, name=_name))
for _name in ("Redis", "file"):
    _what, _note = _name + " write {size} with SHA-256, of the rate of hashlib", "the hash has a thread of its own"
    CHECKS.ratio(f"sha256-{_name.lower()}-write-{{}}", _what, {16: 0.9, 64: 0.9}, note=_note)(
        partial(_sha256, name=_name)
    )


def _zero(data: Any, value: int = 0, /) -> int:
    return 0


def _unchecked(work: Callable[[], Any]) -> Any:
    with mock.patch("claimcheck._wire.checksum.crc32", _zero):
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
