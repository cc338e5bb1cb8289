"""Encodes payloads while they are written: compresses and encrypts them behind a header. No I/O."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from claimcheck._content import compression
from claimcheck._content import encryption as aead
from claimcheck._content.header import ALGORITHM, ContentHeader, Damaged
from claimcheck._content.source import Source
from claimcheck._wire.digest import keyed
from claimcheck._wire.envelope import Buffer
from claimcheck.config import CompressionConfig

if TYPE_CHECKING:
    from claimcheck._content.data_keys import DataKeys

_IN_MEMORY_BYTES = 4 << 20  # payloads up to this size are encoded at once, so that their stored size is known


@dataclass(frozen=True, slots=True)
class Stream:
    """What determines encrypted content besides the payload."""

    header: ContentHeader
    key: bytes = field(repr=False)
    salt: bytes | None = field(default=None, repr=False)


class PieceSource(Source):
    """A source of pieces in place of a payload."""

    stream: Stream | None = None

    def __init__(self, pieces: bytes | Iterator[Buffer], *, size: int | None, checksum: str = "crc32") -> None:
        super().__init__(pieces if isinstance(pieces, bytes) else _Pieces(pieces), limit=1 << 62, checksum=checksum)
        self.size = size if self.view is None else len(self.view)

    def _read_some(self, size: int) -> bytes:
        return self._file.read(size)  # type: ignore[return-value, union-attr]


class _Pieces:
    """A file of pieces; a piece is used up before the next one is requested."""

    def __init__(self, pieces: Iterator[Buffer]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        parts, missing = list[bytes](), size
        while missing:
            if not len(self._rest):
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
                continue
            part, self._rest = bytes(self._rest[:missing]), self._rest[missing:]
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True, slots=True)
class Encoding:
    """How one payload is encoded."""

    destination: str
    compression: CompressionConfig | None = None
    keys: DataKeys | None = None

    def unique(self, identity: uuid.UUID) -> uuid.UUID:
        """Return the uuid of attempts whose content has the same size."""
        codec = self.compression
        facts = compression.fingerprint(codec.codec, codec.level) if codec else ""
        return uuid.uuid5(identity, f"{facts} {self.keys.key_id if self.keys else ''}")

    def encode(
        self,
        payload: Source,
        *,
        unique: uuid.UUID,
        store: str = "",
        stored_as: str = "",
        before: bytes = b"",
        like: Stream | None = None,
        digests: dict[bytes, bytes] | None = None,
    ) -> PieceSource:
        """Return a payload's content, which is encoded while it is written."""
        codec = self.compression.codec if self.compression else None
        header = ContentHeader(
            id=unique.hex,
            size=payload.size,
            destination=self.destination,
            store=store,
            stored_as=stored_as,
            codec=codec,
        )
        plain, stream = self._compressed(payload), like
        if self.keys is not None:
            stream = stream or _new_stream(header, self.keys)
            if digests is not None:
                plain = list(plain)
                is_constant = payload.view is not None and isinstance(payload.view.obj, bytes)
                stream = _same_stream(header, stream, plain, digests if is_constant else {})
            header = stream.header
            body: Iterable[Buffer] = aead.encrypt(
                plain, key=stream.key, associated_data=header.associated_data, stream_header=stream.salt
            )
        else:
            body = plain
        start = before + header.encode()
        pieces = _with_header(start, body)
        is_small = payload.view is not None and len(payload.view) <= _IN_MEMORY_BYTES
        if is_small or (digests is not None and codec is not None):
            content = PieceSource(b"".join(pieces), size=None, checksum=payload.algorithm)
        else:
            known = codec is None and payload.size is not None
            total = len(start) + aead.ciphertext_bytes(payload.size or 0) if known else None
            content = PieceSource(pieces, size=total, checksum=payload.algorithm)
        content.stream = stream
        return content

    def _compressed(self, payload: Source) -> Iterable[Buffer]:
        pieces = payload if payload.view is None else [payload.take_all()]
        if self.compression is None:
            return pieces
        codec, level = self.compression.codec, self.compression.level
        return compression.compress(pieces, codec=codec, level=level, size=payload.size)


def _new_stream(header: ContentHeader, keys: DataKeys) -> Stream:
    new = keys.new(header.key_context)
    return Stream(replace(header, encryption=ALGORITHM, key_id=new.key_id, wrapped_key=new.wrapped), new.key)


def _same_stream(header: ContentHeader, stream: Stream, plain: Iterable[Buffer], digests: dict[bytes, bytes]) -> Stream:
    """Return a stream whose salt is determined by the data key and by what is encrypted."""
    found = stream.header
    if replace(header, encryption=ALGORITHM, key_id=found.key_id, wrapped_key=found.wrapped_key) != found:
        raise Damaged("it was written as the content of another payload")
    start = found.associated_data
    if start not in digests:
        digest = hashlib.sha256(start)
        for piece in plain:
            digest.update(piece)
        digests[start] = digest.digest()
    salt = hmac.digest(aead.sub_key(stream.key, b"claimcheck stream"), digests[start], "sha512")
    known = bytes([aead.HEADER_BYTES]) + salt[: aead.HEADER_BYTES - 1]
    if stream.salt not in (None, known):
        raise Damaged("it is the content of another payload with the same identity")
    return replace(stream, salt=known)


def _with_header(header: bytes, body: Iterable[Buffer]) -> Iterator[Buffer]:
    yield header
    yield from body


def keyed_checksum(sha256: str, data_key: bytes, header: ContentHeader) -> str:
    """Return the checksum of an encrypted payload from its SHA-256; see `claimcheck._wire.digest.keyed`."""
    key = aead.sub_key(data_key, b"claimcheck checksum")
    return keyed(sha256, key=key, associated_data=header.associated_data)
