"""A store in this process's memory, for tests and examples."""

from __future__ import annotations

import threading

from claimcheck._payload import Source
from claimcheck._payload_reader import PieceReader, Reader
from claimcheck._pointer import Pointer
from claimcheck._store import Store
from claimcheck._validation import Seconds

__all__ = ["MemoryStore"]

_SPACES: dict[str, dict[str, bytes]] = {}
_LOCK = threading.Lock()


class MemoryStore(Store):
    """Stores payloads in a dictionary. All stores of a process with the same ``space`` share their payloads.

    Args:
        space: The dictionary's name.
        ttl_seconds: Written into pointers; payloads are never deleted by age.
    """

    def __init__(self, *, space: str = "default", ttl_seconds: Seconds | None = None) -> None:
        with _LOCK:
            self._payloads = _SPACES.setdefault(space, {})
        self.ttl_seconds = ttl_seconds

    def _write(self, pointer: Pointer, source: Source) -> None:
        self._payloads[pointer.key] = b"".join(source)

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        payload = self._payloads.get(pointer.key)
        if payload is None:
            raise self.missing(pointer)
        self.check_size(pointer, len(payload))
        return PieceReader([payload], start=start)

    def _delete(self, pointer: Pointer) -> None:
        self._payloads.pop(pointer.key, None)
