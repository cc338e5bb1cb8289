"""`Store`, the base class of all stores: the contract, and what all stores have in common.

A store author subclasses `Store` and writes three methods::

    class TapeStore(Store):
        def __init__(self, *, drive: int) -> None: ...             # the options, as in YAML
        def _write(self, pointer, source): ...                      # for piece in source: ...
        def _read(self, pointer): ...                               # yield the pieces, in order
        def _delete(self, pointer): ...                             # a missing entry is not an error

A store whose medium can read from any position implements ``_open`` instead of ``_read``. A store that implements
``_scan`` can be listed and swept. The base class creates keys, enforces limits, verifies payloads, deletes the rest of
a failed write, maps errors and calls the hooks.
``claimcheck.testing.StoreConformance`` tests whether a new store keeps the contract.
"""

from __future__ import annotations

import contextlib
import io
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import islice
from typing import ClassVar, NoReturn

from claimcheck import _copying, _payload_reader, _pointer_check
from claimcheck._envelope import Buffer, as_view
from claimcheck._key_lifetime import CLAIM, KeyLifetime, parse_name, with_lifetime
from claimcheck._listing import Deletion, StoreEntry
from claimcheck._payload import Payload, Source, is_file
from claimcheck._pointer import Pointer, is_key, slug
from claimcheck._reader import PieceReader, Reader, pieces_of
from claimcheck._store_context import StoreContext
from claimcheck._store_errors import Translated, differs, missing, not_listed, reject, translated
from claimcheck._store_write import StoreWrite
from claimcheck._threads import Join, Replies, in_thread
from claimcheck._validation import Seconds, check_value
from claimcheck.errors import (
    ConfigError,
    KeyTakenError,
    MissingDependencyError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.hooks import Operation

MAX_SEGMENTS = 1_000_000
"""The most segments that a payload may have."""

_log = logging.getLogger(__name__)
_DELETE_BATCH = 1000  # as in S3's DeleteObjects
_MAX_KEY_BYTES = 1024
_UNWATCHED = nullcontext()


class Store(ABC):
    """Base class of all stores. Thread-safe; one instance serves one process.

    Subclasses implement ``_write``, ``_delete``, and either ``_read`` or ``_open``. The ``a...`` methods are for event
    loops: they do the same in a thread.

    Attributes:
        prefix: The beginning of every key of this store; pointers to other keys are rejected.
        max_key_bytes: The longest key of the medium, in UTF-8; longer ones are rejected before any I/O.
        segment_bytes: The size of the pieces that a payload is stored in; ``None`` for one piece.
        ttl_seconds: The lifetime of a payload; ``None`` for no limit.
        pointer_version: The version of the pointers that `write` returns.
        reads_v1: Whether pointers of version 1, which have no store name and no size, are accepted.
        context: Name, limits, hooks and clock; set once, before use.
    """

    prefix: str = ""
    max_key_bytes: int = 1024
    segment_bytes: int | None = None
    ttl_seconds: float | None = None
    pointer_version: int = 2
    reads_v1: bool = False
    context: StoreContext = StoreContext()
    _joined_bytes: int = 0  # the largest payload for `_request` and `_send`; 0 if they are not implemented
    _seekable: ClassVar[bool] = False
    _whole_bytes: ClassVar[int] = 0  # the largest payload that readers return with `PieceReader.whole`

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._seekable = cls._open is not Store._open
        if cls._read in (Store._read, _no_read):
            cls._read = Store._read if cls._seekable else _no_read  # type: ignore[method-assign]

    # To implement ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, pointer: Pointer, source: Source) -> str | None:
        """Store the payload under ``pointer.key``. It must be readable when this returns, until ``pointer.expires_ms``.

        The pointer has no size and no checksum yet; ``source.size`` is known unless a file cannot seek. After any
        error `_delete` is called, unless `_wrote_nothing` returns true. ``write(identity=...)`` may pass the same key
        again, with the same payload: overwrite it, or raise a `KeyTakenError`.

        Returns:
            The key for readers if the medium determines it, as a log does with its positions; otherwise nothing.
        """

    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        """Yield the payload's bytes in order; a piece may be reused once the next one is requested.

        Not needed if `_open` is implemented.
        """
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

    def _request(self, pointers: Sequence[Pointer]) -> Replies:
        """Request several payloads in one round trip. Called only for payloads of up to ``_joined_bytes``."""
        raise NotImplementedError

    def _send(self, writes: Sequence[StoreWrite]) -> Replies:
        """Send several payloads in one round trip, see `_request`. A reply is not ``None`` if its payload is stored."""
        raise NotImplementedError

    def _rewrite(self, pointer: Pointer, source: Source) -> str | None:
        """Store a payload with an identity again after `_write` raised a `KeyTakenError`, to renew its lifetime.

        Not called if the store has no lifetime. By default nothing is written; override it if `_write` refuses to
        overwrite and `_scan` is implemented.
        """
        source.take_all()
        return None

    def _stored_as(self, key: str) -> str:
        """Return the key that `_write` was called with; override it if `_write` returns another one."""
        return key

    def _extend(self, pointer: Pointer, ttl_seconds: float, destination: str | None) -> Pointer:
        """Return a pointer to the same payload that stays readable for ``ttl_seconds`` from now; see `extend`.

        By default the payload is copied. Override it if the medium can change the expiry of what it stores; it must
        never become earlier.
        """
        return self.copy(pointer, to=self, destination=destination, min_ttl_seconds=ttl_seconds)

    def _scan(self, after: str | None) -> Iterable[StoreEntry]:
        """Yield an entry for each payload below the prefix, in bounded memory; see `scan`.

        Create entries with `StoreEntry.of`, and only for keys for which `_lifetime_of` returns a value.
        """
        raise not_listed(self)

    def _scan_partitions(self, count: int) -> Sequence[str]:
        """Return about ``count`` parts of the listing for `_scan_partition`: see `partitions`. By default, one part."""
        return [""]

    def _scan_partition(self, partition: str) -> Iterable[StoreEntry]:
        """Yield the entries of one part. Implement it together with `_scan_partitions`."""
        return self._scan(None)

    def _stat(self, entry: StoreEntry) -> StoreEntry | None:
        """Return an entry as it is now, with the same ``version`` if it is unchanged; ``None`` if it is gone.

        Needed for entries that can be written again under the same key.
        """
        return entry

    def _server_time(self) -> float | None:
        """Return the time of the medium's own clock, in seconds since 1970; ``None`` if it has none.

        Override it where the medium has a clock that may differ from this machine's. Errors count as ``None``.
        """
        return None

    def _now(self, entries: Sequence[StoreEntry]) -> Iterable[tuple[StoreEntry, StoreEntry | None]]:
        """Yield each entry, and the same one as it is now."""
        return ((entry, entry if entry.is_immutable else self._stat(entry)) for entry in entries)

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterable[Deletion]:
        """Delete up to 1,000 entries that are as they were listed, and yield the result of each.

        By default `_delete` is called for each one.
        """
        for entry in entries:
            try:
                self._delete(Pointer(key=entry.key, store=self.name))
            except Exception as error:
                yield self._failed(entry, error)
            else:
                yield Deletion(entry, "deleted")

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

    def _words(self, error: Exception) -> str:
        """Return the message of a vendor's error."""
        return str(error)

    # To override if needed -------------------------------------------------------------------------------------

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Close connections. Payloads are kept. A closed store may reopen at its next use."""

    @property
    def name(self) -> str:
        """The store's name in the configuration."""
        return self.context.name

    def check(self, pointer: Pointer) -> None:
        """Reject a pointer of another store, a key outside of this store, and implausible sizes.

        Raises:
            PointerRejectedError: Its ``reason`` is one word. Also raised for an object that is not a pointer.
        """
        _pointer_check.check(self, pointer)

    def _new_key(self, destination: str, unique: uuid.UUID) -> str:
        return f"{self.prefix}{slug(destination)}-{unique}"

    def _key(self, destination: str, unique: uuid.UUID, *, created_ms: int, expires_ms: int | None, fresh: bool) -> str:
        """Return the key of a new payload, with its lifetime.

        Args:
            destination: Topic or queue.
            unique: The uuid.
            created_ms: When it is written.
            expires_ms: When its lifetime ends; ``None`` for never.
            fresh: Whether the uuid is new. Otherwise the key must not depend on the time.
        """
        key = self._new_key(destination, unique)
        if self.pointer_version == 1:
            return key
        limit = min(self.max_key_bytes, _MAX_KEY_BYTES)
        return with_lifetime(key, unique, created_ms=created_ms, expires_ms=expires_ms, fresh=fresh, max_bytes=limit)

    def _lifetime_of(self, key: str) -> KeyLifetime | None:
        """Return what a key says about its payload's lifetime; ``None`` if it is not one of this store's keys."""
        return parse_name(key[len(self.prefix) :]) if key.startswith(self.prefix) else None

    def _is_exclusive(self, pointer: Pointer) -> bool:
        """Whether `_write` must not replace what is there: encrypted content with an identity, or a claim on a topic.

        Attempts that encrypt the same payload differently must not mix. Other keys are unique per write.
        """
        if pointer.encryption is None:
            return pointer.key.endswith(CLAIM)
        known = self._lifetime_of(pointer.key)
        return known is None or known.created_ms is None

    def _max_segments(self, version: int) -> int:
        """Return the most segments of a payload with a pointer of this version."""
        return MAX_SEGMENTS

    def _scope(self, pointer: Pointer) -> str:
        return self.prefix

    def missing(self, pointer: Pointer, what: str = "the payload") -> PayloadNotFoundError:
        """Return the error for a missing payload, or a missing part of one."""
        return missing(self, pointer, what)

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

    def _reject(self, pointer: Pointer, reason: str, why: str) -> NoReturn:
        reject(self, pointer, reason, why)

    # For callers -----------------------------------------------------------------------------------------------

    def write(
        self,
        payload: Payload,
        *,
        destination: str = "",
        limit: int | None = None,
        identity: uuid.UUID | None = None,
        min_ttl_seconds: float | None = None,
    ) -> Pointer:
        """Store one payload and return a pointer to it.

        Args:
            payload: Bytes-like, or a readable binary file, which is read from its current position in bounded memory.
            destination: Topic or queue, as a readable part of the key. Where signing is configured, readers accept the
                pointer only from this destination.
            limit: The largest size of this payload in bytes, if smaller than ``limits.max_payload_bytes``.
            identity: Replaces the fresh uuid, for a bytes-like payload that several attempts may write, sequentially or
                concurrently. It must identify this payload alone; all attempts use the same key. Each attempt renews
                the lifetime of what is stored, and a failed write deletes nothing.
            min_ttl_seconds: The lifetime of this payload, if longer than the store's ``ttl_seconds``.

        Returns:
            A pointer with the payload's size and checksum, readable at once by any reader.

        Raises:
            PayloadTypeError: Neither bytes-like nor a binary file; nothing was written.
            PayloadTooLargeError: Over the limit; nothing stays in the store.
            PayloadError: The file failed or shrank; nothing stays in the store.
            StoreUnavailableError: The store could not be reached; what was written was deleted if possible, otherwise
                it expires.
            StoreError: Any other failure of the store, such as a full disk, with the same effect. Also raised if the
                store would reject its own pointer; then nothing was written.
        """
        write = StoreWrite(
            self, payload, destination=destination, limit=limit, identity=identity, min_ttl_seconds=min_ttl_seconds
        )
        del payload  # error reports show local variables
        return write.run()

    def read(self, pointer: Pointer) -> bytes:
        """Return the payload, complete and verified.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done.
            PayloadNotFoundError: The payload, or a part of it, is gone.
            IntegrityError: Size or checksum differ from the pointer's.
            StoreUnavailableError: The store could not be reached; the same call may succeed later.
        """
        return _payload_reader.read(self, pointer)

    def read_into(self, pointer: Pointer, buffer: Buffer) -> int:
        """Read the payload, complete and verified, into the beginning of a writable buffer.

        Returns:
            The payload's size in bytes.

        Raises:
            PayloadTypeError: The object is not a buffer, or is read-only; no I/O was done.
            PayloadTooLargeError: The payload is larger than the buffer; if its size is known, nothing was read.
            StoreError: See `read`; the buffer's content is undefined then.
        """
        return _payload_reader.read_into(self, pointer, buffer)

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
        return _payload_reader.read_range(self, pointer, start, length)

    def open(self, pointer: Pointer) -> io.BufferedReader:
        """Return the payload as a binary file, read piece by piece and verified before its last byte is returned.

        The file can seek if the store can read from any position. Seeking elsewhere first reads and verifies the rest
        of the payload, once.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done. Reading raises the errors of `read`.
        """
        return _payload_reader.open_file(self, pointer)

    def rollback(self, pointer: Pointer) -> None:
        """Delete the payload of exactly one write; a second call has no effect.

        Raises:
            PointerRejectedError: Not a pointer of this store; nothing was deleted.
            StoreUnavailableError: The store could not be reached; the payload stays until it expires.
        """
        self.check(pointer)
        with self._operation("rollback", pointer, pointer.size), Translated(self, pointer, "rollback"):
            self._delete(pointer)

    def extend(self, pointer: Pointer, ttl_seconds: float, *, destination: str | None = None) -> Pointer:
        """Extend the lifetime of a payload, and return the pointer to use from now on.

        The payload stays readable for at least ``ttl_seconds`` from now. Redis changes the expiry of what is stored.
        All other stores copy the payload under a new key, and the old one stays until its own lifetime ends.

        Args:
            pointer: The payload's pointer.
            ttl_seconds: Seconds from now.
            destination: Topic or queue of the new pointer, for the key of a copy; by default that of the old one.

        Returns:
            An unsigned pointer. If the lifetime is already as long, or unlimited, ``pointer`` itself: then nothing was
            read or written.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done.
            PayloadNotFoundError: The payload, or a part of it, is gone.
            IntegrityError: The payload is damaged; there is no copy.
            StoreUnavailableError: The store could not be reached; the same call may succeed later.
        """
        check_value("ttl_seconds", ttl_seconds, Seconds)
        self.check(pointer)
        unlimited = pointer.expires_ms is None and pointer.version != 1
        if unlimited or (pointer.expires_ms or 0) >= int((self.context.clock() + ttl_seconds) * 1000):
            return pointer
        return self._extend(pointer, ttl_seconds, destination)

    def copy(
        self,
        pointer: Pointer,
        *,
        to: Store,
        destination: str | None = None,
        min_ttl_seconds: float | None = None,
        identity: uuid.UUID | None = None,
    ) -> Pointer:
        """Copy a payload to a store, in bounded memory, and return a pointer to the copy.

        The copy is verified: a damaged payload leaves none. What the pointer points at stays as it is.

        Args:
            pointer: The payload's pointer.
            to: The store to write to, which may be this one.
            destination: Topic or queue, for the key of the copy; by default that of the payload's key. The destination
                from which readers accept the pointer stays the same.
            min_ttl_seconds: The lifetime of the copy, if longer than the ``ttl_seconds`` of ``to``.
            identity: Replaces the fresh uuid, so that several attempts write one copy; see `write`. A payload of more
                than 8 MiB passes through a temporary file.

        Raises:
            StoreError: See `read` for this store's errors, and `write` for those of ``to``.
        """
        return _copying.copy(
            self, pointer, to, destination=destination, min_ttl_seconds=min_ttl_seconds, identity=identity
        )

    def scan(self, after: str | None = None, *, partition: str | None = None) -> Iterator[StoreEntry]:
        """List what is stored below this store's prefix, in bounded memory.

        Objects that this library did not create are not listed. Payloads that are written or deleted during the listing
        may be missing; all others are listed, some perhaps twice.

        Args:
            after: The ``position`` of an entry: the listing continues there.
            partition: One of the store's `partitions`: only its entries are listed, from the first one on.

        Raises:
            ScanNotSupportedError: This store cannot list its payloads.
            StoreUnavailableError: The store could not be reached; the listing can be continued.
            StoreError: Any other failure, such as a missing permission.
        """
        with Translated(self, Pointer(key=self.prefix), "scan"):
            yield from self._scan(after) if partition is None else self._scan_partition(partition)

    def partitions(self, count: int) -> list[str]:
        """Divide the listing into parts that several processes can list at the same time with `scan`.

        Every entry is in exactly one part. The parts stay valid while payloads are written and deleted.

        Args:
            count: About how many parts; a store that cannot divide its listing returns one.

        Raises:
            StoreError: As `scan` does.
        """
        with Translated(self, Pointer(key=self.prefix), "scan"):
            return list(self._scan_partitions(count))

    def delete(self, entries: Iterable[StoreEntry]) -> list[Deletion]:
        """Delete entries that `scan` returned, in batches, and return the result of each, in any order.

        An entry that was written again under the same key since it was listed is not deleted. Errors are results, not
        exceptions, so that one of them does not keep the others.

        Raises:
            PointerRejectedError: An entry is not one of this store's; nothing of its batch was deleted.
            StoreUnavailableError: The store could not be reached.
        """
        results: list[Deletion] = []
        remaining = iter(entries)
        while batch := list(islice(remaining, _DELETE_BATCH)):
            for entry in batch:
                self._check_entry(entry)
            results += self._delete_unchanged(batch)
        return results

    # For event loops -------------------------------------------------------------------------------------------

    async def awrite(self, payload: Payload, *, destination: str = "", limit: int | None = None) -> Pointer:
        """Same as `write`. After a cancellation, what was stored is deleted at once, and the file is not in use."""
        if self._joined_bytes and not is_file(payload) and 0 < len(as_view(payload)) <= self._joined_bytes:
            write = StoreWrite(self, payload, destination=destination, limit=limit)
            size = write.plain_bytes
            join = self._send if size else None
            return await in_thread(write.run, size=size, undo=self.rollback, join=join, request=write)
        return await in_thread(
            lambda: self.write(payload, destination=destination, limit=limit),
            undo=self.rollback,
            to_the_end=is_file(payload),
        )

    async def aread(self, pointer: Pointer) -> bytes:
        """Same as `read`. After a cancellation the read stops soon and closes its connection."""
        size = getattr(pointer, "size", None) or 0
        return await in_thread(lambda: self.read(pointer), size=size, join=self._join(pointer), request=pointer)

    async def aextend(self, pointer: Pointer, ttl_seconds: float, *, destination: str | None = None) -> Pointer:
        """Same as `extend`. After a cancellation no copy stays in the store."""
        return await in_thread(
            lambda: self.extend(pointer, ttl_seconds, destination=destination),
            undo=lambda extended: None if extended.key == pointer.key else self.rollback(extended),
        )

    async def arollback(self, pointer: Pointer) -> None:
        """Same as `rollback`. It runs to completion even if it is cancelled."""
        import asyncio

        await asyncio.shield(asyncio.ensure_future(in_thread(lambda: self.rollback(pointer))))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _join(self, pointer: Pointer) -> Join | None:
        """Return what requests this payload together with others; ``None`` if it is read alone."""
        is_small = isinstance(pointer, Pointer) and 0 < (pointer.size or 0) <= self._joined_bytes
        if is_small and pointer.segments == 1 and pointer.stored_bytes is None:
            with contextlib.suppress(PointerRejectedError):  # nothing is requested for it; its own call raises
                self.check(pointer)
                return self._request
        return None

    def _check_entry(self, entry: StoreEntry) -> None:
        """Refuse to delete what `scan` does not list."""
        name = entry.key.rstrip("/") if entry.kind == "leftover" else entry.key
        ours = entry.kind == "leftover" or self._lifetime_of(entry.key) is not None
        if not (ours and is_key(name) and name.startswith(self.prefix)):
            self._reject(Pointer(key=entry.key), "scope", "is not the key of an entry of this store")

    def _delete_unchanged(self, entries: Sequence[StoreEntry]) -> Iterator[Deletion]:
        unchanged = []
        with Translated(self, Pointer(key=self.prefix), "delete"):
            for entry, now in self._now(entries):
                if now is not None and now.version == entry.version:
                    unchanged.append(entry)
                else:
                    yield Deletion(entry, "gone" if now is None else "changed")
            yield from self._discard(unchanged)

    def _operation(self, operation: Operation, pointer: Pointer, size: int | None) -> AbstractContextManager[None]:
        """Emit the events of an operation, if there are hooks."""
        hooks = self.context.hooks
        if not hooks.listeners:
            return _UNWATCHED
        return hooks.operation(operation, store=self.name, key=pointer.key, size=size)


@abstractmethod  # type: ignore[misc]
def _no_read(self: Store, pointer: Pointer) -> Iterable[Buffer]:
    """Replaces `Store._read` in classes that implement neither it nor `Store._open`, which makes them abstract."""
    raise NotImplementedError


RangeStore = Store
"""Alias of `Store`; formerly the base class of stores that implement ``_open``."""
