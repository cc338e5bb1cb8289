"""Reads segments from Redis on one connection, three at a time: the server prepares the next while one is received.

redis-py's parsers copy a large reply two to four times. `RawReplies` receives replies of known lengths from the
connection's socket directly into the caller's memory, and parses only their beginning and end (Redis serialization
protocol: ``$<length><data>``, each with a line end, in both versions).
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from claimcheck._payload_reader import TRUSTED_BYTES
from claimcheck._pointer import Pointer
from claimcheck._registry import import_vendor
from claimcheck.stores.redis._server import SMALL_BYTES, Borrowed, RedisServer, packed, segment_key

_SIZES_AT_ONCE = 1000
_BYTES_AT_ONCE = 4 << 20
_IN_FLIGHT = 3  # two are enough on loopback, but not after a round trip of 1 ms
_EMPTY = b"$0\r\n\r\n"  # the reply to `small_command` if there is no such key


def small_command(key: str, size: int) -> tuple[str, ...]:
    """Return the command for a small value of a declared size, which is more than 0."""
    return "GETRANGE", key, "0", str(size)


def unsized_segments(
    server: RedisServer,
    pointer: Pointer,
    *,
    limit: int,
    missing: Callable[[str], Exception],
    empty: Callable[[], Exception],
    too_large: Callable[[int], Exception],
) -> Iterator[bytes]:
    """Yield the segments of a payload of unknown size in order, several requests per round trip."""
    total, numbers = 0, iter(range(pointer.segments))
    while some := list(islice(numbers, _SIZES_AT_ONCE)):
        sizes = pipelined(server, pointer, "STRLEN", some)
        total += sum(sizes)
        if total > limit:
            raise too_large(total)
        for batch in _batches(some, sizes):
            for i, segment in zip(batch, pipelined(server, pointer, "GET", batch), strict=True):
                if segment is None:
                    raise missing(f"segment {i} of {pointer.segments}")
                if not segment and pointer.segments > 1:
                    raise empty()
                yield segment


def pipelined(
    server: RedisServer, pointer: Pointer, command: str, numbers: Sequence[int], *arguments: object
) -> list[Any]:
    """Send a command for each of these segments in one round trip, and return the replies."""
    pipeline = server.client.pipeline(transaction=False)
    for i in numbers:
        pipeline.execute_command(command, segment_key(pointer, i), *arguments)
    replies = list(pipeline.execute(raise_on_error=False))  # raising would prepend the command to the server's text
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _batches(numbers: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Group segments by bytes; a segment over the limit is a batch of its own."""
    batch: list[int] = []
    held = 0
    for i, size in zip(numbers, sizes, strict=True):
        if batch and held + size > _BYTES_AT_ONCE:
            yield batch
            batch, held = [], 0
        batch.append(i)
        held += size
    if batch:
        yield batch


class OtherReplyError(Exception):
    """An unexpected reply, or a connection without a usable socket; redis-py has to repeat the command."""


