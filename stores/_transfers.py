"""How many connections an object store uses for its payloads, and how it divides them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from claimcheck._reader import Reader
from claimcheck.stores._parts import MAX_CONNECTIONS, MAX_PART_BYTES, SAMPLE_BYTES, in_parts

_LEVELS = (1, 4, MAX_CONNECTIONS)  # few and far apart: what they bring is larger than what else the machine does
_PUT_LEVELS = (1, MAX_CONNECTIONS)
_GAIN = 1.25  # what more connections must bring
_FULL = 0.375  # a rate counts if at least this share of the connections was in use: still more than at the level below
_SAMPLE_SECONDS = 0.02  # of each connection, before a rate is believed
_BASE_PATIENCE = 2  # as many samples, before others are compared with this rate
_PATIENCE = 4  # as many samples, before more connections are given up
_ENOUGH = 600e6  # bytes per second of one connection: it is limited by the processor, not by the network
_SLOW = 150e6  # it is limited by the network
_RETRY_SECONDS = 10.0  # of transfers until the next measurement; doubled while the result stays the same
_MAX_RETRY_SECONDS = 320.0
_MIN_PUT_PART_BYTES = 5 << 20  # required by S3
_MIN_PARTS_BYTES = 16 << 20  # smaller payloads are sent in one request: parts take three
_TELLING_BYTES = 4 << 20  # of a smaller request, most of the time is the round trip
_SINGLE_PUT_BYTES = 64 << 20
_FEW_PARTS = 4
_UNMEASURED = nullcontext(True)


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
    """The connections of one store in one direction: how many are in use, and how many are worth it."""

    def __init__(
        self,
        memory: Memory,
        *,
        fixed: int | None = None,
        levels: tuple[int, ...] = _LEVELS,
        level: int = 1,
        skip_bytes: int = SAMPLE_BYTES,
        least_samples: int = 3,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.memory = memory
        self.clock = clock
        self.level = fixed or level
        self.fixed = fixed is not None
        self._levels = levels
        self._skip_bytes = skip_bytes
        self._least_samples = least_samples
        self._rates: dict[int, float] = {}  # measured, by the number of connections
        self._retry_at: float | None = None  # while it stays
        self._retry_seconds = _RETRY_SECONDS
        self._settled_at = 0
        self._used_seconds = self._used_since = 0.0
        self._samples: list[float] = []
        self._bytes = self._seconds = self._busy = self._sampled = 0.0
        self._reset()
        self._measure(self.level)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._active = self._payloads = 0

    @property
    def settled(self) -> bool:
        """Whether the number of connections is known to be good."""
        return self.fixed or (self._retry_at is not None and self._time < self._retry_at)

    @property
    def _time(self) -> float:
        """Seconds in which payloads were transferred: a store that is used now and then keeps what it has learned."""
        return self._used_seconds + (self.clock() - self._used_since if self._payloads else 0.0)

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
            if self._payloads == 0:
                self._used_since = self.clock()
                if not self.settled and self._retry_at is not None:
                    self._rates.clear()
                    self._measure(self._levels[0])
            self._payloads += 1

    def end(self) -> None:
        """Count a payload that is done."""
        with self._lock:
            if self._payloads == 1:
                self._used_seconds = self._time
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

    def compare_with_one(self, rate: float) -> None:
        """Take the rate of one connection as measured."""
        with self._lock:
            if self._payloads == 1 and not self.settled:
                self._rates[1] = max(rate, self._rates.get(1, 0.0))
                if self.level == 1:
                    self._explore()

    def use_all(self) -> None:
        """Use the most connections for a while, without a measurement."""
        with self._lock:
            self._settle(self._levels[-1])

    def record(self, count: int, seconds: float, connections: int) -> None:
        """Record what one connection moved."""
        with self._lock:
            if self._payloads != 1 or self.settled or not _FULL * self.level <= connections <= self.level:
                return
            if self._unused > 0:
                self._unused -= count
                return
            self._bytes += count
            self._seconds += seconds
            self._busy += seconds * connections
            if self._bytes >= SAMPLE_BYTES * self.level:
                self._samples.append(self._bytes / self._seconds * self._busy / self._seconds)
                self._sampled += self._seconds
                self._bytes = self._seconds = self._busy = 0.0
                self._judge()

    def _judge(self) -> None:
        """Accept a rate once it was measured for long enough; a gain is accepted sooner."""
        samples = sorted(self._samples)
        rate = (samples[(len(samples) - 1) // 2] + samples[len(samples) // 2]) / 2
        fewer = max((rate for level, rate in self._rates.items() if level < self.level), default=0.0)
        patience = _BASE_PATIENCE if not fewer else 1 if rate >= _GAIN * fewer else _PATIENCE
        if len(samples) >= self._least_samples * patience and self._sampled >= _SAMPLE_SECONDS * self.level * patience:
            self._rates[self.level] = rate
            self._explore()

    def _explore(self) -> None:
        """Measure the next number of connections, or settle."""
        best = 0
        for level in self._levels:
            if level not in self._rates:
                self._measure(level)
                return
            if best and self._rates[level] < _GAIN * self._rates[best]:
                break
            best = level
            if self._rates[level] >= _ENOUGH * level:
                break
        self._settle(best)

    def _measure(self, level: int) -> None:
        self.level, self._retry_at = level, None
        self._samples = []
        self._bytes = self._seconds = self._busy = self._sampled = 0.0
        self._unused = self._skip_bytes * level

    def _settle(self, level: int) -> None:
        self._measure(level)
        is_same = level == self._settled_at
        self._retry_seconds = min(2 * self._retry_seconds, _MAX_RETRY_SECONDS) if is_same else _RETRY_SECONDS
        self._settled_at = level
        self._retry_at = self._time + self._retry_seconds


class TransferPolicy:
    """How an object store divides payloads, and how many connections it uses."""

    _part: int | None = None  # the size of each part, and the largest payload of one request; tests set them
    _single: int | None = None

    def __init__(self, transfer_bytes: int) -> None:
        memory, fixed = Memory(transfer_bytes), None if transfer_bytes else 1
        self.gets = Transfers(memory, fixed=fixed)
        self.puts = Transfers(
            memory, fixed=fixed, levels=_PUT_LEVELS, level=MAX_CONNECTIONS, skip_bytes=0, least_samples=1
        )

    def reader(self, opened: Callable[[int, int | None], Reader], start: int, stop: int | None) -> Reader:
        """Return a reader of the bytes from ``start`` up to ``stop``; see `in_parts`."""
        return in_parts(opened, start, stop, transfers=self.gets, part_bytes=self._part)

    def upload(self, size: int | None) -> AbstractContextManager[bool]:
        """Measure an upload; the context is whether to send it in one request."""
        if size is not None and size < _TELLING_BYTES and size <= self.single_put_bytes:
            return _UNMEASURED
        return self._measured(size)

    @contextmanager
    def _measured(self, size: int | None) -> Iterator[bool]:
        puts, begin = self.puts, self.puts.clock()
        with puts.payload():
            if puts.level == 1 and not puts.settled and (size is None or size > self.single_put_bytes):
                puts.use_all()  # it cannot be sent in one request
            level = puts.level
            single = size is not None and size <= self.single_put_bytes
            yield single
            if size is not None:
                self._record(size, puts.clock() - begin, level, single=single)

    def _record(self, size: int, seconds: float, level: int, *, single: bool) -> None:
        if size >= _MIN_PARTS_BYTES and single == (level == 1):
            self.puts.record(size, seconds * level, level)
        elif single and size < seconds * _SLOW:
            self.puts.compare_with_one(size / seconds)

    @property
    def single_put_bytes(self) -> int:
        """The largest payload that is sent in one request."""
        if self._single is not None:
            return self._single
        return _SINGLE_PUT_BYTES if self.puts.level == 1 else _MIN_PARTS_BYTES - 1

    @property
    def _parts_at_once(self) -> int:
        """How many parts of a payload are sent at the same time; one alone would wait while the next one is read."""
        return self.puts.level if self.puts.fixed or self.puts.level > 1 else _FEW_PARTS

    def engine_parts(self, part_bytes: int) -> int:
        """Return how many parts an engine that sends them itself keeps in memory, and sends at the same time."""
        return max(1, min(self._parts_at_once, self.puts.memory.limit // part_bytes))

    def begin_part(self, size: int, *, others: int) -> bool:
        """Take a connection and memory for a part; returns whether there are enough for it beside the others."""
        puts = self.puts
        always = others < (self._parts_at_once if puts.fixed or puts.level == 1 else 1)
        if not puts.connect(always=always):
            return False
        if puts.memory.reserve(size, spare=size, always=always):  # the next part is read before it is sent
            return True
        puts.disconnect()
        return False

    def end_part(self, size: int) -> None:
        """Release what `begin_part` took."""
        self.puts.disconnect()
        self.puts.memory.release(size)

    def put_part_bytes(self, size: int | None) -> int:
        """Return the size of the parts of a payload that is sent in parts."""
        if self._part is not None:
            return self._part
        if size is None or self.puts.level == 1:
            return MAX_PART_BYTES
        parts = max(1, min(self.puts.level, size // _MIN_PUT_PART_BYTES))
        return max(_MIN_PUT_PART_BYTES, min(MAX_PART_BYTES, -(-size // parts)))
