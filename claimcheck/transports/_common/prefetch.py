"""Look-ahead: the payloads of the next messages are read while the current one is handled, bounded in bytes."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol

__all__ = ["Fetchable", "Prefetch"]


class Fetchable(Protocol):
    """A message that waits to be handed out; compared by identity."""

    @property
    def held_bytes(self) -> int:
        """Bytes of its payload, in memory now or once it is read."""

    @property
    def stored_bytes(self) -> int:
        """How many of them are still to be read from a store; 0 for none."""

    def fetch(self, executor: Executor) -> None:
        """Start reading the payload."""


class Prefetch:
    """Reads the payloads of waiting messages ahead, and bounds the memory that they hold.

    Args:
        max_bytes: Limit of their payloads together; a single payload above it is read on access. 0 for no look-ahead.
        threads: Payloads that are read at once.
    """

    def __init__(self, max_bytes: int, *, threads: int) -> None:
        self._max_bytes = max_bytes
        self._threads = threads
        self._held = 0
        self._counted: dict[Fetchable, int] = {}  # as counted: some learn their size when they are read
        self._later: deque[Fetchable] = deque()  # not started for lack of room
        self._pool: ThreadPoolExecutor | None = None

    @property
    def room(self) -> bool:
        """Whether another message may be received ahead."""
        return self._held < self._max_bytes and not self._later

    def add(self, message: Fetchable) -> None:
        """Start reading a payload, now or as soon as there is room for it."""
        self._later.append(message)
        self._begin()

    def remove(self, message: Fetchable) -> None:
        """Stop counting a message that was handed out or dropped."""
        if (counted := self._counted.pop(message, None)) is not None:
            self._held -= counted
        elif message in self._later:
            self._later.remove(message)
        self._begin()

    def forget(self) -> None:
        """Stop counting all messages, and cancel the reads that have not begun."""
        pool, self._pool = self._pool, None
        self._held = 0
        self._counted.clear()
        self._later.clear()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._later and self._held + self._later[0].held_bytes <= self._max_bytes:
            message = self._later.popleft()
            self._counted[message] = message.held_bytes
            self._held += message.held_bytes
            if message.stored_bytes:
                message.fetch(self._threads_at_hand())

    def _threads_at_hand(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="claimcheck-prefetch")
        return self._pool
