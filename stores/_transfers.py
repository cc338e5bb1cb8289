"""How many connections an object store uses for its payloads, and how it divides them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from claimcheck._payload_reader import Reader
from claimcheck._validation import AutoBytes, Count, Range
from claimcheck.stores._parts import MAX_CONNECTIONS, MAX_PART_BYTES, SAMPLE_BYTES, in_parts

__all__ = ["AutoCount", "Memory", "PartBytes", "TransferPolicy", "Transfers"]

AutoCount = Count | Literal["auto"]
"""For an option with a number of connections."""

PartBytes = Annotated[int, Range(5 << 20)] | Literal["auto"]
"""For an option with the size of parts."""

_GAIN = 1.25  # what twice as many connections must bring
_FULL = 0.75  # a rate counts if at least this share of the connections was in use
_SAMPLE_SECONDS = 0.02  # of each connection, before a rate is believed
_ENOUGH = 1e9  # bytes per second of one connection: it is limited by the processor, not by the network
_RETRY_SECONDS = 10.0  # until the next attempt with more connections; doubled each time
_MAX_RETRY_SECONDS = 320.0
_MIN_PUT_PART_BYTES = 5 << 20  # required by S3
_MIN_PARTS_BYTES = 16 << 20  # smaller payloads are sent in one request: parts take three
_SINGLE_PUT_BYTES = 64 << 20
_FIXED_PART_BYTES = 16 << 20
_FEW_PARTS = 4


class Memory:
    """Memory for parts that all payloads of a store share.

    Args:
        limit: Bytes.
    """

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
        self._unused = 0

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
            if self._unused < SAMPLE_BYTES * self.level:  # new connections begin slowly
                self._unused += count
                return
            self._bytes += count
            self._seconds += seconds
            self._busy += seconds * connections
            if self._seconds >= _SAMPLE_SECONDS * self.level and self._bytes >= SAMPLE_BYTES * self.level:
                self._judge(self._bytes / self._seconds * self._busy / self._seconds)

    def record_payload(self, count: int, seconds: float, level: int) -> None:
        """Record a whole payload with all its requests; if it was slower than one connection, one is enough.

        Args:
            count: Bytes.
            seconds: How long it took.
            level: `level` when it began. If that has changed, it was an experiment, which proves nothing.
        """
        with self._lock:
            slower = count / max(seconds, 1e-9) < self._single_rate
            if slower and level == self.level and not self.fixed and self._payloads == 1:
                self._settle(1)

    def _judge(self, rate: float) -> None:
        if self.level == 1:
            self._single_rate = rate
        if self._baseline is not None and rate < _GAIN * self._baseline[1]:
            self._settle(self._baseline[0])
        elif self.level >= MAX_CONNECTIONS or rate >= _ENOUGH * self.level:
            self._settle(self.level)
        else:
            self._climb(self.level * 2, (self.level, rate))

    def _climb(self, level: int, baseline: tuple[int, float] | None) -> None:
        self.level, self._baseline = level, baseline
        self._bytes = self._seconds = self._busy = 0.0
        self._unused = 0
        self._retry_at = None

    def _settle(self, level: int) -> None:
        self._climb(level, None)
        self._retry_at = self.clock() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, _MAX_RETRY_SECONDS)


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
        memory = Memory(transfer_bytes)
        self.gets = Transfers(memory, fixed=_fixed(parallel_gets, transfer_bytes))
        self.puts = Transfers(memory, fixed=_fixed(parallel_parts, transfer_bytes))

    @property
    def connections(self) -> int:
        """The most connections that are used at the same time by one payload."""
        return max(MAX_CONNECTIONS, self.gets.level, self.puts.level)

    def reader(self, opened: Callable[[int, int | None], Reader], start: int, stop: int | None) -> Reader:
        """Return a reader of the bytes from ``start`` up to ``stop``; see `in_parts`."""
        if not self.gets.fixed:
            return in_parts(opened, start, stop, transfers=self.gets, part_bytes=self._part)
        part, count = self._part or _FIXED_PART_BYTES, self.gets.level
        own = Transfers(Memory(count * part), fixed=count)
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
        with puts.payload():
            level = puts.level
            limit = _SINGLE_PUT_BYTES if self._single is None and level == 1 else self.single_put_bytes
            single = size is not None and size <= limit
            yield None if single else self._engine_parts(size)
            if size is not None and size >= _MIN_PARTS_BYTES and single == (level == 1):
                puts.record(size * level, (puts.clock() - begin) * level, level)

    def _engine_parts(self, size: int | None) -> int:
        """Return how many parts the engine sends at the same time, and keeps in memory."""
        if self.puts.fixed:
            return self.puts.level
        level = self.puts.level if self.puts.level > 1 else _FEW_PARTS
        return max(1, min(level, self.puts.memory.limit // self.put_part_bytes(size)))

    @contextmanager
    def upload(self) -> Iterator[Callable[[int], None]]:
        """Count an upload in parts; yields a function to call with its size when it is complete."""
        puts = self.puts
        with puts.payload():
            begin, level = puts.clock(), puts.level
            yield lambda size: puts.record_payload(size, puts.clock() - begin, level)

    def begin_part(self, size: int, *, others: int) -> bool:
        """Take a connection and memory for a part; returns whether there are enough for it beside the others."""
        puts = self.puts
        few = puts.level if puts.fixed else _FEW_PARTS if puts.single else 1  # large payloads: one part would wait
        always = others < few
        if (puts.fixed and not always) or not puts.connect(always=always):
            return False
        if puts.memory.reserve(size, spare=size, always=always):  # the next part is read before it is sent
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
            self.end_part(size)

    def end_part(self, size: int) -> None:
        """Release what `begin_part` took."""
        self.puts.disconnect()
        self.puts.memory.release(size)

    def put_part_bytes(self, size: int | None) -> int:
        """Return the size of the parts of a payload that is sent in parts."""
        if self._part is not None:
            return self._part
        if self.puts.fixed:
            return _FIXED_PART_BYTES
        if size is None or self.puts.single:
            return MAX_PART_BYTES
        level = self.puts.level if self.puts.settled else MAX_CONNECTIONS
        return max(_MIN_PUT_PART_BYTES, min(MAX_PART_BYTES, -(-size // level)))


def _fixed(parallel: AutoCount, transfer_bytes: int) -> int | None:
    if parallel != "auto":
        return parallel
    return None if transfer_bytes else 1
