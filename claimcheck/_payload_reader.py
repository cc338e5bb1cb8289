"""Reads stored payloads into bytes, buffers and files: verified, with as few copies as the medium allows."""

from __future__ import annotations

import contextlib
import functools
import hmac
import io
import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, cast

from claimcheck import _digest as digests
from claimcheck._envelope import Buffer, as_view
from claimcheck._pointer import Pointer
from claimcheck._registry import UNUSABLE, unusable
from claimcheck._threads import check_interrupt
from claimcheck.errors import IntegrityError, PayloadTooLargeError, PayloadTypeError, clear_frames

if TYPE_CHECKING:
    from claimcheck._content import ContentReader
    from claimcheck._store import Store

__all__ = [
    "differs",
    "fill",
    "FreshBytes",
    "PayloadReader",
    "PieceReader",
    "pieces_of",
    "read_range",
    "read_whole",
    "Reader",
    "SeekableReader",
    "STEP_BYTES",
    "too_long",
    "TRUSTED_BYTES",
    "writable_view",
]

STEP_BYTES = 256 << 10
"""Bytes per read: few enough to be in the processor's cache still when they are checksummed."""

TRUSTED_BYTES = 64 << 20
"""Declared sizes up to this are allocated at once; for larger ones the medium has to confirm the size first."""

_PIECE_BYTES = 1 << 20
_SEGMENT_BYTES = 1 << 20  # encrypted segments are decrypted into the caller's buffer, if there is enough of it
_ZEROED_BELOW_BYTES = 256 << 10  # zeroing them takes no longer than the call through ctypes
_HUGE_FROM_BYTES = 32 << 20  # from here on every allocation is new to the process, and its pages are touched one by one
_HUGE_UP_TO_BYTES = 64 << 20  # a virtual machine may have to ask its host for more, which 2 MiB at a time make slower
_GROWTH = 4
_MAX_RUN_BYTES = 64 << 20

T = TypeVar("T")


class FreshBytes:
    """Preallocated memory for exactly one payload; a context manager around filling it.

    `io.BytesIO` adopts new ``bytes`` because it has the only reference, and returns them uncopied: the peak memory is
    one payload, and it is written once. The memory is not zeroed first: fill all of it.

    Attributes:
        view: The memory to fill; released when the block is left.
    """

    def __init__(self, size: int) -> None:
        self._box = io.BytesIO(bytes(size) if size < _ZEROED_BELOW_BYTES else _allocator()(None, size))
        self.view = self._box.getbuffer()
        if _HUGE_FROM_BYTES <= size <= _HUGE_UP_TO_BYTES:
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
            self._box = io.BytesIO()


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


_NOTHING: Reader = PieceReader(())
_ONE_BYTE = memoryview(bytearray(1))  # to read what should not be there; never looked at


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
    """Return a flat view of a writable buffer.

    Raises:
        PayloadTypeError: It is not a buffer, is read-only, or is not contiguous.
    """
    try:
        view = memoryview(buffer)
        if not view.readonly:
            return view.cast("B") if view.nbytes else memoryview(bytearray())
        why = "it is read-only"
    except TypeError as error:
        why = str(error)
    raise PayloadTypeError(f"cannot read into {type(buffer).__name__}: {why}")


def differs(pointer: Pointer, what: str, expected: int | str, actual: int | str, store: str) -> NoReturn:
    """Raise the error for a payload that differs from its pointer."""
    raise IntegrityError(
        f"store {store!r}: the {what} of {pointer.key!r} differs from its pointer: expected {expected}, found {actual}",
        store=store,
        key=pointer.key,
        expected=expected,
        actual=actual,
    )


def too_long(store: Store, pointer: Pointer, size: int) -> PayloadTooLargeError:
    """Return the error for a payload of unknown size that turned out to be over the limit after ``size`` bytes."""
    limit = store.context.max_payload_bytes
    text = f"store {store.name!r}: {pointer.key!r} is longer than limits.max_payload_bytes ({limit})"
    return PayloadTooLargeError(text, store=store.name, key=pointer.key, size=size, limit=limit)


