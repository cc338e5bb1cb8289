"""The payloads of a comparison: determined by size and number, so that a reader can verify them without a copy."""

from __future__ import annotations

import random
import struct
from functools import lru_cache

from claimcheck._texts import size_text

MIN_BYTES = 16
"""The smallest payload: its number, and some content."""

MAX_BYTES = 256 << 20
"""The largest payload: what chunks can carry by default."""

SIZE_RANGE = f"{size_text(MIN_BYTES)} to {size_text(MAX_BYTES)}"
"""Both, for people."""

_NUMBER = struct.Struct(">Q")
_BLOCK_BYTES = 1_000_003  # a prime, so that no two chunks of a payload are equal


def make(size: int, number: int) -> bytes:
    """Return payload ``number`` of this size; it begins with its number."""
    block = _block()
    start = number % len(block)
    content = block[start:] + block * (size // len(block) + 1)
    return _NUMBER.pack(number) + content[: size - _NUMBER.size]


def verify(payload: bytes | bytearray | memoryview) -> bool:
    """Return whether these are the bytes of `make`, without making them."""
    size = len(payload)
    if size < MIN_BYTES:
        return False
    view, block = memoryview(payload), memoryview(_block())
    begin, at = number_of(payload) % len(block), _NUMBER.size
    while at < size:
        piece = block[begin : begin + size - at]
        if view[at : at + len(piece)] != piece:
            return False
        begin, at = 0, at + len(piece)
    return True


def number_of(payload: bytes | bytearray | memoryview) -> int:
    """Return the number of a payload."""
    number: int = _NUMBER.unpack_from(payload)[0]
    return number


@lru_cache(maxsize=1)
def _block() -> bytes:
    return random.Random(20_200_917).randbytes(_BLOCK_BYTES)
