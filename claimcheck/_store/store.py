"""`Store`, the base class of all stores: what callers use, on top of what a store implements.

A store author subclasses `Store` and writes three methods::

    class TapeStore(Store):
        def __init__(self, *, drive: int) -> None: ...             # the options, as in YAML
        def _write(self, pointer, source): ...                      # for piece in source: ...
        def _read(self, pointer): ...                               # yield the pieces, in order
        def _delete(self, pointer): ...                             # a missing entry is not an error

A store whose medium can read from any position implements ``_open`` instead of ``_read``. A store that implements
``_scan`` can be listed and swept. See `StoreContract` in `claimcheck._store.contract`.
``claimcheck.testing.StoreConformance`` tests whether a new store keeps the contract.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from uuid import UUID

from claimcheck._content.coder import Encoding, Stream, keyed_checksum
from claimcheck._content.header import AEAD, ALGORITHM
from claimcheck._content.source import Payload, Source, is_file
from claimcheck._store.contract import StoreContract, Translated
from claimcheck._store.listing import Deletion, StoreEntry, destination_of
from claimcheck._store.read import ReadableStore
from claimcheck._threads import Pipelined, in_thread
from claimcheck._validation import MAX_SECONDS, Seconds, check_value, fail
from claimcheck._wire.buffers import as_view
from claimcheck._wire.pointer import Pointer, changed, created, is_key
from claimcheck.config import canonical
from claimcheck.errors import ClaimCheckError, PayloadError, PointerRejectedError, StoreError

_log = logging.getLogger(__name__)

_DELETE_BATCH = 1000  # as in S3's DeleteObjects


class Store(ReadableStore):
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

    def write(
        self,
        payload: Payload,
        *,
        destination: str = "",
        limit: int | None = None,
        min_ttl_seconds: float | None = None,
    ) -> Pointer:
        """Store one payload and return a pointer to it.

        Args:
            payload: Bytes-like, or a readable binary file, which is read from its current position in bounded memory.
            destination: Topic or queue, as a readable part of the key. Where signing is configured, readers accept the
                pointer only from this destination.
            limit: The largest size of this payload in bytes, if smaller than ``limits.max_payload_bytes``.
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
        write = StoreWrite(self, payload, destination=destination, limit=limit, min_ttl_seconds=min_ttl_seconds)
        del payload  # error reports show local variables
        return write.run()

    def uri(self, pointer: Pointer) -> str | None:
        """Return where one file holds exactly what `write` got, for readers that are not ours; ``None`` for nowhere."""
        return None

    def rollback(self, pointer: Pointer) -> None:
        """Delete the payload of exactly one write; a second call has no effect.

        Raises:
            PointerRejectedError: Not a pointer of this store; nothing was deleted.
            StoreUnavailableError: The store could not be reached; the payload stays until it expires.
        """
        self.check(pointer)
        with self.operation("rollback", pointer, pointer.size), Translated(self, pointer, "rollback"):
            self._delete(pointer)

    def copy(self, pointer: Pointer, *, to: Store, destination: str | None = None) -> Pointer:
        """Copy a payload to a store, in bounded memory, and return a pointer to the copy.

        The copy is verified: a damaged payload leaves none. What the pointer points at stays as it is.

        Args:
            pointer: The payload's pointer.
            to: The store to write to, which may be this one.
            destination: Topic or queue, for the key of the copy; by default that of the payload's key. The destination
                from which readers accept the pointer stays the same.

        Raises:
            StoreError: See `read` for this store's errors, and `write` for those of ``to``.
        """
        name = destination_of(pointer.key.removeprefix(self.prefix)) if destination is None else destination
        bound = pointer.destination or ""
        with self.open(pointer) as file:
            try:
                write = StoreWrite(to, file, destination=name, bound=bound)
                return replace(write.run(), destination=pointer.destination)
            except PayloadError as error:  # of reading the copied payload, which for the write is only a file
                if isinstance(error.__cause__, ClaimCheckError):
                    raise error.__cause__ from None
                raise

    def scan(self, *, partition: str | None = None) -> Iterator[StoreEntry]:
        """List what is stored below this store's prefix, in bounded memory.

        Objects that this library did not create are not listed. Payloads that are written or deleted during the listing
        may be missing; all others are listed, some perhaps twice.

        Args:
            partition: One of the store's `partitions`: only its entries are listed.

        Raises:
            ScanNotSupportedError: This store cannot list its payloads.
            StoreUnavailableError: The store could not be reached.
            StoreError: Any other failure, such as a missing permission.
        """
        with Translated(self, Pointer(key=self.prefix), "scan"):
            yield from self._scan() if partition is None else self._scan_partition(partition)

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

        Errors are results, not exceptions, so that one of them does not keep the others.

        Raises:
            PointerRejectedError: An entry is not one of this store's; nothing of its batch was deleted.
            StoreUnavailableError: The store could not be reached.
        """
        results: list[Deletion] = []
        remaining = iter(entries)
        while batch := list(islice(remaining, _DELETE_BATCH)):
            for entry in batch:
                self._check_entry(entry)
            with Translated(self, Pointer(key=self.prefix), "delete"):
                results += self._discard(batch)
        return results

    def close(self) -> None:
        """Close connections. Payloads are kept. A closed store may reopen at its next use."""

    # For event loops -------------------------------------------------------------------------------------------

    async def awrite(self, payload: Payload, *, destination: str = "", limit: int | None = None) -> Pointer:
        """Same as `write`. After a cancellation, what was stored is deleted at once, and the file is not in use."""
        if not is_file(payload) and 0 < len(as_view(payload)) <= self.pipelined_bytes:
            write = StoreWrite(self, payload, destination=destination, limit=limit)
            pipelined = None if write.request is None else Pipelined(self._pipelined, write.request)
            return await in_thread(write.run, undo=self.rollback, size=len(as_view(payload)), pipelined=pipelined)
        return await in_thread(
            lambda: self.write(payload, destination=destination, limit=limit),
            undo=self.rollback,
            to_the_end=is_file(payload),
        )

    async def aread(self, pointer: Pointer) -> bytes:
        """Same as `read`. After a cancellation the read stops soon and closes its connection."""
        size = getattr(pointer, "size", None) or 0
        return await in_thread(lambda: self.read(pointer), size=size, pipelined=self.pipelined_read(pointer))

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

    def pipelined_read(self, pointer: Pointer) -> Pipelined | None:
        """Return the request for a payload that may be read together with others; ``None`` for any other."""
        is_small = isinstance(pointer, Pointer) and 0 < (pointer.size or 0) <= self.pipelined_bytes
        if is_small and pointer.segments == 1 and pointer.stored_bytes is None:
            with contextlib.suppress(PointerRejectedError):  # nothing is requested for it; its own call raises
                self.check(pointer)
                return Pipelined(self._pipelined, (pointer, None))
        return None

    def _limited(self, payload: Payload, limit: int | None) -> Source:
        """Limit the payload to the bytes and segments that `Store.check` accepts: a larger one could not be read."""
        maximum, checksum = self.context.max_payload_bytes, self.context.checksum
        limit = maximum if limit is None else min(limit, maximum)
        if self.segment_bytes is not None:
            segments = self._max_segments(self.pointer_version)
            if self.segment_bytes * segments < limit:
                what = f"{segments} segments of {self.segment_bytes} bytes"
                return Source(payload, limit=self.segment_bytes * segments, limit_name=what, checksum=checksum)
        return Source(payload, limit=limit, checksum=checksum)

    def _new_entry(self, destination: str, unique: UUID, min_ttl_seconds: float | None) -> tuple[str, int, int | None]:
        """Return the key of a new payload, when it is written, and when its lifetime ends."""
        written, ttl, expires = int(self.context.clock() * 1000), self.ttl_seconds, None
        if ttl is not None:
            if not 0 <= ttl <= MAX_SECONDS:  # a third-party store may not check its option, and pass NaN
                expected = f"0 to {MAX_SECONDS} seconds"
                fail(f"stores.{self.name}.ttl_seconds", found=f"{ttl:g}", expected=expected)
            if min_ttl_seconds is not None:
                check_value("min_ttl_seconds", min_ttl_seconds, Seconds)
            expires = written + int(max(ttl, min_ttl_seconds or 0) * 1000)
        return self._key(destination, unique, created_ms=written, expires_ms=expires), written, expires

    def _undo(self, pointer: Pointer, error: BaseException) -> None:
        """Delete what a failed write may have left behind."""
        if self._wrote_nothing(error):
            return
        try:
            self._delete(pointer)
        except Exception as second:
            why = type(second).__name__
            _log.warning("store %r: could not delete the failed write of %r: %s", self.name, pointer.key, why)
            error.add_note(f"and what may have been written could not be deleted ({why}): it stays until it expires")

    def _check_entry(self, entry: StoreEntry) -> None:
        """Refuse to delete what `scan` does not list."""
        name = entry.key.rstrip("/") if entry.kind == "leftover" else entry.key
        ours = entry.kind == "leftover" or self._lifetime_of(entry.key) is not None
        if not (ours and is_key(name) and name.startswith(self.prefix)):
            self.reject(Pointer(key=entry.key), "scope", "is not the key of an entry of this store")


class StoreWrite:
    """Writes one payload; see `Store.write`."""

    def __init__(
        self,
        store: Store,
        payload: Payload,
        *,
        destination: str,
        limit: int | None = None,
        min_ttl_seconds: float | None = None,
        bound: str | None = None,
    ) -> None:
        self._store = store
        self._payload = store._limited(payload, limit)
        content, self._bound, self._encoding = store.context.content, "", None
        if content.encodes or store.context.binds:
            self._bound = canonical(destination if bound is None else bound)
        if content.encodes and (encoding := content.encoding(self._payload, destination)) is not None:
            self._encoding = replace(encoding, destination=self._bound)
        self._unique = store.context.new_uuid()
        self._encrypted_as: Stream | None = None
        self._draft = self._drafted(destination, min_ttl_seconds)
        self._content = self._payload
        self._check_draft()

    @property
    def request(self) -> tuple[Pointer, memoryview] | None:
        """What `StoreContract._pipelined` may send of a payload that is in memory and stored as it is."""
        view = self._payload.view
        return None if view is None or self._encoding is not None else (self._draft, view)

    def run(self) -> Pointer:
        store = self._store
        try:
            with store.operation("write", self._draft, self._payload.size):
                return self._write_or_undo()
        finally:
            self._payload.close()

    def _drafted(self, destination: str, min_ttl_seconds: float | None) -> Pointer:
        store, encoding = self._store, self._encoding
        key, written, expires = store._new_entry(destination, self._unique, min_ttl_seconds)
        encrypts = encoding is not None and encoding.keys is not None
        bound = self._bound and store.pointer_version != 1 and (encrypts or store.context.binds)
        return created(
            key=key,
            store=store.context.name,
            version=store.pointer_version,
            created_ms=written,
            expires_ms=expires,
            destination=self._bound if bound else None,
            codec=encoding.compression.codec if encoding and encoding.compression else None,
            encryption=ALGORITHM if encrypts else None,
        )

    def _check_draft(self) -> None:
        """Refuse to write what this store would not read."""
        store, draft = self._store, self._draft
        try:
            store.check(draft if self._encoding is None else replace(draft, codec=None, encryption=None))
        except PointerRejectedError as error:
            text = f"store {store.name!r} would reject its own pointer, so nothing was written: {error}"
            raise StoreError(text, store=store.name, key=draft.key) from error

    def _write_or_undo(self) -> Pointer:
        store, draft, is_reached = self._store, self._draft, False
        try:
            with Translated(store, draft, "write"):
                store._reach()
                is_reached = True
                content = self._content = self._payload if self._encoding is None else self._encoded(self._encoding)
                key = store._write(draft, content)
                if content.taken != content.size:
                    text = f"{type(store).__name__}._write is broken: it read {content.taken} of {content.size} bytes"
                    raise StoreError(f"store {store.name!r}: {text} of the payload")
            return self._pointer(key if isinstance(key, str) else draft.key)
        except BaseException as error:
            if is_reached:
                store._undo(_stored(store, draft, self._content.taken), error)
            raise

    def _encoded(self, encoding: Encoding) -> Source:
        draft = self._draft
        if encoding.keys is not None and not self._is_bound:
            self._payload.skip_checksum()
        content = encoding.encode(self._payload, unique=self._unique, store=draft.store or "", stored_as=draft.key)
        content.skip_checksum()
        self._encrypted_as = content.stream
        return content

    def _pointer(self, key: str) -> Pointer:
        payload, stored = self._payload, self._content.taken
        if self._encoding is None:
            return _stored(self._store, self._draft, stored, key=key, checksum=payload.checksum)
        pointer = _stored(self._store, self._draft, stored, key=key, checksum=self._checksum())
        return replace(pointer, size=payload.taken, stored_bytes=stored)

    def _checksum(self) -> str:
        """Return the checksum of an encoded payload; that of an encrypted one says nothing about it without its key."""
        stream = self._encrypted_as
        if stream is None:
            return self._payload.checksum
        if self._is_bound:
            return keyed_checksum(self._payload.checksum, stream.key, stream.header)
        return f"{AEAD}{self._unique.hex}"

    @property
    def _is_bound(self) -> bool:
        """Whether the pointer of an encrypted payload has a checksum of it, for a signature that covers the content."""
        return self._store.context.binds and self._store.context.checksum == "sha256"


def _stored(
    store: StoreContract, draft: Pointer, size: int, *, key: str | None = None, checksum: str | None = None
) -> Pointer:
    piece = store.segment_bytes if store.segment_bytes and size > store.segment_bytes else None
    segments = -(-size // piece) if piece else 1
    return changed(draft, key=key or draft.key, size=size, segments=segments, segment_bytes=piece, checksum=checksum)
