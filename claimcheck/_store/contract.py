"""What a store implements, and what readers and writers of all stores share: pointers that are followed, and errors.

`Store` adds the methods for callers. Authors of stores find here what to write: three methods, then listing, and
nothing else unless the medium is unusual.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn

from claimcheck._content.coder import ContentCoder, encoding_problem
from claimcheck._content.source import Source
from claimcheck._store.listing import Deletion, KeyLifetime, StoreEntry, parse_name, with_lifetime
from claimcheck._texts import duration, time_text
from claimcheck._validation import without_secrets
from claimcheck._wire.buffers import Buffer, PieceReader, Reader, pieces_of
from claimcheck._wire.digest import algorithm_of
from claimcheck._wire.pointer import Pointer, is_key, slug
from claimcheck.errors import (
    ClaimCheckError,
    ConfigError,
    IntegrityError,
    KeyTakenError,
    MissingDependencyError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PointerRejectedError,
    ScanNotSupportedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.hooks import Hooks, Operation

MAX_SEGMENTS = 1_000_000
"""The most segments that a payload may have."""

_MAX_KEY_BYTES = 1024
_UNWATCHED = nullcontext()
_LARGE_BYTES = 64 << 20  # a smaller payload is not the reason why there is no memory


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What a store gets from the code that opens it.

    Attributes:
        name: The store's name in the configuration.
        max_payload_bytes: Larger payloads are neither written nor read.
        checksum: The algorithm of the checksums in written pointers: ``crc32``, ``sha256`` or ``xxh3-128``.
        content: Compresses, encrypts and decrypts; holds the keys.
        hooks: Receives an event for each operation.
        clock: Seconds since 1970.
        new_uuid: Returns the uuids that make keys unique.
        binds: Whether pointers name the destination that they were written for, and bind encrypted content, for a
            signature that covers both.
    """

    name: str = "store"
    max_payload_bytes: int = 5 << 30
    checksum: str = "crc32"
    content: ContentCoder = field(default_factory=ContentCoder, repr=False)
    hooks: Hooks = field(default_factory=Hooks)
    clock: Callable[[], float] = time.time
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    binds: bool = False


