"""The size of a message on the wire: value, key, headers and framing, in bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from claimcheck._wire import headers as hints

_KAFKA_RECORD_BYTES = 72


def byte_length(value: object) -> int:
    """Return the bytes of a key, header name or value: text counts as UTF-8, ``None`` as 0."""
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if value is None:
        return 0
    if isinstance(value, memoryview):
        return value.nbytes
    return len(str(value).encode("utf-8", "surrogatepass"))


def kafka_overhead(key: object, headers: object) -> int:
    """Return the bytes that a Kafka broker counts beside the value of a lone record: key, headers and framing."""
    record = _KAFKA_RECORD_BYTES  # includes one byte for the key's length, and one for the number of headers
    if key is not None:
        record += _field_bytes(key) - 1
    if headers is None:
        return record
    count = 0
    for name, value in hints.pairs(headers):
        count += 1
        record += _field_bytes(name) + _field_bytes(value)
    return record + _varint_bytes(count) - 1


def _field_bytes(value: object) -> int:
    """Return the bytes of a value with its length."""
    n = len(value) if type(value) is str and value.isascii() else byte_length(value)
    return n + 1 if n < 64 else n + _varint_bytes(n)


def _varint_bytes(n: int) -> int:
    """Return the size of a non-negative number in zigzag coding, as in Kafka's record format."""
    return 1 if n < 64 else 2 if n < 8192 else 3 if n < 1 << 20 else 5


@dataclass(frozen=True, slots=True)
class WireLimit:
    """The largest message that a transport accepts, and how it counts.

    Attributes:
        max_message_bytes: Limit for value, key, headers and framing together.
        overhead: Returns the bytes beside the value, for a key and headers.
        chunk_message_bytes: Limit for the message of one chunk; by default ``max_message_bytes``.
    """

    max_message_bytes: int = 1_000_000
    overhead: Callable[[object, object], int] = kafka_overhead
    chunk_message_bytes: int | None = None


DEFAULT_LIMIT = WireLimit()
"""The limit without a transport: Kafka's default and its arithmetic, the strictest known."""
