"""Where bytes are read from: what a store returns for the bytes that it keeps, and how to read all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from claimcheck._envelope import Buffer, as_view
from claimcheck.errors import PayloadTypeError

STEP_BYTES = 256 << 10
"""Bytes per read: few enough to be in the processor's cache still when they are checksummed."""

_PIECE_BYTES = 1 << 20


class Reader(Protocol):
    """The methods of a raw binary file that are needed to read a payload.

    A reader may also have a method ``whole``, see `PieceReader.whole`, which is called before anything is read.
    """

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the beginning of a buffer, which is never empty; returns the number of bytes, 0 only at the end."""

    def close(self) -> None:
        """Release all resources. May be called at any time, and twice."""


class PieceReader:
    """A `Reader` of the pieces that a store yields.

    Args:
        pieces: A piece may be reused once the next one is requested.
        start: Number of bytes to skip.
    """

    def __init__(self, pieces: Iterable[Buffer], *, start: int = 0) -> None:
        self._pieces = iter(pieces)
        self._piece: Buffer = b""
        self._rest = memoryview(b"")
        self._skip = start

    def readinto(self, buffer: memoryview, /) -> int:
        """Copy from the current piece, or from the next one."""
        while not len(self._rest):
            if not self._next():
                return 0
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def whole(self, size: int) -> bytes | None:
        """Return the first piece, uncopied, if it has exactly ``size`` bytes."""
        if not self._next() or type(self._piece) is not bytes or not len(self._rest) == len(self._piece) == size:
            return None
        self._rest = memoryview(b"")
        return self._piece

    def close(self) -> None:
        """End the iteration, which releases the store's resources."""
        self._piece, self._rest = b"", memoryview(b"")
        close = getattr(self._pieces, "close", None)
        self._pieces = iter(())
        if close is not None:
            close()

    def _next(self) -> bool:
        for piece in self._pieces:
            view = as_view(piece)
            skipped = min(self._skip, len(view))
            self._skip -= skipped
            self._piece, self._rest = piece, view[skipped:]
            return True
        return False


def fill(source: Reader, view: memoryview) -> int:
    """Read until the buffer is full or the source ends; returns the number of bytes."""
    if len(view) > STEP_BYTES:
        lend_to(source, view)
    done = 0
    while done < len(view) and (count := source.readinto(view[done : done + STEP_BYTES])):
        done += count
    return done


def lend_to(source: Reader, view: memoryview) -> None:
    """Let a source that reads ahead do so into the memory that the next reads pass, from its start to its end."""
    lend = getattr(source, "lend", None)
    if lend is not None:
        lend(view)


def pieces_of(source: Reader) -> Iterator[memoryview]:
    """Yield what a source reads, in pieces of up to 1 MiB; each is reused once the next one is requested."""
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while count := source.readinto(buffer):
        yield buffer[:count]


def writable_view(buffer: Buffer) -> memoryview:
    """Return a flat view of a writable buffer."""
    try:
        view = memoryview(buffer)
        if not view.readonly:
            return view.cast("B") if view.nbytes else memoryview(bytearray())
        why = "it is read-only"
    except TypeError as error:
        why = str(error)
    raise PayloadTypeError(f"cannot read into {type(buffer).__name__}: {why}")
