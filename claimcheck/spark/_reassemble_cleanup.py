"""Deletes the stored chunks that a streaming `reassemble` no longer needs.

The stateful operator releases the chunks of a payload in a micro-batch after the one in which the payload left the
query. Spark has committed that one by then, so it is never replayed. A replay of the later one deletes the same chunks
once more, which has no effect. A chunk that cannot be deleted stays until it expires.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from claimcheck._client import ClaimCheck
from claimcheck._listing import StoreEntry
from claimcheck._pointer import Pointer
from claimcheck._store import Store
from claimcheck.errors import ClaimCheckError

_log = logging.getLogger(__name__)
_BATCH = 1000  # as in S3's DeleteObjects
_logged: set[str] = set()


class ChunkCleanup:
    """Deletes the chunks of one task, in batches; never raises an error of the store."""

    def __init__(self, cc: ClaimCheck) -> None:
        self._cc = cc
        self._waiting: list[bytes] = []

    def add(self, references: Iterable[bytes]) -> None:
        """Delete the chunks with these references, now or in a later call."""
        self._waiting += references
        while len(self._waiting) >= _BATCH:
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            self._delete(batch)

    def finish(self) -> None:
        """Delete the last batch."""
        if self._waiting:
            self._delete(self._waiting)
        self._waiting = []

    def _delete(self, references: list[bytes]) -> None:
        by_store: dict[str, dict[str, Pointer]] = {}
        for reference in references:
            try:
                pointer = self._cc._messages.pointer_from_anywhere(reference)
            except ClaimCheckError as error:  # for example, its signing key was removed from the configuration
                _log_once("", error)
                continue
            if pointer is not None:
                name = pointer.store or self._cc.config.store or ""
                by_store.setdefault(name, {})[pointer.key] = pointer
        for name, pointers in by_store.items():
            try:
                _delete_from(self._cc.store(name), [pointers[key] for key in sorted(pointers)])
            except ClaimCheckError as error:
                _log_once(name, error)


def _delete_from(store: Store, pointers: list[Pointer]) -> None:
    """Delete chunks with as few requests as the store allows; raises the first error."""
    if type(store)._scan is Store._scan or pointers[0].version == 1:  # it cannot delete by key alone
        for pointer in pointers:
            store.rollback(pointer)
        return
    for deletion in store.delete(map(_entry, pointers)):
        if deletion.error is not None:
            raise deletion.error


def _entry(pointer: Pointer) -> StoreEntry:
    """Return the entry to delete: whatever attempt of this query wrote it last."""
    size = pointer.size_in_store if pointer.segments == 1 else None
    return StoreEntry(key=pointer.key, size=size, is_immutable=True)


def _log_once(store: str, error: Exception) -> None:
    """Log the first error of a store in this process; micro-batches would repeat it."""
    if store not in _logged:
        _logged.add(store)
        _log.warning("reassemble cannot delete chunks, which stay until they expire: %s", error)
