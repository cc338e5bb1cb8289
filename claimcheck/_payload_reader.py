"""Reads stored payloads into bytes, buffers and files: verified, with as few copies as the medium allows."""

from __future__ import annotations

import hmac
import io
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from claimcheck import _digest as digests
from claimcheck._content import ContentReader
from claimcheck._content_header import Expected
from claimcheck._envelope import Buffer
from claimcheck._fresh_bytes import FreshBytes
from claimcheck._pointer import Pointer
from claimcheck._pointer_check import check_readable
from claimcheck._reader import STEP_BYTES, PieceReader, Reader, fill, lend_to, writable_view
from claimcheck._registry import UNUSABLE, unusable
from claimcheck._store_errors import Translated, differs, reject, too_long, too_small, translated, untrusted
from claimcheck._threads import check_interrupt, joined
from claimcheck.errors import MissingDependencyError, clear_frames

if TYPE_CHECKING:
    from claimcheck._store import Store

TRUSTED_BYTES = 64 << 20
"""Declared sizes up to this are allocated immediately. Larger ones have to be confirmed by the medium; otherwise memory
grows with what is read.
"""

_BUFFER_BYTES = 1 << 17  # of files: larger reads bypass the buffer
_SEGMENT_BYTES = 1 << 20  # encrypted segments are decrypted into the caller's buffer, if there is enough of it
_GROWTH = 4
_MAX_RUN_BYTES = 64 << 20
_NOTHING: Reader = PieceReader(())
_ONE_BYTE = memoryview(bytearray(1))  # to read what should not be there; never looked at

T = TypeVar("T")


def read(store: Store, pointer: Pointer) -> bytes:
    """Return a payload; see `Store.read`."""
    check_readable(store, pointer)
    if (whole := _small(store, pointer)) is not None:
        return whole
    with _reader(store, pointer) as reader:
        return reader.readall()


def read_into(store: Store, pointer: Pointer, buffer: Buffer) -> int:
    """Read a payload into a buffer; see `Store.read_into`."""
    view = writable_view(buffer)
    check_readable(store, pointer)
    if (pointer.size or 0) > len(view):
        raise too_small(store, pointer, len(view))
    with _reader(store, pointer) as reader:
        count = reader.fill(view)
        if reader.readinto(_ONE_BYTE):
            raise too_small(store, pointer, len(view))
        return count


def read_range(store: Store, pointer: Pointer, start: int, length: int) -> bytes:
    """Read one part of a payload, whose size is verified; its checksum cannot be. See `Store.read_range`."""
    size = pointer.size
    if start < 0 or length < 0 or size is None:
        raise ValueError(f"cannot read {length} bytes from {start} of a payload of {size} bytes")
    check_readable(store, pointer)
    start, stop = min(start, size), min(start + length, size)
    with store._operation("read", pointer, size), Translated(store, pointer, "read"):
        if start == stop and pointer.encryption is None:  # a pointer may declare too small a size
            return b""
        with closing(_content(store, pointer, start, stop)) as source:
            payload = _up_to(source, stop - start, is_confirmed=store._seekable and pointer.codec is None)
        if len(payload) < stop - start:
            differs(pointer, "size", size, "less", store.name)
    return payload


def open_file(store: Store, pointer: Pointer, *, from_message: bool = False) -> io.BufferedReader:
    """Return a payload as a file; see `Store.open`, and `PayloadReader` for ``from_message``."""
    check_readable(store, pointer)
    return io.BufferedReader(_reader(store, pointer, from_message=from_message), buffer_size=_BUFFER_BYTES)


class PayloadReader(io.RawIOBase):
    """A payload as a raw file. Its last bytes are returned only after size and checksum were verified."""

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
        try:
            return self._rest()
        except MemoryError as error:
            clear_frames(error)  # they hold what was read
            raise translated(self._store, error, self._pointer, "read") from error

    def close(self) -> None:
        """Stop reading, and release the store's resources."""
        self._release(None)
        super().close()

    def _guarded(self, read: Callable[[], T]) -> T:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._error is not None:
            raise self._error
        try:
            with Translated(self._store, self._pointer, "read"):
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
            self._source = _content(self._store, self._pointer, 0, self._size)
            self._begin_digest()
        return self._source

    def _begin_digest(self) -> None:
        declared = self._pointer.checksum
        if self._is_keyed:
            self._digest = digests.begin("sha256", size=self._size)
        elif declared is not None and self._pointer.encryption is None:
            self._digest = _digest(self._store, self._pointer)

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

    def _rest(self) -> bytes:
        left = self._left()
        is_confirmed = self.seekable() and self._pointer.codec is None  # the medium knows only the compressed size
        if left is None or (left > TRUSTED_BYTES and not is_confirmed):
            return _grown(self)
        whole = self._guarded(self._whole)
        if whole is not None:
            return whole
        with FreshBytes(left, huge_pages=not hasattr(self._source, "lend")) as fresh:
            self.fill(fresh.view)
        return fresh.payload

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


