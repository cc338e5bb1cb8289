"""Payloads over several connections: how many are worth it, and a reader that fetches parts ahead in threads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

from claimcheck._payload_reader import STEP_BYTES, Reader
from claimcheck._validation import AutoBytes, Count, Range
from claimcheck.errors import StoreUnavailableError

__all__ = [
    "MAX_CONNECTIONS",
    "AutoCount",
    "Memory",
    "PartBytes",
    "PartsReader",
    "SameVersion",
    "TransferPolicy",
    "Transfers",
    "in_parts",
]

MAX_CONNECTIONS = 16
"""The most connections that a store uses in one direction by itself."""

AutoCount = Count | Literal["auto"]
"""For an option with a number of connections."""

PartBytes = Annotated[int, Range(5 << 20)] | Literal["auto"]
"""For an option with the size of parts."""

_GAIN = 1.25  # what twice as many connections must bring
_FULL = 0.75  # a rate counts if at least this share of the connections was in use
_SAMPLE_SECONDS = 0.02  # of each connection, before a rate is believed
_SAMPLE_BYTES = 1 << 20
_RETRY_SECONDS = 10.0  # until the next attempt with more connections; doubled each time
_MAX_RETRY_SECONDS = 320.0
_MIN_PART_BYTES = 4 << 20
_MAX_PART_BYTES = 8 << 20
_MIN_PUT_PART_BYTES = 5 << 20  # required by S3
_MIN_PARTS_BYTES = 16 << 20  # smaller payloads are sent in one request: parts take three
_SINGLE_PUT_BYTES = 64 << 20
_FIXED_PART_BYTES = 16 << 20
_FEW_PARTS = 4
_AHEAD_BYTES = 256 << 10  # each connection beyond the first takes as many bytes read in sequence


class Memory:
    """Memory for parts that all payloads of a store share.

    Args:
        limit: Bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used = 0
        self._lock = threading.Lock()

    def reserve(self, count: int, *, always: bool = False) -> bool:
        """Reserve bytes; returns whether there were enough, which does not matter if ``always`` is set."""
        with self._lock:
            fits = always or self._used + count <= self.limit
            self._used += count if fits else 0
        return fits

    def release(self, count: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._used -= count


class Transfers:
    """The connections of one store in one direction: how many are in use, and how many are worth it.

    It begins with one. As long as twice as many connections raise the throughput, it doubles them; then it stays, and
    tries again after a while. Rates count only while a single payload is transferred: with several, each has a
    connection of its own anyway. Thread-safe.

    Args:
        memory: For parts in memory.
        fixed: A fixed number of connections; by default it adapts.
        clock: Returns the time in seconds.

    Attributes:
        level: Connections to use at the moment, for all payloads together.
        fixed: Whether the number is fixed.
    """

    def __init__(
        self, memory: Memory, *, fixed: int | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.memory = memory
        self.clock = clock
        self.level = fixed or 1
        self.fixed = fixed is not None
        self._baseline: tuple[int, float] | None = None  # the best number so far and its rate
        self._single_rate = 0.0
        self._retry_at: float | None = None  # while it stays
        self._retry_seconds = _RETRY_SECONDS
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._active = self._payloads = 0
        self._bytes = self._seconds = self._busy = 0.0

    @property
    def settled(self) -> bool:
        """Whether the number of connections is known to be good."""
        return self.fixed or (self._retry_at is not None and self.clock() < self._retry_at)

    @property
    def single(self) -> bool:
        """Whether one connection is known to be enough."""
        return self.level == 1 and self.settled

    @contextmanager
    def payload(self) -> Iterator[None]:
        """Count a payload that may use several connections."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Count a payload; see `payload`."""
        if self._pid != os.getpid():  # the parent's threads do not exist in a forked process
            self._reset()
        with self._lock:
            self._payloads += 1
            if self._payloads == 1 and not self.settled and self._retry_at is not None:
                self._climb(max(1, self.level // 2), None)

    def end(self) -> None:
        """Count a payload that is done."""
        with self._lock:
            self._payloads -= 1

    def connect(self, *, always: bool = False) -> bool:
        """Count one more connection; returns whether it may be used. The first of each payload ``always`` is."""
        with self._lock:
            free = always or self._active < self.level
            self._active += free
        return free

    def disconnect(self) -> None:
        """Count a connection that is not used any more."""
        with self._lock:
            self._active -= 1

    @property
    def active(self) -> int:
        """Connections in use."""
        return self._active

    def record(self, count: int, seconds: float, connections: int) -> None:
        """Record what one connection moved.

        Args:
            count: Bytes.
            seconds: How long it took.
            connections: How many were in use meanwhile.
        """
        with self._lock:
            if self._payloads != 1 or self.settled or not _FULL * self.level <= connections <= self.level:
                return
            self._bytes += count
            self._seconds += seconds
            self._busy += seconds * connections
            if self._seconds >= _SAMPLE_SECONDS * self.level and self._bytes >= _SAMPLE_BYTES * self.level:
                self._judge(self._bytes / self._seconds * self._busy / self._seconds)

    def record_payload(self, count: int, seconds: float) -> None:
        """Record a whole payload with all its requests; if they cost what the connections bring, one is enough."""
        with self._lock:
            gained = count / max(seconds, 1e-9) >= _GAIN * self._single_rate
            if not (self.fixed or gained or self._payloads != 1):
                self._settle(1)

    def _judge(self, rate: float) -> None:
        if self.level == 1:
            self._single_rate = rate
        if self._baseline is not None and rate < _GAIN * self._baseline[1]:
            self._settle(self._baseline[0])
        elif self.level >= MAX_CONNECTIONS:
            self._settle(self.level)
        else:
            self._climb(self.level * 2, (self.level, rate))

    def _climb(self, level: int, baseline: tuple[int, float] | None) -> None:
        self.level, self._baseline = level, baseline
        self._bytes = self._seconds = self._busy = 0.0
        self._retry_at = None

    def _settle(self, level: int) -> None:
        self._climb(level, None)
        self._retry_at = self.clock() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, _MAX_RETRY_SECONDS)


class SameVersion:
    """Checks that all parts of a payload come from one object, by the version that each response names.

    Args:
        store: The store's name, for the error.
        key: The payload's key, for the error.
    """

    def __init__(self, store: str, key: str) -> None:
        self._store, self._key = store, key
        self._lock = threading.Lock()
        self._version: str | None = None

    def check(self, version: str | None) -> None:
        """Compare a version with that of the first response.

        Raises:
            StoreUnavailableError: They differ: the object was replaced, and has to be read again.
        """
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
        if self._bytes >= _SAMPLE_BYTES:
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
    """A `Reader` of a range that reads the first part itself, and fetches the next ones ahead in threads.

    How far it reads ahead grows with what was read in sequence. Memory for parts comes from the store's budget; if
    there is none left, it reads the next part itself.

    Args:
        opened: Returns a reader of the bytes from a start up to a stop; called in several threads.
        start: The first byte.
        stop: The byte after the last.
        transfers: The store's connections for reading.
        part_bytes: The size of each part.
    """

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
        """Lend the memory that the next reads will pass, from its start to its end: parts are fetched right into it.

        It must stay valid until all of it was read, or this reader is closed.
        """
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
        count = part.fetched.result()
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
        start, size = self._next, self._stop - self._next
        if not size:
            return False
        size = size if self._transfers.single else min(size, self._part_bytes)
        self._transfers.connect(always=True)
        with self._lock:
            self._next, self._direct_left = start + size, size
            self._lent = self._lent[size:]
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


def in_parts(
    opened: Callable[[int, int | None], Reader],
    start: int,
    stop: int | None,
    *,
    transfers: Transfers,
    part_bytes: int | None,
) -> Reader:
    """Return a reader of the bytes from ``start`` up to ``stop``, over several connections if that may be faster.

    Args:
        opened: Returns a reader of a range.
        start: The first byte.
        stop: The byte after the last; ``None`` if it is not known.
        transfers: The store's connections for reading.
        part_bytes: The size of each part; ``None`` to choose it.
    """
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
    return max(_MIN_PART_BYTES, min(_MAX_PART_BYTES, -(-size // level), transfers.memory.limit // level))


class TransferPolicy:
    """How an object store divides payloads, and how many connections it uses: the options that such stores share.

    Args:
        part_bytes: The size of each part; ``"auto"`` to choose it.
        single_put_bytes: Payloads up to this size are sent in one request.
        parallel_parts: Parts sent concurrently.
        parallel_gets: Parts fetched concurrently.
        transfer_bytes: Memory for parts of all payloads together, in both directions.
    """

    def __init__(
        self,
        *,
        part_bytes: AutoBytes,
        single_put_bytes: AutoBytes,
        parallel_parts: AutoCount,
        parallel_gets: AutoCount,
        transfer_bytes: int,
    ) -> None:
        self._part = None if part_bytes == "auto" else part_bytes
        self._single = None if single_put_bytes == "auto" else single_put_bytes
        self._fixed_gets = _fixed(parallel_gets, transfer_bytes)
        memory = Memory(transfer_bytes)
        self.gets = Transfers(memory, fixed=self._fixed_gets)
        self.puts = Transfers(memory, fixed=_fixed(parallel_parts, transfer_bytes))

    @property
    def connections(self) -> int:
        """The most connections that are used at the same time by one payload."""
        return max(MAX_CONNECTIONS, self.gets.level, self.puts.level)

    def reader(self, opened: Callable[[int, int | None], Reader], start: int, stop: int | None) -> Reader:
        """Return a reader of the bytes from ``start`` up to ``stop``; see `in_parts`."""
        if self._fixed_gets is None:
            return in_parts(opened, start, stop, transfers=self.gets, part_bytes=self._part)
        part = self._part or _FIXED_PART_BYTES
        own = Transfers(Memory(self._fixed_gets * part), fixed=self._fixed_gets)
        return in_parts(opened, start, stop, transfers=own, part_bytes=part)

    @property
    def single_put_bytes(self) -> int:
        """The largest payload that is sent in one request."""
        if self._single is not None:
            return self._single
        return _SINGLE_PUT_BYTES if self.puts.fixed or self.puts.single else _MIN_PARTS_BYTES - 1

    @contextmanager
    def whole(self, size: int | None) -> Iterator[int | None]:
        """Measure an upload by an engine that sends the parts itself; yields how many concurrently, or ``None``.

        ``None`` is for one request. Only whole payloads can be measured, so each may try another number.
        """
        puts, begin = self.puts, self.puts.clock()
        limit = _SINGLE_PUT_BYTES if self._single is None and puts.level == 1 else self.single_put_bytes
        single = size is not None and size <= limit
        level = puts.level if puts.fixed or puts.level > 1 else _FEW_PARTS
        with puts.payload():
            yield None if single else level
            if size is not None and (size >= _MIN_PARTS_BYTES and single == (puts.level == 1)):
                puts.record(size * puts.level, (puts.clock() - begin) * puts.level, puts.level)

    @contextmanager
    def upload(self) -> Iterator[Callable[[int], None]]:
        """Count an upload in parts; yields a function to call with its size when it is complete."""
        begin = self.puts.clock()
        with self.puts.payload():
            yield lambda size: self.puts.record_payload(size, self.puts.clock() - begin)

    def begin_part(self, size: int, *, others: int) -> bool:
        """Take a connection and memory for a part; returns whether there are enough for it beside the others."""
        puts = self.puts
        few = puts.level if puts.fixed else _FEW_PARTS if puts.single else 1  # large payloads: one part would wait
        always = others < few
        if (puts.fixed and not always) or not puts.connect(always=always):
            return False
        if puts.memory.reserve(size, always=always):
            return True
        puts.disconnect()
        return False

    @contextmanager
    def part(self, size: int) -> Iterator[None]:
        """Measure the sending of a part for which `begin_part` returned true; afterwards its memory is free."""
        puts, begin = self.puts, self.puts.clock()
        connections = puts.active
        try:
            yield
            puts.record(size, puts.clock() - begin, min(connections, puts.active))
        finally:
            puts.disconnect()
            puts.memory.release(size)

    def put_part_bytes(self, size: int | None) -> int:
        """Return the size of the parts of a payload that is sent in parts."""
        if self._part is not None:
            return self._part
        if self.puts.fixed or self.puts.single:
            return _FIXED_PART_BYTES
        if size is None:
            return _MAX_PART_BYTES
        level = self.puts.level if self.puts.settled else MAX_CONNECTIONS
        return max(_MIN_PUT_PART_BYTES, min(_MAX_PART_BYTES, -(-size // level)))


def _fixed(parallel: AutoCount, transfer_bytes: int) -> int | None:
    if parallel != "auto":
        return parallel
    return None if transfer_bytes else 1