class PayloadReader(io.RawIOBase):
    """A payload as a raw file. Its last bytes are returned only after size and checksum were verified.

    Once reading has failed or was interrupted, it fails again with the same error: a broken payload never looks like a
    short one.

    Args:
        store: The store to read from; its `Store.check` has accepted the pointer.
        pointer: The payload's pointer.
        from_message: Whether a message named the pointer. If this process cannot use the store, that is then an error
            of the message. Drivers are imported at the first read.
    """

    def __init__(self, store: Store, pointer: Pointer, *, from_message: bool = False) -> None:
        self._store = store
        self._pointer = pointer
        self._from_message = from_message
        self._size = pointer.size
        self._is_keyed = pointer.encryption is not None and (pointer.checksum or "").startswith(digests.KEYED)
        self._step_bytes = STEP_BYTES if pointer.encryption is None else _SEGMENT_BYTES
        self._operation: AbstractContextManager[None] | None = None
        self._source: Reader | None = None
        self._checked = 0
        self._digest: digests.Digest | None = None
        self._verified = False
        self._error: BaseException | None = None

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a part of the buffer; returns 0 only after the whole payload was verified."""
        view = memoryview(buffer).cast("B")[: self._step_bytes]
        return self._guarded(lambda: self._step(view, stable=False)) if len(view) else 0

    def fill(self, view: memoryview) -> int:
        """Read until the buffer is full or the payload ends; returns the number of bytes."""
        return self._guarded(lambda: self._fill(view))

    def readall(self) -> bytes:
        """Return the rest of the payload, in one allocation if the declared size can be trusted."""
        left = self._left()
        if left is None or (left > TRUSTED_BYTES and not self.seekable()):
            return self._grown()
        whole = self._guarded(self._whole)
        if whole is not None:
            return whole
        with FreshBytes(left) as fresh:
            self.fill(fresh.view)
        return fresh.payload

    def close(self) -> None:
        """Stop reading, and release the store's resources."""
        self._release(None)
        super().close()

    # Internals -------------------------------------------------------------------------------------------------

    def _guarded(self, read: Callable[[], T]) -> T:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._error is not None:
            raise self._error
        try:
            with self._store._translated(self._pointer, "read"):
                return read()
        except BaseException as error:
            self._error = error
            self._release(error)
            clear_frames(error)
            if self._from_message and isinstance(error, UNUSABLE):
                self._error = unusable(self._store.name, self._pointer, error)
                raise self._error from error
            raise

    def _fill(self, view: memoryview) -> int:
        if len(view) > self._step_bytes:
            self._lend(view)
        done = 0
        while (count := self._step(view[done : done + self._step_bytes], stable=True)) and done + count < len(view):
            done += count
        return done + count

    def _step(self, view: memoryview, *, stable: bool) -> int:
        """Read and checksum the next bytes; ``stable`` memory keeps them until the whole payload is verified."""
        check_interrupt()
        if self._verified:
            return 0
        view = view if self._size is None else view[: self._size - self._checked]
        count = (self._begun().readinto(view) or 0) if len(view) else 0
        self._count(view[:count], stable=stable)
        if not count or self._checked == self._size:
            self._finish()
        return count

    def _lend(self, view: memoryview) -> None:
        """Let the store read ahead into the memory to fill, if it can."""
        if not self._verified:
            lend_to(self._begun(), view if self._size is None else view[: self._size - self._checked])

    def _begun(self) -> Reader:
        if self._source is None:
            operation = self._store._operation("read", self._pointer, self._size)
            operation.__enter__()
            self._operation = operation
            self._source = self._store._content(self._pointer, 0, self._size)
            self._begin_digest()
        return self._source

    def _begin_digest(self) -> None:
        declared = self._pointer.checksum
        if self._is_keyed:
            self._digest = digests.begin("sha256", size=self._size)
        elif declared is not None and self._pointer.encryption is None:
            # `Store.check` has rejected unknown algorithms; here they would differ
            self._digest = digests.begin(digests.algorithm_of(declared) or "crc32", size=self._size)

    def _release(self, error: BaseException | None) -> None:
        """Stop hashing, close the source and emit the event, once; each of them even if another one fails."""
        operation, self._operation = self._operation, None
        if operation is None:
            return
        try:
            if self._digest is not None and self._digest.in_background:
                self._digest.close()
        finally:
            try:
                if self._source is not None:
                    self._source.close()
            finally:
                operation.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    def _count(self, piece: Buffer, *, stable: bool) -> None:
        self._checked += len(piece)
        if self._digest is not None:
            self._digest.update(piece, stable=stable)
        if self._size is None and self._checked > self._store.context.max_payload_bytes:
            raise too_long(self._store, self._pointer, self._checked)

    def _finish(self) -> None:
        pointer, store = self._pointer, self._store.name
        if self._size is not None and self._checked < self._size:
            differs(pointer, "size", self._size, self._checked, store)
        if self._size is not None and self._begun().readinto(_ONE_BYTE):
            differs(pointer, "size", self._size, f"at least {self._size + 1}", store)
        if self._digest is not None:
            self._check_digest(self._digest.text())
        self._verified = True
        self._release(None)

    def _check_digest(self, actual: str) -> None:
        expected = self._pointer.checksum or ""
        if self._is_keyed:
            actual = cast("ContentReader", self._source).keyed(actual)
        if not hmac.compare_digest(actual.encode(), expected.encode(errors="replace")):
            differs(self._pointer, "checksum", expected, actual, self._store.name)

    def _left(self) -> int | None:
        return None if self._size is None else self._size - self._checked

    def _whole(self) -> bytes | None:
        """Return the payload uncopied if the source returns it as one ``bytes`` object; see `PieceReader.whole`."""
        if self._checked or self._verified or self._size is None:
            return None
        source = self._begun()
        find = getattr(source, "whole", None)
        whole: bytes | None = None if find is None else find(self._size)
        if whole is not None:
            self._count(whole, stable=True)
            self._finish()
        return whole

    def _grown(self) -> bytes:
        """Read into a buffer that grows in place (by mremap if it is large) and is returned uncopied."""
        box, buffer = io.BytesIO(), memoryview(bytearray(STEP_BYTES))
        while count := self.readinto(buffer):
            box.write(buffer[:count])
        return box.getvalue()


