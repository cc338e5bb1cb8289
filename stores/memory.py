"""A store in this process's memory, for tests and examples."""

from __future__ import annotations

import bisect
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
_WRITTEN: dict[str, dict[str, int]] = {}  # when, in milliseconds since 1970
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
            self._written_ms = _WRITTEN.setdefault(space, {})
        self.ttl_seconds = ttl_seconds

    def _write(self, pointer: Pointer, source: Source) -> None:
        self._store(pointer, source, is_exclusive=self._is_exclusive(pointer))

    def _rewrite(self, pointer: Pointer, source: Source) -> None:
        self._store(pointer, source, is_exclusive=False)

    def _store(self, pointer: Pointer, source: Source, *, is_exclusive: bool) -> None:
        payload = b"".join(source)
        with _LOCK:
            if is_exclusive and pointer.key in self._payloads:
                raise KeyTakenError(f"{pointer.key!r} is taken: another attempt has written it", key=pointer.key)
            self._payloads[pointer.key] = payload
            self._written_ms[pointer.key] = pointer.created_ms or 0

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        payload = self._payloads.get(pointer.key)
        if payload is None:
            raise self.missing(pointer)
        self.check_size(pointer, len(payload))
        return PieceReader([payload], start=start)

    def _delete(self, pointer: Pointer) -> None:
        with _LOCK:
            self._payloads.pop(pointer.key, None)
            self._written_ms.pop(pointer.key, None)

    def _scan(self, after: str | None) -> Iterator[StoreEntry]:
        with _LOCK:
            keys = sorted(self._payloads)
        for key in keys[0 if after is None else bisect.bisect_right(keys, after) :]:
            entry = self._entry(key)
            if entry is not None:
                yield entry

    def _stat(self, entry: StoreEntry) -> StoreEntry | None:
        return self._entry(entry.key)

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterator[Deletion]:
        for entry in entries:
            with _LOCK:  # so that nothing is written again between the comparison and the deletion
                now = self._entry(entry.key)
                if now == entry:
                    del self._payloads[entry.key]
                    self._written_ms.pop(entry.key, None)
            yield Deletion(entry, "deleted" if now == entry else "gone" if now is None else "changed")

    def _entry(self, key: str) -> StoreEntry | None:
        payload, known = self._payloads.get(key), self._lifetime_of(key)
        if payload is None or known is None:
            return None
        return StoreEntry.of(key, known, size=len(payload), stored_ms=self._written_ms.get(key), position=key)
