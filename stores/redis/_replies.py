"""Replies of known lengths, read from a connection's socket straight to where they are wanted.

redis-py's own parsers copy a large reply two to four times. Here only its beginning and its end are parsed, and both
are known beforehand (Redis serialization protocol: ``$<length><data>``, each with a line end, in both versions).
"""

from __future__ import annotations

from collections import deque

from claimcheck.stores.redis._server import Borrowed

__all__ = ["OtherReplyError", "RawReplies"]


class OtherReplyError(Exception):
    """Not the reply that was expected, or no way to look at it; whoever wants to know more asks redis-py again."""


class RawReplies:
    """One conversation: questions with answers of known lengths, in order.

    Args:
        borrowed: A connection that has nothing to read; it is given back or discarded by `close`.

    Raises:
        OtherReplyError: It has no socket of the usual kind.
    """

    def __init__(self, borrowed: Borrowed) -> None:
        self._borrowed: Borrowed | None = borrowed
        self._lengths: deque[int] = deque()  # of the replies that were asked for, and not read to the end
        self._before = b""  # what comes before the next reply's length
        self._left = 0
        if borrowed.socket is None:
            self.close()
            raise OtherReplyError
        self._socket = borrowed.socket

    @property
    def asked(self) -> int:
        """Replies that were asked for and not read to the end."""
        return len(self._lengths)

    @property
    def left(self) -> int:
        """Bytes of the current reply that are still to come; 0 between two replies."""
        return self._left

    def ask(self, *command: bytes, length: int) -> None:
        """Send a command whose reply is a string of ``length`` bytes."""
        self._socket.sendall(_packed(command))
        self._lengths.append(length)

    def ask_number(self, *command: bytes, number: int) -> None:
        """Send a command whose reply is this very number; the first one only."""
        self._socket.sendall(_packed(command))
        self._before = b":%d\r\n" % number

    def begin(self) -> None:
        """Read the beginning of the next reply, unless that was done.

        Raises:
            OtherReplyError: It is another reply.
            OSError: The connection is lost, or too slow.
        """
        if not self._left:
            self._expect(b"%b$%d\r\n" % (self._before, self._lengths[0]))
            self._left, self._before = self._lengths[0], b"\r\n"

    def fill(self, view: memoryview) -> int:
        """Read on into a buffer, until it is full or the reply ends; gives the number of bytes. Raises as `begin`."""
        wanted, done = min(len(view), self._left), 0
        while done < wanted:
            count = self._socket.recv_into(view[done:wanted])
            if not count:
                raise ConnectionError("the server hung up in the middle of a reply")
            done += count
        self._left -= done
        if not self._left:
            self._lengths.popleft()
        return done

    def end(self) -> None:
        """Read what ends the last reply; the connection can be given back then. Raises as `begin`."""
        self._expect(self._before)
        self._before = b""

    def close(self) -> None:
        """Give the connection back, or close it where a reply is still to come."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is None:
            return
        if self._lengths or self._before:
            borrowed.discard()
        else:
            borrowed.give_back()

    def _expect(self, line: bytes) -> None:
        """Read exactly this, or find out as early as possible that something else came."""
        found, have = memoryview(bytearray(len(line))), 0
        while have < len(line):
            count = self._socket.recv_into(found[have:])
            if not count:
                raise ConnectionError("the server hung up")
            have += count
            if found[:have] != line[:have]:
                raise OtherReplyError


def _packed(command: tuple[bytes, ...]) -> bytes:
    parts = [b"*%d\r\n" % len(command)]
    parts += [b"$%d\r\n%b\r\n" % (len(part), part) for part in command]
    return b"".join(parts)
