"""Reads and writes the segments of one payload in Redis; several of them are in flight at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from claimcheck._store.contract import StoreContract, too_long
from claimcheck._store.read import TRUSTED_BYTES
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import IntegrityError, KeyTakenError, import_vendor
from claimcheck.stores.redis._server import (
    SMALL_BYTES,
    Borrowed,
    OtherReplyError,
    RedisServer,
    Replies,
    is_lost,
    packed,
    segment_key,
)

_SEGMENTS_AT_ONCE = 1000
_BYTES_AT_ONCE = 4 << 20
_READ_AHEAD = 3  # two are enough on loopback, but not after a round trip of 1 ms
_WRITE_AHEAD = 2
_CHECK_KEYS = 100  # per command
_REDIRECTS = ("MovedError", "AskError", "TryAgainError")


class _Span(NamedTuple):
    i: int
    start: int
    length: int
    whole: bool


def small_command(pointer: Pointer) -> tuple[str, ...]:
    """Return the command that reads the only, small segment of a payload: one byte more shows that it is larger."""
    return "GETRANGE", f"{pointer.key}-0", "0", str(pointer.size)


def wrong_size(store: StoreContract, pointer: Pointer, expected: int | str, actual: int) -> IntegrityError:
    text = f"store {store.name!r}: a segment of {pointer.key!r} has {actual} bytes, not {expected}"
    return IntegrityError(text, store=store.name, key=pointer.key, expected=expected, actual=actual)


def missing(store: StoreContract, pointer: Pointer, i: int) -> Exception:
    return store.missing(pointer, f"segment {i} of {pointer.segments}")


class SegmentReader:
    """A `Reader` of the segments of one payload, whose size is known. The last one exists if there is this reader."""

    def __init__(self, server: RedisServer, store: StoreContract, pointer: Pointer, start: int, stop: int) -> None:
        self._server, self._store, self._pointer = server, store, pointer
        self._size = pointer.size or 0
        self._segment_bytes = pointer.segment_bytes or max(1, self._size)
        self._position = self._requested = self._start = start
        self._stop = stop
        self._lost_at = -1
        self._replies: Replies | None = None
        self._borrowed: Borrowed | None = None
        self._lengths: deque[int] = deque()  # of the replies that were requested, and not read to the end
        self._kept = memoryview(b"")  # read by redis-py, not returned yet
        if start < stop:
            try:
                self._attempt(self._begin_segment)
            except BaseException:
                self.close()
                raise

    def readinto(self, buffer: memoryview, /) -> int:
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
        borrowed, self._borrowed = self._borrowed, None
        replies, self._replies = self._replies, None
        if borrowed is not None:
            is_idle = replies is None or (replies.is_idle and not self._lengths)
            (borrowed.give_back if is_idle else borrowed.discard)()
        self._lengths.clear()
        self._requested = self._position

    # Internals -------------------------------------------------------------------------------------------------

    def _attempt(self, step: Callable[[], int]) -> int:
        try:
            return step()
        except Exception as error:
            other = isinstance(error, OtherReplyError)
            if not other and not (is_lost(error) and self._may_retry()):
                raise
        self.close()
        if self._server.is_cluster or other:
            self._read_through_client()
            return 0
        return self._attempt(step)

    def _may_retry(self) -> bool:
        current = self._position // self._segment_bytes
        once, self._lost_at = self._lost_at != current, current
        return once

    def _begin_segment(self) -> int:
        """Read the beginning of the next reply, and request those after it."""
        replies = self._replies or self._connect()
        self._request_ahead(replies, 1)
        if not replies.begin(self._lengths[0]):
            raise OtherReplyError
        self._request_ahead(replies, _READ_AHEAD)
        return 0

    def _connect(self) -> Replies:
        self._borrowed = self._server.borrow(self._pointer.key)
        replies = self._replies = Replies(self._borrowed)
        if self._checks_last_first():
            last = self._pointer.segments - 1
            self._request_ahead(replies, 1, before=packed(("STRLEN", self._key(last))))
            replies.expect(b":%d" % self._bytes_of(last))
        return replies

    def _receive(self, buffer: memoryview) -> int:
        if self._replies is None or not self._replies.left:
            self._begin_segment()
        replies = self._replies
        assert replies is not None
        count = replies.fill(buffer)
        if not replies.left:
            self._lengths.popleft()
            self._request_ahead(replies, _READ_AHEAD)  # before this piece is verified: the server need not wait
            if not self._lengths:
                replies.end()
        return count

    def _request_ahead(self, replies: Replies, count: int, before: bytes = b"") -> None:
        while len(self._lengths) < count and self._requested < self._stop:
            span = self._span(self._requested)
            self._lengths.append(span.length)
            self._requested += span.length
            replies.send(before + packed(self._command(span)))

    def _read_through_client(self) -> None:
        if self._checks_last_first():
            self._check_size(self._pointer.segments - 1)
        span = self._span(self._position)
        self._check_size(span.i)
        reply = self._server.client.execute_command(*self._command(span))
        if reply is None:
            raise missing(self._store, self._pointer, span.i)
        if len(reply) != span.length:
            raise wrong_size(self._store, self._pointer, span.length, len(reply))
        self._kept = memoryview(reply)
        self._requested = self._position + len(reply)

    def _check_size(self, i: int) -> None:
        """Compare sizes before anything is transferred; Redis reports 0 for a key that does not exist."""
        expected = self._bytes_of(i)
        size = self._server.client.execute_command("STRLEN", self._key(i))
        if not size and not self._server.client.execute_command("EXISTS", self._key(i)):
            raise missing(self._store, self._pointer, i)
        if size != expected:
            raise wrong_size(self._store, self._pointer, expected, size)

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
        if not span.whole:
            return "GETRANGE", self._key(span.i), str(span.start), str(span.start + span.length - 1)
        is_small = self._pointer.segments == 1 and span.length <= SMALL_BYTES
        return small_command(self._pointer) if is_small else ("GET", self._key(span.i))

    def _key(self, i: int) -> str:
        return segment_key(self._pointer, i)


def unsized_segments(server: RedisServer, store: StoreContract, pointer: Pointer) -> Iterator[bytes]:
    """Yield the segments of an empty payload, or one of unknown size, in order; several requests per round trip."""
    limit = store.context.max_payload_bytes if pointer.size is None else pointer.size
    total, numbers = 0, iter(range(pointer.segments))
    while some := list(islice(numbers, _SEGMENTS_AT_ONCE)):
        sizes = _pipelined(server, pointer, "STRLEN", some)
        total += sum(sizes)
        if total > limit:
            raise too_long(store, pointer, total) if pointer.size is None else wrong_size(store, pointer, limit, total)
        at_once = max(1, _BYTES_AT_ONCE // max(1, *sizes))
        for first in range(0, len(some), at_once):
            batch = some[first : first + at_once]
            for i, segment in zip(batch, _pipelined(server, pointer, "GET", batch), strict=True):
                if segment is None:
                    raise missing(store, pointer, i)
                if not segment and pointer.segments > 1:
                    raise wrong_size(store, pointer, "at least 1", 0)
                yield segment


def _pipelined(server: RedisServer, pointer: Pointer, command: str, numbers: Sequence[int]) -> list[Any]:
    """Send a command for each of these segments in one round trip, and return the replies."""
    pipeline = server.client.pipeline(transaction=False)
    for i in numbers:
        pipeline.execute_command(command, segment_key(pointer, i))
    replies = list(pipeline.execute(raise_on_error=False))  # raising would prepend the command to the server's text
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


class SegmentWriter:
    """Writes segments on one connection; the next one is sent while the server stores the last."""

    def __init__(self, server: RedisServer, pointer: Pointer, borrowed: Borrowed | None = None) -> None:
        self._server = server
        self._pointer = pointer
        self._borrowed = borrowed
        self._unanswered: deque[tuple[int, memoryview]] = deque()
        self._sent = 0  # completely, on this connection, and not answered
        self.count = 0
        self._lost_at = -1

    def put(self, i: int, segment: memoryview, *, create: bool = False) -> None:
        """Send segment number ``i``; may wait for the reply to an earlier one."""
        if create:
            self._create(i, segment)
            return
        self._unanswered.append((i, segment))
        self.count += 1
        self._attempt(lambda: self._send(i, segment))
        while len(self._unanswered) >= _WRITE_AHEAD:
            self._attempt(self._receive)

    def finish(self) -> None:
        while self._unanswered:
            self._attempt(self._receive)
        if self._borrowed is not None:
            self._borrowed.give_back()
            self._borrowed = None
        if self._lost_at >= 0:
            self._check_all_present()

    def abandon(self) -> None:
        """After an error, wait for what was sent, so that nothing arrives after its deletion, and disconnect."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is None:
            return
        with suppress(Exception):
            for _ in range(self._sent):
                with suppress(import_vendor("redis.exceptions", extra="redis").ResponseError):
                    borrowed.receive()
        borrowed.discard()

    def _create(self, i: int, segment: memoryview) -> None:
        self.count += 1
        if self._server.client.execute_command(*set_command(self._pointer, i, segment), "NX") is None:
            raise KeyTakenError(f"{self._pointer.key!r} is taken", key=self._pointer.key)

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            exceptions = import_vendor("redis.exceptions", extra="redis")
            if is_lost(error):
                self._drop()
                self._resend(error)
            elif isinstance(error, tuple(getattr(exceptions, name) for name in _REDIRECTS)):
                self._drop()
                self._send_through_client()
            else:
                if isinstance(error, (exceptions.TimeoutError, TimeoutError)):
                    self._drop()
                raise

    def _drop(self) -> None:
        borrowed, self._borrowed = self._borrowed, None
        self._sent = 0
        if borrowed is not None:
            borrowed.discard()

    def _send(self, i: int, segment: memoryview) -> None:
        if self._borrowed is None:
            self._borrowed = self._server.borrow(self._pointer.key)
        send = self._borrowed.send_small if len(segment) <= SMALL_BYTES else self._borrowed.send
        send(*set_command(self._pointer, i, segment))
        self._sent += 1

    def _receive(self) -> None:
        if self._borrowed is not None:
            self._sent -= 1
            self._borrowed.receive()
            self._unanswered.popleft()

    def _resend(self, error: Exception) -> None:
        oldest = self._unanswered[0][0]
        again, self._lost_at = oldest == self._lost_at, oldest
        if self._server.is_cluster:  # the node may be gone, and another one may have its slots
            self._send_through_client()
            return
        if again:
            raise error
        for i, segment in self._unanswered:
            self._send(i, segment)

    def _send_through_client(self) -> None:
        """Send what is unanswered through redis-py, which follows redirects and remembers them for later segments."""
        while self._unanswered:
            self._server.client.execute_command(*set_command(self._pointer, *self._unanswered[0]))
            self._unanswered.popleft()

    def _check_all_present(self) -> None:
        """Check for segments lost when a server restarted empty, or was replaced by a replica that lagged behind."""
        keys = [segment_key(self._pointer, i) for i in range(self.count)]
        size = 1 if self._server.is_cluster else _CHECK_KEYS  # a slot that moves is spread over two nodes
        batches = (keys[first : first + size] for first in range(0, len(keys), size))
        if sum(self._server.client.exists(*batch) for batch in batches) < self.count:
            raise ConnectionError("the server lost segments that it had acknowledged")


def set_command(pointer: Pointer, i: int, segment: memoryview) -> tuple[object, ...]:
    deadline = () if pointer.expires_ms is None else ("PXAT", pointer.expires_ms)
    return "SET", segment_key(pointer, i), segment, *deadline