class RawReplies:
    """Commands with replies of known lengths, in order."""

    def __init__(self, borrowed: Borrowed) -> None:
        self._borrowed: Borrowed | None = borrowed
        self._lengths: deque[int] = deque()  # of the replies that were requested, and not read to the end
        self._before = b""  # what comes before the next reply's length
        self._left = 0
        if borrowed.socket is None:
            self.close()
            raise OtherReplyError
        self._socket = borrowed.socket

    @property
    def requested(self) -> int:
        """Replies that were requested and not read to the end."""
        return len(self._lengths)

    @property
    def left(self) -> int:
        """Bytes of the current reply still to come; 0 between two replies."""
        return self._left

    def request(self, *command: str, length: int) -> None:
        """Send a command whose reply is a string of ``length`` bytes."""
        self._socket.sendall(packed(command))
        self._lengths.append(length)

    def request_number(self, *command: str, number: int) -> None:
        """Send a command whose reply must be this number; only as the first command."""
        self._socket.sendall(packed(command))
        self._before = b":%d\r\n" % number

    def begin(self) -> None:
        """Read the beginning of the next reply, if that was not done yet."""
        if not self._left:
            self._expect(b"%b$%d\r\n" % (self._before, self._lengths[0]))
            self._left, self._before = self._lengths[0], b"\r\n"

    def fill(self, view: memoryview) -> int:
        """Read into a buffer until it is full or the reply ends; returns the number of bytes. Raises as `begin`."""
        wanted, done = min(len(view), self._left), 0
        while done < wanted:
            count = self._socket.recv_into(view[done:wanted])
            if not count:
                raise ConnectionError("the server closed the connection in the middle of a reply")
            done += count
        self._left -= done
        if not self._left:
            self._lengths.popleft()
        return done

    def end(self) -> None:
        """Read the end of the last reply, after which the connection can be released. Raises as `begin`."""
        self._expect(self._before)
        self._before = b""

    def close(self) -> None:
        """Give the connection back, or discard it if a reply is still to come."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is None:
            return
        if self._lengths or self._before:
            borrowed.discard()
        else:
            borrowed.give_back()

    def _expect(self, line: bytes) -> None:
        """Read exactly these bytes; raises an error as soon as others arrive."""
        received, count = memoryview(bytearray(len(line))), 0
        while count < len(line):
            more = self._socket.recv_into(received[count:])
            if not more:
                raise ConnectionError("the server closed the connection")
            count += more
            if received[:count] != line[:count]:
                raise OtherReplyError


class _Span(NamedTuple):
    """A part of one segment."""

    i: int
    start: int
    length: int
    whole: bool


def _small_segment(borrowed: Borrowed, key: str, length: int) -> bytes | None:
    """Return a segment, received with one system call if it arrives at once; ``None`` if it does not exist."""
    sock = borrowed.socket
    if sock is None:
        raise OtherReplyError
    sock.sendall(packed(small_command(key, length)))
    begin = b"$%d\r\n" % length
    size = len(begin) + length + 2
    reply: bytes | bytearray = sock.recv(size)
    if reply == _EMPTY:
        return None
    if len(reply) < size:
        reply = _completed(sock, bytearray(reply), begin, size)
    if not (reply.startswith(begin) and reply.endswith(b"\r\n")):
        raise OtherReplyError
    return bytes(reply[len(begin) : -2])


def _completed(sock: socket.socket, reply: bytearray, begin: bytes, size: int) -> bytearray:
    """Receive the rest of a reply; raises an error as soon as it turns out to be another one."""
    while len(reply) < size:
        if reply[: len(begin)] != begin[: len(reply)]:
            raise OtherReplyError
        more = sock.recv(size - len(reply))
        if not more:
            raise ConnectionError("the server closed the connection in the middle of a reply")
        reply += more
    return reply


class SmallReplies:
    """Replies to commands that were sent together on one connection; see `claimcheck._threads.Replies`."""

    def __init__(
        self,
        server: RedisServer,
        commands: Sequence[bytes],
        sizes: Sequence[int] = (),
        *,
        missing: Callable[[int], Exception] | None = None,
    ) -> None:
        self._count, self._sizes, self._missing = len(commands), sizes, missing
        self._next = 0
        self._received = memoryview(bytearray(2 * SMALL_BYTES if sizes else 1024))
        self._begin = self._end = 0  # of what was received and not returned
        self._borrowed: Borrowed | None = None
        self._timeout = ""
        with suppress(Exception):  # each call finds out by itself what is wrong
            self._borrowed = server.borrow("")
            self._send(b"".join(commands))

    @property
    def is_broken(self) -> bool:
        """Whether the connection was lost, was too slow, or had an unexpected reply."""
        return self._borrowed is None

    def receive(self, number: int) -> bytes | None:
        """Return a value, or ``b"OK"``; ``None`` if the command has to be sent again."""
        if self._timeout:
            raise TimeoutError(self._timeout)
        try:
            while self._next < number:  # its call did not need it
                self._reply()
            whole = self._reply()
        except BaseException as error:
            self._discard()
            if isinstance(error, TimeoutError):
                self._timeout = str(error) or "timed out"
            elif isinstance(error, (OSError, OtherReplyError)):
                return None
            raise
        if whole is None and self._missing is not None:
            raise self._missing(number)
        return whole

    def close(self) -> None:
        """Give the connection back, or discard it if a reply is still to come."""
        borrowed = self._borrowed
        if borrowed is None:
            return
        if self._next < self._count or self._begin < self._end:
            self._discard()
        else:
            borrowed.give_back()

    def _send(self, commands: bytes) -> None:
        assert self._borrowed is not None
        try:
            if self._borrowed.socket is None:
                raise OtherReplyError
            self._socket = self._borrowed.socket
            self._socket.sendall(commands)
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.discard()

    def _reply(self) -> bytes | None:
        """Return the next reply; ``None`` for a value that does not exist."""
        if not self._sizes:
            self._take(b"+OK\r\n")
            self._next += 1
            return b"OK"
        size, whole = self._sizes[self._next], None
        self._fill(2)
        is_missing = self._received[self._begin : self._begin + 2] == _EMPTY[:2]
        if not is_missing:
            self._take(b"$%d\r\n" % size)
            self._fill(size + 2)
            whole = bytes(self._received[self._begin : self._begin + size])
            self._begin += size
        self._take(_EMPTY if is_missing else b"\r\n")
        self._next += 1
        return whole

    def _take(self, line: bytes) -> None:
        self._fill(len(line))
        if self._received[self._begin : self._begin + len(line)] != line:
            raise OtherReplyError
        self._begin += len(line)

    def _fill(self, count: int) -> None:
        """Receive until there are ``count`` bytes, and what comes with them."""
        if self._borrowed is None:
            raise OtherReplyError
        if self._begin == self._end or self._begin + count > len(self._received):
            kept = self._end - self._begin
            self._received[:kept] = self._received[self._begin : self._end]
            self._begin, self._end = 0, kept
        while self._end - self._begin < count:
            more = self._socket.recv_into(self._received[self._end :])
            if not more:
                raise ConnectionError("the server closed the connection in the middle of a reply")
            self._end += more


class SegmentReader:
    """A `Reader` of the segments of one payload."""

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
        self._position = self._requested = start
        self._start, self._stop = start, stop
        self._is_small = 0 < stop - start <= min(SMALL_BYTES, self._segment_bytes - start % self._segment_bytes)
        self._lost_at = -1
        self._replies: RawReplies | None = None
        self._kept = memoryview(b"")  # read by redis-py, not returned yet

    def begin(self) -> None:
        """Request the first segment of a large payload. After this the last one is known to exist."""
        if self._is_small:
            return
        try:
            if self._position < self._stop:
                self._attempt(lambda: self._begun().requested)
        except BaseException:
            self.close()
            raise

    def whole(self, size: int) -> bytes | None:
        """Return all ``size`` bytes if they are one small segment, and nothing of it was read."""
        if not self._is_small or self._server.is_cluster or self._position or not self._stop == self._size == size:
            return None
        borrowed = self._server.borrow_kept()
        try:
            whole = _small_segment(borrowed, self._key(0), size)
        except BaseException as error:
            borrowed.discard()
            if isinstance(error, TimeoutError) or not isinstance(error, (OSError, OtherReplyError)):
                raise
            return None
        borrowed.give_back()
        if whole is None:
            raise self._missing_segment(0)
        self._position = self._stop
        return whole

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer, at most to the end of the current segment."""
        if self._position >= self._stop:
            return 0
        count = 0 if len(self._kept) else self._attempt(lambda: self._receive(buffer))
        if len(self._kept):
            count = min(len(buffer), len(self._kept))
            buffer[:count] = self._kept[:count]
            self._kept = self._kept[count:]
        self._position += count
        if self._position == self._stop:
            self.close()
        return count

    def close(self) -> None:
        """Give the connection back, or discard it if a reply is still to come."""
        replies, self._replies, self._requested = self._replies, None, self._position
        if replies is not None:
            replies.close()

    # Internals -------------------------------------------------------------------------------------------------

    def _attempt(self, step: Callable[[], int]) -> int:
        try:
            return step()
        except TimeoutError:  # an OSError, too, but waiting again would double the allowed time
            raise
        except (import_vendor("redis.exceptions", extra="redis").ConnectionError, OSError) as error:
            if not self._may_retry():
                raise
            lost: Exception = error
        except OtherReplyError as error:
            lost = error
        self.close()
        if self._server.is_cluster or isinstance(lost, OtherReplyError):
            self._read_through_client()
            return 0
        return self._attempt(step)

    def _may_retry(self) -> bool:
        current = self._position // self._segment_bytes
        once, self._lost_at = self._lost_at != current, current
        return once

    def _begun(self) -> RawReplies:
        """Return the replies after reading the beginning of the current one and requesting the next."""
        replies = self._replies
        if replies is None:
            replies = self._replies = RawReplies(self._server.borrow(self._pointer.key))
            if self._checks_last_first():
                last = self._pointer.segments - 1
                replies.request_number("STRLEN", self._key(last), number=self._bytes_of(last))
        self._request_ahead(replies, 1)
        replies.begin()
        self._request_ahead(replies, _IN_FLIGHT)
        return replies

    def _receive(self, buffer: memoryview) -> int:
        replies = self._replies
        if replies is None or not replies.left:
            replies = self._begun()
        count = replies.fill(buffer)
        if not replies.left:
            self._request_ahead(replies, _IN_FLIGHT)  # before this piece is verified, so that the server need not wait
            if not replies.requested:
                replies.end()
        return count

    def _request_ahead(self, replies: RawReplies, count: int) -> None:
        while replies.requested < count and self._requested < self._stop:
            span = self._span(self._requested)
            replies.request(*self._command(span), length=span.length)
            self._requested += span.length

    def _read_through_client(self) -> None:
        if self._checks_last_first():
            self._check_size(self._pointer.segments - 1)
        span = self._span(self._position)
        self._check_size(span.i)
        reply = self._server.client.execute_command(*self._command(span))
        if reply is None:
            raise self._missing_segment(span.i)
        if len(reply) != span.length:
            raise self._wrong(span.length, len(reply))
        self._kept = memoryview(reply)
        self._requested = self._position + len(reply)

    def _check_size(self, i: int) -> None:
        """Compare sizes before anything is transferred; Redis reports 0 for a key that does not exist."""
        expected = self._bytes_of(i)
        size = self._server.client.execute_command("STRLEN", self._key(i))
        if not size and not self._server.client.execute_command("EXISTS", self._key(i)):
            raise self._missing_segment(i)
        if size != expected:
            raise self._wrong(expected, size)

    def _missing_segment(self, i: int) -> Exception:
        return self._missing(f"segment {i} of {self._pointer.segments}")

    def _checks_last_first(self) -> bool:
        """Whether to check the last segment before much memory is allocated or much data transferred."""
        is_large = self._stop - self._start > TRUSTED_BYTES and self._pointer.segments > 1
        return is_large and self._position == self._start

    def _bytes_of(self, i: int) -> int:
        """Return the size of a segment: all but the last have the same."""
        return min(self._segment_bytes, self._size - i * self._segment_bytes)

    def _span(self, position: int) -> _Span:
        i, start = divmod(position, self._segment_bytes)
        end = self._bytes_of(i)
        length = min(end, self._stop - i * self._segment_bytes) - start
        return _Span(i, start, length, whole=length == end)

    def _command(self, span: _Span) -> tuple[str, ...]:
        key = self._key(span.i)
        if span.whole:
            return small_command(key, span.length) if self._is_small else ("GET", key)
        return "GETRANGE", key, str(span.start), str(span.start + span.length - 1)

    def _key(self, i: int) -> str:
        return segment_key(self._pointer, i)
