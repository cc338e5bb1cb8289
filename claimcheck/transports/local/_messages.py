"""The values of the embedded broker: message ids, messages, and what counts towards a message's size."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from claimcheck.errors import PayloadTypeError
from claimcheck.transports.local._errors import BrokerArgumentError

__all__ = [
    "MESSAGE_OVERHEAD_BYTES",
    "Headers",
    "LocalMessage",
    "MessageId",
    "NewMessage",
    "check_name",
    "message_size",
]

MESSAGE_OVERHEAD_BYTES = 32
"""What every message counts towards the size limit beside its value, key and headers."""

Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]
"""Headers as they are given: a mapping or pairs, in order, duplicates allowed; ``str`` values travel as UTF-8."""

_NAME = re.compile(r"[A-Za-z0-9._/:-]{1,249}")
_HEADER_LENGTHS = struct.Struct(">II")


@dataclass(frozen=True, order=True, slots=True)
class MessageId:
    """Where a message rests; offsets of a partition are dense, from 0."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class LocalMessage:
    """One message as it rests in the broker.

    Attributes:
        topic: The topic.
        partition: The partition, from 0.
        offset: The place in the partition, from 0, without gaps.
        value: The bytes that were appended; ``None`` is a tombstone.
        key: The key that was appended, if any.
        headers: Name and value pairs in the order of appending, duplicates kept.
        timestamp: Seconds since 1970 at the time of appending, by the broker's clock.
    """

    topic: str
    partition: int
    offset: int
    value: bytes | None = field(repr=False)
    key: bytes | None = field(repr=False)
    headers: list[tuple[str, bytes]] = field(repr=False)
    timestamp: float

    @property
    def message_id(self) -> MessageId:
        """Topic, partition and offset in one value."""
        return MessageId(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message that was checked and brought into the form in which it is stored."""

    value: bytes | bytearray | memoryview | None = field(repr=False)
    key: bytes | None = field(repr=False)
    headers: bytes = field(repr=False)
    size: int

    @classmethod
    def checked(cls, topic: str, value: object, key: object, headers: Headers | None) -> NewMessage:
        """Check and convert what a caller gave.

        Args:
            topic: For the texts of errors.
            value: Bytes-like or ``None``.
            key: Bytes-like, ``str`` (as UTF-8) or ``None``.
            headers: See `Headers`.

        Raises:
            PayloadTypeError: The value is neither bytes-like nor ``None``.
            BrokerArgumentError: The key or a header is of a wrong type.
        """
        stored_key = None if key is None else _as_bytes(key, f"the key of a message for {topic}")
        pairs = _header_pairs(headers, topic)
        buffer = _as_buffer(value, topic)
        return cls(buffer, stored_key, pack_headers(pairs), message_size(buffer, stored_key, pairs))


def check_name(kind: str, name: object) -> None:
    """Make sure that ``name`` can name a topic or a group: 1 to 249 of ``A-Z a-z 0-9 . _ / : -``.

    Args:
        kind: ``topic`` or ``group``, for the text of the error.
        name: What the caller gave.

    Raises:
        BrokerArgumentError: It cannot.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:77]}..."
        raise BrokerArgumentError(f"{shown} cannot name a {kind}: use 1 to 249 of A-Z a-z 0-9 . _ / : -")


def message_size(
    value: bytes | bytearray | memoryview | None, key: bytes | None, headers: Iterable[tuple[str, bytes]]
) -> int:
    """Count the bytes of a message as the size limit does: value, key, names and values of headers, and a constant.

    Returns:
        At least `MESSAGE_OVERHEAD_BYTES`.
    """
    in_headers = sum(len(name.encode()) + len(content) for name, content in headers)
    return MESSAGE_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + in_headers


def pack_headers(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Give the form in which headers are stored: for each pair two lengths, the name, the value."""
    named = [(name.encode(), content) for name, content in pairs]
    return b"".join(_HEADER_LENGTHS.pack(len(name), len(content)) + name + content for name, content in named)


def unpack_headers(packed: bytes) -> list[tuple[str, bytes]]:
    """Turn what `pack_headers` gave into pairs again."""
    pairs: list[tuple[str, bytes]] = []
    start = 0
    while start < len(packed):
        name_length, length = _HEADER_LENGTHS.unpack_from(packed, start)
        name_end = start + _HEADER_LENGTHS.size + name_length
        pairs.append((packed[name_end - name_length : name_end].decode(), packed[name_end : name_end + length]))
        start = name_end + length
    return pairs


def _as_buffer(value: object, topic: str) -> bytes | bytearray | memoryview | None:
    if value is None or isinstance(value, bytes | bytearray):
        return value
    try:
        view = memoryview(value)  # type: ignore[arg-type]  # whatever has the buffer protocol: an array, an mmap
    except TypeError:
        raise PayloadTypeError(
            f"a message for {topic} has to be bytes-like or None, not {type(value).__name__}; encode it first"
        ) from None
    return view.cast("B") if view.c_contiguous else view.tobytes()


def _as_bytes(value: object, what: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise BrokerArgumentError(f"{what} has to be bytes or str, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise BrokerArgumentError(f"{what} is no valid Unicode; give bytes") from error


def _header_pairs(headers: object, topic: str) -> list[tuple[str, bytes]]:
    if headers is None:
        return []
    if not isinstance(headers, Iterable):
        raise BrokerArgumentError(f"headers for {topic} have to be a mapping or pairs, not {type(headers).__name__}")
    return [_header_pair(pair, topic) for pair in (headers.items() if isinstance(headers, Mapping) else headers)]


def _header_pair(pair: object, topic: str) -> tuple[str, bytes]:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise BrokerArgumentError(f"a header for {topic} has to be a pair of a str and its value")
    _as_bytes(pair[0], f"the name of a header for {topic}")
    return pair[0], _as_bytes(pair[1], f"the value of header {pair[0]!r} for {topic}")
