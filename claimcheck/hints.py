"""Message headers: the caller's keep their shape, ours are hints that no reader needs.

For chunks the names are those of PIP-37 (Apache Pulsar's chunking), so that operators and tools know them. They are
left out when the caller uses one of these names for something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from claimcheck.errors import PayloadTypeError

__all__ = ["CHECKSUM", "NULL_KEY", "SIZE", "TYPE", "add", "chunk_hints", "get", "is_ours", "pairs", "strip"]

TYPE = "claimcheck-type"
SIZE = "claimcheck-size"
CHECKSUM = "claimcheck-checksum"
NULL_KEY = "claimcheck-null-key"
_PREFIX = "claimcheck-"
_UUID, _POSITION, _COUNT, _TOTAL = "uuid", "chunk_id", "num_chunks_from_msg", "total_chunk_msg_size"
_PIP_37 = frozenset((_UUID, _POSITION, _COUNT, _TOTAL))


def pairs(headers: Any) -> Iterator[tuple[str, Any]]:
    """Go through headers of either shape: a mapping, or a sequence of pairs; ``None`` has none.

    Raises:
        PayloadTypeError: Neither of them.
    """
    if headers is None:
        return iter(())
    if isinstance(headers, Mapping):
        return iter(headers.items())
    if isinstance(headers, Sequence) and not isinstance(headers, (str, bytes)):
        return ((name, value) for name, value in headers)
    raise PayloadTypeError(f"headers are a mapping or a list of pairs, not {type(headers).__name__}")


def get(headers: Any, name: str) -> str | None:
    """The last value of a header as text; ``None`` where it is missing or is no text."""
    found = [value for key, value in pairs(headers) if key == name]
    if not found:
        return None
    value = found[-1]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def is_ours(headers: Any) -> bool:
    """Whether the caller says, by these headers, that the message is an envelope already."""
    return headers is not None and any(name == TYPE for name, _ in pairs(headers))


def add(headers: Any, hints: Mapping[str, str]) -> Any:
    """Return new headers with our hints, in the shape of the caller's, which stay as they are."""
    if headers is None or isinstance(headers, Mapping):
        return {**(headers or {}), **hints}
    joined = [*pairs(headers), *hints.items()]
    return tuple(joined) if isinstance(headers, tuple) else joined


def chunk_hints(headers: Any, uuid: str, position: int, count: int, total: int) -> dict[str, str]:
    """The hints of one chunk; without PIP-37's names where the caller uses one of them."""
    ours = {TYPE: "chunk", SIZE: str(total)}
    if any(name in _PIP_37 for name, _ in pairs(headers)):
        return ours
    return ours | {_UUID: uuid, _POSITION: str(position), _COUNT: str(count), _TOTAL: str(total)}


def strip(headers: Any, *, uuid: str | None = None) -> Any:
    """Return the headers that the sender gave, in their shape: without our hints."""
    if not is_ours(headers):
        return headers
    theirs = uuid is None or get(headers, _UUID) != uuid
    kept = [(n, v) for n, v in pairs(headers) if not n.startswith(_PREFIX) and (theirs or n not in _PIP_37)]
    if isinstance(headers, Mapping):
        return dict(kept)
    return tuple(kept) if isinstance(headers, tuple) else kept
