"""`Store`, the base class of all stores: its contract, and everything that stores have in common.

A store author subclasses `Store` and writes three methods::

    class TapeStore(Store):
        def __init__(self, *, drive: int) -> None: ...             # the options, as in YAML
        def _write(self, pointer, source): ...                      # for piece in source: ...
        def _read(self, pointer): ...                               # yield the pieces, in order
        def _delete(self, pointer): ...                             # an entry that is missing is no error

A store whose medium can read from any position implements ``_open`` instead of ``_read``. The base class makes keys,
counts, checks, verifies, deletes what a failed write left, maps errors and calls the hooks.
``claimcheck.testing.StoreConformance`` tests whether a new store keeps the contract.
"""

from __future__ import annotations

import io
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, NoReturn

from claimcheck._envelope import Buffer
from claimcheck._payload import Payload, Source, is_file
from claimcheck._payload_reader import (
    PayloadReader,
    PieceReader,
    Reader,
    SeekableReader,
    differs,
    read_range,
    writable_view,
)
from claimcheck._pointer import Pointer, is_key, slug
from claimcheck._threads import in_thread
from claimcheck._validation import MAX_SECONDS, fail, without_secrets
from claimcheck.errors import (
    ClaimCheckError,
    ConfigError,
    IntegrityError,
    KeyTakenError,
    MissingDependencyError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.hooks import Hooks, Operation

__all__ = [
    "MAX_SEGMENTS",
    "RangeStore",
    "Store",
    "StoreContext",
]

MAX_SEGMENTS = 1_000_000
"""The most segments that a payload may have."""

_log = logging.getLogger(__name__)
_PIECE_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 17  # of files: larger reads bypass the buffer
_UNWATCHED = nullcontext()


@dataclass(frozen=True, slots=True)
class StoreContext:
    """The surroundings of a store, set by the code that opens it.

    Attributes:
        name: Its name in the configuration.
        max_payload_bytes: Larger payloads are neither written nor read.
        hooks: Called with an event for each operation.
        clock: Seconds since 1970.
        new_uuid: Makes keys unique.
    """

    name: str = "store"
    max_payload_bytes: int = 5 << 30
    hooks: Hooks = field(default_factory=Hooks)
    clock: Callable[[], float] = time.time
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4


class Store(ABC):
    """Base of all stores. Safe under threads; one instance serves one process.

    Subclass it and implement ``_write``, ``_delete``, and either ``_read`` or ``_open``. Methods whose names begin with
    ``a`` do the same in a thread, for an event loop.

    Attributes:
        prefix: What every key of this store begins with; pointers to anything else are refused.
        max_key_bytes: The longest key that the medium can have, in UTF-8; longer ones are refused before any I/O.
        segment_bytes: Size of the pieces that a payload is stored in; ``None`` for one piece.
        ttl_seconds: The lifetime of a payload; ``None`` for no limit.
        pointer_version: Of the pointers that `write` returns.
        reads_v1: Whether pointers of version 1, which name no store and no size, are followed.
        context: Name, limits, hooks and clock; set once, before use.
    """

    prefix: str = ""
    max_key_bytes: int = 1024
    segment_bytes: int | None = None
    ttl_seconds: float | None = None
    pointer_version: int = 2
    reads_v1: bool = False
    context: StoreContext = StoreContext()
    _seekable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._seekable = cls._open is not Store._open
        if cls._read in (Store._read, _no_read):
            cls._read = Store._read if cls._seekable else _no_read  # type: ignore[method-assign]

    # What an author writes -------------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, pointer: Pointer, source: Source) -> str | None:
        """Store the payload under ``pointer.key``, readable when this returns, until ``pointer.expires_ms``.

        The pointer has no size and no checksum yet; ``source.size`` is known unless a file cannot seek. After any
        error `_delete` is called, unless `_wrote_nothing` returns true. ``write(identity=...)`` may pass the same key
        again, with the same payload: overwrite it, or raise a `KeyTakenError`.

        Returns:
            The key that readers need, where the medium determines it, such as a log with its positions; else nothing.
        """

    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        """Yield the payload's bytes in order; a piece may be reused once the next one is requested.

        Not needed where `_open` is implemented.
        """
        buffer = memoryview(bytearray(_PIECE_BYTES))
        with closing(self._open(pointer, 0, pointer.size)) as reader:
            while count := reader.readinto(buffer):
                yield buffer[:count]

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        """Return a `Reader` of the bytes from ``start`` up to ``stop``.

        Implement it instead of `_read` where the medium can read from any position: files of the store can then seek,
        and a range costs no more than its own bytes. ``stop`` is the payload's end unless a range is read. With a
        pointer of version 1 it is ``None``, and the result may be a `PieceReader`. Where the medium knows the stored
        size, call `check_size` before.
        """
        return PieceReader(self._read(pointer), start=start)

    @abstractmethod
    def _delete(self, pointer: Pointer) -> None:
        """Delete the payload, whole or in part, and nothing else; a payload that is missing is no error."""

    def _reach(self) -> None:  # noqa: B027 - with most media `_write` fails soon enough
        """Raise if the medium cannot be reached; called before each write, and not followed by `_delete`.

        For media where deleting what was never written would only wait once more for the same server.
        """

    def _wrote_nothing(self, error: BaseException) -> bool:
        """Whether nothing has to be deleted after this error of `_write`, translated already. Extend with ``super()``.

        True here for a `KeyTakenError`, because another write owns the entry, a missing driver and a wrong
        configuration.
        """
        return isinstance(error, (KeyTakenError, MissingDependencyError, ConfigError))

    def _translate(self, error: Exception) -> type[StoreError] | None:
        """Return the `StoreError` class for a vendor's error, ``None`` for the base class. Extend with ``super()``."""
        if isinstance(error, FileNotFoundError):
            return PayloadNotFoundError
        if isinstance(error, (ConnectionError, TimeoutError)):
            return StoreUnavailableError
        return None

    def _words(self, error: Exception) -> str:
        """Return the message of a vendor's error."""
        return str(error)

    # What a store may refine -----------------------------------------------------------------------------------

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Release connections. Payloads stay. A closed store may open again at the next use."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.context.name

    def check(self, pointer: Pointer) -> None:
        """Refuse what this store must not follow: another store's pointer, a key out of scope, implausible sizes.

        Raises:
            PointerRejectedError: With the reason in one word; also for an object that is not a pointer.
        """
        given: Any = pointer
        if not isinstance(given, Pointer):
            expected = "a claimcheck.Pointer is expected; an envelope is for ClaimCheck.resolve"
            raise PointerRejectedError(f"{type(given).__name__} is no pointer: {expected}", reason="type")
        if pointer.store is not None and pointer.store != self.context.name:
            self._reject(pointer, "store", f"names the store {pointer.store!r}")
        if pointer.version == 1 and not self.reads_v1:
            self._reject(pointer, "version", "is of version 1, which this store does not read")
        if not is_key(pointer.key) or not pointer.key.startswith(self._scope(pointer)):
            self._reject(pointer, "scope", "has a key outside this store's prefix")
        if len(pointer.key.encode()) > self.max_key_bytes:
            self._reject(pointer, "scope", f"has a key of more than {self.max_key_bytes} bytes")
        if (pointer.size or 0) > self.context.max_payload_bytes:
            self._reject(
                pointer,
                "size",
                f"declares {pointer.size} bytes, limits.max_payload_bytes is {self.context.max_payload_bytes}",
            )
        if pointer.segments > self._max_segments(pointer.version) or pointer.segments != _segments_of(pointer):
            self._reject(pointer, "size", f"declares {pointer.segments} segments for {pointer.size} bytes")
        if pointer.codec or pointer.encryption or not (pointer.checksum or "crc32:").startswith("crc32:"):
            self._reject(pointer, "feature", "needs a codec, encryption or checksum that this claimcheck does not know")

    def _new_key(self, destination: str, unique: uuid.UUID) -> str:
        return f"{self.prefix}{slug(destination)}-{unique}"

    def _max_segments(self, version: int) -> int:
        """The most segments that a payload may have whose pointer is of this version."""
        return MAX_SEGMENTS

    def _scope(self, pointer: Pointer) -> str:
        return self.prefix

    def missing(self, pointer: Pointer, what: str = "the payload") -> PayloadNotFoundError:
        """Return the error for a payload, or a part of one, that is missing."""
        written, ends = _when("written", pointer.created_ms), _when("expires or expired", pointer.expires_ms)
        return PayloadNotFoundError(
            f"store {self.name!r}: {what} of {pointer.key!r} is gone ({written}; {ends}): "
            "it expired, was evicted, was rolled back or was deleted",
            store=self.name,
            key=pointer.key,
            created_ms=pointer.created_ms,
            expires_ms=pointer.expires_ms,
        )

    def check_size(self, pointer: Pointer, actual: int) -> None:
        """Compare what is stored with ``pointer.size`` before it is read; for media that know sizes.

        Raises:
            IntegrityError: They differ.
        """
        if pointer.size is not None and pointer.size != actual:
            differs(pointer, "size", pointer.size, actual, self.name)

    # For callers -----------------------------------------------------------------------------------------------

    def write(
        self,
        payload: Payload,
        *,
        destination: str = "",
        limit: int | None = None,
        identity: uuid.UUID | None = None,
    ) -> Pointer:
        """Store one payload and return its pointer.

        Args:
            payload: Bytes-like, or a readable binary file, which is read from its current position in bounded memory.
            destination: Topic or queue; used only as a readable part of the key.
            limit: The largest size of this payload in bytes, where it is less than ``limits.max_payload_bytes``.
            identity: Replaces the fresh uuid, for a bytes-like payload that several attempts may write, one after the
                other or at once: it must identify this payload alone, and all attempts use one key. A payload that is
                stored already is not written again where the medium can tell, and a failed write deletes nothing.

        Returns:
            A pointer with the payload's size and checksum, readable at once by any reader.

        Raises:
            PayloadTypeError: Not bytes-like and no binary file; nothing was written.
            PayloadTooLargeError: Over the limit; nothing stays in the store.
            PayloadError: The file failed or shrank; nothing stays in the store.
            StoreUnavailableError: Not reached; what was written was deleted where possible, else it expires.
            StoreError: Any other failure of the store, a full disk for example; the same. Also where the store would
                refuse its own pointer: nothing was written.
        """
        source = self._source(payload, limit)
        draft = self._draft(destination, identity or self.context.new_uuid())
        self._check_draft(draft)
        with self._operation("write", draft, source.size):
            with self._translated(draft, "write"):
                self._reach()
            if identity is None:
                return self._finish(draft, source, self._write_or_undo(draft, source))
            return self._write_or_find(draft, source)

    def read(self, pointer: Pointer) -> bytes:
        """Return the payload, whole and verified.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done.
            PayloadNotFoundError: Gone, or a part of it is.
            IntegrityError: Size or checksum differ from the pointer's.
            StoreUnavailableError: Not reached; the same call may succeed later.
        """
        with self._reader(pointer) as reader:
            return reader.readall()

    def read_into(self, pointer: Pointer, buffer: Buffer) -> int:
        """Read the payload, whole and verified, into the beginning of a buffer that can be written to.

        Returns:
            The payload's size in bytes.

        Raises:
            PayloadTypeError: The object is no buffer, or is read-only; no I/O was done.
            PayloadTooLargeError: The payload is larger than the buffer; where its size is known nothing was read.
            StoreError: As `read` does; the buffer's content is undefined then.
        """
        view = writable_view(buffer)
        self.check(pointer)
        if (pointer.size or 0) > len(view):
            self._too_small(pointer, len(view))
        with self._reader(pointer) as reader:
            count = reader.fill(view)
            if reader.readinto(bytearray(1)):
                self._too_small(pointer, len(view))
            return count

    def read_range(self, pointer: Pointer, start: int, length: int) -> bytes:
        """Return a part of the payload, as ``payload[start : start + length]`` would, without reading the rest.

        Sizes are verified, the checksum is not: it covers the whole payload. A store that implements ``_read`` and not
        ``_open`` is read from the start.

        Args:
            pointer: Of the payload.
            start: Bytes from the payload's start, not negative.
            length: Bytes, not negative; the result is shorter where the payload ends earlier.

        Raises:
            ValueError: A negative number, or a pointer of version 1, which has no size.
            StoreError: As `read` does.
        """
        if start < 0 or length < 0 or pointer.size is None:
            raise ValueError(f"cannot read {length} bytes from {start} of a payload of {pointer.size} bytes")
        self.check(pointer)
        return read_range(self, pointer, start, min(start + length, pointer.size))

    def open(self, pointer: Pointer) -> io.BufferedReader:
        """Return the payload as a binary file, read piece by piece and verified before its last byte is handed out.

        It can seek where the store can read from any position; see `claimcheck._payload_reader.SeekableReader` for what
        is verified then.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done. Reading raises as `read` does.
        """
        return self._file(pointer)

    def rollback(self, pointer: Pointer) -> None:
        """Undo exactly one write; a second call has no effect.

        Raises:
            PointerRejectedError: Not a pointer of this store; nothing was deleted.
            StoreUnavailableError: Not reached; the payload stays until it expires.
        """
        self.check(pointer)
        with self._operation("rollback", pointer, pointer.size), self._translated(pointer, "rollback"):
            self._delete(pointer)

    # For event loops -------------------------------------------------------------------------------------------

    async def awrite(self, payload: Payload, *, destination: str = "", limit: int | None = None) -> Pointer:
        """Do as `write`; when it is cancelled nothing stays in the store, and the caller's file is no longer read."""
        return await in_thread(
            lambda: self.write(payload, destination=destination, limit=limit),
            undo=self.rollback,
            to_the_end=is_file(payload),
        )

    async def aread(self, pointer: Pointer) -> bytes:
        """Do as `read`; when it is cancelled the read stops soon and closes its connection."""
        return await in_thread(lambda: self.read(pointer))

    async def arollback(self, pointer: Pointer) -> None:
        """Do as `rollback`; it runs to the end even when it is cancelled."""
        await in_thread(lambda: self.rollback(pointer))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Within ----------------------------------------------------------------------------------------------------

    def _source(self, payload: Payload, limit: int | None) -> Source:
        """Limit the payload to the bytes and segments that `check` accepts: a larger one could not be read again."""
        most = self.context.max_payload_bytes
        limit = most if limit is None else min(limit, most)
        if self.segment_bytes is not None:
            segments = self._max_segments(self.pointer_version)
            if self.segment_bytes * segments < limit:
                what = f"{segments} segments of {self.segment_bytes} bytes"
                return Source(payload, limit=self.segment_bytes * segments, limit_name=what)
        return Source(payload, limit=limit)

    def _draft(self, destination: str, unique: uuid.UUID) -> Pointer:
        created = int(self.context.clock() * 1000)
        key, version, expires = self._new_key(destination, unique), self.pointer_version, self._expires_ms(created)
        return Pointer(key=key, store=self.context.name, version=version, created_ms=created, expires_ms=expires)

    def _expires_ms(self, created_ms: int) -> int | None:
        if self.ttl_seconds is None:
            return None
        if not 0 <= self.ttl_seconds <= MAX_SECONDS:  # a third-party store may not check its option, and pass NaN
            expected = f"0 to {MAX_SECONDS} seconds"
            fail(f"stores.{self.name}.ttl_seconds", found=f"{self.ttl_seconds:g}", expected=expected)
        return created_ms + int(self.ttl_seconds * 1000)

    def _check_draft(self, draft: Pointer) -> None:
        """Refuse to write what this store would refuse to read."""
        try:
            self.check(draft)
        except PointerRejectedError as error:
            text = f"store {self.name!r} would not follow its own pointer, so nothing was written: {error}"
            raise StoreError(text, store=self.name, key=draft.key) from error

    def _write_or_undo(self, draft: Pointer, source: Source) -> str:
        try:
            return self._written(draft, source)
        except BaseException as error:
            if not self._wrote_nothing(error):
                self._undo(self._finish(draft, source, draft.key), error)
            raise

    def _write_or_find(self, draft: Pointer, source: Source) -> Pointer:
        """Write what another attempt may have written, or may be writing now: nothing is deleted on failure."""
        payload = source.view
        if payload is None:
            raise PayloadTypeError("a payload with an identity must be bytes-like, not a file")
        try:
            return self._finish(draft, source, self._written(draft, source))
        except KeyTakenError:
            there = Source(payload, limit=len(payload))
            there.take_all()
            return self._finish(draft, there, draft.key)

    def _written(self, draft: Pointer, source: Source) -> str:
        with self._translated(draft, "write"):
            key = self._write(draft, source)
            if source.taken != source.size:
                read = f"read {source.taken} of {source.size} bytes of the payload"
                raise StoreError(f"store {self.name!r}: {type(self).__name__}._write is broken: it {read}")
        return key if isinstance(key, str) else draft.key

    def _finish(self, draft: Pointer, source: Source, key: str) -> Pointer:
        piece = self.segment_bytes if self.segment_bytes and source.taken > self.segment_bytes else None
        return Pointer(
            key=key,
            store=draft.store,
            version=draft.version,
            created_ms=draft.created_ms,
            expires_ms=draft.expires_ms,
            size=source.taken,
            segment_bytes=piece,
            segments=-(-source.taken // piece) if piece else 1,
            checksum=source.checksum,
        )

    def _undo(self, pointer: Pointer, error: BaseException) -> None:
        try:
            self._delete(pointer)
        except Exception as second:
            _log.warning(
                "store %r: could not remove the failed write of %r: %s", self.name, pointer.key, type(second).__name__
            )
            error.add_note(
                f"and what may have been written could not be removed ({type(second).__name__}): "
                "it stays until it expires"
            )

    def _reader(self, pointer: Pointer, *, from_message: bool = False) -> PayloadReader:
        self.check(pointer)
        reader = SeekableReader if self._seekable and pointer.size is not None else PayloadReader
        return reader(self, pointer, from_message=from_message)

    def _file(self, pointer: Pointer, *, from_message: bool = False) -> io.BufferedReader:
        return io.BufferedReader(self._reader(pointer, from_message=from_message), buffer_size=_BUFFER_BYTES)

    def _operation(self, operation: Operation, pointer: Pointer, size: int | None) -> AbstractContextManager[None]:
        """Emit the events of an operation; without hooks this costs nothing."""
        hooks = self.context.hooks
        if not hooks.listeners:
            return _UNWATCHED
        return hooks.operation(operation, store=self.name, key=pointer.key, size=size)

    def _translated(self, pointer: Pointer, operation: Operation) -> _Translated:
        """Translate the medium's errors, around each access to it."""
        return _Translated(self, pointer, operation)

    def _too_small(self, pointer: Pointer, size: int) -> NoReturn:
        raise PayloadTooLargeError(
            f"store {self.name!r}: {pointer.key!r} does not fit into a buffer of {size} bytes",
            store=self.name,
            key=pointer.key,
            size=pointer.size,
            limit=size,
        )

    def _as_ours(self, error: Exception, pointer: Pointer, operation: str) -> StoreError:
        kind = self._translate(error) or StoreError
        if kind is PayloadNotFoundError and operation == "read":
            return self.missing(pointer)
        if kind in (PayloadNotFoundError, PayloadTooLargeError) or (kind is IntegrityError and operation != "read"):
            kind = StoreError
        why = without_secrets(self._words(error))[:300]
        text = f"store {self.name!r}: {operation} of {pointer.key!r} failed: {type(error).__name__}: {why}"
        return kind(text, store=self.name, key=pointer.key)

    def _reject(self, pointer: Pointer, reason: str, why: str) -> NoReturn:
        raise PointerRejectedError(
            f"store {self.name!r} rejected the pointer to {pointer.key[:200]!r}: it {why}",
            reason=reason,
            store=pointer.store,
            key=pointer.key,
        )


class _Translated:
    """Turns the medium's errors into ours; no generator, because that is measurably slower for small payloads."""

    __slots__ = ("_operation", "_pointer", "_store")

    def __init__(self, store: Store, pointer: Pointer, operation: str) -> None:
        self._store = store
        self._pointer = pointer
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            error.store, error.key = error.store or self._store.name, error.key or self._pointer.key
        elif isinstance(error, Exception) and not isinstance(error, ClaimCheckError):
            raise self._store._as_ours(error, self._pointer, self._operation) from error


def _segments_of(pointer: Pointer) -> int:
    if pointer.version == 1 and pointer.size is None:
        return pointer.segments
    if not pointer.segment_bytes or not pointer.size:
        return 1
    return -(-pointer.size // pointer.segment_bytes)


def _when(word: str, moment: int | None) -> str:
    if moment is None:
        return f"{word}: unknown"
    try:
        return f"{word} {datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec='seconds')}"
    except (ValueError, OverflowError, OSError):  # a pointer may claim any year
        return f"{word} {moment} ms"


@abstractmethod  # type: ignore[misc]
def _no_read(self: Store, pointer: Pointer) -> Iterable[Buffer]:
    """Stands for `Store._read` in classes that implement neither it nor `Store._open`: they cannot be instantiated."""
    raise NotImplementedError


RangeStore = Store
"""Former base class of the stores that implement ``_open``; the same as `Store`."""
