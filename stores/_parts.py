"""Reads a payload in parts over several connections, each ahead of the other, and checks that all are of one object."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from claimcheck._reader import STEP_BYTES, Reader
from claimcheck._threads import STOP, check_interrupt
from claimcheck.errors import StoreUnavailableError

if TYPE_CHECKING:
    from claimcheck.stores._transfers import Transfers

MAX_CONNECTIONS = 16
"""The most connections that a store uses in one direction by itself."""

SAMPLE_BYTES = 1 << 20
"""What each connection has to move before its rate is believed."""

MAX_PART_BYTES = 8 << 20
"""The largest part whose size is chosen by the library."""

_MIN_PART_BYTES = 4 << 20
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


class _Meter:
    """Records what one connection moves, about once per MiB."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._begin()

    def _begin(self) -> None:
        self._bytes, self._seconds, self._connections = 0, 0.0, self._transfers.active

    def read(self, reader: Reader, room: memoryview) -> int:
        """Read from a reader; only the time that it takes counts."""
        begin = self._transfers.clock()
        count = reader.readinto(room) or 0
        self._bytes += count
        self._seconds += self._transfers.clock() - begin
        if self._bytes >= SAMPLE_BYTES:
            self._transfers.record(self._bytes, self._seconds, min(self._connections, self._transfers.active))
            self._begin()
        return count


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
        self._meter = _Meter(transfers)
        self._direct: Reader | None = None
        self._direct_left = 0
        self._lent = memoryview(b"")  # memory of the caller for what is not requested yet
        self._parts: deque[_Part] = deque()
        self._rest = memoryview(b"")  # of the first part, fetched
        self._free: list[bytearray] = []
        self._reserved = self._fetching = self._read = 0
        self._closed = False
        self._lock = threading.RLock()
        self._threads = ThreadPoolExecutor(max(MAX_CONNECTIONS, transfers.level), thread_name_prefix="claimcheck-read")
        transfers.begin()

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
            self._transfers.end()

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
            self._direct = self._opened(start, start + size)
        except BaseException:
            self._direct_left = 0
            self._transfers.disconnect()
            raise
        return True

    def _read_direct(self, buffer: memoryview) -> int:
        assert self._direct is not None
        count = self._meter.read(self._direct, buffer[: self._direct_left])
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
        done, meter = 0, _Meter(self._transfers)
        try:
            with closing(self._opened(start, start + len(room))) as reader:
                while done < len(room) and not self._closed:
                    count = meter.read(reader, room[done : done + STEP_BYTES])
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


def in_parts(
    opened: Callable[[int, int | None], Reader],
    start: int,
    stop: int | None,
    *,
    transfers: Transfers,
    part_bytes: int | None,
) -> Reader:
    """Return a reader of the bytes from ``start`` up to ``stop``, over several connections if that may be faster."""
    if stop is None or transfers.single:
        return opened(start, stop)
    least = part_bytes + 1 if part_bytes else 2 * _MIN_PART_BYTES
    if stop - start < least:
        return opened(start, stop)
    part = part_bytes or _part_for(stop - start, transfers)
    return PartsReader(opened, start, stop, transfers=transfers, part_bytes=part)


def _part_for(size: int, transfers: Transfers) -> int:
    """Return the size of the parts of a payload: one for each connection, unless they would be too small or large."""
    level = transfers.level
    return max(_MIN_PART_BYTES, min(MAX_PART_BYTES, -(-size // level), transfers.memory.limit // level))
