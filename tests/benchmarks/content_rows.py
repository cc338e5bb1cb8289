"""What SHA-256 and compression cost: the rate of a store, and of our streams, of that of the library alone."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from claimcheck import Store
from claimcheck._content import compression
from claimcheck._wire.buffers import STEP_BYTES, PieceReader
from tests.benchmarks.lab import Lab, stored
from tests.benchmarks.rounds import MIB, Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    size = effort.size(64)

    def digested(key: str, what: str, measure: Callable[[Lab], Findings]) -> Step:
        what = f"{what} {size_text(size)} with SHA-256, of the rate of hashlib"
        return Step((Target(f"sha256-{key}", what, 0.90),), measure)

    def compressed(key: str, what: str, measure: Callable[[Lab], Findings]) -> Step:
        what = f"{what} {size_text(size)} of JSON by zstd at level 1, of the rate of the library"
        return Step((Target(f"zstd-{key}", what, 0.85),), measure)

    return [
        digested("redis-write", "Redis write", lambda lab: _write(lab, lab.redis_store(), size)),
        digested("redis-read", "Redis read", lambda lab: _read(lab, lab.redis_store(), size)),
        digested("file-write", "file write", lambda lab: _write(lab, lab.file_store(), size)),
        digested("file-read", "file read", lambda lab: _read(lab, lab.file_store(), size)),
        compressed("compress", "compress", lambda lab: _compress(lab, size)),
        compressed("decompress", "decompress", lambda lab: _decompress(lab, size)),
    ]


def _write(lab: Lab, store: Store, size: int) -> Findings:
    payload = payload_of(size)
    store.context = replace(store.context, checksum="sha256")
    alone, ours = compare(
        lab.effort,
        size,
        Variant("hashlib.sha256", lambda: hashlib.sha256(payload)),
        Variant("write with SHA-256", lambda: store.write(payload), store.rollback),
    )
    return Findings((times_as_fast(ours, alone),), (alone, ours), "the hash has a thread of its own")


def _read(lab: Lab, store: Store, size: int) -> Findings:
    payload = payload_of(size)
    store.context = replace(store.context, checksum="sha256")
    with stored(store, payload) as pointer:
        alone, ours = compare(
            lab.effort,
            size,
            Variant("hashlib.sha256", lambda: hashlib.sha256(payload)),
            Variant("read with SHA-256", lambda: store.read(pointer)),
        )
    return Findings((times_as_fast(ours, alone),), (alone, ours), "the hash has a thread of its own")


def _compress(lab: Lab, size: int) -> Findings:
    import zstandard

    payload = _json_of(size)
    alone, ours = compare(
        lab.effort,
        size,
        Variant("zstandard", lambda: _copied(zstandard.ZstdCompressor(level=1), payload, size=size)),
        Variant("compress", lambda: sum(map(len, _stream(payload)))),
    )
    return Findings((times_as_fast(ours, alone),), (alone, ours), "ZstdCompressor.copy_stream")


def _decompress(lab: Lab, size: int) -> Findings:
    import zstandard

    stream = b"".join(_stream(_json_of(size)))
    alone, ours = compare(
        lab.effort,
        size,
        Variant("zstandard", lambda: _copied(zstandard.ZstdDecompressor(), stream)),
        Variant("DecompressingReader", lambda: _drain(stream, size)),
    )
    return Findings((times_as_fast(ours, alone),), (alone, ours), "ZstdDecompressor.copy_stream")


def _copied(engine: Any, data: bytes, **known: int) -> None:
    engine.copy_stream(io.BytesIO(data), _Sink(), **known)


class _Sink:
    def write(self, data: bytes) -> int:
        return len(data)


def _stream(payload: bytes) -> Iterable[bytes]:
    return compression.compress(_pieces(payload), codec="zstd", level=1, size=len(payload))


def _drain(stream: bytes, size: int) -> None:
    reader, buffer = PieceReader(_pieces(stream)), memoryview(bytearray(STEP_BYTES))
    decompressed = compression.DecompressingReader(reader, codec="zstd", size=size)
    while decompressed.readinto(buffer):
        pass


def _pieces(data: bytes) -> list[memoryview]:
    return [memoryview(data)[start : start + MIB] for start in range(0, len(data), MIB)]


def _json_of(size: int) -> bytes:
    """Return lines of JSON; no two stretches of 512 KiB, the window of level 1, are the same."""
    chance, lines = random.Random(1), list[bytes]()
    while sum(map(len, lines)) < MIB:
        facts = {"id": chance.getrandbits(40), "user": f"user-{chance.randrange(10_000)}", "amount": chance.random()}
        lines.append(json.dumps(facts).encode() + b"\n")
    parts = []
    for _ in range(size // MIB + 1):
        chance.shuffle(lines)
        parts.append(b"".join(lines))
    return b"".join(parts)[:size]
