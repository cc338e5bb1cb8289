"""Divides the payloads of object stores into parts, which are sent and fetched over several connections at a time.

A payload below 8 MiB is one request, and a larger one is fetched in parts over 16 connections, unless the first MiB on
one connection comes so fast that the processor is the limit, and not the network.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass

from claimcheck._threads import STOP, check_interrupt
from claimcheck._wire.buffers import STEP_BYTES, Reader
from claimcheck.errors import StoreUnavailableError

CONNECTIONS = 16
"""The most connections that a store uses for parts in one direction."""

_SAMPLE_BYTES = 1 << 20  # what a connection has to receive before its rate is believed
_FAST = 600e6  # bytes per second of one connection: it is limited by the processor, not by the network
_MIN_PART_BYTES = 4 << 20
_MAX_PART_BYTES = 8 << 20
_MIN_PUT_PART_BYTES = 5 << 20  # required by S3
_MIN_PARTS_BYTES = 16 << 20  # smaller payloads are sent in one request: parts take three
_TELLING_BYTES = 4 << 20  # of a smaller request, most of the time is the round trip
_SINGLE_PUT_BYTES = 64 << 20
_CHECK_SECONDS = 0.05  # between checks for a cancellation
_AHEAD_BYTES = 256 << 10  # each connection beyond the first takes as many bytes read in sequence


class SameVersion:
    """Checks that all parts of a payload come from one object, by the version that each response names."""

    def __init__(self, store: str, key: str) -> None:
        self._store, self._key = store, key
        self._lock = threading.Lock()
        self._version: str | None = None

    def check(self, version: str | None) -> None:
        """Compare a version with that of the first response."""
        with self._lock:
            self._version = self._version or version
        if version and version != self._version:
            text = f"store {self._store!r}: {self._key!r} was replaced while it was read; read it again"
            raise StoreUnavailableError(text, store=self._store, key=self._key)


class Slots:
    """The parts that all payloads of a store may have in flight at the same time, in one direction."""

    def __init__(self, memory: int, *, connections: int = CONNECTIONS) -> None:
        self.memory, self.connections = memory, connections  # bytes for parts that are not in the caller's memory
        self.is_fast: bool | None = None  # whether one connection was fast enough when it was last measured
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.active = 0

    @property
    def single(self) -> bool:
        return self.connections == 1 or bool(self.is_fast)

    def note(self, count: int, seconds: float) -> None:
        self.is_fast = count >= seconds * _FAST

    def take(self, size: int = 0, *, spare: int = 0, always: bool = False) -> bool:
        """Take a slot, if there is one with so much memory beside ``spare``, or ``always``; returns whether it did."""
        if self._pid != os.getpid():  # the parent's threads do not exist in a forked process
            self._reset()
        most = min(self.connections, (self.memory - spare) // size) if size else self.connections
        with self._lock:
            free = always or self.active < most
            self.active += free
        return free

    def leave(self) -> None:
        with self._lock:
            self.active -= 1


class _Measured:
    """A `Reader` that measures how fast its first MiB comes."""

    def __init__(self, reader: Reader, slots: Slots) -> None:
        self._reader, self._slots = reader, slots
        self._bytes, self._seconds = 0, 0.0

    def readinto(self, buffer: memoryview, /) -> int:
        """Read; only the time that it takes counts."""
        if self._bytes >= _SAMPLE_BYTES:
            return self._reader.readinto(buffer) or 0
        begin = time.perf_counter()
        count = self._reader.readinto(buffer) or 0
        self._seconds += time.perf_counter() - begin
        self._bytes += count
        if self._bytes >= _SAMPLE_BYTES:
            self._slots.note(self._bytes, self._seconds)
        return count

    def close(self) -> None:
        self._reader.close()


@dataclass(slots=True)
class _Part:
    """A part that is fetched ahead, into memory of its own or of the caller."""

    room: memoryview
    own: bytearray | None
    fetched: Future[int]


class PartsReader:
    """A `Reader` of a range that reads the first part itself, and fetches the next ones ahead in threads.

    A part in memory of its own has a slot until it was returned; one in the caller's memory until it was fetched.
    """

    def __init__(
        self, opened: Callable[[int, int], Reader], start: int, stop: int, *, slots: Slots, part_bytes: int
    ) -> None:
        self._opened = opened
        self._next, self._stop = start, stop  # what is not requested yet
        self._slots = slots
        self._part_bytes = part_bytes
        self._is_first = slots.is_fast is None  # alone until it is known whether one connection is enough
        self._direct: Reader | None = None
        self._direct_left = 0
        self._lent = memoryview(b"")  # memory of the caller for what is not requested yet
        self._parts: deque[_Part] = deque()
        self._rest = memoryview(b"")  # of the first part, fetched
        self._held = self._read = 0  # slots of parts; bytes
        self._closed = False
        self._lock = threading.RLock()
        self._threads = ThreadPoolExecutor(slots.connections, thread_name_prefix="claimcheck-read")

    def lend(self, view: memoryview) -> None:
        """Lend the memory that the next reads will pass, from its start to its end: parts are fetched right into it."""
        with self._lock:
            if not self._parts and not self._direct_left and len(view) > self._part_bytes:
                self._lent = view

    def readinto(self, buffer: memoryview, /) -> int:
        """Copy from the next part, or read it from its connection."""
        if not self._direct_left and not len(self._rest) and not self._advance():
            return 0
        count = self._read_direct(buffer) if self._direct_left else self._copy(buffer)
        self._read += count
        self._read_ahead()
        return count

    def close(self) -> None:
        """Stop, and wait for the threads, which close their connections."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(cancel_futures=True)
        self._close_direct()
        self._parts.clear()
        self._rest = self._lent = memoryview(b"")
        while self._held:
            self._leave()

    def _advance(self) -> bool:
        """Go to the next part, which may have to be waited for; returns whether there is one."""
        with self._lock:
            part = self._parts[0] if self._parts else None
        if part is None:
            return self._open_direct()
        count = _result(part.fetched)
        self._rest = part.room[:count]
        if count < len(part.room):  # the bytes of the next part would not follow
            self._end()
        return count > 0

    def _end(self) -> None:
        with self._lock:
            self._next = self._stop
            while len(self._parts) > 1:
                self._parts.pop()

    # In this thread ---------------------------------------------------------------------------------------------

    def _open_direct(self) -> bool:
        with self._lock:
            start, size = self._next, self._stop - self._next
            if not size:
                return False
            size = size if self._slots.single else min(size, self._part_bytes)
            self._next, self._direct_left = start + size, size
            self._lent = self._lent[size:]
        self._slots.take(always=True)
        try:
            self._read_ahead()  # which goes on while this waits
            opened = self._opened(start, start + size)
            self._direct = _Measured(opened, self._slots) if self._is_first else opened
        except BaseException:
            self._direct_left = 0
            self._slots.leave()
            raise
        return True

    def _read_direct(self, buffer: memoryview) -> int:
        assert self._direct is not None
        count = self._direct.readinto(buffer[: self._direct_left]) or 0
        self._direct_left -= count
        if not count:
            self._end()
        if not count or not self._direct_left:
            self._close_direct()
        return count

    def _close_direct(self) -> None:
        direct, self._direct, self._direct_left = self._direct, None, 0
        if direct is not None:
            self._slots.leave()
            direct.close()

    def _copy(self, buffer: memoryview) -> int:
        part, count = self._parts[0], min(len(buffer), len(self._rest))
        if part.own is not None:
            buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        if not len(self._rest):
            with self._lock:
                self._parts.popleft()
            if part.own is not None:
                self._read_ahead(part.own)
        return count

    # In other threads -------------------------------------------------------------------------------------------

    def _read_ahead(self, own: bytearray | None = None) -> None:
        """Request further parts, as far as there are slots; the first into the memory and slot of a returned one."""
        if own is None and self._next >= self._stop:
            return
        with self._lock:
            while self._next < self._stop and not self._closed and (own is not None or self._may_go_ahead()):
                self._request(own)
                own = None
            if own is not None:
                self._leave()

    def _may_go_ahead(self) -> bool:
        if self._is_first and self._slots.is_fast is not False:
            return False
        ahead = len(self._parts) + (self._direct_left > 0)
        if not len(self._lent) and ahead > self._read // _AHEAD_BYTES:
            return False
        taken = self._slots.take(0 if len(self._lent) else self._part_bytes)
        self._held += taken
        return taken

    def _request(self, own: bytearray | None) -> None:
        size = min(self._part_bytes, self._stop - self._next)
        if len(self._lent):
            room, self._lent = self._lent[:size], self._lent[size:]
        else:
            own = own or bytearray(self._part_bytes)
            room = memoryview(own)[:size]
        start, self._next = self._next, self._next + len(room)
        self._parts.append(_Part(room, own, self._threads.submit(self._fetch, room, start, is_lent=own is None)))

    def _leave(self) -> None:
        with self._lock:
            self._held -= 1
        self._slots.leave()

    def _fetch(self, room: memoryview, start: int, *, is_lent: bool) -> int:
        done = 0
        try:
            with closing(self._opened(start, start + len(room))) as reader:
                while done < len(room) and not self._closed:
                    count = reader.readinto(room[done : done + STEP_BYTES]) or 0
                    if not count:
                        break
                    done += count
        finally:
            if is_lent:
                self._leave()
                self._read_ahead()
        return done


