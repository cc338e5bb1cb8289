"""Segments into a Redis, on one connection, two at a time: while the server stores one, the next is on its way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from claimcheck.pointer import Pointer
from claimcheck.registry import import_vendor

from .redis_server import Borrowed, RedisServer, segment_key

__all__ = ["SegmentWriter"]

_IN_FLIGHT = 2
_REDIRECTS = ("MovedError", "AskError", "TryAgainError")


class SegmentWriter:
    """Sends segments; each counts only when the server said that it has it.

    When the connection is lost, what has no answer is sent again, once for each segment.

    Args:
        server: Where to.
        pointer: Gives the keys and the deadline.
    """

    def __init__(self, server: RedisServer, pointer: Pointer) -> None:
        self._server = server
        self._pointer = pointer
        self._borrowed: Borrowed | None = None
        self._unanswered: deque[tuple[int, memoryview]] = deque()
        self._lost_at = -1

    def put(self, i: int, segment: memoryview, steps: Iterator[memoryview]) -> None:
        """Send one segment; the answer to an earlier one may be waited for.

        Args:
            i: Its number.
            segment: Its bytes.
            steps: The same bytes, in steps that are to be sent when they are taken; all of them are taken in any case.
        """
        self._unanswered.append((i, segment))
        try:
            self._attempt(lambda: self._send(i, segment, steps))
        finally:
            for _ in steps:
                pass
        while len(self._unanswered) >= _IN_FLIGHT:
            self._attempt(self._receive)

    def finish(self) -> None:
        """Wait for all answers."""
        while self._unanswered:
            self._attempt(self._receive)
        if self._borrowed is not None:
            self._borrowed.give_back()
            self._borrowed = None

    def abandon(self) -> None:
        """After an error: close the connection, whose answers nobody waits for."""
        if self._borrowed is not None:
            self._borrowed.discard()
            self._borrowed = None

    def _attempt(self, step: Callable[[], None]) -> None:
        exceptions = import_vendor("redis.exceptions", extra="redis")
        try:
            step()
        except (exceptions.ConnectionError, ConnectionError) as error:
            self._once_more(error)
        except tuple(getattr(exceptions, name) for name in _REDIRECTS):
            self._elsewhere()

    def _send(self, i: int, segment: memoryview, steps: Iterator[memoryview] | None = None) -> None:
        if self._borrowed is None:
            self._borrowed = self._server.borrow(self._pointer.key)
        self._borrowed.send(*self._command(i, segment), big=segment, steps=steps)

    def _receive(self) -> None:
        if self._borrowed is not None:
            self._borrowed.receive()
            self._unanswered.popleft()

    def _once_more(self, error: Exception) -> None:
        self.abandon()
        if self._server.is_cluster:  # perhaps the node is gone, and another one has its slots now
            self._elsewhere()
            return
        oldest = self._unanswered[0][0]
        if oldest == self._lost_at:
            raise error
        self._lost_at = oldest
        for i, segment in self._unanswered:
            self._send(i, segment)

    def _elsewhere(self) -> None:
        """The slot is moving to another node: redis-py knows the way, and learns it for the segments to come."""
        self.abandon()
        while self._unanswered:
            self._server.client.execute_command(*self._command(*self._unanswered[0]))
            self._unanswered.popleft()

    def _command(self, i: int, segment: memoryview) -> tuple[Any, ...]:
        deadline = () if self._pointer.expires_ms is None else ("PXAT", self._pointer.expires_ms)
        return "SET", segment_key(self._pointer, i), segment, *deadline