class SeekableReader(PayloadReader):
    """A `PayloadReader` of a store that can read from any position."""

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
                _content(self._store, self._pointer, self._size or 0, self._size).close()
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
        self._run = _content(self._store, self._pointer, self._run_at, self._run_end)

    def _end_run(self) -> None:
        run, self._run = self._run, _NOTHING
        run.close()

    def _left(self) -> int | None:
        return max(0, (self._size or 0) - self._position)

    def _whole(self) -> bytes | None:
        whole = None if self._position else super()._whole()
        self._position += len(whole or b"")
        return whole


def _reader(store: Store, pointer: Pointer, *, from_message: bool = False) -> PayloadReader:
    """Return the reader of a payload; it can seek if the store can read from any position."""
    kind = SeekableReader if store._seekable and pointer.size is not None else PayloadReader
    return kind(store, pointer, from_message=from_message)


def _up_to(source: Reader, size: int, *, is_confirmed: bool) -> bytes:
    """Return the next bytes of a source, fewer if it ends earlier."""
    if size <= TRUSTED_BYTES or is_confirmed:
        with FreshBytes(size) as fresh:
            count = fill(source, fresh.view)
        return fresh.payload if count == size else fresh.payload[:count]
    return _grown(source, size)


def _grown(source: Reader, size: int | None = None) -> bytes:
    """Read into a buffer that grows in place (by mremap if it is large) and is returned uncopied."""
    box, buffer = io.BytesIO(), memoryview(bytearray(STEP_BYTES))
    while count := source.readinto(buffer if size is None else buffer[: size - box.tell()]):
        box.write(buffer[:count])
    return box.getvalue()


def _small(store: Store, pointer: Pointer) -> bytes | None:
    """Return a small payload, verified; ``None`` if a `PayloadReader` has to read it, which takes longer."""
    size, checksum = pointer.size or 0, pointer.checksum
    if not 0 < size <= store._whole_bytes or pointer.segments > 1 or store.context.hooks.listeners:
        return None
    if checksum is None or pointer.stored_bytes is not None:
        return None
    with Translated(store, pointer, "read"), closing(_content(store, pointer, 0, size)) as source:
        find = getattr(source, "whole", None)
        whole: bytes | None = None if find is None else find(size)
        if whole is None:
            return None
        if source.readinto(_ONE_BYTE):
            differs(pointer, "size", size, f"at least {size + 1}", store.name)
    digest = _digest(store, pointer)
    digest.update(whole)
    if (actual := digest.text()) != checksum:
        differs(pointer, "checksum", checksum, actual, store.name)
    return whole


def _digest(store: Store, pointer: Pointer) -> digests.Digest:
    """Return the digest for the checksum of a pointer; `Store.check` has rejected unknown algorithms."""
    try:
        return digests.begin(digests.algorithm_of(pointer.checksum or "") or "crc32", size=pointer.size)
    except MissingDependencyError as error:  # the pointer chose the algorithm
        reject(store, pointer, "feature", f"has a checksum that this process cannot compute: {error}")


def _content(store: Store, pointer: Pointer, start: int, stop: int | None) -> Reader:
    """Open a range of a payload: that of the stored bytes, if they are not encoded."""
    if pointer.stored_bytes is None:
        reply = joined(pointer)
        return store._open(pointer, start, stop) if reply is None else PieceReader((reply,))
    stored = replace(pointer, size=pointer.stored_bytes, stored_bytes=None, codec=None, encryption=None)
    return ContentReader(
        lambda first, last: store._open(stored, first, last),
        Expected.by(pointer, stored_as=store._stored_as(pointer.key)),
        store.context.content.keys,
        fail=lambda why: untrusted(store, pointer, why),
        start=start,
        stop=stop,
    )


def _fill_all(source: Reader, view: memoryview, pointer: Pointer, store: str) -> None:
    """Read until the buffer is full; raises an error if the source ends earlier."""
    if fill(source, view) < len(view):
        differs(pointer, "size", pointer.size or 0, "less", store)
