"""What a Python worker keeps between tasks, and how it reads and writes ahead: lazy, in order, with bounded bytes.

Spark reuses Python workers for many tasks, so the `ClaimCheck` of each configuration, with its connections, survives
the tasks. The configuration is pickled with the function (1 to 2 KiB); connections, locks and secrets never are.

Threads hide the time spent waiting for a store behind a network, and slow down reads from a local one.
`AdaptiveConcurrency` measures the first fetches to tell the two apart.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from claimcheck._client import ClaimCheck, from_dict, load
from claimcheck.config import Config

if TYPE_CHECKING:
    from pyspark import TaskContext

R = TypeVar("R")
T = TypeVar("T")

AnyConfig = str | os.PathLike[str] | Mapping[str, Any] | Config | ClaimCheck
"""A path, which is read on the driver, a mapping shaped like the YAML file, a `Config` or a `ClaimCheck`."""

Concurrency = Literal["auto"] | int
"""Concurrent requests; ``auto`` measures what pays, and only tests set a number."""

_AUTO_THREADS = 16
_SAMPLES = 4
_WORTHWHILE_SECONDS = 0.002  # below this, switching threads costs more than the waiting it hides
_REMEMBER_SECONDS = 60.0
_QUEUE_PER_THREAD = 4  # bounds the number of jobs in flight when payloads are tiny
_MALLOC_PARAMETERS = {-8: 1, -3: 4 << 20, -1: 8 << 20}  # mallopt(3): arenas, thresholds for mmap and for trimming

_lock = threading.Lock()
_claim_checks: dict[tuple[int, bytes], ClaimCheck] = {}
_tuned_in: set[int] = set()
_concurrencies: dict[tuple[int, bytes, Concurrency, str], AdaptiveConcurrency] = {}


def as_config(given: AnyConfig) -> Config:
    """Return the configuration to send to the workers, placeholders unresolved; raises `ConfigError` if invalid."""
    if isinstance(given, ClaimCheck):
        return given.config
    if isinstance(given, (str, os.PathLike)):
        return load(given).config
    checked = ClaimCheck(given) if isinstance(given, Config) else from_dict(given)  # opens nothing
    return checked.config


def claim_check(config: Config, *, uses_keys: bool = True) -> ClaimCheck:
    """Return this process's `ClaimCheck` for a configuration; it stays open until the process ends."""
    with _lock:
        key = _process_key(config)
        if key not in _claim_checks:
            _claim_checks[key] = ClaimCheck(config)
        _tune_worker()
        if uses_keys:
            _claim_checks[key].opened.check_keys()
        return _claim_checks[key]


def _tune_worker() -> None:
    """Adapt a Python worker of Spark, at the start of its first two tasks; the user's own process stays as it is."""
    if (context := _task()) is None or len(_tuned_in) == 2 or (task := context.taskAttemptId()) in _tuned_in:
        return
    if not _tuned_in:
        _return_memory()
    # Spark collects garbage in its workers after every task. That takes 50 ms with pandas, nearly all for modules.
    # The first task imports most of them, and the second begins when garbage was just collected.
    gc.freeze()
    _tuned_in.add(task)


def _return_memory() -> None:
    """Make glibc return the memory of large payloads to the system, and share that of small ones between threads."""
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with contextlib.suppress(Exception):  # another system, or another allocator
        import ctypes

        for parameter, value in _MALLOC_PARAMETERS.items():
            ctypes.CDLL(None).mallopt(parameter, value)


def adaptive_concurrency(
    config: Config, concurrency: Concurrency, operation: Literal["read", "write"] = "read"
) -> AdaptiveConcurrency:
    with _lock:
        key = (*_process_key(config), concurrency, operation)
        return _concurrencies.setdefault(key, AdaptiveConcurrency(concurrency))


def _process_key(config: Config) -> tuple[int, bytes]:
    # A forked child inherits this module, but must not share its parent's sockets: hence the process id.
    return os.getpid(), pickle.dumps(config)


def _task() -> TaskContext | None:
    from pyspark import TaskContext

    return TaskContext.get()


def query_id() -> str:
    """Return the id of this task's streaming query, which survives restarts; an empty text for a batch."""
    return "" if (context := _task()) is None else context.getLocalProperty("sql.streaming.queryId") or ""


def partition_id() -> int:
    """Return the number of this task's partition; 0 outside Spark."""
    return 0 if (context := _task()) is None else int(context.partitionId())


# Reading and writing ahead ----------------------------------------------------------------------------------------


class AdaptiveConcurrency:
    """Decides how many fetches run at once; one per process and configuration."""

    def __init__(
        self,
        concurrency: Concurrency,
        *,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._concurrency, self._wall, self._cpu = concurrency, wall, cpu
        self._is_connected = False
        self._samples: list[tuple[float, float]] = []
        self._measured, self._measured_at = 1, -math.inf

    @property
    def threads(self) -> int:
        if self._concurrency != "auto":
            return self._concurrency
        if len(self._samples) == _SAMPLES and self._wall() - self._measured_at > _REMEMBER_SECONDS:
            self._samples.clear()
        return self._measured if len(self._samples) == _SAMPLES else 1

    def measure(self, fetch: Callable[[], T]) -> T:
        """Run one fetch and record how long it took; the first one also connects, and does not count."""
        wall, cpu = self._wall(), self._cpu()
        result = fetch()
        if self._is_connected and len(self._samples) < _SAMPLES:
            self._samples.append((self._wall() - wall, self._cpu() - cpu))
            if len(self._samples) == _SAMPLES:
                self._measured, self._measured_at = _threads_for(self._samples), self._wall()
        self._is_connected = True
        return result


def _threads_for(samples: list[tuple[float, float]]) -> int:
    wall, cpu = (sum(sample[which] for sample in samples) / len(samples) for which in (0, 1))
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

    def run(
        self, jobs: Iterable[Job[T, R]], waited: Callable[[float], object] = lambda seconds: None
    ) -> Generator[tuple[T, R]]:
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
