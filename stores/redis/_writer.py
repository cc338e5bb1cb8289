"""Segments into a Redis, on one connection, two at a time: while the server stores one, the next is on its way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from claimcheck._pointer import Pointer
from claimcheck._registry import import_vendor
from claimcheck.stores.redis._server import Borrowed, RedisServer, segment_key

__all__ = ["SegmentWriter"]

_IN_FLIGHT = 2
_LOOK_FOR = 100  # keys at a time
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
        self._on_the_way = 0  # sent whole, on this connection, and not answered
        self._count = 0
        self._lost_at = -1

    def put(self, i: int, segment: memoryview) -> None:
        """Send one segment; the answer to an earlier one may be waited for.

        Args:
            i: Its number.
            segment: Its bytes.
        """
        self._unanswered.append((i, segment))
        self._count += 1
        self._attempt(lambda: self._send(i, segment))
        while len(self._unanswered) >= _IN_FLIGHT:
            self._attempt(self._receive)

    def finish(self) -> None:
        """Wait for all answers.

        Raises:
            ConnectionError: The server came back without segments that it had before: it keeps them in memory only.
        """
        while self._unanswered:
            self._attempt(self._receive)
        if self._borrowed is not None:
            self._borrowed.give_back()
            self._borrowed = None
        if self._lost_at >= 0:
            self._check_all_there()

    def abandon(self) -> None:
        """After an error: wait for what is on its way, so that nothing arrives when it was undone, and close."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is None:
            return
        with suppress(Exception):
            for _ in range(self._on_the_way):
                with suppress(import_vendor("redis.exceptions", extra="redis").ResponseError):
                    borrowed.receive()
        borrowed.discard()

    def _attempt(self, step: Callable[[], None]) -> None:
        exceptions = import_vendor("redis.exceptions", extra="redis")
        try:
            step()
        except (exceptions.ConnectionError, ConnectionError) as error:
            self._drop()
            self._once_more(error)
        except (exceptions.TimeoutError, TimeoutError):
            self._drop()
            raise
        except tuple(getattr(exceptions, name) for name in _REDIRECTS):
            self._drop()
            self._elsewhere()

    def _drop(self) -> None:
        """Close a connection from which nothing more is to be expected."""
        borrowed, self._borrowed = self._borrowed, None
        self._on_the_way = 0
        if borrowed is not None:
            borrowed.discard()

    def _send(self, i: int, segment: memoryview) -> None:
        if self._borrowed is None:
            self._borrowed = self._server.borrow(self._pointer.key)
        self._borrowed.send(*self._command(i, segment))
        self._on_the_way += 1

    def _receive(self) -> None:
        if self._borrowed is not None:
            self._on_the_way -= 1
            self._borrowed.receive()
            self._unanswered.popleft()

    def _once_more(self, error: Exception) -> None:
        oldest = self._unanswered[0][0]
        again, self._lost_at = oldest == self._lost_at, oldest
        if self._server.is_cluster:  # perhaps the node is gone, and another one has its slots now
            self._elsewhere()
            return
        if again:
            raise error
        for i, segment in self._unanswered:
            self._send(i, segment)

    def _elsewhere(self) -> None:
        """The slot is moving to another node: redis-py knows the way, and learns it for the segments to come."""
        while self._unanswered:
            self._server.client.execute_command(*self._command(*self._unanswered[0]))
            self._unanswered.popleft()

    def _check_all_there(self) -> None:
        """A server that was away may have come back empty, or as a replica that had not heard of everything."""
        keys = [segment_key(self._pointer, i) for i in range(self._count)]
        some = 1 if self._server.is_cluster else _LOOK_FOR  # of a slot that moves, some are here and some are there
        batches = (keys[first : first + some] for first in range(0, len(keys), some))
        if sum(self._server.client.exists(*batch) for batch in batches) < self._count:
            raise ConnectionError("the server lost segments that it had acknowledged")

    def _command(self, i: int, segment: memoryview) -> tuple[Any, ...]:
        deadline = () if self._pointer.expires_ms is None else ("PXAT", self._pointer.expires_ms)
        return "SET", segment_key(self._pointer, i), segment, *deadline