class StoreContract(ABC):
    """What the authors of stores implement and override; see `claimcheck.Store`, which they subclass."""

    prefix: str = ""
    max_key_bytes: int = 1024
    segment_bytes: int | None = None
    ttl_seconds: float | None = None
    pointer_version: int = 2
    reads_v1: bool = False
    context: StoreContext = StoreContext()
    pipelined_bytes: int = 0  # the largest payload for `_pipelined`; 0 if it is not implemented
    is_seekable: ClassVar[bool] = False
    is_listable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.is_seekable = cls._open is not StoreContract._open
        cls.is_listable = cls._scan is not StoreContract._scan

    # To implement ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, pointer: Pointer, source: Source) -> str | None:
        """Store the payload under ``pointer.key``. It must be readable when this returns, until ``pointer.expires_ms``.

        The pointer has no size and no checksum yet; ``source.size`` is known unless a file cannot seek. After any
        error `_delete` is called, unless `_wrote_nothing` returns true. See `_is_exclusive`, if payloads can be listed.

        Returns:
            The key for readers if the medium determines it, as a log does with its positions; otherwise nothing.
        """

    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        """Yield the payload's bytes in order; a piece may be reused once the next one is requested.

        Not needed if `_open` is implemented.
        """
        if not self.is_seekable:
            raise NotImplementedError(f"{type(self).__name__} implements neither _read nor _open")
        with closing(self._open(pointer, 0, pointer.size)) as reader:
            yield from pieces_of(reader)

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        """Return a `Reader` of the bytes from ``start`` up to ``stop``.

        Implement it instead of `_read` if the medium can read from any position: the store's files can then seek, and
        reading a range transfers only its own bytes. ``stop`` is the payload's end unless a range is read. With a
        pointer of version 1 it is ``None``, and the result may be a `PieceReader`. If the medium knows the stored size,
        call `check_size` first.
        """
        return PieceReader(self._read(pointer), start=start)

    @abstractmethod
    def _delete(self, pointer: Pointer) -> None:
        """Delete the payload, complete or partial, and nothing else. A missing payload is not an error."""

    # To implement where payloads can be listed, for `sweep` and `gc` ----------------------------------------------

    def _scan(self) -> Iterable[StoreEntry]:
        """Yield an entry for each payload below the prefix, in bounded memory; see `scan`.

        Create entries with `StoreEntry.of`, and only for keys for which `_lifetime_of` returns a value.
        """
        text = f"store {self.name!r}: {type(self).__name__} cannot list its payloads"
        raise ScanNotSupportedError(f"{text}: the medium has to delete them by age", store=self.name)

    def _scan_partitions(self, count: int) -> Sequence[str]:
        """Return about ``count`` parts of the listing for `_scan_partition`: see `partitions`. By default, one part."""
        return [""]

    def _scan_partition(self, partition: str) -> Iterable[StoreEntry]:
        """Yield the entries of one part. Implement it together with `_scan_partitions`."""
        return self._scan()

    def _server_time(self) -> float | None:
        """Return the time of the medium's own clock, in seconds since 1970; ``None`` if it has none.

        Override it where the medium has a clock that may differ from this machine's. Errors count as ``None``.
        """
        return None

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterable[Deletion]:
        """Delete up to 1,000 entries, and yield the result of each.

        By default `_delete` is called for each one.
        """
        for entry in entries:
            try:
                self._delete(Pointer(key=entry.key, store=self.name))
            except Exception as error:
                yield self._failed(entry, error)
            else:
                yield Deletion(entry, "deleted")

    # To override if needed -------------------------------------------------------------------------------------

    def _stored_as(self, key: str) -> str:
        """Return the key that `_write` was called with; override it if `_write` returns another one."""
        return key

    def _pipelined(self, requests: Sequence[tuple[Pointer, memoryview | None]]) -> AbstractContextManager[object]:
        """Send reads, and writes of these bytes, in one round trip, and raise nothing.

        `_open` and `_write` are called with the same pointers in this context, and wait for the replies.
        """
        raise NotImplementedError

    def _reach(self) -> None:  # noqa: B027 - with most media `_write` fails soon enough
        """Raise an error if the medium cannot be reached. Called before each write; `_delete` does not follow.

        For media where deleting what was never written would only wait again for the same server.
        """

    def _wrote_nothing(self, error: BaseException) -> bool:
        """Whether nothing has to be deleted after this (translated) error of `_write`. Extend with ``super()``.

        True here for a `KeyTakenError`, because another write owns the entry, a missing driver and a configuration
        error.
        """
        return isinstance(error, (KeyTakenError, MissingDependencyError, ConfigError))

    def _translate(self, error: Exception) -> type[StoreError] | None:
        """Return the `StoreError` class for a vendor's error; ``None`` for `StoreError`. Extend with ``super()``."""
        if isinstance(error, FileNotFoundError):
            return PayloadNotFoundError
        if isinstance(error, (ConnectionError, TimeoutError)):
            return StoreUnavailableError
        return None

    def _new_key(self, destination: str, unique: uuid.UUID) -> str:
        return f"{self.prefix}{slug(destination)}-{unique}"

    def _key(self, destination: str, unique: uuid.UUID, *, created_ms: int, expires_ms: int | None) -> str:
        """Return the key of a new payload, with its lifetime."""
        key = self._new_key(destination, unique)
        if self.pointer_version == 1:
            return key
        limit = min(self.max_key_bytes, _MAX_KEY_BYTES)
        return with_lifetime(key, unique, created_ms=created_ms, expires_ms=expires_ms, max_bytes=limit)

    def _lifetime_of(self, key: str) -> KeyLifetime | None:
        """Return what a key says about its payload's lifetime; ``None`` if it is not one of this store's keys."""
        return parse_name(key[len(self.prefix) :]) if key.startswith(self.prefix) else None

    def _is_exclusive(self, pointer: Pointer) -> bool:
        """Whether `_write` must raise a `KeyTakenError` if there is something with this key.

        Only for the records with which a garbage collection claims topics: keys of payloads are unique per write.
        """
        return pointer.created_ms is None

    def _max_segments(self, version: int) -> int:
        """Return the most segments of a payload with a pointer of this version."""
        return MAX_SEGMENTS

    def _scope(self, pointer: Pointer) -> str:
        return self.prefix

    # To use ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The store's name in the configuration."""
        return self.context.name

    def check(self, pointer: Pointer) -> None:
        """Reject a pointer of another store, a key outside of this store, and implausible sizes.

        Raises:
            PointerRejectedError: Its ``reason`` is one word. Also raised for an object that is not a pointer.
        """
        if not isinstance(pointer, Pointer):
            found = type(pointer).__name__  # type: ignore[unreachable]  # callers may have no type checker
            text = f"expected a claimcheck.Pointer, got {found}; ClaimCheck.resolve takes envelopes"
            raise PointerRejectedError(text, reason="type")
        limit = self.context.max_payload_bytes
        if pointer.store is not None and pointer.store != self.context.name:
            self.reject(pointer, "store", f"names the store {pointer.store!r}")
        if pointer.version == 1 and not self.reads_v1:
            self.reject(pointer, "version", "is of version 1, which this store does not read")
        if not is_key(pointer.key) or not pointer.key.startswith(self._scope(pointer)):
            self.reject(pointer, "scope", "has a key outside this store's prefix")
        if len(pointer.key.encode()) > self.max_key_bytes:
            self.reject(pointer, "scope", f"has a key of more than {self.max_key_bytes} bytes")
        if (pointer.size or 0) > limit:
            self.reject(pointer, "size", f"declares {pointer.size} bytes, but limits.max_payload_bytes is {limit}")
        if (pointer.segments, pointer.segment_bytes) != (1, None) and (
            pointer.segments > self._max_segments(pointer.version) or pointer.segments != _segments_of(pointer)
        ):
            self.reject(pointer, "size", f"declares {pointer.segments} segments for {pointer.size} bytes")
        is_plain = pointer.codec is None and pointer.encryption is None and pointer.stored_bytes is None
        is_plain = is_plain and (pointer.checksum is None or bool(algorithm_of(pointer.checksum)))
        if not is_plain and (problem := encoding_problem(pointer)):
            self.reject(pointer, *problem)

    def operation(self, operation: Operation, pointer: Pointer, size: int | None) -> AbstractContextManager[None]:
        """Emit the events of an operation, if there are hooks."""
        hooks = self.context.hooks
        if not hooks.listeners:
            return _UNWATCHED
        return hooks.operation(operation, store=self.name, key=pointer.key, size=size)

    def missing(self, pointer: Pointer, what: str = "the payload") -> PayloadNotFoundError:
        """Return the error for a missing payload, or a missing part of one."""
        written = "" if pointer.created_ms is None else f" (written {time_text(pointer.created_ms / 1000)})"
        why = _why_gone(pointer, self.context.clock())
        return PayloadNotFoundError(
            f"store {self.name!r}: {what} of {pointer.key!r} is gone{written}: {why}",
            store=self.name,
            key=pointer.key,
            created_ms=pointer.created_ms,
            expires_ms=pointer.expires_ms,
        )

    def check_size(self, pointer: Pointer, actual: int) -> None:
        """Compare the stored size with ``pointer.size`` before reading, for media that know sizes.

        Raises:
            IntegrityError: They differ.
        """
        if pointer.size is not None and pointer.size != actual:
            differs(pointer, "size", pointer.size, actual, self.name)

    def _failed(self, entry: StoreEntry, error: Exception) -> Deletion:
        """Return the result for an error about one entry; raises the error of a store that cannot be reached."""
        ours = error if isinstance(error, StoreError) else translated(self, error, Pointer(key=entry.key), "delete")
        if isinstance(ours, StoreUnavailableError):
            raise ours from error
        return Deletion(entry, "failed", ours)

    def reject(self, pointer: Pointer, reason: str, why: str) -> NoReturn:
        """Raise the error for a pointer that is not followed; ``why`` continues a sentence about it."""
        raise PointerRejectedError(
            f"store {self.name!r} rejected the pointer to {pointer.key[:200]!r}: it {why}",
            reason=reason,
            store=pointer.store,
            key=pointer.key,
        )


