"""Where payloads rest: the contract of a store, and everything that all stores have in common.

A store author subclasses `Store` and writes three methods::

    class TapeStore(Store):
        def __init__(self, *, drive: int) -> None: ...             # the options, as they stand in YAML
        def _write(self, pointer, source): ...                      # for piece in source: ...
        def _read(self, pointer): ...                               # yield the pieces, in order
        def _delete(self, pointer): ...                             # gone already is fine

The base class makes the keys, counts, checks, verifies, undoes failed writes, maps errors and tells the hooks.
``claimcheck.testing.StoreConformance`` shows whether a new store keeps the promises.
"""

from __future__ import annotations

import io
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, NoReturn

from claimcheck._envelope import Buffer
from claimcheck._keys import is_key, slug
from claimcheck._payload import Payload, Source, is_file
from claimcheck._payload_reader import (
    Origin,
    PayloadReader,
    PieceReader,
    Reader,
    SeekableReader,
    check_size,
    read_range,
    writable_view,
)
from claimcheck._pointer import Pointer
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
from claimcheck.hooks import Hooks

__all__ = [
    "MAX_SEGMENTS",
    "Medium",
    "RangeStore",
    "Store",
    "StoreContext",
]

MAX_SEGMENTS = 1_000_000
"""The most segments that a payload may have."""


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What a store is told by whoever opens it.

    Attributes:
        name: Its name in the configuration.
        max_payload_bytes: Larger payloads are neither written nor read.
        hooks: Who hears of operations.
        clock: Seconds since 1970.
        new_uuid: Makes keys unique.
    """

    name: str = "store"
    max_payload_bytes: int = 5 << 30
    hooks: Hooks = field(default_factory=Hooks)
    clock: Callable[[], float] = time.time
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4


class Medium(ABC):
    """The lower half of every `claimcheck.Store`: what is different from one medium to the next.

    Attributes:
        prefix: What every key of this store begins with; pointers to anything else are refused.
        max_key_bytes: The longest key that the medium can have, in UTF-8; longer ones are refused before any I/O.
        segment_bytes: Size of the pieces that a payload is stored in; ``None`` for one piece.
        ttl_seconds: How long a payload lives; ``None`` for ever.
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

    # What an author writes -------------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, pointer: Pointer, source: Source) -> str | None:
        """Put the payload under ``pointer.key``, readable when this returns, until ``pointer.expires_ms``.

        Size and checksum are not in the pointer yet; ``source.size`` is there unless a file cannot seek. Whatever is
        raised here is followed by `_delete`, unless `_wrote_nothing` knows better. A key that comes again, by
        ``write(identity=...)``, brings the same payload: it is written over, or refused with a `KeyTakenError`.

        Returns:
            The key that readers need, where the medium has a say in it, such as a log with its positions; else nothing.
        """

    @abstractmethod
    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        """Give the payload's bytes in order; a piece may be reused once the next one is asked for."""

    @abstractmethod
    def _delete(self, pointer: Pointer) -> None:
        """Remove the payload, whole or in part, and nothing else; what is gone already is no error."""

    def _reach(self) -> None:  # noqa: B027 - most media show soon enough that they are not there
        """Raise if the medium cannot be reached; asked before each write, and not followed by `_delete`.

        For media where undoing a write that never began would only wait once more for a server that is not there.
        """

    def _wrote_nothing(self, error: BaseException) -> bool:
        """Whether an error of `_write`, translated already, leaves nothing to delete. Extend with ``super()``.

        True here for a `KeyTakenError`, because nothing there is ours, a missing driver and a wrong configuration.
        """
        return isinstance(error, (KeyTakenError, MissingDependencyError, ConfigError))

    def _translate(self, error: Exception) -> type[StoreError] | None:
        """Say which of our errors a vendor's error is; ``None`` for no idea. Extend with ``super()``."""
        if isinstance(error, FileNotFoundError):
            return PayloadNotFoundError
        if isinstance(error, (ConnectionError, TimeoutError)):
            return StoreUnavailableError
        return None

    def _words(self, error: Exception) -> str:
        """Say what a vendor's error says, for people."""
        return str(error)

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Release connections. Payloads stay. A closed store may open again at the next use."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.context.name

    def check(self, pointer: Pointer) -> None:
        """Refuse what this store must not follow: another store's pointer, a key out of scope, absurd sizes.

        Raises:
            PointerRejectedError: With the reason in one word; also for what is no pointer at all.
        """
        given: Any = pointer
        if not isinstance(given, Pointer):
            expected = "a claimcheck._pointer.Pointer is expected; an envelope is for ClaimCheck.resolve"
            raise PointerRejectedError(f"{type(given).__name__} is no pointer: {expected}", reason="type")
        if pointer.store not in (None, self.name):
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

    # What a store may refine -----------------------------------------------------------------------------------

    def _new_key(self, destination: str, unique: uuid.UUID) -> str:
        return f"{self.prefix}{slug(destination)}-{unique}"

    def _max_segments(self, version: int) -> int:
        """The most segments that a payload may have whose pointer is of this version."""
        return MAX_SEGMENTS

    def _scope(self, pointer: Pointer) -> str:
        return self.prefix

    def missing(self, pointer: Pointer, what: str = "the payload") -> PayloadNotFoundError:
        """Make the error for a payload, or a part of one, that is gone."""
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
        check_size(pointer, actual, store=self.name)

    # Within ----------------------------------------------------------------------------------------------------

    def _translated(self, pointer: Pointer, operation: str) -> _Translated:
        """Around an access to the medium: its errors become ours."""
        return _Translated(self, pointer, operation)

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
    """A context manager of its own and no generator: small payloads feel the difference."""

    __slots__ = ("_medium", "_operation", "_pointer")

    def __init__(self, medium: Medium, pointer: Pointer, operation: str) -> None:
        self._medium = medium
        self._pointer = pointer
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            error.store, error.key = error.store or self._medium.name, error.key or self._pointer.key
        elif isinstance(error, Exception) and not isinstance(error, ClaimCheckError):
            raise self._medium._as_ours(error, self._pointer, self._operation) from error


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


