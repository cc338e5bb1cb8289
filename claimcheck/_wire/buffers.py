"""Bytes in memory: views of them, what a store returns for those that it keeps, and the memory to read them into."""

from __future__ import annotations

import contextlib
import functools
import io
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from claimcheck.errors import PayloadTypeError

Buffer = bytes | bytearray | memoryview
"""The bytes-like types of a payload."""

STEP_BYTES = 256 << 10
"""Bytes per read: few enough to be in the processor's cache still when they are checksummed."""

_PAYLOAD = "a payload must be bytes-like or a readable binary file"
_NOTHING = memoryview(b"")
_PIECE_BYTES = 1 << 20
_ZEROED_BELOW_BYTES = 256 << 10  # zeroing them takes no longer than the call through ctypes
_HUGE_FROM_BYTES = 32 << 20  # from here on every allocation is new to the process, and its pages are touched one by one
_HUGE_UP_TO_BYTES = 128 << 20  # a virtual machine may have to ask its host for more, which 2 MiB at a time make slower


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
        self._rest = _NOTHING
        self._skip = start

    def readinto(self, buffer: memoryview, /) -> int:
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
        self._rest = _NOTHING
        return self._piece

    def close(self) -> None:
        """End the iteration, which releases the store's resources."""
        self._piece, self._rest = b"", _NOTHING
        close = getattr(self._pieces, "close", None)
        self._pieces = iter(())
        if close is not None:
            close()

    def _next(self) -> bool:
        for piece in self._pieces:
            self._piece, self._rest = piece, as_view(piece)
            if self._skip:
                skipped = min(self._skip, len(self._rest))
                self._skip, self._rest = self._skip - skipped, self._rest[skipped:]
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


def as_view(payload: object, *, expected: str = _PAYLOAD) -> memoryview:
    """Return the bytes of a bytes-like object as a flat view; copies only an object that is not contiguous."""
    if type(payload) is bytes:  # flat, and the usual type
        return memoryview(payload)
    try:
        view = memoryview(payload)  # type: ignore[arg-type]
        if "O" in view.format:
            raise TypeError("it holds references to objects, not their bytes")
        if view.nbytes == 0:
            return memoryview(b"")  # a shape with a zero in it has no flat form
        return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
    except (TypeError, ValueError, BufferError) as exc:
        hint = ": encode text first, for example value.encode()" if isinstance(payload, str) else f" ({exc})"
        raise PayloadTypeError(f"{expected}, not {type(payload).__name__}{hint}") from None


def writable_view(buffer: Buffer) -> memoryview:
    try:
        view = memoryview(buffer)
        if not view.readonly:
            return view.cast("B") if view.nbytes else memoryview(bytearray())
        why = "it is read-only"
    except TypeError as error:
        why = str(error)
    raise PayloadTypeError(f"cannot read into {type(buffer).__name__}: {why}")


class _Memory(io.BytesIO):
    """Stays open while views of it exist: from Python 3.13 on, the garbage collector reports an error otherwise."""

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            super().close()


_new_memory = _Memory if sys.version_info >= (3, 13) else io.BytesIO  # which takes a microsecond less


class FreshBytes:
    """Preallocated memory for exactly one payload; a context manager around filling it."""

    def __init__(self, size: int, *, huge_pages: bool = True) -> None:
        self._box = _new_memory(bytes(size) if size < _ZEROED_BELOW_BYTES else _allocator()(None, size))
        self.view = self._box.getbuffer()
        if huge_pages and _HUGE_FROM_BYTES <= size <= _HUGE_UP_TO_BYTES:
            _advise_huge_pages(self.view)

    @property
    def payload(self) -> bytes:
        """The filled bytes; only after the block."""
        return self._box.getvalue()

    def __enter__(self) -> FreshBytes:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.view.release()
        if error is not None:  # its traceback refers to this object, and may live long
            self._box = _new_memory()


@functools.cache
def _allocator() -> Callable[[None, int], bytes]:
    """Return the interpreter's function for new bytes; ``bytes(n)`` zeroes memory that the process has used before."""
    import ctypes

    create = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
    try:
        allocate: Any = create(("PyBytes_FromStringAndSize", ctypes.pythonapi))
    except AttributeError:  # not CPython
        return lambda _, size: bytes(size)
    return allocate  # type: ignore[no-any-return]


def _advise_huge_pages(view: memoryview) -> None:
    """Make touching new memory two to three times as fast, in steps of 2 MiB instead of pages; see madvise(2)."""
    with contextlib.suppress(Exception):  # only an optimization: not on every system or interpreter
        import ctypes

        first = ctypes.addressof(ctypes.c_char.from_buffer(view))
        begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise()(begin, (first + len(view) - begin) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    import ctypes

    call = ctypes.CDLL(None).madvise
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    madvise: Callable[[int, int, int], int] = call
    return madvise
