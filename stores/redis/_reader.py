"""Segments out of a Redis, on one connection, two at a time: while one is received, the server prepares the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from claimcheck._payload_reader import TRUSTED_BYTES
from claimcheck._pointer import Pointer
from claimcheck._registry import import_vendor
from claimcheck.stores.redis._replies import OtherReplyError, RawReplies
from claimcheck.stores.redis._server import RedisServer, segment_key

__all__ = [
    "SegmentReader",
    "unsized_segments",
]

_SIZES_AT_ONCE = 1000
_BYTES_AT_ONCE = 4 << 20


def unsized_segments(
    server: RedisServer,
    pointer: Pointer,
    *,
    limit: int,
    missing: Callable[[str], Exception],
    empty: Callable[[], Exception],
    too_large: Callable[[int], Exception],
) -> Iterator[bytes]:
    """Yield the segments of a payload in order, some requests per round trip.

    Args:
        server: The server.
        pointer: Of the payload.
        limit: The most bytes that all segments may have together.
        missing: Makes the error for a segment that does not exist.
        empty: Makes the error for a segment without bytes; only that of an empty payload may be so.
        too_large: Makes the error for more bytes than the limit, given their number so far.
    """
    total, numbers = 0, iter(range(pointer.segments))
    while some := list(islice(numbers, _SIZES_AT_ONCE)):
        sizes = _ask(server, pointer, "STRLEN", some)
        total += sum(sizes)
        if total > limit:
            raise too_large(total)
        for batch in _batches(some, sizes):
            for i, segment in zip(batch, _ask(server, pointer, "GET", batch), strict=True):
                if segment is None:
                    raise missing(f"segment {i} of {pointer.segments}")
                if not segment and pointer.segments > 1:
                    raise empty()
                yield segment


def _ask(server: RedisServer, pointer: Pointer, command: str, numbers: Sequence[int]) -> list[Any]:
    pipeline = server.client.pipeline(transaction=False)
    for i in numbers:
        pipeline.execute_command(command, segment_key(pointer, i))
    replies = list(pipeline.execute(raise_on_error=False))  # it would put the command before the server's own words
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _batches(numbers: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Cut by bytes; a segment that alone has more is a batch of its own."""
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


_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of one segment.

    Attributes:
        i: Which segment.
        start: Bytes into it.
        length: Bytes of the part.
        whole: Whether that is all of it.
    """

    i: int
    start: int
    length: int
    whole: bool


class SegmentReader:
    """A `Reader` over the segments of one payload.

    When the connection is lost, it goes on where it was on a new one, once for each segment. Replies that it does not
    expect it leaves to redis-py, which follows redirects and raises what the server says.

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
        self._replies: RawReplies | None = None
        self._kept = memoryview(b"")  # read by redis-py, not handed out yet

    def begin(self) -> None:
        """Ask for the first segment; of a large payload the last one is known to be there after this."""
        try:
            if self._position < self._stop:
                self._attempt(lambda: self._begun().asked)
        except BaseException:
            self.close()
            raise

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
        """Give the connection back, or close it where a reply is still to come."""
        replies, self._replies, self._asked = self._replies, None, self._position
        if replies is not None:
            replies.close()

    # Within ----------------------------------------------------------------------------------------------------

    def _attempt(self, step: Callable[[], int]) -> int:
        try:
            return step()
        except TimeoutError:  # an OSError, too, but waiting again would double the time that was allowed
            raise
        except (import_vendor("redis.exceptions", extra="redis").ConnectionError, OSError) as error:
            if not self._may_try_again():
                raise
            lost: Exception = error
        except OtherReplyError as error:
            lost = error
        self.close()
        if self._server.is_cluster or isinstance(lost, OtherReplyError):
            self._ask_vendor()
            return 0
        return self._attempt(step)

    def _may_try_again(self) -> bool:
        current = self._position // self._segment_bytes
        once, self._lost_at = self._lost_at != current, current
        return once

    def _begun(self) -> RawReplies:
        """Have a reply at hand whose beginning was read, and the next one asked for.

        That only now: the server answers what it gets at once only when it has worked on all of it.
        """
        replies = self._replies
        if replies is None:
            replies = self._replies = RawReplies(self._server.borrow(self._pointer.key))
            if self._looks_ahead():
                last = self._key(self._pointer.segments - 1)
                replies.ask_number(b"STRLEN", last.encode(), number=self._bytes_of(self._pointer.segments - 1))
        self._ask_ahead(replies, 1)
        replies.begin()
        self._ask_ahead(replies, _IN_FLIGHT)
        return replies

    def _receive(self, buffer: memoryview) -> int:
        replies = self._replies
        if replies is None or not replies.left:
            replies = self._begun()
        count = replies.fill(buffer)
        if not replies.left:
            self._ask_ahead(replies, _IN_FLIGHT)  # before this piece is looked at: the server need not wait for that
            if not replies.asked:
                replies.end()
        return count

    def _ask_ahead(self, replies: RawReplies, count: int) -> None:
        while replies.asked < count and self._asked < self._stop:
            span = self._span(self._asked)
            replies.ask(*(part.encode() for part in self._command(span)), length=span.length)
            self._asked += span.length

    def _ask_vendor(self) -> None:
        if self._looks_ahead():
            self._check_size(self._pointer.segments - 1)
        span = self._span(self._position)
        self._check_size(span.i)
        reply = self._server.client.execute_command(*self._command(span))
        if reply is None:
            raise self._missing_segment(span.i)
        if len(reply) != span.length:
            raise self._wrong(span.length, len(reply))
        self._kept = memoryview(reply)
        self._asked = self._position + len(reply)

    def _check_size(self, i: int) -> None:
        """Compare sizes before anything is transferred; Redis reports that of a key that does not exist as 0."""
        expected = self._bytes_of(i)
        size = self._server.client.execute_command("STRLEN", self._key(i))
        if not size and not self._server.client.execute_command("EXISTS", self._key(i)):
            raise self._missing_segment(i)
        if size != expected:
            raise self._wrong(expected, size)

    def _missing_segment(self, i: int) -> Exception:
        return self._missing(f"segment {i} of {self._pointer.segments}")

    def _looks_ahead(self) -> bool:
        """Whether the last segment is looked at first: before much is allocated, or transferred in vain."""
        return self._position == 0 and self._stop == self._size > TRUSTED_BYTES and self._pointer.segments > 1

    def _bytes_of(self, i: int) -> int:
        """The size of a segment: all but the last have the same."""
        return min(self._segment_bytes, self._size - i * self._segment_bytes)

    def _span(self, position: int) -> _Span:
        i, start = divmod(position, self._segment_bytes)
        end = self._bytes_of(i)
        length = min(end, self._stop - i * self._segment_bytes) - start
        return _Span(i, start, length, whole=length == end)

    def _command(self, span: _Span) -> tuple[str, ...]:
        key = self._key(span.i)
        if span.whole:
            return "GET", key
        return "GETRANGE", key, str(span.start), str(span.start + span.length - 1)

    def _key(self, i: int) -> str:
        return segment_key(self._pointer, i)