_log = logging.getLogger(__name__)
_PIECE_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 17  # of files: reads of more go past the buffer, straight to where they are wanted


class Store(Medium):
    """Base of all stores. Safe under threads; one instance serves one process.

    Subclass it and write ``_write``, ``_read`` and ``_delete``; see `claimcheck._store.Medium` for these and for what
    else may be refined. Methods whose names begin with ``a`` do the same in a thread, for an event loop.
    """

    _exact: ClassVar[bool] = False

    def write(
        self,
        payload: Payload,
        *,
        destination: str = "",
        limit: int | None = None,
        identity: uuid.UUID | None = None,
    ) -> Pointer:
        """Put one payload to rest and return the pointer that finds it again.

        Args:
            payload: Bytes-like, or a readable binary file, which is read from where it stands in bounded memory.
            destination: Topic or queue; a readable part of the key, nothing more.
            limit: Bytes that this payload may have, where that is less than ``limits.max_payload_bytes``.
            identity: In place of a fresh uuid, for a bytes-like payload that several attempts may write, one after the
                other or at once: it has to stand for this payload alone, and leads all of them to one key. What is
                there already is not written again where the medium can tell, and a failed write removes nothing.

        Returns:
            A pointer with the payload's size and checksum, readable at once by any reader.

        Raises:
            PayloadTypeError: Not bytes-like and no binary file; nothing was written.
            PayloadTooLargeError: Over the limit; nothing is left.
            PayloadError: The file failed or shrank; nothing is left.
            StoreUnavailableError: Not reached; what was written was removed where possible, else it expires.
            StoreError: Anything else that the store refused, a full disk for example; the same. Also where the store
                would not follow its own pointer: nothing was written.
        """
        source = self._source(payload, limit)
        draft = self._draft(destination, identity or self.context.new_uuid())
        self._check_draft(draft)
        with self.context.hooks.operation("write", store=self.name, key=draft.key, size=source.size):
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
            PayloadTypeError: The buffer is none, or is read-only; no I/O was done.
            PayloadTooLargeError: The payload is larger than the buffer; of one whose size is known nothing was read.
            StoreError: As `read` does; what is in the buffer then is worth nothing.
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

        Sizes are verified, the checksum is not: it belongs to the whole. A medium that cannot begin anywhere (see
        `RangeStore`) is read from the start.

        Args:
            pointer: Of the payload.
            start: Bytes from the payload's start, not negative.
            length: Bytes, not negative; fewer come where the payload ends earlier.

        Raises:
            ValueError: A negative number, or a pointer of version 1, which knows no size.
            StoreError: As `read` does.
        """
        if start < 0 or length < 0 or pointer.size is None:
            raise ValueError(f"cannot read {length} bytes from {start} of a payload of {pointer.size} bytes")
        return read_range(self._origin(pointer), start, min(start + length, pointer.size))

    def open(self, pointer: Pointer) -> io.BufferedReader:
        """Return the payload as a binary file, read piece by piece and verified before its last byte is handed out.

        It can seek where the store can read from any position; see `claimcheck._payload_reader.SeekableReader` for what
        is verified then.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done. Reading raises as `read` does.
        """
        return io.BufferedReader(self._reader(pointer), buffer_size=_BUFFER_BYTES)

    def rollback(self, pointer: Pointer) -> None:
        """Undo exactly one write; doing it twice is harmless.

        Raises:
            PointerRejectedError: Not a pointer of this store; nothing was removed.
            StoreUnavailableError: Not reached; the payload stays until it expires.
        """
        self.check(pointer)
        operation = self.context.hooks.operation("rollback", store=self.name, key=pointer.key, size=pointer.size)
        with operation, self._translated(pointer, "rollback"):
            self._delete(pointer)

    # For event loops -------------------------------------------------------------------------------------------

    async def awrite(self, payload: Payload, *, destination: str = "", limit: int | None = None) -> Pointer:
        """Do as `write`; cancelled meanwhile it leaves nothing, and a file of the caller's is no longer read."""
        return await in_thread(
            lambda: self.write(payload, destination=destination, limit=limit),
            undo=self.rollback,
            to_the_end=is_file(payload),
        )

    async def aread(self, pointer: Pointer) -> bytes:
        """Do as `read`; cancelled meanwhile it soon ends, and closes its connection."""
        return await in_thread(lambda: self.read(pointer))

    async def arollback(self, pointer: Pointer) -> None:
        """Do as `rollback`, to the end even if it is cancelled meanwhile."""
        await in_thread(lambda: self.rollback(pointer))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Within ----------------------------------------------------------------------------------------------------

    def _source(self, payload: Payload, limit: int | None) -> Source:
        """A payload of more bytes or segments than `check` lets pass could be written, but never be read again."""
        most = self.context.max_payload_bytes
        limit = most if limit is None else min(limit, most)
        segments = self._max_segments(self.pointer_version)
        if self.segment_bytes is not None and self.segment_bytes * segments < limit:
            what = f"{segments} segments of {self.segment_bytes} bytes"
            return Source(payload, limit=self.segment_bytes * segments, limit_name=what)
        return Source(payload, limit=limit)

    def _draft(self, destination: str, unique: uuid.UUID) -> Pointer:
        created = int(self.context.clock() * 1000)
        key, version, expires = self._new_key(destination, unique), self.pointer_version, self._expires_ms(created)
        return Pointer(key=key, store=self.name, version=version, created_ms=created, expires_ms=expires)

    def _expires_ms(self, created_ms: int) -> int | None:
        if self.ttl_seconds is None:
            return None
        if not 0 <= self.ttl_seconds <= MAX_SECONDS:  # a stranger's store may let anything pass, not a number included
            expected = f"0 to {MAX_SECONDS} seconds"
            fail(f"stores.{self.name}.ttl_seconds", found=f"{self.ttl_seconds:g}", expected=expected)
        return created_ms + int(self.ttl_seconds * 1000)

    def _check_draft(self, draft: Pointer) -> None:
        """What a store would not follow it must not write: nobody could ever read it."""
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
        """Write what another attempt may have written, or be writing just now: nothing is undone."""
        payload = source.view
        if payload is None:
            raise PayloadTypeError("a payload with an identity of its own is bytes-like, no file")
        try:
            return self._finish(draft, source, self._written(draft, source))
        except KeyTakenError:
            there = Source(payload, limit=len(payload))
            there.take_all()
            return self._finish(draft, there, draft.key)

    def _written(self, draft: Pointer, source: Source) -> str:
        with self._translated(draft, "write"):
            key = self._write(draft, source)
            self._check_drained(source)
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

    def _check_drained(self, source: Source) -> None:
        if not source.drained:
            raise StoreError(
                f"store {self.name!r} took {source.taken} of {source.size} bytes: "
                f"{type(self).__name__}._write is broken"
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

    def _reader(self, pointer: Pointer) -> PayloadReader:
        origin = self._origin(pointer)
        return SeekableReader(origin) if origin.exact else PayloadReader(origin)

    def _origin(self, pointer: Pointer) -> Origin:
        self.check(pointer)
        return Origin(
            pointer=pointer,
            opened=lambda start, stop: self._open_at(pointer, start, stop),
            operation=lambda: self.context.hooks.operation("read", store=self.name, key=pointer.key, size=pointer.size),
            translated=lambda: self._translated(pointer, "read"),
            store=self.name,
            limit=self.context.max_payload_bytes,
            exact=self._exact and pointer.size is not None,
        )

    def _open_at(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        return PieceReader(self._read(pointer), start=start)

    def _too_small(self, pointer: Pointer, size: int) -> NoReturn:
        raise PayloadTooLargeError(
            f"store {self.name!r}: {pointer.key!r} does not fit into a buffer of {size} bytes",
            store=self.name,
            key=pointer.key,
            size=pointer.size,
            limit=size,
        )


class RangeStore(Store):
    """Base of stores whose medium can begin to read anywhere: their files can seek, their ranges cost what they are."""

    _exact = True

    @abstractmethod
    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        """Return a `Reader` of the bytes from ``start`` up to ``stop``, written in place of `Store._read`.

        ``stop`` is the payload's end unless a range was asked for, and ``None`` with a pointer of version 1, where it
        may as well be a `PieceReader`. Where the medium knows how much is stored, call `check_size` before.
        """

    def _open_at(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        return self._open(pointer, start, stop)

    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        buffer = memoryview(bytearray(_PIECE_BYTES))
        with closing(self._open(pointer, 0, pointer.size)) as reader:
            while count := reader.readinto(buffer):
                yield buffer[:count]
