"""Message headers, and the size of a message on the wire.

Reads headers in either shape, and adds, checks and removes the hints that claimcheck sends in them.

Readers never need hints. Those of chunks have the names of PIP-37 (Apache Pulsar's chunking), so that operators and
tools recognize them; they are left out if the caller uses one of these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from claimcheck._wire.digest import algorithm_of
from claimcheck.errors import IntegrityError, PayloadTypeError

Headers = Mapping[str, object] | Sequence[tuple[str, object]] | None
"""Message headers: a mapping, a sequence of pairs, or ``None``."""

# These names are reserved: a header that a caller sends under one of them is mistaken for a hint.
TYPE = "claimcheck-type"
SIZE = "claimcheck-size"
CHECKSUM = "claimcheck-checksum"
NULL_KEY = "claimcheck-null-key"
SIGNATURE = "claimcheck-signature"
_OURS = frozenset((TYPE, SIZE, CHECKSUM, NULL_KEY, SIGNATURE))
_UUID, _POSITION, _COUNT, _TOTAL = "uuid", "chunk_id", "num_chunks_from_msg", "total_chunk_msg_size"
_PIP_37 = frozenset((_UUID, _POSITION, _COUNT, _TOTAL))
_MAPPING = (dict, Mapping)  # the check against the abstract class alone takes several times as long
# Characters of a claim that are read. A longer claim is cut and then refused.
_MAX_CLAIM = {SIZE: 20, CHECKSUM: 100, SIGNATURE: 2048}
MAX_CHECKSUM_CHARACTERS = _MAX_CLAIM[CHECKSUM]
"""A longer declared checksum never matches."""
_KAFKA_RECORD_BYTES = 72
MAX_SIGNATURE_CHARACTERS = _MAX_CLAIM[SIGNATURE]
"""A longer signature is refused."""

H = TypeVar("H")


def pairs(headers: object) -> Iterator[tuple[str, object]]:
    """Iterate over headers of either shape; ``None`` has none."""
    if headers is None:
        return iter(())
    if isinstance(headers, _MAPPING):
        return iter(headers.items())
    if isinstance(headers, Sequence) and not isinstance(headers, (str, bytes)):
        return map(_pair, headers)
    raise PayloadTypeError(f"headers must be a mapping or a list of pairs, not {type(headers).__name__}")


def _pair(item: object) -> tuple[str, object]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise PayloadTypeError("headers in a list must be pairs of a name and a value")
    return item[0], item[1]


def get(headers: object, name: str, *, limit: int | None = None) -> str | None:
    """Return the last value of a header as text, at most ``limit`` bytes of it; ``None`` if the header is missing."""
    values = [value for key, value in pairs(headers) if key == name]
    return _text(values[-1], limit) if values else None


def _text(value: object, limit: int | None) -> str:
    return value[:limit].decode("utf-8", "replace") if isinstance(value, bytes) else str(value)[:limit]


def is_ours(headers: object) -> bool:
    """Whether these headers declare the message to be an envelope."""
    if isinstance(headers, dict):
        return TYPE in headers
    return any(name == TYPE for name, _ in pairs(headers))


def declared(headers: object) -> frozenset[tuple[str, str]]:
    """Return the size, the checksum and the signature that a message's hints claim for its payload, by header name."""
    ours = {name: value for name, value in pairs(headers) if name in _OURS}
    if TYPE not in ours:
        return frozenset()
    return frozenset((name, _text(ours[name], limit + 1)) for name, limit in _MAX_CLAIM.items() if name in ours)


def without_reserved(headers: H) -> H:
    """Return the headers without reserved names, whose values readers would take for hints."""
    if headers is None or not any(name in _OURS for name, _ in pairs(headers)):
        return headers
    return _without(headers, _OURS)


def check(claims: Iterable[tuple[str, str]], *, size: int | None, checksum: Callable[[str], str]) -> None:
    """Compare the size and the checksum that headers claim with the payload: optional, but right if present."""
    for name, claimed in sorted(claim for claim in claims if claim[0] != SIGNATURE):
        algorithm = algorithm_of(claimed)  # what a later version may compute is not compared
        actual = size if name != CHECKSUM else None if algorithm is None else checksum(algorithm)
        too_long = len(claimed) > _MAX_CLAIM[name]
        if too_long or (actual is not None and claimed != str(actual)):
            shown = f"{claimed[: _MAX_CLAIM[name]]}..." if too_long else claimed
            text = f"the header {name} declares {shown}, but the payload has {actual}"
            raise IntegrityError(text, expected=shown, actual=actual)


def signatures(claims: Iterable[tuple[str, str]]) -> list[str]:
    """Return the signatures among the claims of `declared`."""
    return [value for name, value in sorted(claims) if name == SIGNATURE]


def signature(headers: object) -> list[str]:
    """Return the signature in the headers of one message, in a list that is empty without one."""
    value = get(headers, SIGNATURE, limit=_MAX_CLAIM[SIGNATURE] + 1)
    return [] if value is None else [value]


def add(headers: Headers, hints: Mapping[str, str]) -> Headers:
    """Return a copy of the headers with hints added, in the same shape."""
    if headers is None or isinstance(headers, _MAPPING):
        return {**(headers or {}), **hints}
    joined = [*pairs(headers), *hints.items()]
    return tuple(joined) if isinstance(headers, tuple) else joined


def chunk_hints(headers: Headers, uuid: str, position: int, count: int, total: int) -> dict[str, str]:
    """Return the hints of one chunk, without PIP-37's names if the caller's headers use one of them."""
    ours = {TYPE: "chunk", SIZE: str(total)}
    if any(name in _PIP_37 for name, _ in pairs(headers)):
        return ours
    return ours | {_UUID: uuid, _POSITION: str(position), _COUNT: str(count), _TOTAL: str(total)}


def total_bytes(headers: object) -> int:
    """Return the size that a chunk's hint declares for all chunks together; 0 without a hint."""
    text = get(headers, _TOTAL, limit=_MAX_CLAIM[SIZE]) or ""
    return int(text) if text.isdecimal() else 0


def strip(headers: H, *, uuid: str | None = None) -> H:
    """Return the headers without hints, as the sender's program set them, in the same shape."""
    if not is_ours(headers):
        return headers
    chunked = uuid is not None and get(headers, _UUID) == uuid  # otherwise PIP-37's names are the sender's own
    return _without(headers, _OURS | _PIP_37 if chunked else _OURS)


def _without(headers: H, names: frozenset[str]) -> H:
    kept = [(name, value) for name, value in pairs(headers) if name not in names]
    if isinstance(headers, _MAPPING):
        return cast(H, dict(kept))
    return cast(H, tuple(kept) if isinstance(headers, tuple) else kept)


# Sizes -----------------------------------------------------------------------------------------------------------


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
    for name, value in pairs(headers):
        count += 1
        record += _field_bytes(name) + _field_bytes(value)
    return record + _varint_bytes(count) - 1


def _field_bytes(value: object) -> int:
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
