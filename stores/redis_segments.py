"""Segments to and from a Redis at the speed of its socket, on one connection, a few at a time.

Two segments are in flight: while the server works on one, the next is on its way, and neither side piles up memory.
A lost connection is made again, once for each segment, and what had no answer is asked again.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from claimcheck.pointer import Pointer
from claimcheck.registry import import_vendor

from .redis_server import Borrowed, RedisServer

__all__ = ["SegmentReader", "SegmentWriter", "segment_key"]

_IN_FLIGHT = 2
_REDIRECTS = ("MovedError", "AskError", "TryAgainError")


def segment_key(pointer: Pointer, i: int) -> str:
    """The key of one segment, in every version of the pointer."""
    return f"{pointer.key}-{i}"


class SegmentWriter:
    """Sends segments; each counts only when the server said that it has it.

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

    def put(self, i: int, segment: memoryview) -> None:
        """Send one segment; the answer to an earlier one may be waited for."""
        self._unanswered.append((i, segment))
        self._attempt(lambda: self._send(i, segment))
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

    def _send(self, i: int, segment: memoryview) -> None:
        if self._borrowed is None:
            self._borrowed = self._server.borrow(self._pointer.key)
        self._borrowed.send(*self._command(i, segment))

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


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one segment.

    Attributes:
        i: Which segment.
        start: Bytes into it.
        stop: Bytes into it, behind the part.
        whole: Whether that is all of it.
    """

    i: int
    start: int
    stop: int
    whole: bool


class SegmentReader:
    """A `Reader` that takes segments from the socket straight to where they are wanted.

    redis-py's own parsers copy a large reply two to four times. Here only its beginning and end are parsed: what is
    asked for has a known length, so the reply has a known beginning. Any other reply, and any connection without a
    socket of the usual kind, is left to redis-py, which is slower and knows everything.

    Args:
        server: Where from.
        pointer: Of a payload with a known size.
        start: Bytes into the payload.
        stop: The same, behind the last byte wanted.
        missing: Makes the error for what is gone.
        wrong: Makes the error for a segment that has another size, given what was expected and what is there.
    """

    def __init__(
        self,
        server: RedisServer,
        pointer: Pointer,
        start: int,
        stop: int,
        *,
        missing: Callable[[str], Exception],
        wrong: Callable[[int, int], Exception],
    ) -> None:
        self._server = server
        self._pointer = pointer
        self._size = pointer.size or 0
        self._segment_bytes = pointer.segment_bytes or max(1, self._size)
        self._missing = missing
        self._wrong = wrong
        self._position = self._asked = start
        self._stop = stop
        self._lost_at = -1
        self._borrowed: Borrowed | None = None
        self._spans: deque[Span] = deque()  # asked for, and not read to the end
        self._left = 0  # bytes of the first of them that are still to come
        self._before = b""  # what comes before the next reply's beginning
        self._kept = memoryview(b"")  # read by redis-py, not handed out yet

    def begin(self) -> None:
        """Ask for the first segments; of a payload that is read whole the last one is known to be there after this."""
        if self._position < self._stop:
            self._attempt(self._begin)

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the beginning of the buffer, at most to the end of the current segment."""
        if self._position >= self._stop:
            return 0
        if not len(self._kept):
            count = self._attempt(lambda: self._receive(buffer))
        if len(self._kept):
            count = min(len(buffer), len(self._kept))
            buffer[:count] = self._kept[:count]
            self._kept = self._kept[count:]
        self._position += count
        if self._position == self._stop:
            self.close()
        return count

    def close(self) -> None:
        """Give the connection back, or close it where a reply is still to come."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None and (self._spans or self._before):
            borrowed.discard()
        elif borrowed is not None:
            borrowed.give_back()
        self._spans.clear()
        self._left, self._before, self._asked = 0, b"", self._position

    # Within ----------------------------------------------------------------------------------------------------

    def _attempt(self, step: Callable[[], int]) -> int:
        try:
            return step()
        except TimeoutError:  # an OSError, too, but waiting again would double the time that was allowed
            raise
        except (import_vendor("redis.exceptions", extra="redis").ConnectionError, OSError) as error:
            if not self._may_try_again():
                raise
            lost = error
        except _OtherReplyError as error:
            lost = error
        self.close()
        if self._server.is_cluster or isinstance(lost, _OtherReplyError):
            self._ask_vendor()
            return 0
        return self._attempt(step)

    def _may_try_again(self) -> bool:
        current = self._position // self._segment_bytes
        once, self._lost_at = self._lost_at != current, current
        return once

    def _begin(self) -> int:
        """Have a reply at hand whose beginning was read."""
        while self._borrowed is None:
            self._connect()
        if not self._left:
            while len(self._spans) < _IN_FLIGHT and self._asked < self._stop:
                self._ask(self._span(self._asked))
            length = self._spans[0].stop - self._spans[0].start
            self._expect(b"%b$%d\r\n" % (self._before, length))
            self._left, self._before = length, b"\r\n"
        return 0

    def _connect(self) -> None:
        self._borrowed = self._server.borrow(self._pointer.key)
        if self._borrowed.socket is None:
            raise _OtherReplyError
        if self._reads_all():
            self._borrowed.send("STRLEN", segment_key(self._pointer, self._pointer.segments - 1))
            self._before = b":%d\r\n" % self._last_bytes()

    def _receive(self, buffer: memoryview) -> int:
        self._begin()
        count = self._socket().recv_into(buffer[: self._left])
        if not count:
            raise ConnectionError("the server hung up in the middle of a segment")
        self._left -= count
        if not self._left:
            self._spans.popleft()
            if not self._spans and self._asked >= self._stop:
                self._expect(self._before)
                self._before = b""
        return count

    def _expect(self, line: bytes) -> None:
        """Read exactly this, or find out as early as possible that something else came."""
        found, have = bytearray(len(line)), 0
        while have < len(line):
            count = self._socket().recv_into(memoryview(found)[have:])
            if not count:
                raise ConnectionError("the server hung up")
            have += count
            if found[:have] != line[:have]:
                raise _OtherReplyError

    def _ask(self, span: Span) -> None:
        assert self._borrowed is not None
        self._borrowed.send(*self._command(span))
        self._spans.append(span)
        self._asked += span.stop - span.start

    def _ask_vendor(self) -> None:
        """Have redis-py read the current segment: it follows redirects and raises what the server says."""
        if self._reads_all():
            self._check_last()
        span = self._span(self._position)
        reply = self._server.client.execute_command(*self._command(span))
        if not reply:
            raise self._missing(f"segment {span.i} of {self._pointer.segments}")
        if len(reply) != span.stop - span.start:
            raise self._wrong(span.stop - span.start, len(reply))
        self._kept = memoryview(reply)
        self._asked = self._position + len(reply)

    def _check_last(self) -> None:
        last = self._pointer.segments - 1
        size = self._server.client.execute_command("STRLEN", segment_key(self._pointer, last))
        if not size:
            raise self._missing(f"segment {last} of {last + 1}")
        if size != self._last_bytes():
            raise self._wrong(self._last_bytes(), size)

    def _reads_all(self) -> bool:
        """Whether the whole of several segments is about to be read: then the last one is looked at first."""
        return self._position == 0 and self._stop == self._size and self._pointer.segments > 1

    def _last_bytes(self) -> int:
        return self._size - (self._pointer.segments - 1) * self._segment_bytes

    def _span(self, position: int) -> Span:
        i, start = divmod(position, self._segment_bytes)
        end = min(self._segment_bytes, self._size - i * self._segment_bytes)
        stop = min(end, self._stop - i * self._segment_bytes)
        return Span(i, start, stop, whole=start == 0 and stop == end)

    def _command(self, span: Span) -> tuple[Any, ...]:
        key = segment_key(self._pointer, span.i)
        return ("GET", key) if span.whole else ("GETRANGE", key, span.start, span.stop - 1)

    def _socket(self) -> socket.socket:
        found = self._borrowed.socket if self._borrowed is not None else None
        if found is None:
            raise _OtherReplyError
        return found


class _OtherReplyError(Exception):
    """Not the reply that was expected; what it was does not matter, redis-py is asked again."""
