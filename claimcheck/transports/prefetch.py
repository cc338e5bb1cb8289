"""Reads the payloads of the next messages while the current one is handled: in order, and bounded in bytes."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol

__all__ = ["Fetchable", "Prefetch"]


class Fetchable(Protocol):
    """A message that waits for its receiver."""

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, or will hold."""

    @property
    def stored_bytes(self) -> int:
        """Of that, what is still to be read; 0 for nothing."""

    def fetch(self, executor: Executor) -> None:
        """Begin to read it."""


class Prefetch:
    """Keeps account of the messages that wait for their receiver.

    Args:
        max_bytes: Of their payloads together; one that is larger alone is read when it is asked for. 0 for no looking
            ahead at all.
        threads: Payloads that are read at once.
    """

    def __init__(self, max_bytes: int, *, threads: int) -> None:
        self._max_bytes = max_bytes
        self._threads = threads
        self._held = 0
        self._later: deque[Fetchable] = deque()  # taken, and not begun for lack of room
        self._pool: ThreadPoolExecutor | None = None

    @property
    def room(self) -> bool:
        """Whether another message may be taken before it is asked for."""
        return self._held < self._max_bytes and not self._later

    def add(self, message: Fetchable) -> None:
        """Begin to read a payload, now or as soon as there is room for it."""
        self._later.append(message)
        self._begin()

    def remove(self, message: Fetchable) -> None:
        """Its receiver has it."""
        if self._later and self._later[0] is message:
            self._later.popleft()
        else:
            self._held -= message.held_bytes
        self._begin()

    def forget(self) -> None:
        """Nobody waits for any of them any more."""
        pool, self._pool = self._pool, None
        self._held = 0
        self._later.clear()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._later and self._held + self._later[0].held_bytes <= self._max_bytes:
            message = self._later.popleft()
            self._held += message.held_bytes
            if message.stored_bytes:
                message.fetch(self._threads_at_hand())

    def _threads_at_hand(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="claimcheck-prefetch")
        return self._pool
