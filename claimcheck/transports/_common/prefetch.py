"""Reads the payloads of the next messages while the current one is processed, bounded in bytes."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol

__all__ = ["Prefetch"]


class Fetchable(Protocol):
    """A message that waits to be delivered; compared by identity."""

    @property
    def held_bytes(self) -> int:
        """Bytes of its payload, in memory now or once it is read."""

    @property
    def stored_bytes(self) -> int:
        """Bytes that are still to be read from a store; 0 for none."""

    def fetch(self, executor: Executor) -> None:
        """Start reading the payload."""


class Prefetch:
    """Reads the payloads of waiting messages ahead, and bounds the memory that they use.

    Args:
        max_bytes: Limit for all payloads together; a larger payload is read on access. 0 disables read-ahead.
        threads: Payloads to read concurrently.
    """

    def __init__(self, max_bytes: int, *, threads: int) -> None:
        self._max_bytes = max_bytes
        self._threads = threads
        self._held = 0
        self._counted: dict[Fetchable, int] = {}  # as counted: some sizes are known only after the read
        self._later: deque[Fetchable] = deque()  # not started: the limit is reached
        self._pool: ThreadPoolExecutor | None = None

    @property
    def room(self) -> bool:
        """Whether another message may be received ahead."""
        return self._held < self._max_bytes and not self._later

    def add(self, message: Fetchable) -> None:
        """Start reading a payload, now or once there is room for it."""
        self._later.append(message)
        self._begin()

    def remove(self, message: Fetchable) -> None:
        """Stop counting a message that was delivered or dropped."""
        if (counted := self._counted.pop(message, None)) is not None:
            self._held -= counted
        elif message in self._later:
            self._later.remove(message)
        self._begin()

    def forget(self) -> None:
        """Stop counting all messages, and cancel reads that have not started."""
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
                message.fetch(self._executor())

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="claimcheck-prefetch")
        return self._pool
