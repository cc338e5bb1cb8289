"""From pieces of a stored payload to bytes or a file: verified, and copied at most once."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from claimcheck.envelope import Buffer, as_view
from claimcheck.errors import IntegrityError, PayloadTooLargeError
from claimcheck.payload import crc32_text
from claimcheck.pointer import Pointer

__all__ = ["PayloadReader", "check_size", "collect", "verified"]

_TRUSTED_BYTES = 64 << 20  # up to here a declared size is allocated at once, above it memory grows with what comes


def verified(pieces: Iterable[Buffer], pointer: Pointer, *, store: str, limit: int) -> Iterator[Buffer]:
    """Pass pieces on; the one that completes the payload only after size and checksum were found right.

    Raises:
        IntegrityError: Too short, too long, or another checksum than the pointer's.
        PayloadTooLargeError: A payload of undeclared size that exceeds ``limit``.
    """
    size, total, crc = pointer.size, 0, 0
    if size == 0:
        _check(pointer, total, crc, store)
    for piece in map(_flat, pieces):
        total += len(piece)
        if total > (limit if size is None else size):
            _too_long(pointer, total, limit, store)
        crc = zlib.crc32(piece, crc)
        if total == size and len(piece):
            _check(pointer, total, crc, store)
        yield piece
    if size is not None and total < size:
        _differs(pointer, "size", size, total, store)


def collect(pieces: Iterator[Buffer], size: int | None) -> bytes:
    """Join pieces into one ``bytes``: no copy for a single one, the memory of one payload for any number.

    Args:
        pieces: Already verified, so that together they have the size that is declared.
        size: As declared, by whoever sent the pointer; only a small one is believed before the bytes are there.
    """
    first = next(pieces, b"")
    if type(first) is bytes and len(first) == size:
        for _ in pieces:
            pass
        return first
    if size is None or size > _TRUSTED_BYTES:
        return _grown(first, pieces)
    box = io.BytesIO(bytes(size))  # calloc'ed and adopted, not copied; nothing came yet that contradicts the size
    with box.getbuffer() as out:
        out[: len(first)] = first
        done = len(first)
        for piece in pieces:
            out[done : done + len(piece)] = piece
            done += len(piece)
    box.truncate(done)
    return box.getvalue()


def _grown(first: Buffer, pieces: Iterator[Buffer]) -> bytes:
    """Large buffers grow in place (by mremap), and the last one is handed out uncopied."""
    box = io.BytesIO(first if type(first) is bytes else bytes(first))
    box.seek(0, io.SEEK_END)
    for piece in pieces:
        box.write(piece)
    return box.getvalue()


def _flat(piece: Buffer) -> Buffer:
    return piece if isinstance(piece, (bytes, bytearray)) else as_view(piece)


class PayloadReader(io.RawIOBase):
    """A payload as a raw file over its verified pieces.

    Once reading has failed, or was interrupted, it fails again with the same error: a broken payload never looks like
    a short one.

    Args:
        pieces: Already verified.
        size: Payload bytes, where known.
    """

    def __init__(self, pieces: Iterator[Buffer], *, size: int | None = None) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self._size = self._left = size
        self._error: BaseException | None = None

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a part of the buffer; 0 only after the whole payload was handed out and found right."""
        while not len(self._rest):
            piece = self._next()
            if piece is None:
                self._check_end()
                return 0
            self._rest = memoryview(piece).cast("B")
        count = min(len(buffer), len(self._rest))
        memoryview(buffer).cast("B")[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        self._count(count)
        return count

    def readall(self) -> bytes:
        """Return what is left, in one allocation where the size is known."""
        pieces: Iterator[Buffer] = iter(self._next, None)
        rest, self._rest = self._rest, memoryview(b"")
        try:
            payload = collect(chain([rest], pieces) if len(rest) else pieces, self._left)
        except BaseException as error:  # what was taken already is lost, and reading on would leave a hole
            self._error = self._error or error
            raise
        self._count(len(payload))
        self._check_end()
        return payload

    def close(self) -> None:
        """Stop reading; releases what the store holds for it."""
        self._rest = memoryview(b"")
        close = getattr(self._pieces, "close", None)
        if close is not None and not self.closed:
            close()
        super().close()

    def _next(self) -> Buffer | None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._error is not None:
            raise self._error
        try:
            return next(self._pieces, None)
        except BaseException as error:
            self._error = error
            raise

    def _check_end(self) -> None:
        """An interrupted generator just ends, and that must not look like the payload's end."""
        if not self._left:
            return
        actual = (self._size or 0) - self._left
        text = f"the payload ended after {actual} of {self._size} bytes"
        self._error = IntegrityError(text, expected=self._size, actual=actual)
        raise self._error

    def _count(self, taken: int) -> None:
        if self._left is not None:
            self._left -= taken


def check_size(pointer: Pointer, actual: int, *, store: str) -> None:
    """Compare the size of what is stored with the pointer's, before any of it is read.

    Raises:
        IntegrityError: They differ.
    """
    if pointer.size is not None and pointer.size != actual:
        _differs(pointer, "size", pointer.size, actual, store)


def _check(pointer: Pointer, total: int, crc: int, store: str) -> None:
    found = crc32_text(crc)
    if pointer.checksum is not None and pointer.checksum != found:
        _differs(pointer, "checksum", pointer.checksum, found, store)


def _too_long(pointer: Pointer, total: int, limit: int, store: str) -> None:
    if pointer.size is not None:
        _differs(pointer, "size", pointer.size, f"at least {total}", store)
    raise PayloadTooLargeError(
        f"store {store!r}: {pointer.key!r} is longer than limits.max_payload_bytes ({limit})",
        store=store,
        key=pointer.key,
        size=total,
        limit=limit,
    )


def _differs(pointer: Pointer, what: str, expected: int | str, actual: int | str, store: str) -> None:
    raise IntegrityError(
        f"store {store!r}: {pointer.key!r} has another {what} than its pointer: expected {expected}, found {actual}",
        store=store,
        key=pointer.key,
        expected=expected,
        actual=actual,
    )