def _result(fetched: Future[int]) -> int:
    """Wait for a part, or until the caller was cancelled."""
    while STOP.get() is not None and not fetched.done():
        check_interrupt()
        wait([fetched], timeout=_CHECK_SECONDS)
    return fetched.result()


class TransferPolicy:
    """How an object store divides payloads, and how many connections it uses."""

    _part: int | None = None  # the size of each part, and the largest payload of one request; tests set them
    _single: int | None = None

    def __init__(self, transfer_bytes: int) -> None:
        connections = CONNECTIONS if transfer_bytes else 1
        self.gets = Slots(transfer_bytes, connections=connections)
        self.puts = Slots(transfer_bytes, connections=connections)

    def reader(self, opened: Callable[[int, int | None], Reader], start: int, stop: int | None) -> Reader:
        """Return a reader of the bytes from ``start`` up to ``stop``, over several connections if one is not enough."""
        gets, least = self.gets, self._part + 1 if self._part else 2 * _MIN_PART_BYTES
        if stop is None or stop - start < least or gets.connections == 1:
            return opened(start, stop)
        if gets.single:
            return _Measured(opened(start, stop), gets)
        each = min(_MAX_PART_BYTES, -(-(stop - start) // gets.connections), gets.memory // gets.connections)
        part = self._part or max(_MIN_PART_BYTES, each)
        return PartsReader(opened, start, stop, slots=gets, part_bytes=part)

    @contextmanager
    def upload(self, size: int | None) -> Iterator[bool]:
        """Measure an upload; the context is whether to send it in one request."""
        single = size is not None and size <= self.single_put_bytes
        begin = time.perf_counter()
        yield single
        if single and size is not None and size >= _TELLING_BYTES:
            self.puts.note(size, time.perf_counter() - begin)

    @property
    def single_put_bytes(self) -> int:
        if self._single is not None:
            return self._single
        return _SINGLE_PUT_BYTES if self.puts.single else _MIN_PARTS_BYTES - 1

    def engine_parts(self, part_bytes: int) -> int:
        """Return how many parts an engine that sends them itself keeps in memory, and sends at the same time."""
        return max(1, min(self.puts.connections, self.puts.memory // part_bytes))

    def put_part_bytes(self, size: int | None) -> int:
        if self._part is not None:
            return self._part
        if size is None or self.puts.connections == 1:
            return _MAX_PART_BYTES
        parts = max(1, min(self.puts.connections, size // _MIN_PUT_PART_BYTES))
        return max(_MIN_PUT_PART_BYTES, min(_MAX_PART_BYTES, -(-size // parts)))
