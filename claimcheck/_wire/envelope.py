"""The wire format of messages that are not plain payloads.

All integers are big-endian; ``HEADER`` is 20 bytes by default and configurable::

    literal   [HEADER][0:1][payload]                 only for a payload that itself begins with HEADER
    chunk     [HEADER][1:1][uuid:36 ascii][position:int32][count:int32][piece]
    pointer   [HEADER][2:1][pointer bytes of the store]
    abort     [HEADER][3:1][uuid:36 ascii]           "the chunks of uuid will not be completed"
    encoded   [HEADER][4:1][content]                 compressed or encrypted: see `claimcheck._content.coder`

The payload of chunks may itself be an encoded envelope. A payload in chunks that begins with HEADER and 4 is encoded.
Types 1 and 2 are the published format of the chunking-versus-store comparison that this library implements. Any other
message is plain: its payload is the message itself. This module does no I/O, copies no payload and never allocates by
a declared size.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from claimcheck._texts import HEADER
from claimcheck._wire import pointer as pointers
from claimcheck._wire.buffers import Buffer, as_view
from claimcheck.errors import EnvelopeError

_CHUNK = struct.Struct(">36sii")
_UUID = re.compile(rb"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

CHUNK_OVERHEAD_BYTES = 1 + _CHUNK.size
"""Bytes between the header and the piece of a chunk."""


class Kind(IntEnum):
    """The type byte after HEADER."""

    LITERAL = 0
    CHUNK = 1
    POINTER = 2
    ABORT = 3
    ENCODED = 4


_POINTER = Kind.POINTER.value  # compared several times as fast as the member


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message to produce.

    Attributes:
        data: The message's value; for a plain payload the caller's own object, ``None`` for a tombstone.
        headers: The caller's headers in their own shape, with hints added where needed.
        key: The message's key; the uuid for chunks of a payload without a key.
        kind: The envelope's type; ``None`` for a plain message.
    """

    data: Any
    headers: Any = None
    key: Any = None
    kind: Kind | None = None


class FailedEnvelope(bytes):
    """The value of a message whose send failed, in its delivery report. Its stored payload may be gone."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A message that is its own payload."""

    payload: Buffer = field(repr=False)


@dataclass(frozen=True, slots=True)
class Literal:
    """An escaped payload that begins with HEADER."""

    payload: memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One in-band piece: ``0 <= position < count``."""

    uuid: str
    position: int
    count: int
    piece: memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class PointerData:
    """The bytes of a pointer; `claimcheck._wire.pointer.decode` parses them."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Abort:
    """The chunks of ``uuid`` will not be completed."""

    uuid: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """A payload that is compressed or encrypted; `claimcheck._content.coder` decodes it."""

    content: memoryview = field(repr=False)


Decoded = Plain | Literal | Chunk | PointerData | Abort | Encoded
"""A decoded message."""


def is_lookalike(data: Buffer, *, header: bytes = HEADER) -> bool:
    """Whether a reader would take these bytes for an envelope: HEADER and at least one byte more."""
    if isinstance(data, (bytes, bytearray)):
        return data.startswith(header) and len(data) > len(header)
    flat = as_view(data, expected="a message must be bytes-like")
    return len(flat) > len(header) and flat[: len(header)] == header


def encode_literal(payload: Buffer, *, header: bytes = HEADER) -> bytes:
    return b"".join((header, b"\x00", as_view(payload)))


def encode_chunk(uuid: str, position: int, count: int, piece: Buffer, *, header: bytes = HEADER) -> bytes:
    identity = uuid.encode("ascii", "replace")
    _check_chunk(identity, position, count)
    return b"".join((header, b"\x01", _CHUNK.pack(identity, position, count), piece))


def encode_pointer(data: bytes, *, header: bytes = HEADER) -> bytes:
    return b"".join((header, b"\x02", data))


def encode_abort(uuid: str, *, header: bytes = HEADER) -> bytes:
    return b"".join((header, b"\x03", uuid.encode("ascii")))


def encoded_start(*, header: bytes = HEADER) -> bytes:
    """Return the bytes in front of the content of an encoded envelope."""
    return header + bytes([Kind.ENCODED])


def decode(message: Buffer, *, header: bytes = HEADER) -> Decoded:
    """Decode a message without copying its payload."""
    if not is_lookalike(message, header=header):
        return Plain(message)
    if type(message) is bytes and message[len(header)] == _POINTER:  # the usual envelope, without views
        return PointerData(message[len(header) + 1 :])
    body = as_view(message)[len(header) :]
    kind, rest = body[0], body[1:]
    if kind == Kind.POINTER:
        return PointerData(bytes(rest))
    if kind == Kind.CHUNK:
        return _decode_chunk(rest)
    if kind == Kind.LITERAL:
        return Literal(rest)
    if kind == Kind.ABORT:
        return Abort(_decode_uuid(bytes(rest), kind))
    if kind == Kind.ENCODED:
        return Encoded(rest)
    text = f"unknown envelope type {kind} (known are 0 to 4): a newer claimcheck may have written it"
    raise EnvelopeError(text, kind=kind)


def _decode_chunk(rest: memoryview) -> Chunk:
    if len(rest) < _CHUNK.size:
        raise EnvelopeError(f"chunk cut short: {len(rest)} of {_CHUNK.size} bytes after the type byte", kind=1)
    identity, position, count = _CHUNK.unpack_from(rest)
    _check_chunk(identity, position, count)
    return Chunk(identity.decode("ascii"), position, count, rest[_CHUNK.size :])


def _check_chunk(identity: bytes, position: int, count: int) -> None:
    _decode_uuid(identity, Kind.CHUNK)
    if not 0 <= position < count <= 0x7FFFFFFF:
        text = f"chunk position {position} of {count}: a position must be between 0 and the count minus 1"
        raise EnvelopeError(text, kind=1)


def _decode_uuid(identity: bytes, kind: int) -> str:
    if not _UUID.fullmatch(identity):
        text = f"no uuid in an envelope of type {int(kind)} (found {len(identity)} bytes in its place)"
        raise EnvelopeError(text, kind=int(kind))
    return identity.decode("ascii")


def unverified_pointer(message: Buffer, *, header: bytes = HEADER) -> pointers.Pointer | None:
    """Return the pointer in a message that anyone may have sent; ``None`` if it is not a pointer envelope."""
    envelope = decode(message, header=header)
    return pointers.decode(envelope.data, max_bytes=len(envelope.data)) if isinstance(envelope, PointerData) else None
