"""Encrypts payloads of any size in segments: the format of Tink's streaming AEAD ``AES256_GCM_HKDF_1MB``.

Any language that has Tink can read a ciphertext. It begins with a stream header of 40 bytes: its length, a random salt
of 32 bytes and a random nonce prefix of 7 bytes. HKDF-SHA256 derives the AES-256 key of this ciphertext from the main
key, the salt and, as ``info``, the associated data. Segments of 1 MiB follow, tags of 16 bytes included; the stream
header is a part of the first one, and the last one is shorter. The nonce of a segment is the prefix, its number and
one byte that marks the last segment. Segments therefore cannot be swapped, removed or appended, and a ciphertext cannot
be truncated.

No I/O. The AES of ``cryptography`` releases the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from claimcheck._wire.buffers import Buffer, Reader, as_view
from claimcheck.errors import import_vendor

HEADER_BYTES = 40
"""The size of the stream header."""

KEY_BYTES = 32
"""The size of a key."""

_SEGMENT_BYTES = 1 << 20
_SALT_BYTES = 32
_PREFIX_BYTES = 7
_TAG_BYTES = 16
_PLAIN_BYTES = _SEGMENT_BYTES - _TAG_BYTES  # the plaintext of a segment; the first one has HEADER_BYTES less


class Forged(ValueError):  # noqa: N818 - named after the finding
    """A ciphertext is not authentic: changed, truncated, extended, or of another key or other associated data."""


@dataclass(frozen=True, slots=True)
class DataKey:
    key: bytes = field(repr=False)
    key_id: str
    wrapped: bytes = field(repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a data key cannot be pickled: it is secret")


class Keys(Protocol):
    """Makes and unwraps data keys: `claimcheck._content.data_keys.DataKeys`."""

    @property
    def key_id(self) -> str | None: ...

    def new(self, context: Mapping[str, str]) -> DataKey: ...

    def open(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes: ...


def ciphertext_bytes(plaintext_bytes: int) -> int:
    """Return the size of the ciphertext, stream header included, of a plaintext of this size."""
    segments = max(1, -(-(plaintext_bytes + HEADER_BYTES) // _PLAIN_BYTES))
    return HEADER_BYTES + plaintext_bytes + segments * _TAG_BYTES


def plaintext_bytes(ciphertext_bytes: int) -> int:
    """Return the size of the plaintext of a ciphertext of this size, stream header included."""
    segments = max(1, -(-ciphertext_bytes // _SEGMENT_BYTES))
    size = ciphertext_bytes - HEADER_BYTES - segments * _TAG_BYTES
    if size < 0 or segments != max(1, -(-(size + HEADER_BYTES) // _PLAIN_BYTES)):
        raise Forged(f"no ciphertext has {ciphertext_bytes} bytes: it is truncated or extended")
    return size


def encrypt(pieces: Iterable[Buffer], *, key: bytes, associated_data: bytes) -> Iterator[memoryview]:
    """Encrypt a payload. Nothing is copied if one piece is the whole payload."""
    header = bytes([HEADER_BYTES]) + os.urandom(_SALT_BYTES + _PREFIX_BYTES)
    cipher = _Cipher(key, header, associated_data)
    for number, (plain, is_last) in enumerate(_segments(pieces)):
        before = header if number == 0 else b""
        segment = memoryview(bytearray(len(before) + len(plain) + _TAG_BYTES))
        segment[: len(before)] = before
        cipher.encrypt_into(number, is_last, plain, segment[len(before) :])
        yield segment


def _segments(pieces: Iterable[Buffer]) -> Iterator[tuple[Buffer, bool]]:
    """Yield the plaintext of each segment, and whether it is the last one; an empty payload has one segment."""
    held: list[memoryview] = []
    count, capacity = 0, _PLAIN_BYTES - HEADER_BYTES
    for piece in pieces:
        rest = as_view(piece)
        while count + len(rest) > capacity:  # more than fits: this segment is not the last one
            held.append(rest[: capacity - count])
            rest = rest[capacity - count :]
            yield _joined(held), False
            held, count, capacity = [], 0, _PLAIN_BYTES
        if len(rest):
            held.append(rest)
            count += len(rest)
    yield _joined(held), True


def _joined(views: list[memoryview]) -> Buffer:
    views = [view for view in views if len(view)]
    return views[0] if len(views) == 1 else b"".join(views)


class DecryptingReader:
    """A `Reader` of a range of the plaintext. It returns no byte of a segment whose tag is not verified."""

    def __init__(
        self,
        open_range: Callable[[int, int], Reader],
        *,
        size: int,
        key: bytes,
        associated_data: bytes,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        total = plaintext_bytes(size)
        self._position, self._stop = start, total if stop is None else stop
        if not 0 <= start <= self._stop <= total:
            raise ValueError(f"the bytes {start} to {self._stop} are not within a payload of {total} bytes")
        self._open_range = open_range
        self._size = size
        self._key = key
        self._associated_data = associated_data
        self._number = _segment_of(start)
        # An empty payload has one segment to verify; any other empty range has none.
        self._end = _segment_of(self._stop - 1) + 1 if start < self._stop else int(not total)
        self._source: Reader | None = None
        self._cipher: _Cipher | None = None
        self._sealed = self._plain = self._rest = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        while not len(self._rest):
            if self._number >= self._end:
                return 0
            count = self._read_segment(buffer)
            if count:
                return count
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        source, self._source = self._source, None
        self._number, self._rest = self._end, memoryview(b"")
        if source is not None:
            source.close()

    def _read_segment(self, buffer: memoryview) -> int:
        """Decrypt the next segment, into the buffer if it fits; otherwise returns 0 and keeps the plaintext."""
        source = self._source or self._open()
        number, cipher = self._number, self._cipher or self._begin(source)
        first = max(0, number * _PLAIN_BYTES - HEADER_BYTES)  # the plaintext of this segment, in the whole one
        sealed = self._sealed_segment(source, number)
        size = len(sealed) - _TAG_BYTES
        skip, take = self._position - first, min(size, self._stop - first)
        is_direct = not skip and take == size <= len(buffer)
        if not is_direct and len(self._plain) < size:
            self._plain = memoryview(bytearray(size))
        plain = buffer[:size] if is_direct else self._plain[:size]
        cipher.decrypt_into(number, self._is_last(number), sealed, plain)
        self._number, self._position = number + 1, first + take
        if not is_direct:
            self._rest = plain[skip:take]
        return size if is_direct else 0

    def _open(self) -> Reader:
        """Open the range of the ciphertext, and the stream header before it if that is elsewhere."""
        if self._number:
            with closing(self._open_range(0, HEADER_BYTES)) as source:
                self._begin(source)
        self._source = self._open_range(self._number * _SEGMENT_BYTES, min(self._end * _SEGMENT_BYTES, self._size))
        return self._source

    def _begin(self, source: Reader) -> _Cipher:
        header = memoryview(bytearray(HEADER_BYTES))
        _fill(source, header)
        self._cipher = _Cipher(self._key, bytes(header), self._associated_data)
        return self._cipher

    def _sealed_segment(self, source: Reader, number: int) -> memoryview:
        """Read the ciphertext of one segment. After the last one, the range must have ended."""
        size = min((number + 1) * _SEGMENT_BYTES, self._size) - max(number * _SEGMENT_BYTES, HEADER_BYTES)
        if len(self._sealed) < size:
            self._sealed = memoryview(bytearray(size))
        sealed = self._sealed[:size]
        _fill(source, sealed)
        if self._is_last(number) and source.readinto(memoryview(bytearray(1))):
            raise Forged(f"the ciphertext has more than {self._size} bytes")
        return sealed

    def _is_last(self, number: int) -> bool:
        return (number + 1) * _SEGMENT_BYTES >= self._size


def _segment_of(position: int) -> int:
    return (position + HEADER_BYTES) // _PLAIN_BYTES


def _fill(source: Reader, view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = source.readinto(view[done:])
        if not count:
            raise Forged("the ciphertext is truncated")
        done += count


class _Cipher:
    """AES-256-GCM with the derived key of one ciphertext."""

    def __init__(self, key: bytes, header: bytes, associated_data: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        if header[0] != HEADER_BYTES or len(header) != HEADER_BYTES:
            raise Forged("the ciphertext does not begin with a stream header")
        self._prefix = header[1 + _SALT_BYTES :]
        derived = _derived_key(key, header[1 : 1 + _SALT_BYTES], associated_data)
        self._aes: Any = import_vendor(_AEAD, extra="encryption").AESGCM(derived)

    def encrypt_into(self, number: int, is_last: bool, plain: Buffer, sealed: memoryview) -> None:
        nonce = self._nonce(number, is_last)
        if hasattr(self._aes, "encrypt_into"):
            self._aes.encrypt_into(nonce, plain, None, sealed)
        else:  # cryptography before 47
            sealed[:] = self._aes.encrypt(nonce, plain, None)

    def decrypt_into(self, number: int, is_last: bool, sealed: memoryview, plain: memoryview) -> None:
        """Decrypt one segment into a buffer of its size; on failure the buffer has no plaintext."""
        nonce = self._nonce(number, is_last)
        invalid_tag = import_vendor("cryptography.exceptions", extra="encryption").InvalidTag
        try:
            if hasattr(self._aes, "decrypt_into"):
                self._aes.decrypt_into(nonce, sealed, None, plain)
            else:
                plain[:] = self._aes.decrypt(nonce, sealed, None)
        except invalid_tag:
            plain[:] = bytes(len(plain))  # AES-GCM decrypts before it verifies
            text = f"segment {number} of the ciphertext is not authentic: it was changed, or belongs to another payload"
            raise Forged(f"{text} or key") from None

    def _nonce(self, number: int, is_last: bool) -> bytes:
        return self._prefix + number.to_bytes(4, "big") + bytes([is_last])


_AEAD = "cryptography.hazmat.primitives.ciphers.aead"
_HKDF = "cryptography.hazmat.primitives.kdf.hkdf"


def _derived_key(key: bytes, salt: bytes, associated_data: bytes) -> bytes:
    hashes = import_vendor("cryptography.hazmat.primitives.hashes", extra="encryption")
    hkdf = import_vendor(_HKDF, extra="encryption").HKDF
    derived: bytes = hkdf(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=associated_data).derive(key)
    return derived


def sub_key(key: bytes, purpose: bytes) -> bytes:
    """Return a key for another purpose than encryption, derived from a main key as HKDF without a salt does."""
    return _derived_key(key, b"", purpose)