class SeekableReader(PayloadReader):
    """A `PayloadReader` of a store that can read from any position.

    A payload that is read from start to end is verified in the process. Before the first bytes from any other position
    are returned, the rest of the payload is read and verified, once. After that only the requested bytes are read.
    """

    def __init__(self, store: Store, pointer: Pointer, *, from_message: bool = False) -> None:
        super().__init__(store, pointer, from_message=from_message)
        self._position = 0
        self._run = _NOTHING  # reads one range after a seek, and the next range if reading goes on
        self._run_at = self._run_end = -1
        self._run_bytes = 0

    def seekable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """Return the position in bytes from the start."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Change the position, as files do; reads nothing yet."""
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size or 0}
        if whence not in bases or bases[whence] + offset < 0:
            raise ValueError(f"cannot seek to {offset} from {whence}")
        self._position = bases[whence] + offset
        return self._position

    def close(self) -> None:
        """Stop reading, and release the store's resources."""
        self._end_run()
        super().close()

    def _step(self, view: memoryview, *, stable: bool) -> int:
        if self._position == self._checked and not self._verified:
            count = super()._step(view, stable=stable)
        else:
            if self._pointer.encryption is None or self._is_keyed:
                self._verify_rest()
            count = self._read_at(view[: max(0, (self._size or 0) - self._position)])
        self._position += count
        return count

    def _lend(self, view: memoryview) -> None:
        if self._position == self._checked:
            super()._lend(view)

    def _verify_rest(self) -> None:
        scratch = memoryview(bytearray(0 if self._verified else STEP_BYTES))
        while not self._verified:
            super()._step(scratch, stable=False)

    def _read_at(self, view: memoryview) -> int:
        check_interrupt()
        if not len(view):
            if self._pointer.encryption is not None and self._run_end < 0:  # the size is not authenticated yet
                self._store._content(self._pointer, self._size or 0, self._size).close()
                self._run_end = self._size or 0
            return 0
        if self._position != self._run_at or self._run_at == self._run_end:
            self._begin_run(len(view))
        view = view[: self._run_end - self._run_at]
        _fill_all(self._run, view, self._pointer, self._store.name)
        self._run_at += len(view)
        if self._run_at == self._run_end:
            self._end_run()
        return len(view)

    def _begin_run(self, requested: int) -> None:
        """Open the range to read now; consecutive reads open larger and larger ranges."""
        self._end_run()
        goes_on = self._position == self._run_end
        self._run_bytes = min(self._run_bytes * _GROWTH, _MAX_RUN_BYTES) if goes_on else requested
        self._run_at = self._position
        self._run_end = min(self._position + max(requested, self._run_bytes), self._size or 0)
        self._run = self._store._content(self._pointer, self._run_at, self._run_end)

    def _end_run(self) -> None:
        run, self._run = self._run, _NOTHING
        run.close()

    def _left(self) -> int | None:
        return max(0, (self._size or 0) - self._position)

    def _whole(self) -> bytes | None:
        whole = None if self._position else super()._whole()
        self._position += len(whole or b"")
        return whole


