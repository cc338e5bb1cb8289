"""What a payload may be: a bytes-like object, or a binary file that is read once, in pieces.

`Source` is a payload on its way into a store or into chunks. It counts and checksums the bytes as they pass, so
that nothing is read twice and nothing is copied that is in memory already.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol, cast

from claimcheck import _checksum as checksum
from claimcheck._envelope import Buffer, as_view
from claimcheck._threads import STOP, check_interrupt
from claimcheck.errors import PayloadError, PayloadTooLargeError, PayloadTypeError

__all__ = ["Payload", "Readable", "Source", "as_view", "crc32_of", "crc32_text", "is_file", "remaining_bytes"]


class Readable(Protocol):
    """The least that a binary file must be able to do; one that can also seek says its size beforehand."""

    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes, none at the end."""


Payload = Buffer | Readable
"""Bytes-like, or a readable binary file positioned where the payload begins."""

_PIECE_BYTES = 1 << 20


def is_file(payload: Any) -> bool:
    """Whether a payload is to be read as a file; an `mmap.mmap` can be, but is bytes in memory just as well."""
    return callable(getattr(payload, "read", None)) and not callable(getattr(payload, "madvise", None))


def remaining_bytes(payload: Payload) -> int | None:
    """Bytes from here to the end; ``None`` for a file that cannot seek.

    Raises:
        PayloadTypeError: Neither bytes-like nor a readable binary file.
        PayloadError: A closed file.
    """
    return _file_bytes(payload) if is_file(payload) else len(as_view(payload))


def _file_bytes(file: Any) -> int | None:
    if isinstance(file, io.TextIOBase):
        _text_file(file)
    try:
        if hasattr(file, "readable") and not file.readable():
            raise PayloadTypeError(f"{type(file).__name__} is open for writing only: open it in mode 'rb'")
        if not hasattr(file, "seekable") or not file.seekable():
            return None
        here = file.tell()
        end = _end_of(file)
        file.seek(here)
    except (OSError, ValueError, AttributeError) as exc:
        raise PayloadError(f"the payload's file cannot be used: {exc}") from exc
    return None if end is None else max(0, int(end - here))


def _end_of(file: Any) -> int | None:
    """Where a file ends; ``None`` for those of the kernel, which can seek, but not to their end."""
    try:
        return cast(int, file.seek(0, io.SEEK_END))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def crc32_text(value: int) -> str:
    """The form in which a checksum stands in pointers and headers."""
    return f"crc32:{value:08x}"


def crc32_of(payload: Buffer) -> str:
    """The checksum of a whole payload, in the form that pointers and headers carry."""
    return crc32_text(checksum.crc32(payload))


class Source:
    """One payload, passing by once.

    A piece is checksummed when the next one, or the checksum, is asked for: whoever took it has sent or written it by
    then, so that it lies in the processor's cache.

    Iterating gives views of up to 1 MiB; `pieces` gives them in another size. A view stays valid as long as it is
    referenced; bytes of the caller's own buffer, so keep it no longer than the write.

    Attributes:
        size: Bytes to come; ``None`` until the end of a file that cannot seek.
        taken: Bytes handed out so far.
        view: The whole payload where it is in memory, else ``None``; use `take_all` to have it counted.
    """

    def __init__(self, payload: Payload, *, limit: int, limit_name: str = "limits.max_payload_bytes") -> None:
        self._file: Any = payload if is_file(payload) else None
        self.view = as_view(payload) if self._file is None else None
        self.size = _file_bytes(payload) if self.view is None else len(self.view)
        self.taken = 0
        self._crc32 = 0
        self._last = memoryview(b"")  # handed out, and not checksummed yet
        self._limit = limit
        self._limit_name = limit_name
        self._checksummed = True
        if self.size is not None and self.size > limit:
            self._too_large(self.size)

    @property
    def checksum(self) -> str:
        """Of the bytes handed out so far, as ``crc32:`` and eight hexadecimal digits."""
        self._crc32 = checksum.crc32(self._last, self._crc32)
        self._last = memoryview(b"")
        return crc32_text(self._crc32)

    @property
    def drained(self) -> bool:
        """Whether every byte was handed out."""
        return self.size is not None and self.taken == self.size

    def __iter__(self) -> Iterator[memoryview]:
        return self.pieces(_PIECE_BYTES)

    def pieces(self, piece_bytes: int) -> Iterator[memoryview]:
        """Hand out the payload in views of ``piece_bytes``, the last one shorter; none at all for an empty payload.

        Raises:
            PayloadTooLargeError: A file that cannot seek proved longer than the limit.
            PayloadError: The file failed, was closed, or ended before the size it had at the start.
        """
        view = self.view
        while True:
            piece = self._file_piece(piece_bytes) if view is None else view[self.taken : self.taken + piece_bytes]
            if not len(piece):
                break
            if STOP.get() is not None:
                check_interrupt()
            self.taken += len(piece)
            if self.taken > self._limit:
                self._too_large(self.taken)
            if self._checksummed:
                self._crc32 = checksum.crc32(self._last, self._crc32)
                self._last = piece
            yield piece
        self.size = self.taken

    def leave_checksum(self) -> None:
        """Hand out pieces without a look at them: whoever takes them computes checksums, and gives them back."""
        self._checksummed = False

    def add_checksum(self, crc32: int, size: int) -> None:
        """Take the checksum of the next piece of this size, in the order in which they were handed out."""
        self._crc32 = checksum.crc32_combine(self._crc32, crc32, size)

    def take_all(self) -> memoryview:
        """Hand out everything at once; a file is read into memory. Raises as `pieces` does."""
        if self.view is None:
            return memoryview(b"".join(self))
        for _ in self:  # counts and checksums, copies nothing
            pass
        return self.view

    def _file_piece(self, piece_bytes: int) -> memoryview:
        """Read the next piece of the file; an empty one at its end."""
        left = None if self.size is None else self.size - self.taken
        piece = self._read(piece_bytes if left is None else min(piece_bytes, left)) if left != 0 else b""
        if left and not piece:
            raise PayloadError(f"the payload's file shrank while it was read: {left} of {self.size} bytes are missing")
        return memoryview(piece)

    def _read(self, size: int) -> Buffer:
        """Read exactly ``size`` bytes, or what is left; raw files may give less than they are asked for."""
        part = self._read_some(size)
        if not part or len(part) == size:
            return part
        whole, done = memoryview(bytearray(size)), 0
        while part:
            whole[done : done + len(part)] = part
            done += len(part)
            part = self._read_some(size - done) if done < size else b""
        return whole[:done]

    def _read_some(self, size: int) -> bytes:
        try:
            part = self._file.read(size)
        except Exception as exc:  # whatever the caller's object raises is the payload's fault, never the store's
            raise PayloadError(f"the payload's file cannot be read: {type(exc).__name__}: {exc}") from exc
        if isinstance(part, str):
            _text_file(self._file)
        if part is None:
            raise PayloadError("the payload's file does not block: nothing could be read just now")
        if len(part) > size:
            raise PayloadError(f"the payload's file gave {len(part)} bytes when it was asked for {size}")
        return bytes(part) if not isinstance(part, bytes) else part

    def _too_large(self, size: int) -> NoReturn:
        raise PayloadTooLargeError(
            f"a payload of {size} bytes is over {self._limit_name} ({self._limit} bytes)", size=size, limit=self._limit
        )


def _text_file(file: Any) -> NoReturn:
    raise PayloadTypeError(f"{type(file).__name__} is a text file: open it in binary mode ('rb')")
