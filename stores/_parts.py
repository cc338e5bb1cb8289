"""Divides the payloads of object stores into parts, which are sent and fetched over several connections at a time.

A payload below 8 MiB is one request, and a larger one is fetched in parts over 8 connections, unless the first MiB on
one connection comes so fast that the processor is the limit, and not the network.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass

from claimcheck._threads import STOP, check_interrupt
from claimcheck._wire.buffers import STEP_BYTES, Reader
from claimcheck.errors import StoreUnavailableError

CONNECTIONS = 8
"""The most connections that a store uses for parts in one direction."""

_SAMPLE_BYTES = 1 << 20  # what a connection has to receive before its rate is believed
_FAST = 600e6  # bytes per second of one connection: it is limited by the processor, not by the network
_MIN_PART_BYTES = 4 << 20
_MAX_PART_BYTES = 8 << 20
_MIN_PUT_PART_BYTES = 5 << 20  # required by S3
_MIN_PARTS_BYTES = 16 << 20  # smaller payloads are sent in one request: parts take three
_TELLING_BYTES = 4 << 20  # of a smaller request, most of the time is the round trip
_SINGLE_PUT_BYTES = 64 << 20
_UNMEASURED = nullcontext(True)
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


class Memory:
    """Memory for parts that all payloads of a store share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._used = 0
        self._lock = threading.Lock()

    def reserve(self, count: int, *, spare: int = 0, always: bool = False) -> bool:
        """Reserve bytes; returns whether there were enough, with ``spare`` left over; ``always`` does not ask."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            fits = always or self._used + count + spare <= self.limit
            self._used += count if fits else 0
        return fits

    def release(self, count: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._used -= count


class Transfers:
    """The connections of one store in one direction, which all payloads share.

    Attributes:
        memory: For parts; shared by both directions.
        connections: The most connections.
        is_fast: Whether one connection was fast enough when it was last measured; ``None`` if it never was.
    """

    def __init__(self, memory: Memory, *, connections: int = CONNECTIONS) -> None:
        self.memory = memory
        self.connections = connections
        self.is_fast: bool | None = None
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.active = 0

    @property
    def single(self) -> bool:
        """Whether each payload has one connection."""
        return self.connections == 1 or bool(self.is_fast)

    def note(self, count: int, seconds: float) -> None:
        """Note how long one connection took to move bytes."""
        self.is_fast = count >= seconds * _FAST

    def connect(self, *, always: bool = False) -> bool:
        """Count one more connection; returns whether it may be used. The first of each payload ``always`` is."""
        if self._pid != os.getpid():  # the parent's threads do not exist in a forked process
            self._reset()
        with self._lock:
            free = always or self.active < self.connections
            self.active += free
        return free

    def disconnect(self) -> None:
        """Count a connection that is not used any more."""
        with self._lock:
            self.active -= 1


class _Measured:
    """A `Reader` that measures how fast its first MiB comes."""

    def __init__(self, reader: Reader, transfers: Transfers) -> None:
        self._reader, self._transfers = reader, transfers
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
            self._transfers.note(self._bytes, self._seconds)
        return count

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


@dataclass(slots=True)
class _Part:
    """A part that is fetched ahead: into memory of the budget, or of the caller."""

    room: memoryview
    own: bytearray | None
    fetched: Future[int]


class PartsReader:
    """A `Reader` of a range that reads the first part itself, and fetches the next ones ahead in threads."""

    def __init__(
        self, opened: Callable[[int, int], Reader], start: int, stop: int, *, transfers: Transfers, part_bytes: int
    ) -> None:
        self._opened = opened
        self._next, self._stop = start, stop  # what is not requested yet
        self._transfers = transfers
        self._part_bytes = part_bytes
        self._is_first = transfers.is_fast is None  # alone until it is known whether one connection is enough
        self._direct: Reader | None = None
        self._direct_left = 0
        self._lent = memoryview(b"")  # memory of the caller for what is not requested yet
        self._parts: deque[_Part] = deque()
        self._rest = memoryview(b"")  # of the first part, fetched
        self._free: list[bytearray] = []
        self._reserved = self._fetching = self._read = 0
        self._closed = False
        self._lock = threading.RLock()
        self._threads = ThreadPoolExecutor(transfers.connections, thread_name_prefix="claimcheck-read")

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
            closed, self._closed = self._closed, True
        self._threads.shutdown(cancel_futures=True)
        self._close_direct()
        if not closed:
            self._parts.clear()
            self._rest = self._lent = memoryview(b"")
            self._free.clear()
            for _ in range(self._fetching):  # cancelled before they began
                self._transfers.disconnect()
            self._transfers.memory.release(self._reserved)

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
            size = size if self._transfers.single else min(size, self._part_bytes)
            self._next, self._direct_left = start + size, size
            self._lent = self._lent[size:]
        self._transfers.connect(always=True)
        try:
            self._read_ahead()  # which goes on while this waits
            opened = self._opened(start, start + size)
            self._direct = _Measured(opened, self._transfers) if self._is_first else opened
        except BaseException:
            self._direct_left = 0
            self._transfers.disconnect()
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
            self._transfers.disconnect()
            direct.close()

    def _copy(self, buffer: memoryview) -> int:
        part, count = self._parts[0], min(len(buffer), len(self._rest))
        if part.own is not None:
            buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        if not len(self._rest):
            with self._lock:
                self._parts.popleft()
                self._free += [part.own] if part.own is not None else []
        return count

    # In other threads -------------------------------------------------------------------------------------------

    def _read_ahead(self) -> None:
        """Request further parts, as far as connections and memory allow."""
        if self._next >= self._stop and not self._free:
            return
        with self._lock:
            while self._next < self._stop and not self._closed and self._may_go_ahead():
                size = min(self._part_bytes, self._stop - self._next)
                room, own = self._room(size)
                if not len(room):
                    self._transfers.disconnect()
                    break
                start, self._next = self._next, self._next + len(room)
                self._fetching += 1
                self._parts.append(_Part(room, own, self._threads.submit(self._fetch, room, start)))
            self._give_back()

    def _may_go_ahead(self) -> bool:
        if self._is_first and self._transfers.is_fast is not False:
            return False
        ahead = len(self._parts) + (self._direct_left > 0)
        return (len(self._lent) > 0 or ahead <= self._read // _AHEAD_BYTES) and self._transfers.connect()

    def _room(self, size: int) -> tuple[memoryview, bytearray | None]:
        """Return memory for a part; empty if there is none."""
        if len(self._lent):
            room, self._lent = self._lent[:size], self._lent[size:]
            return room, None
        if not self._free:
            if not self._transfers.memory.reserve(self._part_bytes):
                return memoryview(b""), None
            self._reserved += self._part_bytes
            self._free.append(bytearray(self._part_bytes))
        own = self._free.pop()
        return memoryview(own)[:size], own

    def _give_back(self) -> None:
        while self._free:
            self._free.pop()
            self._reserved -= self._part_bytes
            self._transfers.memory.release(self._part_bytes)

    def _fetch(self, room: memoryview, start: int) -> int:
        done = 0
        try:
            with closing(self._opened(start, start + len(room))) as reader:
                while done < len(room) and not self._closed:
                    count = reader.readinto(room[done : done + STEP_BYTES]) or 0
                    if not count:
                        break
                    done += count
        finally:
            with self._lock:
                self._fetching -= 1
            self._transfers.disconnect()
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
        memory, connections = Memory(transfer_bytes), CONNECTIONS if transfer_bytes else 1
        self.gets = Transfers(memory, connections=connections)
        self.puts = Transfers(memory, connections=connections)

    def reader(self, opened: Callable[[int, int | None], Reader], start: int, stop: int | None) -> Reader:
        """Return a reader of the bytes from ``start`` up to ``stop``, over several connections if one is not enough."""
        gets, least = self.gets, self._part + 1 if self._part else 2 * _MIN_PART_BYTES
        if stop is None or stop - start < least or gets.connections == 1:
            return opened(start, stop)
        if gets.single:
            return _Measured(opened(start, stop), gets)
        each = min(_MAX_PART_BYTES, -(-(stop - start) // gets.connections), gets.memory.limit // gets.connections)
        part = self._part or max(_MIN_PART_BYTES, each)
        return PartsReader(opened, start, stop, transfers=gets, part_bytes=part)

    def upload(self, size: int | None) -> AbstractContextManager[bool]:
        """Measure an upload; the context is whether to send it in one request."""
        if size is not None and size < _TELLING_BYTES and size <= self.single_put_bytes:
            return _UNMEASURED
        return self._measured(size)

    @contextmanager
    def _measured(self, size: int | None) -> Iterator[bool]:
        single = size is not None and size <= self.single_put_bytes
        begin = time.perf_counter()
        yield single
        if single and size is not None:
            self.puts.note(size, time.perf_counter() - begin)

    @property
    def single_put_bytes(self) -> int:
        """The largest payload that is sent in one request."""
        if self._single is not None:
            return self._single
        return _SINGLE_PUT_BYTES if self.puts.single else _MIN_PARTS_BYTES - 1

    def engine_parts(self, part_bytes: int) -> int:
        """Return how many parts an engine that sends them itself keeps in memory, and sends at the same time."""
        return max(1, min(self.puts.connections, self.puts.memory.limit // part_bytes))

    def begin_part(self, size: int, *, others: int) -> bool:
        """Take a connection and memory for a part; returns whether there are enough for it beside the others."""
        if not self.puts.connect(always=not others):
            return False
        if self.puts.memory.reserve(size, spare=size, always=not others):  # the next part is read before it is sent
            return True
        self.puts.disconnect()
        return False

    def end_part(self, size: int) -> None:
        """Release what `begin_part` took."""
        self.puts.disconnect()
        self.puts.memory.release(size)

    def put_part_bytes(self, size: int | None) -> int:
        """Return the size of the parts of a payload that is sent in parts."""
        if self._part is not None:
            return self._part
        if size is None or self.puts.connections == 1:
            return _MAX_PART_BYTES
        parts = max(1, min(self.puts.connections, size // _MIN_PUT_PART_BYTES))
        return max(_MIN_PUT_PART_BYTES, min(_MAX_PART_BYTES, -(-size // parts)))
