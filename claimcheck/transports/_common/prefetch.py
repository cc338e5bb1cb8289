"""Reads the payloads of the next messages while the current one is processed, bounded in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from claimcheck._threads import IoThreads
from claimcheck._validation import check_int

DEFAULT_BYTES = 64 << 20
"""Bytes of payloads that are read ahead at most, unless the application sets a limit."""

DEFAULT_THREADS = 16
"""Payloads that are read concurrently."""

_MOST_AHEAD = 64  # messages, unless the application sets a limit


class Fetchable(Protocol):
    """A message that waits to be delivered; compared by identity."""

    @property
    def held_bytes(self) -> int:
        """Bytes of its payload, in memory now or once it is read."""

    @property
    def stored_bytes(self) -> int:
        """Bytes that are still to be read from a store; 0 for none."""

    def fetch(self, threads: IoThreads) -> None:
        """Start reading the payload."""

    def watch(self, on_get: Callable[[bool], None]) -> None:
        """Call a function once the application requests the payload, with whether it had to wait for the store."""


class Prefetch:
    """Reads the payloads of waiting messages ahead, and bounds the memory that they use."""

    def __init__(self, max_bytes: int | None, *, threads: int) -> None:
        check_int("prefetch_bytes", max_bytes or 0, minimum=0)
        check_int("prefetch_threads", threads, minimum=1)
        self.always = bool(max_bytes)
        self._adapts = max_bytes is None
        self._max_bytes = DEFAULT_BYTES if max_bytes is None else max_bytes
        self._ahead = 0  # messages; grows if it adapts
        self._delivered = self._requested = 0  # stored payloads, by the last receive call
        self._delivered_bytes = 0  # still counted
        self._follows_pointer = False
        self._threads = threads
        self._held = 0
        self._counted: dict[Fetchable, int] = {}  # as counted: some sizes are known only after the read
        self._later: deque[Fetchable] = deque()  # not started: the limit is reached
        self._pool: IoThreads | None = None

    @property
    def room(self) -> bool:
        """Whether another message may be received ahead."""
        if self._adapts and not (self._follows_pointer and len(self._counted) < self._ahead):
            return False
        return self._held < self._max_bytes and not self._later

    def add(self, message: Fetchable) -> None:
        """Start reading a payload, now or once there is room for it."""
        if self.always or self._ahead:
            self._later.append(message)
            if self.always or self._delivered or self._counted or len(self._later) > 1:
                self._begin()

    def begin_receive(self) -> None:
        """The application calls again: it is done with what it received before."""
        if self._adapts and (self._delivered or self._delivered_bytes):
            if self._delivered and not self._requested:
                self._ahead = 0
            self._held -= self._delivered_bytes
            self._delivered = self._requested = self._delivered_bytes = 0
            self._begin()

    def deliver(self, message: Fetchable) -> None:
        """Note that the application receives a message."""
        if self._adapts:
            self._follows_pointer = message.stored_bytes > 0
            if self._follows_pointer:
                self._delivered += 1
                message.watch(self._note_request)
            if message in self._later:
                self._later.remove(message)
                self._count(message)
            if (counted := self._counted.pop(message, None)) is not None:
                self._delivered_bytes += counted
                return
        self.remove(message)

    def stop(self) -> None:
        """Do not adapt any more: messages cannot be received ahead."""
        self._adapts, self._ahead = False, 0
        self._max_bytes = 0

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
        self._held = self._delivered_bytes = 0
        self._counted.clear()
        self._later.clear()
        if pool is not None:
            pool.close()

    def _note_request(self, waited: bool) -> None:
        self._requested += 1
        if waited and self._adapts:
            self._ahead = min(_MOST_AHEAD, self._ahead * 2 or 1)

    def _begin(self) -> None:
        while self._later and self._held + self._later[0].held_bytes <= self._max_bytes:
            message = self._later.popleft()
            self._count(message)
            if message.stored_bytes:
                message.fetch(self._io_threads())

    def _count(self, message: Fetchable) -> None:
        self._counted[message] = message.held_bytes
        self._held += message.held_bytes

    def _io_threads(self) -> IoThreads:
        if self._pool is None:
            self._pool = IoThreads(self._threads, name="claimcheck-prefetch")
        return self._pool
