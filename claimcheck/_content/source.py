"""Payloads: bytes-like objects, and binary files that are read once, in pieces.

`Source` is a payload that is being stored or split into chunks. It counts and checksums the bytes as they pass, so that
nothing is read twice, and copies nothing that is already in memory.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from claimcheck._threads import STOP, check_interrupt
from claimcheck._wire.buffers import Buffer, as_view
from claimcheck._wire.digest import Crc32, begin
from claimcheck.errors import PayloadError, PayloadTooLargeError, PayloadTypeError

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class Readable(Protocol):
    """The minimum that a binary file must support. The size of a file that can also seek is known in advance."""

    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes; ``b""`` at the end."""


Payload = Buffer | Readable
"""Bytes-like, or a readable binary file positioned where the payload begins."""

_PIECE_BYTES = 1 << 20
_NOTHING = memoryview(b"")


def is_file(payload: object) -> TypeIs[Readable]:
    """Whether to read a payload as a file. An `mmap.mmap` is not: its bytes are in memory."""
    if type(payload) is bytes:  # the usual type
        return False
    return callable(getattr(payload, "read", None)) and not callable(getattr(payload, "madvise", None))


def remaining_bytes(payload: Payload) -> int | None:
    """Return the bytes from the current position to the end; ``None`` for a file that cannot seek."""
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
        end = file.seek(0, io.SEEK_END)
        file.seek(here)
    except (OSError, ValueError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EINVAL:
            return None  # a file of the kernel, which can seek, but not to its end
        raise PayloadError(f"the payload's file cannot be used: {error}") from error
    return max(0, int(end - here))


class Source:
    """A payload that is read once.

    Iterating yields views of up to 1 MiB, `pieces` those of another size. A view stays valid as long as it is
    referenced, but may show the caller's own buffer, so keep it no longer than the write.

    A piece is checksummed when the next piece or the checksum is requested: it has been sent or written by then, and
    is still in the processor's cache. A slow checksum of a large payload is computed in a thread meanwhile.

    Attributes:
        size: Bytes to come; ``None`` until the end of a file that cannot seek.
        taken: Bytes returned so far.
        algorithm: That of the checksum.
        view: The whole payload if it is in memory, else ``None``; use `take_all` to have it counted.
    """

    def __init__(
        self, payload: Payload, *, limit: int, limit_name: str = "limits.max_payload_bytes", checksum: str = "crc32"
    ) -> None:
        self._file: Readable | None = payload if is_file(payload) else None
        if type(payload) is bytes:  # the usual type
            self.view: memoryview | None = memoryview(payload)
        else:
            self.view = as_view(payload) if self._file is None else None
        self.size = _file_bytes(payload) if self.view is None else len(self.view)
        self.taken = 0
        self.algorithm = checksum
        self._digest = begin(checksum, size=self.size)
        self._last = _NOTHING  # returned, and not checksummed yet
        self._ahead = memoryview(b"")  # read from the file, and not returned yet
        self._limit = limit
        self._limit_name = limit_name
        self._checksummed = True
        if self.size is not None and self.size > limit:
            self._too_large(self.size)

    @property
    def checksum(self) -> str:
        """The checksum of the bytes returned so far, as pointers and headers carry it: ``algorithm:hex``."""
        self._digest.update(self._last)
        self._last = _NOTHING
        return self._digest.text()

    def __iter__(self) -> Iterator[memoryview]:
        return self.pieces(_PIECE_BYTES)

    def pieces(self, piece_bytes: int) -> Iterator[memoryview]:
        """Yield the payload in views of ``piece_bytes``, the last one shorter; nothing for an empty payload.

        Raises:
            PayloadTooLargeError: A file that cannot seek turned out to be longer than the limit.
            PayloadError: The file failed, was closed, or ended before the size that it had at the start.
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
                self._add(piece)
            yield piece
        self.size = self.taken

    def peek(self, size: int) -> memoryview:
        """Return up to ``size`` bytes that are still to come, without taking them."""
        if self.view is not None:
            return self.view[self.taken : self.taken + size]
        if len(self._ahead) < size:
            self._ahead = memoryview(bytes(self._file_piece(size)))
        return self._ahead[:size]

    def leave_checksum(self) -> None:
        """Do not compute a CRC-32: the caller computes those of the pieces, and passes them to `add_checksum`.

        Other checksums cannot be combined from those of pieces, and are still computed.
        """
        self._checksummed = not isinstance(self._digest, Crc32)

    def skip_checksum(self) -> None:
        """Compute no checksum: it is not used."""
        self._checksummed = False

    def add_checksum(self, crc32: int, size: int) -> None:
        """Add the CRC-32 of the next piece, of this size, in the order in which pieces were returned."""
        if isinstance(self._digest, Crc32):
            self._digest.append(crc32, size)

    def close(self) -> None:
        """Release the payload's memory, after an error: nothing uses it afterwards."""
        self._last = _NOTHING
        if self._digest.in_background:
            self._digest.close()

    def take_all(self) -> memoryview:
        """Return the whole payload; a file is read into memory. Raises the same errors as `pieces`."""
        if self.view is None:
            return memoryview(b"".join(self))
        for _ in self.pieces(max(1, len(self.view))):  # counts and checksums, copies nothing
            pass
        return self.view

    def _add(self, piece: memoryview) -> None:
        """Checksum a piece: now, in a thread, or later."""
        if self._digest.in_background:
            self._digest.update(piece)
        else:
            self._digest.update(self._last)
            self._last = piece

    def _file_piece(self, piece_bytes: int) -> memoryview:
        """Read the next piece of the file; returns an empty one after the last byte."""
        left = None if self.size is None else self.size - self.taken
        piece = self._read(piece_bytes if left is None else min(piece_bytes, left)) if left != 0 else b""
        if left and not piece:
            raise PayloadError(f"the payload's file shrank while it was read: {left} of {self.size} bytes are missing")
        return memoryview(piece)

    def _read(self, size: int) -> Buffer:
        """Read ``size`` bytes, or the rest; a raw file may return less than requested."""
        parts = [part := self._read_some(size)]
        while part and (size := size - len(part)):
            parts.append(part := self._read_some(size))
        return b"".join(parts) if parts[1:] else part

    def _read_some(self, size: int) -> Buffer:
        if len(self._ahead):
            ahead, self._ahead = self._ahead[:size], self._ahead[size:]
            return bytes(ahead)
        try:
            part: object = cast(Readable, self._file).read(size)
        except Exception as exc:  # any error of the caller's object is the payload's, never the store's
            raise PayloadError(f"the payload's file cannot be read: {type(exc).__name__}: {exc}") from exc
        if isinstance(part, str):
            _text_file(self._file)
        if part is None:
            raise PayloadError("the payload's file is non-blocking and had no data to read")
        data = part if isinstance(part, bytes) else bytes(as_view(part))
        if len(data) > size:
            raise PayloadError(f"the payload's file returned {len(data)} bytes for a read of {size}")
        return data

    def _too_large(self, size: int) -> NoReturn:
        raise PayloadTooLargeError(
            f"a payload of {size} bytes is over {self._limit_name} ({self._limit} bytes)", size=size, limit=self._limit
        )


def _text_file(file: object) -> NoReturn:
    raise PayloadTypeError(f"{type(file).__name__} is a text file: open it in binary mode ('rb')")
