"""Reads replies of Redis with few copies.

redis-py's parsers copy a large reply two to four times. `Replies` knows how long each reply has to be: it receives
values directly into the caller's memory. Anything else is an `OtherReplyError`, and redis-py has to repeat the command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from claimcheck.errors import import_vendor
from claimcheck.stores.redis._server import SMALL_BYTES, Borrowed, RedisServer

_LINE_BYTES = 64  # the longest line that is expected; as much of a large value is copied
_EXPECTED = b"$+:\r"  # what such a line begins with

OVERHEAD_BYTES = 16
"""The most bytes of a reply beside its value."""

_CLOSED = "the server closed the connection in the middle of a reply"


def is_lost(error: BaseException) -> bool:
    """Whether a connection was lost: what had no reply may be sent again. After a time-out that would take as long."""
    kinds = (OSError, import_vendor("redis.exceptions", extra="redis").ConnectionError)
    return isinstance(error, kinds) and not isinstance(error, TimeoutError)


class OtherReplyError(Exception):
    """An unexpected reply, or a connection without a usable socket; redis-py has to repeat the command."""


class Replies:
    """Replies to commands that were sent on one connection, in order.

    Attributes:
        left: Bytes of the current value still to come; 0 between two replies.
    """

    def __init__(self, borrowed: Borrowed, *, at_once: int = _LINE_BYTES) -> None:
        sock = borrowed.socket
        if sock is None:
            raise OtherReplyError
        self._socket = sock
        self._at_once = at_once  # except into the memory of a caller
        self._received, self._next = b"", 0  # what was received, and how much of it was returned
        self._owes_end = False  # the line end of a value, which arrives with the next reply
        self.left = 0

    @property
    def is_idle(self) -> bool:
        """Whether the last reply was read to its end, and nothing came after it."""
        return self._next == len(self._received) and not self.left and not self._owes_end

    def send(self, commands: bytes) -> None:
        """Send commands."""
        self._socket.sendall(commands)

    def expect(self, line: bytes) -> None:
        """Read the next line, which has to be this one."""
        if self.is_idle:
            self._received, self._next = self._socket.recv(self._at_once), 0
            if self._received == line + b"\r\n":
                self._next = len(self._received)
                return
        if self._line() != line:
            raise OtherReplyError

    def begin(self, size: int) -> bool:
        """Read the beginning of a value of ``size`` bytes; returns false for an empty one, and reads it to its end."""
        self.end()
        line = self._line()
        self._owes_end = True
        if line == b"$0":
            self.end()
            return False
        if line != b"$%d" % size:
            raise OtherReplyError
        self.left = size
        return True

    def fill(self, view: memoryview) -> int:
        """Read into a buffer until it is full or the value ends; returns the number of bytes."""
        wanted = min(len(view), self.left)
        done = min(wanted, len(self._received) - self._next)
        view[:done] = self._received[self._next : self._next + done]
        self._next += done
        while done < wanted:
            count = self._socket.recv_into(view[done:wanted])
            if not count:
                raise ConnectionError(_CLOSED)
            done += count
        self.left -= done
        return done

    def value(self, size: int) -> bytes | None:
        """Return a small value; ``None`` if it does not exist."""
        head = b"$%d\r\n" % size
        if self.is_idle:
            self._received, self._next = self._socket.recv(self._at_once), 0
        start = self._next + len(head)
        if self._received.startswith(head, self._next) and self._received.startswith(b"\r\n", start + size):
            self._next = start + size + 2
            return self._received[start : start + size]
        if not self.begin(size):
            return None
        while len(self._received) - self._next < size:
            self._receive()
        whole = self._received[self._next : self._next + size]
        self._next, self.left = self._next + size, 0
        self.end()
        return whole

    def end(self) -> None:
        """Read the end of the last value, after which the connection has nothing to read."""
        if self._owes_end:
            self.expect(b"")
            self._owes_end = False

    def _line(self) -> bytes:
        """Return the next line; raises an error as soon as it turns out not to be an expected one."""
        while True:
            start = self._next
            end = self._received.find(b"\r\n", start, start + _LINE_BYTES)
            if end >= 0:
                self._next = end + 2
                return self._received[start:end]
            more = len(self._received) - start
            if more >= _LINE_BYTES or (more and self._received[start] not in _EXPECTED):
                raise OtherReplyError
            self._receive()

    def _receive(self) -> None:
        more = self._socket.recv(self._at_once)
        if not more:
            raise ConnectionError(_CLOSED)
        self._received, self._next = self._received[self._next :] + more, 0


class SmallCommands:
    """Commands for small values, sent together on one connection, and their replies; see `claimcheck._threads.Replies`.

    Args:
        sizes: Of the values to read; empty to write.
        missing: Returns the error for a value that does not exist.

    Raises:
        Exception: If there is no connection.
    """

    def __init__(
        self,
        server: RedisServer,
        commands: Sequence[bytes],
        sizes: Sequence[int] = (),
        *,
        missing: Callable[[int], Exception] = KeyError,
    ) -> None:
        self._count, self._sizes, self._missing = len(commands), sizes, missing
        self._next = 0
        self._timeout: TimeoutError | None = None
        self._borrowed: Borrowed | None = server.borrow_kept()
        try:
            at_once = min(sum(sizes) + OVERHEAD_BYTES * len(sizes), 2 * SMALL_BYTES) or 1024
            self._replies = Replies(self._borrowed, at_once=at_once)
            self._replies.send(b"".join(commands))
        except BaseException as error:
            if not self._lose(error) and self._timeout is None:
                raise

    @property
    def is_broken(self) -> bool:
        """Whether the connection was lost, was too slow, or had an unexpected reply."""
        return self._borrowed is None

    def receive(self, number: int) -> bytes | None:
        """Return a value, or ``b"OK"``; ``None`` if the command has to be sent again. The last one ends the use."""
        if self._timeout is not None:
            raise TimeoutError(*self._timeout.args)
        if self._borrowed is None:
            return None
        try:
            value = self._reply()
            while self._next <= number:  # the calls before this one did not need theirs
                value = self._reply()
        except BaseException as error:
            if not isinstance(error, Exception) and not self._sizes:
                with suppress(Exception):  # so that the write does not arrive after its deletion
                    self._reply()
            if not self._lose(error):
                raise
            return None
        if self._next == self._count:
            self.close()
        if value is None:
            raise self._missing(number)
        return value

    def close(self) -> None:
        """Give the connection back, or discard it if a reply is still to come."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            is_idle = self._next == self._count and self._replies.is_idle
            (borrowed.give_back if is_idle else borrowed.discard)()

    def _lose(self, error: BaseException) -> bool:
        """Discard the connection; returns whether the commands may be sent again."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.discard()
        self._timeout = error if isinstance(error, TimeoutError) else None
        return is_lost(error) or isinstance(error, OtherReplyError)

    def _reply(self) -> bytes | None:
        """Return the next reply; ``None`` for a value that does not exist."""
        number, self._next = self._next, self._next + 1
        if self._sizes:
            return self._replies.value(self._sizes[number])
        self._replies.expect(b"+OK")
        return b"OK"
