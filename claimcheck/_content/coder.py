"""Encodes and decodes payloads: compresses and encrypts them behind a `claimcheck._content.header`. No I/O."""

from __future__ import annotations

import hmac
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TypeVar
from uuid import UUID

import claimcheck._content.compression as compression
import claimcheck._content.encryption as aead
from claimcheck._content.header import (
    AEAD,
    ALGORITHM,
    MAX_HEADER_BYTES,
    PREFIX_BYTES,
    ContentHeader,
    Damaged,
    Expected,
    read_header,
)
from claimcheck._content.source import Source
from claimcheck._wire.buffers import Buffer, PieceReader, Reader, fill, pieces_of
from claimcheck._wire.digest import algorithm_of, begin
from claimcheck._wire.envelope import encoded_start
from claimcheck._wire.pointer import KEYED, Pointer
from claimcheck.config import HEADER, CompressionConfig, Config, EncryptionConfig, canonical
from claimcheck.errors import UNUSABLE, IntegrityError, MissingDependencyError, PayloadTooLargeError, clear_frames

T = TypeVar("T")

OpenRange = Callable[[int, int], Reader]
"""Opens a range of the content: its first byte, and the one after its last."""

_IN_MEMORY_BYTES = 4 << 20  # payloads up to this size are encoded at once, so that their stored size is known
_SAMPLE_BYTES = 64 << 10
_SPARE_BYTES = 128 << 10  # content may be larger than its payload by this and by
_SPARE_FRACTION = 128  # this fraction: header, tags, incompressible blocks
_NOT_ENCRYPTED = "it is not encrypted, but encryption.require is true"


@dataclass(frozen=True, slots=True)
class Stream:
    """What determines encrypted content besides the payload."""

    header: ContentHeader
    key: bytes = field(repr=False)


