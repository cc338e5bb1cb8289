"""The payloads of a comparison: determined by size and number, so that a reader can verify them without a copy."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from claimcheck._texts import size_text
from tests.benchmarks.compare.model import CompareError

MIN_BYTES = 16
"""The smallest payload: its number, and some content."""

MAX_BYTES = 256 << 20
"""The largest payload: what chunks can carry by default."""

SIZE_RANGE = f"{size_text(MIN_BYTES)} to {size_text(MAX_BYTES)}"
"""Both, for people."""

_NUMBER = struct.Struct(">Q")
_BLOCK_BYTES = 1_000_003  # a prime, so that no two chunks of a payload are equal
_MOST_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Payloads:
    """Makes and verifies payloads, of the contents of a folder's files, or of random bytes."""

    folder: str | None = None

    def make(self, size: int, number: int) -> bytes:
        """Return payload ``number`` of this size; it begins with its number."""
        if size < MIN_BYTES:
            raise CompareError(f"payloads of {size} bytes are too small to compare; use at least {MIN_BYTES} bytes")
        payload = bytearray(size)
        _NUMBER.pack_into(payload, 0, number)
        block = self._block(size)
        begin, at = number % len(block), _NUMBER.size
        while at < size:
            piece = block[begin : begin + size - at]
            payload[at : at + len(piece)] = piece
            begin, at = 0, at + len(piece)
        return bytes(payload)

    def verify(self, payload: bytes | bytearray | memoryview) -> bool:
        """Return whether these are the bytes of `make`, without making them."""
        size = len(payload)
        if size < MIN_BYTES:
            return False
        view, block = memoryview(payload), self._block(size)
        begin, at = number_of(payload) % len(block), _NUMBER.size
        while at < size:
            piece = memoryview(block)[begin : begin + size - at]
            if view[at : at + len(piece)] != piece:
                return False
            begin, at = 0, at + len(piece)
        return True

    def sizes(self) -> tuple[int, ...]:
        """Return the representative sizes of the folder's files."""
        return representative([path.stat().st_size for path in _files(self.folder or "")], f"below {self.folder}")

    def _block(self, size: int) -> bytes:
        return _random_block() if self.folder is None else _file_block(self.folder, size)


def number_of(payload: bytes | bytearray | memoryview) -> int:
    """Return the number of a payload."""
    number: int = _NUMBER.unpack_from(payload)[0]
    return number


def representative(sizes: Sequence[int], where: str) -> tuple[int, ...]:
    """Return the 10th, 50th and 90th percentile and the largest of the sizes, without repetitions."""
    ordered = sorted(size for size in sizes if size >= MIN_BYTES)
    if not ordered:
        raise CompareError(f"there is no payload of at least {MIN_BYTES} bytes {where}; choose another sample")
    last = len(ordered) - 1
    return tuple(sorted({ordered[round(fraction * last)] for fraction in (0.1, 0.5, 0.9, 1.0)}))


@lru_cache(maxsize=1)
def _random_block() -> bytes:
    return random.Random(20_200_917).randbytes(_BLOCK_BYTES)


@lru_cache(maxsize=8)
def _file_block(folder: str, size: int) -> bytes:
    """Return the content of the file whose size is nearest."""
    path = min(_files(folder), key=lambda path: (abs(path.stat().st_size - size), str(path)))
    return path.read_bytes()[:size]


@lru_cache(maxsize=2)
def _files(folder: str) -> tuple[Path, ...]:
    found = sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size >= MIN_BYTES)
    if not found:
        raise CompareError(f"there is no file of at least {MIN_BYTES} bytes below {folder}; choose another folder")
    return tuple(found[:_MOST_FILES])
