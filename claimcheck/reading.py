"""What payloads are read with: anything that fills buffers, and what every such reading needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, Protocol

from claimcheck.envelope import Buffer, as_view
from claimcheck.errors import IntegrityError, PayloadTypeError
from claimcheck.pointer import Pointer

__all__ = ["STEP_BYTES", "TRUSTED_BYTES", "PieceReader", "Reader", "check_size", "differs", "fill", "writable_view"]

STEP_BYTES = 256 << 10
"""What is read at a time: little enough to lie in the processor's cache still while it is checksummed."""

TRUSTED_BYTES = 64 << 20
"""Up to here a declared size is allocated at once; above it the medium has to confirm it first."""


class Reader(Protocol):
    """A raw binary file, as far as it takes one to read a payload."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the beginning of a buffer, which is never empty; 0 only at the end."""

    def close(self) -> None:
        """Release what is held; at any time, and twice without harm."""


class PieceReader:
    """The pieces that a store yields, as a `Reader`.

    Args:
        pieces: A piece may be reused once the next one is asked for.
        start: Bytes to leave out.
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
        """Return the first piece, uncopied, if it is all that is asked for."""
        if not self._next() or type(self._piece) is not bytes or not len(self._rest) == len(self._piece) == size:
            return None
        self._rest = memoryview(b"")
        return self._piece

    def close(self) -> None:
        """End the iteration; releases what the store holds for it."""
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
    """Read until the buffer is full or the source ends; gives the number of bytes."""
    done = 0
    while done < len(view) and (count := source.readinto(view[done : done + STEP_BYTES])):
        done += count
    return done


def writable_view(buffer: Buffer) -> memoryview:
    """Look at a buffer as bytes that can be changed.

    Raises:
        PayloadTypeError: It is none, is read-only, or does not lie in one piece.
    """
    try:
        view = memoryview(buffer)
        if not view.readonly:
            return view.cast("B") if view.nbytes else memoryview(bytearray())
        why = "it is read-only"
    except TypeError as error:
        why = str(error)
    raise PayloadTypeError(f"cannot read into {type(buffer).__name__}: {why}")


def check_size(pointer: Pointer, actual: int, *, store: str) -> None:
    """Compare the size of what is stored with the pointer's, before any of it is read.

    Raises:
        IntegrityError: They differ.
    """
    if pointer.size is not None and pointer.size != actual:
        differs(pointer, "size", pointer.size, actual, store)


def differs(pointer: Pointer, what: str, expected: int | str, actual: int | str, store: str) -> NoReturn:
    """Raise the error for a payload that is not what its pointer says."""
    raise IntegrityError(
        f"store {store!r}: {pointer.key!r} has another {what} than its pointer: expected {expected}, found {actual}",
        store=store,
        key=pointer.key,
        expected=expected,
        actual=actual,
    )
