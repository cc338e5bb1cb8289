"""Reads stored payloads into bytes, buffers and files: verified, with as few copies as the medium allows."""

from __future__ import annotations

import hmac
import io
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar, cast

from claimcheck._content.coder import ContentReader
from claimcheck._content.header import Expected
from claimcheck._store.contract import (
    StoreContract,
    Translated,
    differs,
    too_long,
    untrusted,
)
from claimcheck._threads import STOP, check_interrupt
from claimcheck._wire.buffers import STEP_BYTES, Buffer, FreshBytes, PieceReader, Reader, fill, lend_to, writable_view
from claimcheck._wire.digest import Digest, algorithm_of, begin
from claimcheck._wire.pointer import KEYED, Pointer, changed
from claimcheck.errors import UNUSABLE, MissingDependencyError, PayloadTooLargeError, clear_frames, unusable

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


class ReadableStore(StoreContract):
    def read(self, pointer: Pointer) -> bytes:
        """Return the payload, complete and verified.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done.
            PayloadNotFoundError: The payload, or a part of it, is gone.
            IntegrityError: Size or checksum differ from the pointer's.
            StoreUnavailableError: The store could not be reached; the same call may succeed later.
        """
        self._check_readable(pointer)
        return _verified(self, pointer, VerifiedReader.read_all)

    def read_into(self, pointer: Pointer, buffer: Buffer) -> int:
        """Read the payload, complete and verified, into the beginning of a writable buffer.

        Returns:
            The payload's size in bytes.

        Raises:
            PayloadTypeError: The object is not a buffer, or is read-only; no I/O was done.
            PayloadTooLargeError: The payload is larger than the buffer; if its size is known, nothing was read.
            StoreError: See `read`; the buffer's content is undefined then.
        """
        view = writable_view(buffer)
        self._check_readable(pointer)
        if (pointer.size or 0) > len(view):
            raise _too_small(self, pointer, len(view))

        def filled(reader: VerifiedReader) -> int:
            count = reader.fill(view)
            if reader.readinto(_ONE_BYTE):
                raise _too_small(self, pointer, len(view))
            return count

        return _verified(self, pointer, filled)

    def read_range(self, pointer: Pointer, start: int, length: int) -> bytes:
        """Return ``payload[start : start + length]`` without reading the rest.

        Encrypted payloads are authenticated by their encryption, in segments of 1 MiB. Sizes are verified. The checksum
        is not, because it covers the whole payload. Compressed payloads, and all payloads of a store that implements
        ``_read`` and not ``_open``, are read from the start.

        Args:
            pointer: The payload's pointer.
            start: Bytes from the payload's start, not negative.
            length: Bytes, not negative; the result is shorter if the payload ends earlier.

        Raises:
            ValueError: A negative number, or a pointer of version 1, which has no size.
            StoreError: See `read`.
        """
        size = pointer.size
        if start < 0 or length < 0 or size is None:
            raise ValueError(f"cannot read {length} bytes from {start} of a payload of {size} bytes")
        self._check_readable(pointer)
        start, stop = min(start, size), min(start + length, size)
        with self.operation("read", pointer, size), Translated(self, pointer, "read"):
            if start == stop and pointer.encryption is None:  # a pointer may declare too small a size
                return b""
            with closing(self._content(pointer, start, stop)) as source:
                payload = _up_to(source, stop - start, is_confirmed=_is_confirmed(self, pointer))
            if len(payload) < stop - start:
                differs(pointer, "size", size, "less", self.name)
        return payload

    def open(self, pointer: Pointer) -> io.BufferedReader:
        """Return the payload as a binary file, read piece by piece and verified before its last byte is returned.

        The file can seek if the store can read from any position. Seeking elsewhere first reads and verifies the rest
        of the payload, once.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done. Reading raises the errors of `read`.
        """
        return self.open_file(pointer)

    def open_file(self, pointer: Pointer, *, from_message: bool = False) -> io.BufferedReader:
        """Same as `open`; see `PayloadFile` for ``from_message``."""
        self._check_readable(pointer)
        return io.BufferedReader(PayloadFile(self, pointer, from_message=from_message), buffer_size=_BUFFER_BYTES)

    def _content(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        """Open a range of a payload: that of the stored bytes, if they are not encoded."""
        if pointer.stored_bytes is None:
            return self._open(pointer, start, stop)
        stored = changed(pointer, size=pointer.stored_bytes, stored_bytes=None, codec=None, encryption=None)
        return ContentReader(
            lambda first, last: self._open(stored, first, last),
            Expected.by(pointer, stored_as=self._stored_as(pointer.key)),
            self.context.content.keys,
            fail=lambda why: untrusted(self, pointer, why),
            start=start,
            stop=stop,
        )

    def _check_readable(self, pointer: Pointer) -> None:
        """Reject what `check` rejects, and what the configuration of encryption does not allow to read."""
        self.check(pointer)
        content = self.context.content
        if pointer.encryption is None and content.requires_encryption:
            self.reject(pointer, "encryption", "is not encrypted, but encryption.require is true")
        if pointer.encryption is not None and content.keys is None:
            self.reject(pointer, "encryption", "is encrypted, but encryption.keys is not set here")


def _verified(store: ReadableStore, pointer: Pointer, use: Callable[[VerifiedReader], T]) -> T:
    """Read a whole payload with a new reader, which is closed after an error."""
    reader = VerifiedReader(store, pointer)
    try:
        with Translated(store, pointer, "read"):
            reader.begin()
            return use(reader)
    except BaseException as error:
        reader.close(error)
        clear_frames(error)  # they hold what was read
        raise


class VerifiedReader:
    """Reads a payload once, from its start; the last bytes are returned only after size and checksum were verified.

    Attributes:
        count: Bytes that were read.
        is_verified: Whether the whole payload was read and verified.
    """

    def __init__(self, store: ReadableStore, pointer: Pointer) -> None:
        self._store, self._pointer, self._size = store, pointer, pointer.size
        self._is_keyed = pointer.encryption is not None and (pointer.checksum or "").startswith(KEYED)
        self._step_bytes = STEP_BYTES if pointer.encryption is None else _SEGMENT_BYTES
        self._operation = store.operation("read", pointer, pointer.size)
        self._has_begun = False
        self._source: Reader = _NOTHING
        self._digest: Digest | None = None
        self.count = 0
        self.is_verified = False

    def begin(self) -> None:
        self._operation.__enter__()
        self._has_begun = True
        self._source = self._store._content(self._pointer, 0, self._size)
        if self._is_keyed:
            self._digest = begin("sha256", size=self._size)
        elif self._pointer.checksum is not None and self._pointer.encryption is None:
            try:
                self._digest = begin(algorithm_of(self._pointer.checksum) or "crc32", size=self._size)
            except MissingDependencyError as error:  # the pointer chose the algorithm
                why = f"has a checksum that this process cannot compute: {error}"
                self._store.reject(self._pointer, "feature", why)

    def close(self, error: BaseException | None = None) -> None:
        """Stop hashing, close the source and emit the event, once; each of them even if another one fails."""
        if not self._has_begun:
            return
        self._has_begun = False
        try:
            if self._digest is not None and self._digest.in_background:
                self._digest.close()
        finally:
            try:
                self._source.close()
            finally:
                self._operation.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    def read_all(self) -> bytes:
        """Return the rest of the payload, in one allocation if the declared size can be trusted."""
        if self._size is None:
            return _grown(self)
        left = self._size - self.count
        if left > TRUSTED_BYTES and not _is_confirmed(self._store, self._pointer):
            return _grown(self)
        find = None if self.count else getattr(self._source, "whole", None)
        whole: bytes | None = None if find is None else find(left)
        if whole is not None:
            self._add(whole, stable=True)
            self._finish()
            return whole
        with FreshBytes(left, huge_pages=not hasattr(self._source, "lend")) as fresh:
            self.fill(fresh.view)
        return fresh.payload

    def fill(self, view: memoryview) -> int:
        """Read until the buffer is full or the payload ends; returns the number of bytes."""
        if len(view) > self._step_bytes and not self.is_verified:
            lend_to(self._source, view if self._size is None else view[: self._size - self.count])
        done = 0
        while (count := self.readinto(view[done : done + self._step_bytes], stable=True)) and done + count < len(view):
            done += count
        return done + count

    def readinto(self, view: memoryview, /, *, stable: bool = False) -> int:
        """Read and checksum the next bytes; ``stable`` memory keeps them until the whole payload is verified."""
        if STOP.get() is not None:
            check_interrupt()
        if self.is_verified:
            return 0
        view = view[: self._step_bytes if self._size is None else min(self._step_bytes, self._size - self.count)]
        count = (self._source.readinto(view) or 0) if len(view) else 0
        self._add(view[:count], stable=stable)
        if not count or self.count == self._size:
            self._finish()
        return count

    def _add(self, piece: Buffer, *, stable: bool) -> None:
        self.count += len(piece)
        if self._digest is not None:
            self._digest.update(piece, stable=stable)
        if self._size is None and self.count > self._store.context.max_payload_bytes:
            raise too_long(self._store, self._pointer, self.count)

    def _finish(self) -> None:
        pointer, size = self._pointer, self._size
        if size is not None and self.count < size:
            differs(pointer, "size", size, self.count, self._store.name)
        if size is not None and self._source.readinto(_ONE_BYTE):
            differs(pointer, "size", size, f"at least {size + 1}", self._store.name)
        if self._digest is not None:
            actual, expected = self._digest.text(), pointer.checksum or ""
            if self._is_keyed:
                actual = cast(ContentReader, self._source).keyed(actual)
                is_same = hmac.compare_digest(actual.encode(), expected.encode(errors="replace"))
            else:
                is_same = actual == expected
            if not is_same:
                differs(pointer, "checksum", expected, actual, self._store.name)
        self.is_verified = True
        self.close()


class PayloadFile(io.RawIOBase):
    """A payload as a raw file, which can seek if the store can read from any position."""

    def __init__(self, store: ReadableStore, pointer: Pointer, *, from_message: bool = False) -> None:
        self._store = store
        self._pointer = pointer
        self._from_message = from_message  # then errors of this process' configuration are about the message
        self._size = pointer.size
        self._can_seek = store.is_seekable and pointer.size is not None
        self._reader: VerifiedReader | None = None
        self._error: BaseException | None = None
        self._position = 0
        self._run = _NOTHING  # reads one range after a seek, and the next range if reading goes on
        self._run_at = self._run_end = -1
        self._run_bytes = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._can_seek

    def tell(self) -> int:
        return self._position if self._can_seek else super().tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Change the position, as files do; reads nothing yet."""
        if not self._can_seek:
            return super().seek(offset, whence)
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size or 0}
        if whence not in bases or bases[whence] + offset < 0:
            raise ValueError(f"cannot seek to {offset} from {whence}")
        self._position = bases[whence] + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill a part of the buffer; returns 0 only after the whole payload was verified."""
        view = memoryview(buffer).cast("B")
        return self._guarded(lambda: self._step(view)) if len(view) else 0

    def readall(self) -> bytes:
        """Return the rest of the payload, in one allocation if the declared size can be trusted."""
        return self._guarded(self._rest)

    def close(self) -> None:
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
            clear_frames(error)  # they hold what was read
            if self._from_message and isinstance(error, UNUSABLE):
                self._error = unusable(self._store.name, self._pointer.key, error)
                raise self._error from error
            raise

    def _release(self, error: BaseException | None) -> None:
        self._end_run()
        if self._reader is not None:
            self._reader.close(error)

    def _begun(self) -> VerifiedReader:
        if self._reader is None:
            self._reader = VerifiedReader(self._store, self._pointer)
            self._reader.begin()
        return self._reader

    def _rest(self) -> bytes:
        reader = self._begun()
        if self._position == reader.count and not reader.is_verified:
            rest = reader.read_all()
            self._position += len(rest)
            return rest
        left = max(0, (self._size or 0) - self._position)
        return _up_to(self, left, is_confirmed=_is_confirmed(self._store, self._pointer))

    def _step(self, view: memoryview) -> int:
        reader = self._begun()
        if self._position == reader.count and not reader.is_verified:
            count = reader.readinto(view)
        else:
            if self._pointer.encryption is None or (self._pointer.checksum or "").startswith(KEYED):
                scratch = memoryview(bytearray(0 if reader.is_verified else STEP_BYTES))
                while not reader.is_verified:
                    reader.readinto(scratch)
            count = self._read_at(view[: max(0, (self._size or 0) - self._position)])
        self._position += count
        return count

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
        if fill(self._run, view) < len(view):
            differs(self._pointer, "size", self._size or 0, "less", self._store.name)
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


def _is_confirmed(store: ReadableStore, pointer: Pointer) -> bool:
    """Whether the medium confirms the size of a payload; of a compressed one it knows another."""
    return store.is_seekable and pointer.codec is None


def _up_to(source: Reader, size: int, *, is_confirmed: bool) -> bytes:
    if size > TRUSTED_BYTES and not is_confirmed:
        return _grown(source, size)
    with FreshBytes(size) as fresh:
        count = fill(source, fresh.view)
    return fresh.payload if count == size else fresh.payload[:count]


def _grown(source: Reader, size: int | None = None) -> bytes:
    """Read into a buffer that grows in place (by mremap if it is large) and is returned uncopied."""
    box, buffer = io.BytesIO(), memoryview(bytearray(STEP_BYTES))
    while count := source.readinto(buffer if size is None else buffer[: size - box.tell()]):
        box.write(buffer[:count])
    return box.getvalue()


def _too_small(store: ReadableStore, pointer: Pointer, size: int) -> PayloadTooLargeError:
    """Return the error for a payload that is larger than a buffer of ``size`` bytes."""
    text = f"store {store.name!r}: {pointer.key!r} does not fit into a buffer of {size} bytes"
    return PayloadTooLargeError(text, store=store.name, key=pointer.key, size=pointer.size, limit=size)
