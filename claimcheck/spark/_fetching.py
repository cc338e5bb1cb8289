"""Resolves messages one by one, without Spark: lazy, in order, and with a bound on the bytes in flight.

Payloads are fetched ahead by threads only where that pays. Threads hide the time spent waiting for a store behind a
network, and slow down reads from a local one. `AdaptiveConcurrency` measures the first fetches to tell the two apart.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, BinaryIO, Generic, TypeVar
from typing import Literal as OneOf

from claimcheck._client import ClaimCheck
from claimcheck._validation import Range
from claimcheck._wire.buffers import Buffer, as_view
from claimcheck._wire.envelope import Literal, decode, is_lookalike
from claimcheck._wire.pointer import Pointer
from claimcheck.config import Config
from claimcheck.errors import (
    UNUSABLE,
    ChunkError,
    ClaimCheckError,
    EnvelopeError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)

T = TypeVar("T")
R = TypeVar("R")

Concurrency = OneOf["auto"] | Annotated[int, Range(1, 64)]
"""Concurrent requests: 1 to 64, or ``auto`` to measure what pays."""

Outcome = bytes | None | ClaimCheckError | Callable[[], BinaryIO]
"""The result of one message: its payload, ``None`` for a tombstone, the error, or a function that opens the payload."""

MAX_INFLIGHT_BYTES = 64 << 20
"""Default bound on the payload bytes that one task fetches ahead."""

OUT_BATCH_BYTES = 16 << 20
"""Default payload bytes per Arrow batch sent to the JVM; larger batches were slower."""

MESSAGE_ERRORS: tuple[type[ClaimCheckError], ...] = (
    ChunkError,
    EnvelopeError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)
"""Errors that can be the fault of a single message; see `is_bad_message`."""

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


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Where a message was read from."""

    destination: str | None = None
    headers: Callable[[], object] | None = None
    is_internal: bool = False


_NOWHERE = ReadFrom()


def outcomes(
    messages: Iterable[tuple[T, Buffer | None]],
    cc: ClaimCheck,
    *,
    concurrency: AdaptiveConcurrency,
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    instead: Callable[[Buffer, Pointer], Outcome] | None = None,
    waited: Callable[[float], object] | None = None,
    read_from: Callable[[T], ReadFrom] = lambda item: _NOWHERE,
) -> Generator[tuple[T, Buffer | None, Outcome]]:
    """Resolve messages one by one, in order; nothing happens before the first result is requested."""
    jobs = (_job(cc, item, message, read_from(item), instead) for item, message in messages)
    executor = OrderedExecutor[tuple[T, Buffer | None], Outcome](concurrency, max_inflight_bytes)
    with closing(executor.run(jobs, waited)) as results:
        for (item, message), outcome in results:
            yield item, message, outcome
            del outcome  # it would keep the payload alive during the next fetch


def payload_size(outcome: object) -> int:
    return len(outcome) if isinstance(outcome, bytes) else 0


def same(result: T) -> T:
    """Return the argument: the work of a job whose result is known."""
    return result


def _job(
    cc: ClaimCheck,
    item: T,
    message: Buffer | None,
    origin: ReadFrom,
    instead: Callable[[Buffer, Pointer], Outcome] | None,
) -> Job[tuple[T, Buffer | None], Outcome]:
    pair = item, message
    if message is None:
        return Job(pair, partial(same, None))
    try:
        if origin.is_internal:
            pointer = cc.opened.messages.pointer_from_anywhere(message)
        else:
            pointer = cc.pointer(message, destination=origin.destination)
        result = instead(message, pointer) if pointer is not None and instead is not None else None
    except ClaimCheckError as error:
        return Job(pair, partial(same, error))
    if result is not None:
        return Job(pair, partial(same, result))
    if pointer is not None:
        return Job(pair, partial(_outcome, cc.read, pointer), pointer.size, waits=True)
    size = cc.opened.messages.unpacker.encoded_size(message)
    return Job(pair, partial(_outcome, partial(_in_band, cc, origin), message), len(message) if size is None else size)


def _in_band(cc: ClaimCheck, origin: ReadFrom, message: Buffer) -> Buffer | None:
    """Return the payload of a message that is not a pointer."""
    header = cc.config.header
    if not is_lookalike(message, header=header):
        return cc.resolve(message, destination=origin.destination)
    if origin.is_internal and isinstance(literal := decode(message, header=header), Literal):
        return literal.payload
    headers = origin.headers() if origin.headers is not None else None
    return cc.resolve(message, destination=origin.destination, headers=headers)


def _outcome(work: Callable[[T], Buffer | None], argument: T) -> Outcome:
    try:
        payload = work(argument)
        return payload if payload is None or type(payload) is bytes else bytes(as_view(payload))
    except ClaimCheckError as error:
        return error


def is_bad_message(error: ClaimCheckError, config: Config) -> bool:
    """Return whether an error concerns one message only, so that a task may continue without it."""
    return isinstance(error, MESSAGE_ERRORS) and not error.retryable and not _lacks_needed_store(error, config)


def _lacks_needed_store(error: ClaimCheckError, config: Config) -> bool:
    if not isinstance(error, PointerRejectedError) or error.reason != "store":
        return False
    needed = {config.store, *(config.reads_from or ())}
    return isinstance(error.__cause__, UNUSABLE) and error.store in needed
