"""Message headers: the caller's keep their shape, ours are hints that no reader needs.

For chunks the names are those of PIP-37 (Apache Pulsar's chunking), so that operators and tools know them. They are
left out when the caller uses one of these names for something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from claimcheck.errors import IntegrityError, PayloadTypeError

__all__ = [
    "CHECKSUM",
    "MAX_CHECKSUM_CHARACTERS",
    "NULL_KEY",
    "SIZE",
    "TYPE",
    "add",
    "check",
    "chunk_hints",
    "declared",
    "get",
    "is_ours",
    "pairs",
    "strip",
    "without_reserved",
]

# The names below are reserved: what a caller sends under them is taken for a hint.
TYPE = "claimcheck-type"
SIZE = "claimcheck-size"
CHECKSUM = "claimcheck-checksum"
NULL_KEY = "claimcheck-null-key"
_OURS = frozenset((TYPE, SIZE, CHECKSUM, NULL_KEY))
_UUID, _POSITION, _COUNT, _TOTAL = "uuid", "chunk_id", "num_chunks_from_msg", "total_chunk_msg_size"
_PIP_37 = frozenset((_UUID, _POSITION, _COUNT, _TOTAL))
# Characters of a claim that are read. A longer one is cut, and what is left can only be refused.
_MAX_CLAIM = {SIZE: 20, CHECKSUM: 100}
MAX_CHECKSUM_CHARACTERS = _MAX_CLAIM[CHECKSUM]
"""A declared checksum that is longer never matches."""


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
        return map(_pair, headers)
    raise PayloadTypeError(f"headers are a mapping or a list of pairs, not {type(headers).__name__}")


def _pair(item: Any) -> tuple[str, Any]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise PayloadTypeError("headers in a list are pairs of a name and a value")
    return item[0], item[1]


def get(headers: Any, name: str) -> str | None:
    """Return the last value of a header as text; ``None`` where the header is missing."""
    return _last(headers, name, None)


def _last(headers: Any, name: str, limit: int | None) -> str | None:
    """The last value of a header as text, at most ``limit`` bytes or characters of it."""
    found = [value for key, value in pairs(headers) if key == name]
    if not found:
        return None
    value = found[-1]
    return value[:limit].decode("utf-8", "replace") if isinstance(value, bytes) else str(value)[:limit]


def is_ours(headers: Any) -> bool:
    """Whether the caller says, by these headers, that the message is an envelope already."""
    return headers is not None and any(name == TYPE for name, _ in pairs(headers))


def declared(headers: Any) -> frozenset[tuple[str, str]]:
    """Return what the hints of a message claim about its payload: size and checksum, by the names of their headers.

    Claims are cut to a little more than their longest valid form; `check` refuses one that was cut.
    """
    if not is_ours(headers):
        return frozenset()
    claims = ((name, _last(headers, name, limit + 1)) for name, limit in _MAX_CLAIM.items())
    return frozenset((name, value) for name, value in claims if value is not None)


def without_reserved(headers: Any) -> Any:
    """The headers without the names that are ours: a caller's value under one would be taken for a hint."""
    if headers is None or not any(name in _OURS for name, _ in pairs(headers)):
        return headers
    return _without(headers, _OURS)


def check(claims: Iterable[tuple[str, str]], *, size: int | None, checksum: Callable[[], str | None]) -> None:
    """Compare the claims of headers with the payload. Claims are optional; those that are present must be right.

    Args:
        claims: See `declared`.
        size: Payload bytes; ``None`` if unknown.
        checksum: Of the payload; called only if a header has one.

    Raises:
        IntegrityError: They differ, or a claim is too long to be one.
    """
    for name, claimed in sorted(claims):
        actual = checksum() if name == CHECKSUM else size
        too_long = len(claimed) > _MAX_CLAIM[name]
        comparable = actual is not None and (name != CHECKSUM or claimed.startswith("crc32:"))
        if too_long or (comparable and claimed != str(actual)):
            shown = f"{claimed[: _MAX_CLAIM[name]]}..." if too_long else claimed
            raise IntegrityError(
                f"the header {name} says {shown}, the payload has {actual}", expected=shown, actual=actual
            )


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
    chunked = uuid is not None and get(headers, _UUID) == uuid  # else PIP-37's names are the sender's own
    return _without(headers, _OURS | _PIP_37 if chunked else _OURS)


def _without(headers: Any, names: frozenset[str]) -> Any:
    kept = [(name, value) for name, value in pairs(headers) if name not in names]
    if isinstance(headers, Mapping):
        return dict(kept)
    return tuple(kept) if isinstance(headers, tuple) else kept
