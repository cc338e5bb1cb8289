"""Work that is under way: done in threads where that pays, handed out in order, bounded in bytes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from claimcheck.spark.pace import Pace

__all__ = ["Job", "Line"]

R = TypeVar("R")

_QUEUE_PER_THREAD = 4  # tiny payloads: how many jobs are under way, whatever they weigh


@dataclass(frozen=True, slots=True)
class Job(Generic[R]):
    """One piece of work.

    Attributes:
        work: Does it.
        size: Payload bytes that it holds, from its beginning until the next one is asked for; ``None`` for unknown.
        waits: Whether it asks a store; what does not is done when its turn comes.
    """

    work: Callable[[], R]
    size: int | None
    waits: bool


class Line(Generic[R]):
    """The jobs that are under way, in order.

    Args:
        pace: How many threads.
        max_bytes: Of payloads under way, the last one handed out included; one that alone is larger goes alone.
        measure: From a result to its bytes, to learn from it what jobs of unknown size hold.
    """

    def __init__(self, pace: Pace, max_bytes: int, *, measure: Callable[[R], int]) -> None:
        self._pace, self._max_bytes, self._measure = pace, max_bytes, measure
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[int, Job[R], Callable[[], R]]] = deque()
        self._held = self._handed_out = 0
        self._largest_unknown: int | None = None
        self.waited_seconds = 0.0

    def run(self, jobs: Iterable[Job[R]]) -> Iterator[R]:
        """Do them, reading no further ahead than work is under way."""
        coming = iter(jobs)
        following = next(coming, None)
        while following or self._waiting:
            while following and self._fits(following):
                self._start(following)
                following = next(coming, None) if self._pace.threads > 1 else None
            yield self._take()  # and keep no name for it here: it would live on while the next ones are fetched
            self._held -= self._handed_out
            following = following or next(coming, None)

    def close(self) -> None:
        """Cancel what has not begun, and wait for what has."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _fits(self, job: Job[R]) -> bool:
        room = _QUEUE_PER_THREAD * self._pace.threads if self._pace.threads > 1 else 1
        inside = len(self._waiting) < room and self._held + self._count(job) <= self._max_bytes
        return inside or not self._waiting

    def _count(self, job: Job[R]) -> int:
        """Pointers of version 1 declare no size: the first goes alone, the others count as the largest one seen."""
        if job.size is not None:
            return job.size
        return self._max_bytes if self._largest_unknown is None else self._largest_unknown

    def _start(self, job: Job[R]) -> None:
        work = job.work
        if job.waits and self._pace.threads > 1:
            work = self._threads().submit(work).result
        elif job.waits:
            work = partial(self._pace.watch, work)
        counted = self._count(job)
        self._held += counted
        self._waiting.append((counted, job, work))

    def _take(self) -> R:
        self._handed_out, job, work = self._waiting.popleft()
        begin = time.perf_counter()
        result = work()
        self.waited_seconds += time.perf_counter() - begin
        if job.size is None:
            self._largest_unknown = max(self._largest_unknown or 0, self._measure(result))
        return result

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._pace.threads, thread_name_prefix="claimcheck-store")
        return self._pool
