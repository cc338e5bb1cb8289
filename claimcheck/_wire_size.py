"""How large a message is on its way: bytes, with everything that a broker counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from claimcheck import _hints as hints

__all__ = ["DEFAULT_LIMIT", "WireLimit", "byte_length", "kafka_overhead"]

_KAFKA_RECORD_BYTES = 72


def byte_length(value: Any) -> int:
    """Bytes of a key, header name or value: text counts as UTF-8, ``None`` as nothing.

    What is neither (a number, a UUID) will be made bytes by somebody else: it counts as its text.
    """
    if value is None:
        return 0
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    return value.nbytes if isinstance(value, memoryview) else len(str(value).encode("utf-8", "surrogatepass"))


def kafka_overhead(key: Any, headers: Any) -> int:
    """What Kafka's broker counts beside the value of a lone record: key, headers and framing, in bytes."""
    record = _KAFKA_RECORD_BYTES  # it counts one byte for each length; `_varint_bytes` may be more
    if key is not None:
        n = byte_length(key)
        record += n + _varint_bytes(n) - 1
    if headers is None:
        return record
    framed = [byte_length(part) for pair in hints.pairs(headers) for part in pair]
    return record + _varint_bytes(len(framed) // 2) - 1 + sum(n + _varint_bytes(n) for n in framed)


def _varint_bytes(n: int) -> int:
    """Of a number from 0, zigzag coded as in Kafka's record format."""
    return 1 if n < 64 else 2 if n < 8192 else 3 if n < 1 << 20 else 5


@dataclass(frozen=True, slots=True)
class WireLimit:
    """The largest message that a transport takes, and how it counts.

    Attributes:
        max_message_bytes: Value, key, headers and framing together.
        overhead: From key and headers to the bytes beside the value.
        chunk_message_bytes: What the message of one chunk should have at most; by default as much as any other.
    """

    max_message_bytes: int = 1_000_000
    overhead: Callable[[Any, Any], int] = kafka_overhead
    chunk_message_bytes: int | None = None


DEFAULT_LIMIT = WireLimit()
"""Without a transport: Kafka's default and its arithmetic, the strictest that we know."""
