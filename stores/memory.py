"""A store in this process's memory, for tests and examples."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from claimcheck._content.source import Source
from claimcheck._store.listing import Deletion, StoreEntry
from claimcheck._store.store import Store
from claimcheck._validation import Seconds
from claimcheck._wire.buffers import PieceReader, Reader
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import KeyTakenError

__all__ = ["MemoryStore"]

_SPACES: dict[str, dict[str, bytes]] = {}
_LOCK = threading.Lock()


class MemoryStore(Store):
    """Stores payloads in a dictionary. All stores of a process with the same ``space`` share their payloads.

    Args:
        space: The dictionary's name.
        ttl_seconds: Written into pointers and keys; `claimcheck.ClaimCheck.sweep` deletes payloads by it.
    """

    def __init__(self, *, space: str = "default", ttl_seconds: Seconds | None = None) -> None:
        with _LOCK:
            self._payloads = _SPACES.setdefault(space, {})
        self.ttl_seconds = ttl_seconds

    def _write(self, pointer: Pointer, source: Source) -> None:
        payload = b"".join(source)
        with _LOCK:
            if self._is_exclusive(pointer) and pointer.key in self._payloads:
                raise KeyTakenError(f"{pointer.key!r} is taken", key=pointer.key)
            self._payloads[pointer.key] = payload

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        payload = self._payloads.get(pointer.key)
        if payload is None:
            raise self.missing(pointer)
        self.check_size(pointer, len(payload))
        return PieceReader([payload], start=start)

    def _delete(self, pointer: Pointer) -> None:
        self._payloads.pop(pointer.key, None)

    def _scan(self) -> Iterator[StoreEntry]:
        with _LOCK:
            keys = list(self._payloads)
        for key in keys:
            payload, known = self._payloads.get(key), self._lifetime_of(key)
            if payload is not None and known is not None:
                yield StoreEntry.of(key, known, size=len(payload))

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterator[Deletion]:
        for entry in entries:
            yield Deletion(entry, "gone" if self._payloads.pop(entry.key, None) is None else "deleted")