def read_whole(store: Store, pointer: Pointer) -> bytes | None:
    """Return a small payload, verified; ``None`` if a `PayloadReader` has to read it, which takes longer.

    For stores whose readers have a method ``whole``, see `PieceReader.whole`, and request nothing before it is called
    if the payload has one segment of up to ``store._whole_bytes``.
    """
    store._check_readable(pointer)
    size, checksum = pointer.size or 0, pointer.checksum
    if not 0 < size <= store._whole_bytes or pointer.segments > 1 or store.context.hooks.listeners:
        return None
    if checksum is None or pointer.stored_bytes is not None:
        return None
    with store._translated(pointer, "read"), closing(store._content(pointer, 0, size)) as source:
        find = getattr(source, "whole", None)
        whole: bytes | None = None if find is None else find(size)
        if whole is None:
            return None
        if source.readinto(_ONE_BYTE):
            differs(pointer, "size", size, f"at least {size + 1}", store.name)
    actual = digests.digest_of(whole, algorithm=digests.algorithm_of(checksum) or "crc32")
    if actual != checksum:
        differs(pointer, "checksum", checksum, actual, store.name)
    return whole


def read_range(store: Store, pointer: Pointer, start: int, stop: int) -> bytes:
    """Read one part of a payload. Its size is verified; its checksum cannot be."""
    start = min(start, stop)
    operation, translated = store._operation("read", pointer, pointer.size), store._translated(pointer, "read")
    with FreshBytes(max(0, stop - start)) as fresh, operation, translated:
        if len(fresh.view) or pointer.encryption is not None:  # a pointer may declare too small a size
            with closing(store._content(pointer, start, stop)) as source:
                _fill_all(source, fresh.view, pointer, store.name)
    return fresh.payload


def _fill_all(source: Reader, view: memoryview, pointer: Pointer, store: str) -> None:
    """Read until the buffer is full; raises an error if the source ends earlier."""
    if fill(source, view) < len(view):
        differs(pointer, "size", pointer.size or 0, "less", store)