def _segments_of(pointer: Pointer) -> int:
    if pointer.version == 1 and pointer.size is None:
        return pointer.segments
    size = pointer.size_in_store
    return -(-size // pointer.segment_bytes) if pointer.segment_bytes and size else 1


def differs(pointer: Pointer, what: str, expected: int | str, actual: int | str, store: str) -> NoReturn:
    """Raise the error for a payload that differs from its pointer."""
    raise IntegrityError(
        f"store {store!r}: the {what} of {pointer.key!r} differs from its pointer: expected {expected}, found {actual}",
        store=store,
        key=pointer.key,
        expected=expected,
        actual=actual,
    )


def too_long(store: StoreContract, pointer: Pointer, size: int) -> PayloadTooLargeError:
    """Return the error for a payload of unknown size that turned out to be over the limit after ``size`` bytes."""
    limit = store.context.max_payload_bytes
    text = f"store {store.name!r}: {pointer.key!r} is longer than limits.max_payload_bytes ({limit})"
    return PayloadTooLargeError(text, store=store.name, key=pointer.key, size=size, limit=limit)


def untrusted(store: StoreContract, pointer: Pointer, why: str) -> IntegrityError:
    """Return the error for content that is damaged, or not authentic."""
    text = f"store {store.name!r}: the content of {pointer.key!r} cannot be trusted: {why}"
    return IntegrityError(text, store=store.name, key=pointer.key)


def translated(store: StoreContract, error: Exception, pointer: Pointer, operation: str) -> StoreError:
    """Return the error of this library for a medium's error."""
    if isinstance(error, MemoryError) and operation == "read" and (pointer.size or 0) > _LARGE_BYTES:
        text = f"store {store.name!r}: {pointer.key!r} of {pointer.size} bytes does not fit into memory: open it"
        limit = store.context.max_payload_bytes
        return PayloadTooLargeError(text, store=store.name, key=pointer.key, size=pointer.size, limit=limit)
    kind = store._translate(error) or StoreError
    if kind is PayloadNotFoundError and operation == "read":
        return store.missing(pointer)
    if kind in (PayloadNotFoundError, PayloadTooLargeError) or (kind is IntegrityError and operation != "read"):
        kind = StoreError
    why = " ".join(without_secrets(str(error)).split())[:400]
    what = f"{operation} of {pointer.key!r}" if pointer.key else operation
    text = f"store {store.name!r}: {what} failed: {type(error).__name__}: {why}"
    return kind(text, store=store.name, key=pointer.key)


class Translated:
    """Translates the medium's errors; not a generator, which is measurably slower for small payloads."""

    __slots__ = ("_operation", "_pointer", "_store")

    def __init__(self, store: StoreContract, pointer: Pointer, operation: str) -> None:
        self._store = store
        self._pointer = pointer
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            error.store, error.key = error.store or self._store.name, error.key or self._pointer.key
        elif isinstance(error, Exception) and not isinstance(error, ClaimCheckError):
            raise translated(self._store, error, self._pointer, self._operation) from error


def _why_gone(pointer: Pointer, now: float) -> str:
    """Return why a payload is gone, as far as its pointer tells."""
    if pointer.expires_ms is None:
        return "it expired, was evicted, was rolled back or was deleted"
    ends = time_text(pointer.expires_ms / 1000)
    if pointer.expires_ms / 1000 <= now:
        return f"it expired {duration(now - pointer.expires_ms / 1000)} ago, at {ends}"
    return f"it should be readable until {ends}: it was evicted, rolled back or deleted"
