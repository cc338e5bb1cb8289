"""Runs fetches and writes ahead, without Spark: lazy, in order, and with a bound on the bytes in flight.

Payloads are fetched ahead by threads only where that pays. Threads hide the time spent waiting for a store behind a
network, and slow down reads from a local one. `AdaptiveConcurrency` measures the first fetches to tell the two apart.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Generic, Literal, TypeVar

from claimcheck._validation import Range

T = TypeVar("T")
R = TypeVar("R")

Concurrency = Literal["auto"] | Annotated[int, Range(1, 64)]
"""Concurrent requests; ``auto`` measures what pays, and only tests set a number."""

_AUTO_THREADS = 16
_SAMPLES = 4
_WORTHWHILE_SECONDS = 0.002  # below this, switching threads costs more than the waiting it hides
_REMEMBER_SECONDS = 60.0
_QUEUE_PER_THREAD = 4  # bounds the number of jobs in flight when payloads are tiny


class AdaptiveConcurrency:
    """Decides how many fetches run at once; one per process and store."""

    def __init__(
        self,
        concurrency: Concurrency,
        *,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._fixed = None if concurrency == "auto" else concurrency
        self._wall, self._cpu = wall, cpu
        self._connected = False
        self._samples: list[tuple[float, float]] = []
        self._measured = 1
        self._measured_at = -math.inf

    @property
    def threads(self) -> int:
        """The number of threads to use; 1 while measuring."""
        if self._fixed is not None:
            return self._fixed
        if len(self._samples) == _SAMPLES and self._wall() - self._measured_at > _REMEMBER_SECONDS:
            self._samples.clear()
        return self._measured if len(self._samples) == _SAMPLES else 1

    def measure(self, fetch: Callable[[], T]) -> T:
        """Run one fetch and record how long it took."""
        wall, cpu = self._wall(), self._cpu()
        result = fetch()
        self._record(self._wall() - wall, self._cpu() - cpu)
        return result

    def _record(self, wall: float, cpu: float) -> None:
        if not self._connected:  # the first fetch also opens the connection and is not representative
            self._connected = True
        elif len(self._samples) < _SAMPLES:
            self._samples.append((wall, cpu))
            if len(self._samples) == _SAMPLES:
                self._measured, self._measured_at = _threads_for(self._samples), self._wall()


def _threads_for(samples: list[tuple[float, float]]) -> int:
    wall = sum(sample[0] for sample in samples) / len(samples)
    cpu = sum(sample[1] for sample in samples) / len(samples)
    if wall - cpu < _WORTHWHILE_SECONDS:
        return 1
    return min(max(math.ceil(wall / max(cpu, 1e-6)), 2), _AUTO_THREADS)


@dataclass(frozen=True, slots=True)
class Job(Generic[T, R]):
    """One piece of work for an `OrderedExecutor`, and the item that it is for."""

    item: T
    work: Callable[[], R]
    size: int | None = 0
    waits: bool = False


class OrderedExecutor(Generic[T, R]):
    """Runs jobs ahead, in threads where that pays, and yields their items and results in order."""

    def __init__(self, concurrency: AdaptiveConcurrency, max_bytes: int) -> None:
        self._concurrency, self._max_bytes = concurrency, max_bytes
        self._pool: ThreadPoolExecutor | None = None
        self._started: deque[tuple[int, Job[T, R], Callable[[], R]]] = deque()
        self._held = self._yielded = 0
        self._largest_unknown: int | None = None
        self._waited_seconds = 0.0

    def run(self, jobs: Iterable[Job[T, R]], waited: Callable[[float], object] | None = None) -> Generator[tuple[T, R]]:
        """Take no more jobs ahead than can start; closing cancels those that have not, and waits for the others."""
        remaining = iter(jobs)
        try:
            job = next(remaining, None)
            while job or self._started:
                while job and self._fits(job):
                    self._start(job)
                    job = next(remaining, None) if self._concurrency.threads > 1 else None
                yield self._take()  # no local name: it would keep the payload alive during the next fetch
                self._held -= self._yielded
                job = job or next(remaining, None)
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
            if waited is not None:
                waited(self._waited_seconds)

    def _fits(self, job: Job[T, R]) -> bool:
        room = _QUEUE_PER_THREAD * self._concurrency.threads if self._concurrency.threads > 1 else 1
        fits = len(self._started) < room and self._held + self._size(job) <= self._max_bytes
        return fits or not self._started

    def _size(self, job: Job[T, R]) -> int:
        """The bytes of a job. Pointers of version 1 declare none: the first runs alone, others count as the largest."""
        if job.size is not None:
            return job.size
        return self._max_bytes if self._largest_unknown is None else self._largest_unknown

    def _start(self, job: Job[T, R]) -> None:
        work = job.work
        if job.waits and self._concurrency.threads > 1:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._concurrency.threads, thread_name_prefix="claimcheck-store")
            work = self._pool.submit(work).result
        elif job.waits:
            work = partial(self._concurrency.measure, work)
        size = self._size(job)
        self._held += size
        self._started.append((size, job, work))

    def _take(self) -> tuple[T, R]:
        self._yielded, job, work = self._started.popleft()
        begin = time.perf_counter()
        result = work()
        self._waited_seconds += time.perf_counter() - begin
        if job.size is None:
            self._largest_unknown = max(self._largest_unknown or 0, payload_size(result))
        return job.item, result


def payload_size(outcome: object) -> int:
    return len(outcome) if isinstance(outcome, bytes) else 0


def same(result: T) -> T:
    """Return the argument: the work of a job whose result is known."""
    return result
