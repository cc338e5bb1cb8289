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
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from claimcheck._content.source import Payload, is_file
from claimcheck._store.contract import Translated
from claimcheck._store.listing import Deletion, StoreEntry, destination_of
from claimcheck._store.read import ReadableStore
from claimcheck._store.write import StoreWrite, WritableStore
from claimcheck._threads import Pipelined, in_thread
from claimcheck._wire.buffers import as_view
from claimcheck._wire.pointer import Pointer, is_key
from claimcheck.errors import ClaimCheckError, PayloadError, PointerRejectedError

_DELETE_BATCH = 1000  # as in S3's DeleteObjects


class Store(ReadableStore, WritableStore):
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

    def _check_entry(self, entry: StoreEntry) -> None:
        """Refuse to delete what `scan` does not list."""
        name = entry.key.rstrip("/") if entry.kind == "leftover" else entry.key
        ours = entry.kind == "leftover" or self._lifetime_of(entry.key) is not None
        if not (ours and is_key(name) and name.startswith(self.prefix)):
            self.reject(Pointer(key=entry.key), "scope", "is not the key of an entry of this store")
