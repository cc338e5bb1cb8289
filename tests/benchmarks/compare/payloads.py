"""The payloads of a comparison: determined by size and number, so that a reader can recognize them without a copy."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from functools import lru_cache

from tests.benchmarks.children import error_text
from tests.benchmarks.compare.broker import Received

MIN_BYTES = 16
"""The smallest payload: its number, and some content."""

MAX_BYTES = 256 << 20
"""The largest payload: what chunks can carry by default."""

_NUMBER = struct.Struct(">Q")
_BLOCK_BYTES = 1_000_003  # a prime, so that no two chunks of a payload are equal


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a consumer received: the number of a payload, or ``None`` for an error, and for bytes that were not sent."""

    number: int | None
    error: str
    size: int
    partition: int
    position: int | str

    @property
    def is_wrong(self) -> bool:
        """Whether the consumer returned bytes that were not sent."""
        return self.number is None and not self.error


def make(size: int, number: int) -> bytes:
    """Return payload ``number`` of this size; it begins with its number."""
    block = _block()
    start = number % len(block)
    content = block[start:] + block * (size // len(block) + 1)
    return _NUMBER.pack(number) + content[: size - _NUMBER.size]


def recognized(received: Received) -> Delivery:
    """Return which payload was received. The beginning of one is recognized, too: its size tells."""
    payload, place = received.payload, (received.partition, received.position)
    if payload is None:
        error = "a tombstone" if received.error is None else error_text(received.error)
        return Delivery(None, error, 0, *place)
    return Delivery(_number_of(memoryview(payload)), "", len(payload), *place)


def _number_of(view: memoryview) -> int | None:
    """Return the number of a payload, if these are the bytes of `make`, without making them."""
    size, block = len(view), memoryview(_block())
    if size < MIN_BYTES:
        return None
    number: int = _NUMBER.unpack_from(view)[0]
    begin, at = number % len(block), _NUMBER.size
    while at < size:
        piece = block[begin : begin + size - at]
        if view[at : at + len(piece)] != piece:
            return None
        begin, at = 0, at + len(piece)
    return number


@lru_cache(maxsize=1)
def _block() -> bytes:
    return random.Random(20_200_917).randbytes(_BLOCK_BYTES)