class PieceSource(Source):
    """A source of pieces in place of a payload; a piece is used up before the next one is requested."""

    stream: Stream | None = None

    def __init__(self, pieces: bytes | Iterator[Buffer], *, size: int | None, checksum: str = "crc32") -> None:
        super().__init__(pieces if isinstance(pieces, bytes) else io.BytesIO(), limit=1 << 62, checksum=checksum)
        self.size = len(pieces) if isinstance(pieces, bytes) else size
        self._pieces = PieceReader(() if isinstance(pieces, bytes) else pieces)

    def _read_some(self, size: int) -> Buffer:
        piece = memoryview(bytearray(size))
        return piece[: fill(self._pieces, piece)]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How one payload is encoded."""

    destination: str
    compression: CompressionConfig | None = None
    keys: aead.Keys | None = None

    def encode(
        self,
        payload: Source,
        *,
        unique: UUID,
        store: str = "",
        stored_as: str = "",
        before: bytes = b"",
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
        body, stream = self._compressed(payload), None
        if self.keys is not None:
            new = self.keys.new(header.key_context)
            header = replace(header, encryption=ALGORITHM, key_id=new.key_id, wrapped_key=new.wrapped)
            stream = Stream(header, new.key)
            body = aead.encrypt(body, key=new.key, associated_data=header.associated_data)
        start = before + header.encode()
        pieces = chain([start], body)
        if payload.view is not None and len(payload.view) <= _IN_MEMORY_BYTES:
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
        return compression.compress(pieces, level=self.compression.level, size=payload.size)


def keyed_checksum(sha256: str, data_key: bytes, header: ContentHeader) -> str:
    """Return the checksum of an encrypted payload for a signed pointer, from its SHA-256: an HMAC with its data key."""
    digest = bytes.fromhex(sha256.removeprefix("sha256:"))
    mac = hmac.digest(aead.sub_key(data_key, b"claimcheck checksum"), header.associated_data + digest, "sha256")
    return f"{KEYED}{mac.hex()}"


class ContentReader:
    """Reads a payload from its content: a `Reader` that decrypts and decompresses."""

    def __init__(
        self,
        open_range: OpenRange,
        expected: Expected,
        keys: aead.Keys | None,
        *,
        fail: Callable[[str], Exception],
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._open_range, self._expected, self._keys, self._fail = open_range, expected, keys, fail
        self._stop = stop
        self._key = b""
        self._opened = list[Reader]()
        try:
            self._reader = self._guarded(lambda: self._begin(start))
        except BaseException:
            self.close()
            raise

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the beginning of a buffer with bytes of the payload, which are authentic if they are encrypted."""
        return self._guarded(lambda: self._reader.readinto(buffer))

    def keyed(self, sha256: str) -> str:
        return keyed_checksum(sha256, self._key, self.header)

    def close(self) -> None:
        """Release all resources, also buffers: those of many bad messages would add up until the next collection."""
        opened, self._opened, self._reader = self._opened, [], PieceReader(())
        for reader in reversed(opened):
            reader.close()

    def _guarded(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (Damaged, aead.Forged, compression.Damaged) as error:
            clear_frames(error)  # a data key is among the local variables
            raise self._fail(str(error)) from error

    def _open(self, start: int, stop: int) -> Reader:
        self._opened.append(self._open_range(start, stop))
        return self._opened[-1]

    def _begin(self, start: int) -> Reader:
        size = self._expected.bytes
        first = self._open(0, size if start == 0 else min(size, PREFIX_BYTES + MAX_HEADER_BYTES))
        self.header, begin = read_header(first)
        is_encrypted = self.header.encryption is not None
        self._expected.check(self.header, body=aead.plaintext_bytes(size - begin) if is_encrypted else size - begin)
        body = first if start == 0 else None
        if is_encrypted:
            reader = self._decrypting(body, begin, 0 if self.header.codec else start)
        else:
            reader = body or self._open(begin if self.header.codec else begin + start, size)
        if self.header.codec is None:
            return reader
        reader = self._decompressing(reader)
        _skip(reader, start)
        return reader

    def _decrypting(self, body: Reader | None, begin: int, start: int) -> Reader:
        header, bodies = self.header, [body] if body else []
        if header.encryption != ALGORITHM or header.key_id is None or header.wrapped_key is None:
            raise Damaged(f"it is encrypted as {header.encryption!r}, which this claimcheck does not know")
        if self._keys is None:
            raise Damaged(f"it is encrypted with the key {header.key_id!r}, but encryption.keys is not set here")
        try:
            self._key = self._keys.open(header.key_id, header.wrapped_key, header.key_context)
        except IntegrityError as error:  # name the payload
            raise Damaged(str(error)) from error
        except UNUSABLE as error:  # the content chose the key
            raise Damaged(f"it is encrypted with the key {header.key_id!r}, which fails here: {error}") from error

        def open_range(first: int, stop: int) -> Reader:
            return bodies.pop() if bodies and first == 0 else self._open(begin + first, begin + stop)

        self._opened.append(
            aead.DecryptingReader(
                open_range,
                size=self._expected.bytes - begin,
                key=self._key,
                associated_data=header.associated_data,
                start=start,
                stop=None if header.codec else self._stop,
            )
        )
        return self._opened[-1]

    def _decompressing(self, reader: Reader) -> Reader:
        size = self.header.size if self._expected.size is None else self._expected.size
        if self.header.codec != compression.CODEC or size is None:
            raise Damaged(f"it is compressed as {self.header.codec!r}, which this claimcheck does not know")
        try:
            self._opened.append(compression.DecompressingReader(reader, size=size))
        except MissingDependencyError as error:  # the content chose the codec
            raise Damaged(f"it is compressed as {self.header.codec!r}, which fails here: {error}") from error
        return self._opened[-1]


def _skip(reader: Reader, count: int) -> None:
    buffer = memoryview(bytearray(min(count, _SAMPLE_BYTES)))
    while count and (read := reader.readinto(buffer[:count])):
        count -= read


class ContentCoder:
    """Encodes and decodes payloads as a configuration says. Holds the data keys of this process."""

    def __init__(self, config: Config | None = None, keys: aead.Keys | None = None) -> None:
        self.keys = keys
        encryption = EncryptionConfig() if config is None else config.encryption
        self.requires_encryption = bool(encryption.require)
        self.encrypts_inline = encryption.inline and encryption.key_id is not None
        self._new_keys = keys if encryption.key_id is not None else None
        self.encrypts = self._new_keys is not None
        overrides = () if config is None else (config, *(override for _, override in config.destinations))
        compresses = any(each.compression for each in overrides)
        self._config = config if compresses else None
        self.encodes = compresses or self.encrypts

    def encoding(self, payload: Source, destination: str) -> Encoding | None:
        """Return how to encode a payload; ``None`` if it is stored as it is."""
        codec = None if self._config is None else self._config.for_destination(destination).compression
        if codec is not None and not _is_worth_it(payload, codec):
            codec = None
        return Encoding(canonical(destination), codec, self._new_keys) if codec or self._new_keys else None


class Unpacker:
    """Returns the payloads of encoded envelopes and of chunks."""

    def __init__(
        self,
        coder: ContentCoder | None = None,
        *,
        header: bytes = HEADER,
        limit: int = 256 << 20,
        check_origin: Callable[[str, str | None], None] | None = None,
    ) -> None:
        self._coder = coder or ContentCoder()
        self._start = encoded_start(header=header)
        self._limit = limit
        self._check_origin = check_origin

    def content(self, content: memoryview, uuid: str | None = None, *, destination: str | None) -> bytes:
        """Return the payload of content in messages."""
        fields = {"store": "", "stored_as": ""} | ({"id": UUID(uuid).hex} if uuid else {})
        reader = ContentReader(
            lambda start, stop: PieceReader([content[start:stop]]),
            Expected(len(content), None, fields),
            self._coder.keys,
            fail=_broken,
        )
        with closing(reader):
            header, size = reader.header, reader.header.size
            limit = max(self._limit, len(content)) if header.codec is None else self._limit  # it is in memory already
            if size is not None and size > limit:
                raise _too_large(size, limit)
            if header.encryption is None and self._coder.requires_encryption:
                raise _broken(_NOT_ENCRYPTED)
            payload = _read_all(reader, limit)
        if size not in (None, len(payload)):
            raise _broken(f"its header declares {size} bytes, but it has {len(payload)}")
        if header.encryption is not None and self._check_origin is not None:
            self._check_origin(header.destination, destination)
        return payload

    def encoded_size(self, message: Buffer) -> int | None:
        """Return the most bytes to which a message, or joined chunks, are decoded; ``None`` if it is not encoded."""
        view, start = memoryview(message), len(self._start)
        return self.size_of(view[start:]) if view[:start] == self._start else None

    def size_of(self, content: memoryview) -> int:
        """Return the most bytes to which the content of an encoded envelope is decoded."""
        try:
            declared = read_header(PieceReader([content]))[0].size
        except ValueError:  # so it is not decoded
            declared = None
        most = max(self._limit, len(content))
        return len(content) if declared is None else min(max(0, declared), most)

    def pieces(self, pieces: list[Buffer], uuid: str, *, destination: str | None) -> list[Buffer]:
        """Return the payload of complete chunks in pieces: the same ones if it is not encoded; raises as `content`."""
        size = len(self._start)
        if b"".join(piece[:size] for piece in pieces[:size])[:size] == self._start:
            return [self.content(memoryview(b"".join(pieces))[size:], uuid, destination=destination)]
        if self._coder.requires_encryption:
            raise _broken(_NOT_ENCRYPTED)
        return pieces


def package_users(config: Config) -> list[tuple[str, Callable[[], object]]]:
    """Return the settings outside of stores, with what raises an error if the package that they need is missing."""
    configs = (config, *(override for _, override in config.destinations))
    users: list[tuple[str, Callable[[], object]]] = [("checksum", partial(begin, config.content_checksum))]
    compresses = any(each.compression is not None for each in configs)
    return [*users, ("compression", partial(compression.shrinks, b"", level=1))] if compresses else users


def encoding_problem(pointer: Pointer) -> tuple[str, str] | None:
    """Return the reason to reject a pointer, and its description, if its encoding is unknown or cannot be true."""
    size, stored = pointer.size or 0, pointer.stored_bytes
    known = pointer.codec in (None, compression.CODEC) and pointer.encryption in (None, ALGORITHM)
    encrypted = pointer.encryption is not None
    declared = pointer.checksum or (AEAD if encrypted else "crc32")
    verifiable = declared.startswith((AEAD, KEYED)) if encrypted else algorithm_of(declared)
    if not known or not verifiable:
        return "feature", "needs a codec, encryption or checksum that this claimcheck does not know"
    if (stored is None) != (pointer.codec is None and pointer.encryption is None):
        return "feature", f"declares {stored} stored bytes, codec {pointer.codec} and encryption {pointer.encryption}"
    if stored is not None and stored > size + size // _SPARE_FRACTION + _SPARE_BYTES:
        return "size", f"declares {stored} stored bytes for a payload of {size} bytes"
    return None


def _read_all(reader: Reader, limit: int) -> bytes:
    """Read into a buffer that grows: a declared size is never allocated before its bytes are there."""
    box = io.BytesIO()
    for piece in pieces_of(reader):
        box.write(piece)
        if box.tell() > limit:
            raise _too_large(box.tell(), limit)
    return box.getvalue()


def _too_large(size: int, limit: int) -> PayloadTooLargeError:
    text = f"a payload of {size} bytes or more is over the limit of {limit} bytes"
    return PayloadTooLargeError(
        f"{text} (limits.max_payload_bytes, chunking.max_payload_bytes)", size=size, limit=limit
    )


def _broken(why: str) -> IntegrityError:
    return IntegrityError(f"the content of the message cannot be trusted: {why}")


def _is_worth_it(payload: Source, codec: CompressionConfig) -> bool:
    if payload.size is not None and payload.size < codec.min_bytes:
        return False
    sample = payload.peek(_SAMPLE_BYTES) if payload.view is None else compression.sample_of(payload.view)
    return compression.shrinks(sample, level=codec.level)
