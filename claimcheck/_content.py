"""What is stored, or split into chunks, in place of a payload: its bytes compressed, encrypted, or both.

Encoded content describes itself. All integers are big-endian::

    content   [b"CCE1"][size of the header:uint32][header][body]

The header is canonical JSON. In stores it is padded with spaces to a multiple of 1,024 bytes, so that
`claimcheck rewrap` can replace it in place. Its fields, all but the wrapped key and that key's id, are the associated
data of the encryption: content that was moved to another key, store, destination or payload cannot be decrypted. The
body is the payload, compressed with ``codec`` and then encrypted as `claimcheck._streaming_aead` describes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import io
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from claimcheck import _compression as compression
from claimcheck import _pointer as pointers
from claimcheck import _streaming_aead as aead
from claimcheck._destination import canonical
from claimcheck._digest import algorithm_of
from claimcheck._envelope import HEADER, Buffer, encoded_start
from claimcheck._payload import Source
from claimcheck._payload_reader import PieceReader, Reader, fill
from claimcheck._pointer import Pointer
from claimcheck.config import CompressionConfig, Config, EncryptionConfig
from claimcheck.errors import EnvelopeError, IntegrityError, PayloadTooLargeError

if TYPE_CHECKING:
    from claimcheck._data_keys import DataKeys

__all__ = [
    "AEAD",
    "ALGORITHM",
    "MAX_HEADER_BYTES",
    "ContentCoder",
    "ContentHeader",
    "ContentReader",
    "Damaged",
    "Encoding",
    "Expected",
    "NotContent",
    "PieceSource",
    "Stream",
    "Unpacker",
    "encoding_problem",
    "read_header",
    "with_start",
]

T = TypeVar("T")

OpenRange = Callable[[int, int], Reader]
"""Opens a range of the content: its first byte, and the one after its last."""

ALGORITHM = aead.ALGORITHM
"""The value of `Pointer.encryption`."""

AEAD = "aead:"
"""The checksum of an encrypted payload: this and the id in its header. The encryption itself verifies the bytes."""

_MAGIC = b"CCE1"
_PREFIX = struct.Struct(">4sI")
_HEADER_STEP = 1024
MAX_HEADER_BYTES = 64 << 10
"""A longer header is not read."""

_SAMPLE_BYTES = 64 << 10
_READ_BYTES = 1 << 20
_SPARE_BYTES = 128 << 10  # content may be larger than its payload by this and by
_SPARE_FRACTION = 128  # this fraction: header, tags, incompressible blocks
_IN_MEMORY_BYTES = 4 << 20  # payloads up to this size are encoded at once, so that their stored size is known
_FIELDS: dict[str, type[object]] = {
    "codec": str,
    "destination": str,
    "encryption": str,
    "id": str,
    "key": str,
    "key_id": str,
    "size": int,
    "store": str,
    "stored_as": str,
}


class Damaged(ValueError):  # noqa: N818 - named after the finding
    """Content that is not what its header or its pointer says."""


class NotContent(Damaged):
    """Bytes without the header of encoded content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentHeader:
    """The header of encoded content.

    Attributes:
        id: The uuid of the write, or of the chunks.
        size: Bytes of the payload; ``None`` if they were not known when it was written.
        destination: Topic or queue.
        store: The store's name; empty for content in messages.
        stored_as: The key in the store; empty for content in messages.
        codec: How the payload was compressed, or ``None``.
        encryption: How it was encrypted, or ``None``.
        key_id: The key that encrypts the data key.
        wrapped_key: The encrypted data key.
    """

    id: str
    size: int | None
    destination: str = ""
    store: str = ""
    stored_as: str = ""
    codec: str | None = None
    encryption: str | None = None
    key_id: str | None = None
    wrapped_key: bytes | None = field(default=None, repr=False)

    @property
    def associated_data(self) -> bytes:
        """What the encryption authenticates besides the payload."""
        return _MAGIC + pointers.canonical_json(self._bound())

    def encode(self, *, at_least: int = 0) -> bytes:
        """Return the bytes in front of the body, at least as many as requested; in stores a multiple of 1,024."""
        fields = self._bound()
        if self.wrapped_key is not None:
            fields |= {"key": base64.b64encode(self.wrapped_key).decode(), "key_id": self.key_id}
        text = pointers.canonical_json(fields)
        step = _HEADER_STEP if self.store else 1
        total = max(at_least, -(-(_PREFIX.size + len(text)) // step) * step)
        return _PREFIX.pack(_MAGIC, total - _PREFIX.size) + text.ljust(total - _PREFIX.size)

    @classmethod
    def parse(cls, data: bytes) -> ContentHeader:
        """Parse the untrusted JSON of a header; raises ``ValueError``."""
        try:
            fields = pointers.parse_json(data)
        except EnvelopeError:
            raise Damaged("its header is not valid JSON") from None
        for name, value in fields.items():
            if name in _FIELDS and type(value) is not _FIELDS[name]:
                raise Damaged(f"the field {name!r} of its header is {type(value).__name__}")
        known = {name: value for name, value in fields.items() if name in _FIELDS and name != "key"}
        if "id" not in known or fields.keys() - _FIELDS.keys():
            raise Damaged("its header has no id, or fields that this claimcheck does not know")
        try:
            key = base64.b64decode(fields["key"], validate=True) if "key" in fields else None
        except (binascii.Error, ValueError):
            raise Damaged("the data key in its header is not base64") from None
        return cls(**{"size": None, **known}, wrapped_key=key)

    def _bound(self) -> dict[str, object]:
        fields = {
            "codec": self.codec,
            "destination": self.destination,
            "encryption": self.encryption,
            "id": self.id,
            "size": self.size,
            "store": self.store,
            "stored_as": self.stored_as,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Stream:
    """What determines encrypted content besides the payload.

    Attributes:
        header: Its header.
        key: The data key.
        salt: The header of the encrypted stream; ``None`` for a new one.
        size: Bytes of the content's header.
    """

    header: ContentHeader
    key: bytes = field(repr=False)
    salt: bytes | None = field(default=None, repr=False)
    size: int = 0


def read_header(source: Reader) -> tuple[ContentHeader, int]:
    """Read a header from the beginning of content; returns it with its size in bytes.

    Raises:
        ValueError: There is none, or it is damaged.
    """
    start = bytearray(_PREFIX.size)
    if fill(source, memoryview(start)) < len(start):
        raise NotContent("it does not begin with the header of encoded content")
    magic, size = _PREFIX.unpack(start)
    if magic != _MAGIC or not 0 < size <= MAX_HEADER_BYTES:
        raise NotContent("it does not begin with the header of encoded content")
    data = bytearray(size)
    if fill(source, memoryview(data)) < size:
        raise Damaged("it ends within its header")
    return ContentHeader.parse(bytes(data)), _PREFIX.size + size


# Writing -----------------------------------------------------------------------------------------------------------


class PieceSource(Source):
    """A source of pieces in place of a payload.

    Args:
        pieces: Bytes, or pieces of which each is used up before the next one is requested.
        size: Bytes in all; ``None`` if unknown.
        checksum: The algorithm of their checksum.
    """

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
    """How one payload is encoded.

    Attributes:
        destination: Topic or queue, in the form of `claimcheck._destination.canonical`.
        compression: The codec and its options; ``None`` if it is not compressed.
        keys: The data keys; ``None`` if it is not encrypted.
    """

    destination: str
    compression: CompressionConfig | None = None
    keys: DataKeys | None = None

    def unique(self, identity: uuid.UUID) -> uuid.UUID:
        """Return the uuid of attempts whose content has the same size.

        Attempts that encode differently, with another key or another version of a library, must not share a key: each
        pointer has the size of its own content.
        """
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
        shared: bool = False,
    ) -> PieceSource:
        """Return a payload's content, which is encoded while it is written.

        Args:
            payload: The payload; nothing of it has been read.
            unique: The uuid of the write, or of the chunks.
            store: The store's name.
            stored_as: The key in the store.
            before: Bytes in front of the content.
            like: How an earlier attempt encrypted the same payload: the content is the same.
            shared: Whether other attempts may write the same payload under the same key. It must be in memory.

        Raises:
            ValueError: ``like`` is not of this payload.
        """
        codec = self.compression.codec if self.compression else None
        header = ContentHeader(
            id=unique.hex,
            size=payload.size,
            destination=self.destination,
            store=store,
            stored_as=stored_as,
            codec=codec,
        )
        plain, size = self._compressed(payload), 0
        if self.keys is not None:
            stream = _new_stream(header, self.keys) if like is None else like
            if shared:
                plain = list(plain)
                stream = _same_stream(header, stream, plain)
            header, size = stream.header, stream.size
            body: Iterable[Buffer] = aead.encrypt(
                plain, key=stream.key, associated_data=header.associated_data, stream_header=stream.salt
            )
        else:
            body = plain
        start = before + header.encode(at_least=size)
        pieces = _with_header(start, body)
        if (shared and codec is not None) or (payload.view is not None and len(payload.view) <= _IN_MEMORY_BYTES):
            return PieceSource(b"".join(pieces), size=None, checksum=payload.algorithm)
        known = codec is None and payload.size is not None
        total = len(start) + aead.ciphertext_bytes(payload.size or 0) if known else None
        return PieceSource(pieces, size=total, checksum=payload.algorithm)

    def _compressed(self, payload: Source) -> Iterable[Buffer]:
        if self.keys:
            payload.skip_checksum()
        pieces = payload if payload.view is None else [payload.take_all()]
        if self.compression is None:
            return pieces
        codec, level = self.compression.codec, self.compression.level
        return compression.compress(pieces, codec=codec, level=level, size=payload.size)


def _new_stream(header: ContentHeader, keys: DataKeys) -> Stream:
    new = keys.new(header.size)
    return Stream(replace(header, encryption=ALGORITHM, key_id=new.key_id, wrapped_key=new.wrapped), new.key)


def _same_stream(header: ContentHeader, stream: Stream, plain: Iterable[Buffer]) -> Stream:
    """Return a stream whose salt is determined by the data key and by what is encrypted.

    Attempts that encrypt the same payload write the same bytes. AES-GCM loses its security if one key and salt ever
    encrypt two payloads, so nothing of what is found in a store is used before it is verified: an attacker could copy
    it from another payload, and a caller could use one identity for two payloads.
    """
    found = stream.header
    if replace(header, encryption=ALGORITHM, key_id=found.key_id, wrapped_key=found.wrapped_key) != found:
        raise Damaged("it was written as the content of another payload")
    digest = hashlib.sha256(found.associated_data)
    for piece in plain:
        digest.update(piece)
    salt = hmac.digest(stream.key, b"claimcheck stream\x00" + digest.digest(), "sha512")
    known = bytes([aead.HEADER_BYTES]) + salt[: aead.HEADER_BYTES - 1]
    if stream.salt not in (None, known):
        raise Damaged("it is the content of another payload with the same identity")
    return replace(stream, salt=known)


def _with_header(header: bytes, body: Iterable[Buffer]) -> Iterator[Buffer]:
    yield header
    yield from body


def with_start(start: bytes, rest: Reader, *, size: int) -> PieceSource:
    """Return the source of content whose first bytes were replaced."""

    def pieces() -> Iterator[Buffer]:
        yield start
        buffer = memoryview(bytearray(_READ_BYTES))
        while count := rest.readinto(buffer):
            yield buffer[:count]

    return PieceSource(pieces(), size=size)


# Reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a pointer, or the chunks, say about content; its header must agree.

    Attributes:
        bytes: Bytes of the content.
        size: Bytes of the payload; ``None`` if only the header knows.
        id: The uuid of the write, or of the chunks; ``None`` if unknown.
        destination: Topic or queue; ``None`` if unknown.
        codec: How it was compressed; ``""`` if only the header knows.
        encryption: How it was encrypted; ``""`` if only the header knows.
        store: The store's name.
        stored_as: The key in the store.
    """

    bytes: int
    size: int | None = None
    id: str | None = None
    destination: str | None = None
    codec: str | None = ""
    encryption: str | None = ""
    store: str = ""
    stored_as: str = ""

    @classmethod
    def by(cls, pointer: Pointer) -> Expected:
        """Return what a pointer says."""
        encrypted = pointer.encryption is not None
        return cls(
            bytes=pointer.stored_bytes or 0,
            size=pointer.size,
            id=(pointer.checksum or "").removeprefix(AEAD) if encrypted else None,
            destination=(pointer.destination or "") if encrypted else None,
            codec=pointer.codec,
            encryption=pointer.encryption,
            store=pointer.store or "",
            stored_as=pointer.key,
        )

    def check(self, header: ContentHeader, *, body: int) -> None:
        """Compare them with a header and with the size of the body; raises ``ValueError``."""
        same_key = header.stored_as == self.stored_as or self.stored_as.startswith(f"{header.stored_as}@")
        agrees = {
            "id": self.id in (None, header.id),
            "size": header.size in (None, self.size) or self.size is None,
            "stored size": _fits_body(header, self.size if header.size is None else header.size, body),
            "destination": self.destination in (None, header.destination),
            "codec": self.codec in ("", header.codec),
            "encryption": self.encryption in ("", header.encryption),
            "store": self.store == header.store,
            "key": same_key,  # a log appends its position to the key
        }
        wrong = [name for name, same in agrees.items() if not same]
        if wrong:
            raise Damaged(f"it was written as the content of another payload: its {wrong[0]} differs")


def _fits_body(header: ContentHeader, size: int | None, body: int) -> bool:
    """Whether a payload of this size, if it is known, can have a body of this size."""
    plain = body if header.encryption is None else aead.plaintext_bytes(body)
    return size in (None, plain) if header.codec is None else True


class ContentReader:
    """Reads a payload from its content: a `Reader` that decrypts and decompresses.

    Args:
        open_range: Opens a range of the content.
        expected: What the header must agree with.
        keys: The data keys; ``None`` if this process has none.
        fail: Returns the error for content that is not authentic, by the reason.
        start: Bytes from the start of the payload. A compressed payload is read, and dropped, up to there.
        stop: Where the range ends, in bytes from the start; ``None`` for the end of the payload.

    Attributes:
        header: The header of the content.
    """

    def __init__(
        self,
        open_range: OpenRange,
        expected: Expected,
        keys: DataKeys | None,
        *,
        fail: Callable[[str], Exception],
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._open_range, self._expected, self._keys, self._fail = open_range, expected, keys, fail
        self._stop = stop
        self._opened = list[Reader]()
        try:
            self._reader = self._guarded(lambda: self._begin(start))
        except BaseException:
            self.close()
            raise

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the beginning of a buffer with bytes of the payload, which are authentic if they are encrypted."""
        return self._guarded(lambda: self._reader.readinto(buffer))

    def close(self) -> None:
        """Release all resources."""
        for reader in reversed(self._opened):
            reader.close()

    def _guarded(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (Damaged, aead.Forged, compression.Damaged) as error:
            raise self._fail(str(error)) from error

    def _open(self, start: int, stop: int) -> Reader:
        self._opened.append(self._open_range(start, stop))
        return self._opened[-1]

    def _begin(self, start: int) -> Reader:
        size = self._expected.bytes
        first, begin = self._read_header([size] if start == 0 else [min(size, _HEADER_STEP), size])
        self._expected.check(self.header, body=size - begin)
        body = first if start == 0 else None
        if self.header.encryption is not None:
            reader = self._decrypting(body, begin, 0 if self.header.codec else start)
        else:
            reader = body or self._open(begin if self.header.codec else begin + start, size)
        if self.header.codec is None:
            return reader
        reader = self._decompressing(reader)
        _skip(reader, start)
        return reader

    def _read_header(self, stops: list[int]) -> tuple[Reader, int]:
        """Read the header from the first range that has all of it; returns the range and the size of the header."""
        first = self._open(0, stops[0])
        try:
            self.header, begin = read_header(first)
        except NotContent:
            raise
        except Damaged:
            if len(stops) == 1:
                raise
            return self._read_header(stops[1:])
        return first, begin

    def _decrypting(self, body: Reader | None, begin: int, start: int) -> Reader:
        header, bodies = self.header, [body] if body else []
        if header.encryption != ALGORITHM or header.key_id is None or header.wrapped_key is None:
            raise Damaged(f"it is encrypted as {header.encryption!r}, which this claimcheck does not know")
        if self._keys is None:
            raise Damaged(f"it is encrypted with the key {header.key_id!r}, and encryption is not configured here")

        def open_range(first: int, stop: int) -> Reader:
            return bodies.pop() if bodies and first == 0 else self._open(begin + first, begin + stop)

        self._opened.append(
            aead.DecryptingReader(
                open_range,
                size=self._expected.bytes - begin,
                key=self._keys.open(header.key_id, header.wrapped_key),
                associated_data=header.associated_data,
                start=start,
                stop=None if header.codec else self._stop,
            )
        )
        return self._opened[-1]

    def _decompressing(self, reader: Reader) -> Reader:
        size = self.header.size if self._expected.size is None else self._expected.size
        if self.header.codec not in compression.CODECS or size is None:
            raise Damaged(f"it is compressed as {self.header.codec!r}, which this claimcheck does not know")
        self._opened.append(compression.DecompressingReader(reader, codec=self.header.codec, size=size))
        return self._opened[-1]


def _skip(reader: Reader, count: int) -> None:
    buffer = memoryview(bytearray(min(count, _SAMPLE_BYTES)))
    while count and (read := reader.readinto(buffer[:count])):
        count -= read


class ContentCoder:
    """Encodes and decodes payloads as a configuration says. Holds the data keys of this process.

    Args:
        config: The configuration.
        keys: Its data keys, if encryption is configured.

    Attributes:
        keys: See above.
        encrypts: Whether payloads are encrypted.
        requires_encryption: Whether readers refuse content that is not encrypted.
        encrypts_inline: Whether payloads that stay in their messages are encrypted, too.
    """

    def __init__(self, config: Config | None = None, keys: DataKeys | None = None) -> None:
        self.keys = keys
        encryption = EncryptionConfig() if config is None else config.encryption
        self.requires_encryption = bool(encryption.require)
        self.encrypts_inline = encryption.inline and encryption.key_id is not None
        self._new_keys = keys if encryption.key_id is not None else None
        self.encrypts = self._new_keys is not None
        overrides = () if config is None else (config, *(override for _, override in config.destinations))
        compresses = any(each.compression for each in overrides)
        self._config = config if compresses else None

    def encoding(self, payload: Source, destination: str) -> Encoding | None:
        """Return how to encode a payload; ``None`` if it is stored as it is."""
        codec = None if self._config is None else self._config.for_destination(destination).compression
        if codec is not None and not _is_worth_it(payload, codec):
            codec = None
        return Encoding(canonical(destination), codec, self._new_keys) if codec or self._new_keys else None

    def decode(self, content: memoryview, *, chunks: str | None = None, limit: int) -> tuple[bytes, ContentHeader]:
        """Return the payload of content in messages, and its header.

        Args:
            content: The whole content.
            chunks: The uuid of the chunks that it came in, if any.
            limit: The largest payload in bytes that it is decompressed to.

        Raises:
            IntegrityError: It is damaged, was changed, or is encrypted with a key that this process does not have.
            PayloadTooLargeError: The payload is larger than ``limit``.
        """
        expected = Expected(bytes=len(content), id=chunks and uuid.UUID(chunks).hex)
        reader = ContentReader(
            lambda start, stop: PieceReader([content[start:stop]]), expected, self.keys, fail=_broken
        )
        with closing(reader):
            size = reader.header.size
            if reader.header.codec is None:
                limit = max(limit, len(content))  # it is in memory already
            if size is not None and size > limit:
                raise _too_large(size, limit)
            if reader.header.encryption is None and self.requires_encryption:
                raise _broken("it is not encrypted, but encryption.require is true")
            payload = _read_all(reader, limit)
        if size not in (None, len(payload)):
            raise _broken(f"its header declares {size} bytes, but it has {len(payload)}")
        return payload, reader.header

    def stream_of(self, open_range: OpenRange, size: int) -> Stream:
        """Read how content was encrypted, so that an attempt to write it again writes the same bytes.

        Raises:
            ValueError: It is not the beginning of encrypted content.
        """
        salt = bytearray(aead.HEADER_BYTES)
        with closing(open_range(0, size)) as content:
            header, begin = read_header(content)
            if header.key_id is None or header.wrapped_key is None or fill(content, memoryview(salt)) < len(salt):
                raise Damaged("it is not encrypted")
        assert self.keys is not None
        return Stream(header, self.keys.open(header.key_id, header.wrapped_key), bytes(salt), begin)


class Unpacker:
    """Returns the payloads of encoded envelopes and of chunks.

    Args:
        coder: Decodes them.
        header: The bytes that envelopes begin with.
        limit: The largest payload in bytes that content is decompressed to.
        check_origin: Called with the destination that content was encrypted for, and the one that it was read from;
            raises an error to refuse it.
    """

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
        """Return the payload of an encoded envelope.

        Args:
            content: The envelope without its first bytes.
            uuid: That of the chunks that it came in, if any.
            destination: Where it was read from; ``None`` if unknown.

        Raises:
            PointerRejectedError: It was encrypted for another destination.
            IntegrityError: As `ContentCoder.decode`; so is `PayloadTooLargeError`.
        """
        payload, header = self._coder.decode(content, chunks=uuid, limit=self._limit)
        if header.encryption is not None and self._check_origin is not None:
            self._check_origin(header.destination, destination)
        return payload

    def chunks(self, payload: bytes, uuid: str, *, destination: str | None) -> bytes:
        """Return the payload of complete chunks, which may be an encoded envelope; raises as `content`."""
        return bytes(self.pieces([payload], uuid, destination=destination)[0])

    def pieces(self, pieces: list[Buffer], uuid: str, *, destination: str | None) -> list[Buffer]:
        """Return the payload of complete chunks in pieces: the same ones if it is not encoded."""
        size = len(self._start)
        if b"".join(piece[:size] for piece in pieces[:size])[:size] == self._start:
            return [self.content(memoryview(b"".join(pieces))[size:], uuid, destination=destination)]
        if self._coder.requires_encryption:
            raise _broken("it is not encrypted, but encryption.require is true")
        return pieces


def encoding_problem(pointer: Pointer) -> tuple[str, str] | None:
    """Return the reason to reject a pointer, and its description, if its encoding is unknown or cannot be true."""
    size, stored = pointer.size or 0, pointer.stored_bytes
    known = pointer.codec in (None, *compression.CODECS) and pointer.encryption in (None, ALGORITHM)
    encrypted = pointer.encryption is not None
    verifiable = (pointer.checksum or AEAD).startswith(AEAD) if encrypted else algorithm_of(pointer.checksum or "crc32")
    if not known or not verifiable:
        return "feature", "needs a codec, encryption or checksum that this claimcheck does not know"
    if (stored is None) != (pointer.codec is None and pointer.encryption is None):
        return "feature", f"declares {stored} stored bytes, codec {pointer.codec} and encryption {pointer.encryption}"
    if stored is not None and stored > size + size // _SPARE_FRACTION + _SPARE_BYTES:
        return "size", f"declares {stored} stored bytes for a payload of {size} bytes"
    return None


def _read_all(reader: Reader, limit: int) -> bytes:
    """Read into a buffer that grows: a declared size is never allocated before its bytes are there."""
    box, buffer = io.BytesIO(), memoryview(bytearray(_READ_BYTES))
    while count := reader.readinto(buffer):
        box.write(buffer[:count])
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
    return compression.shrinks(sample, codec=codec.codec, level=codec.level)
