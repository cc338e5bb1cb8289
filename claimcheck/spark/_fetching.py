"""The plain core of everything that reads in Spark: messages in, payloads out; lazy, in order, bounded in bytes.

No Spark in here. Payloads are fetched ahead by threads only where that pays: `Pace` watches the first fetches and
finds out whether they wait (a store behind a network) or work (a local one), because threads hide waiting and only
get in the way of work.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

from claimcheck._envelope import Buffer
from claimcheck._payload import as_view
from claimcheck._pointer import Pointer
from claimcheck._registry import UNUSABLE
from claimcheck._validation import MAX_SECONDS, Range, check_int, check_value, fail
from claimcheck.config import Config
from claimcheck.errors import (
    ChunkError,
    ClaimCheckError,
    EnvelopeError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)

__all__ = [
    "check_bytes",
    "check_choice",
    "check_reading",
    "check_seconds",
    "Concurrency",
    "is_bad_message",
    "Job",
    "Line",
    "MAX_INFLIGHT_BYTES",
    "OF_ONE_MESSAGE",
    "OUT_BATCH_BYTES",
    "Outcome",
    "outcomes",
    "Pace",
    "Resolving",
    "weight",
]

Concurrency = Literal["auto"] | int
"""Requests at once: 1 to 64, or ``auto`` to find out."""

T = TypeVar("T")

_AUTO_THREADS = 16
_SAMPLES = 4
_WORTHWHILE_SECONDS = 0.002  # below this, switching threads costs more than the waiting that it hides
_REMEMBER_SECONDS = 60.0


class Pace:
    """How many fetches at once pay: learnt from single ones, remembered for a minute, one per process and store.

    Args:
        concurrency: A number is simply kept; ``auto`` learns.
        wall: Seconds that pass.
        cpu: Seconds that the calling thread works.
    """

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
        self._learnt = 1
        self._learnt_at = -math.inf

    @property
    def threads(self) -> int:
        """1 while it is still learning and where threads would not pay."""
        if self._fixed is not None:
            return self._fixed
        if len(self._samples) == _SAMPLES and self._wall() - self._learnt_at > _REMEMBER_SECONDS:
            self._samples.clear()
        return self._learnt if len(self._samples) == _SAMPLES else 1

    def watch(self, fetch: Callable[[], T]) -> T:
        """Do one fetch and learn from it."""
        wall, cpu = self._wall(), self._cpu()
        outcome = fetch()
        self._learn(self._wall() - wall, self._cpu() - cpu)
        return outcome

    def _learn(self, wall: float, cpu: float) -> None:
        if not self._connected:  # the first fetch also opens the connection and says nothing about the others
            self._connected = True
        elif len(self._samples) < _SAMPLES:
            self._samples.append((wall, cpu))
            if len(self._samples) == _SAMPLES:
                self._learnt, self._learnt_at = _worthwhile(self._samples), self._wall()

    def __repr__(self) -> str:
        return f"<Pace threads={self.threads} samples={len(self._samples)}>"


def _worthwhile(samples: list[tuple[float, float]]) -> int:
    wall = sum(sample[0] for sample in samples) / len(samples)
    cpu = sum(sample[1] for sample in samples) / len(samples)
    if wall - cpu < _WORTHWHILE_SECONDS:
        return 1
    return min(max(math.ceil(wall / max(cpu, 1e-6)), 2), _AUTO_THREADS)


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


OUT_BATCH_BYTES = 16 << 20
"""Payload bytes per Arrow batch that goes to the JVM, unless told otherwise; larger ones were slower."""

Outcome = bytes | None | ClaimCheckError
"""What became of one message: its payload, nothing for a tombstone, or why there is none."""

MAX_INFLIGHT_BYTES = 64 << 20
"""Payload bytes that one task fetches ahead at most, unless told otherwise."""

OF_ONE_MESSAGE: tuple[type[ClaimCheckError], ...] = (
    ChunkError,
    EnvelopeError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)
_MAX_CONCURRENCY = 64


class Resolving(Protocol):
    """The part of a `claimcheck.ClaimCheck` that is needed here; called from several threads at once."""

    def resolve(self, message: Buffer | None, /) -> Buffer | None:
        """Return the payload of one message, or raise a `ClaimCheckError`."""

    def pointer(self, message: Buffer, /) -> Pointer | None:
        """Return the pointer that a message carries, if it carries one; no I/O."""

    def read(self, pointer: Pointer, /) -> bytes:
        """Return the payload that such a pointer names, or raise a `ClaimCheckError`."""


def outcomes(
    messages: Iterable[Buffer | None],
    cc: Resolving,
    *,
    pace: Pace,
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    waited: Callable[[float], object] | None = None,
) -> Generator[Outcome]:
    """Resolve messages one by one, in their order; nothing happens before the first is asked for.

    Args:
        messages: Envelopes and plain messages; read ahead no further than payloads are fetched ahead.
        cc: Resolves one message; errors other than `ClaimCheckError` end the iteration.
        pace: How many threads fetch at once.
        max_inflight_bytes: Bound on the payload bytes fetched but not yet handed out, the last one handed out
            included; a payload that alone is larger is fetched alone.
        waited: Told in the end for how many seconds this stood still until payloads were there.

    Yields:
        One outcome per message. Closing the iterator cancels what is not fetched yet and waits for what is.
    """
    line = Line[Outcome](pace, max_inflight_bytes, measure=weight)
    try:
        yield from line.run(_job(cc, message) for message in messages)
    finally:
        line.close()
        if waited is not None:
            waited(line.waited_seconds)


def is_bad_message(error: ClaimCheckError, config: Config) -> bool:
    """Whether an error is about one message, so that a task may go on without it.

    Everything else would affect every message of the task and turn an outage into data: a store that is down, and a
    driver or a variable that this worker lacks for a store that the job needs. Needed are the configuration's ``store``
    and the stores that ``reads_from`` lists. Any other store is opened only because a message names it.
    """
    return isinstance(error, OF_ONE_MESSAGE) and not error.retryable and not _lacks_needed_store(error, config)


def _lacks_needed_store(error: ClaimCheckError, config: Config) -> bool:
    if not isinstance(error, PointerRejectedError) or error.reason != "store":
        return False
    needed = {config.store, *(config.reads_from or ())}
    return isinstance(error.__cause__, UNUSABLE) and error.store in needed


def check_reading(*, concurrency: Concurrency, max_inflight_bytes: int) -> None:
    """Check options on the driver, before they fail in every task.

    Raises:
        ConfigError: An option is out of range; names it and the valid values.
    """
    check_value("concurrency", concurrency, Literal["auto"] | Annotated[int, Range(1, _MAX_CONCURRENCY)])
    check_bytes("max_inflight_bytes", max_inflight_bytes)


def check_bytes(name: str, value: object) -> None:
    """Check that an option is a positive number of bytes.

    Raises:
        ConfigError: It is not; names the option.
    """
    check_int(name, value, minimum=1)


def check_seconds(name: str, value: float, *, minimum: float) -> float:
    """Check that an option is a number of seconds, and return it as a float.

    Raises:
        ConfigError: It is not; names the option.
    """
    check_value(name, value, Annotated[float, Range(minimum, MAX_SECONDS)])
    return float(value)


def check_choice(name: str, value: object, *choices: object) -> None:
    """Check that an option is one of the choices.

    Raises:
        ConfigError: It is not; names the option and the choices.
    """
    if value not in choices:
        fail(name, found=repr(value), expected=" or ".join(map(repr, choices)))


def weight(outcome: Outcome) -> int:
    """Its payload bytes."""
    return len(outcome) if isinstance(outcome, bytes) else 0


def _job(cc: Resolving, message: Buffer | None) -> Job[Outcome]:
    try:
        pointer = None if message is None else cc.pointer(message)
    except ClaimCheckError as error:
        return Job(partial(_same, error), 0, waits=False)
    if pointer is None:
        return Job(partial(_done, cc.resolve, message), len(message or b""), waits=False)
    return Job(partial(_done, cc.read, pointer), pointer.size, waits=True)


def _done(work: Callable[[Any], Buffer | None], what: Any) -> Outcome:
    try:
        payload = work(what)
        return payload if payload is None or type(payload) is bytes else bytes(as_view(payload))
    except ClaimCheckError as error:
        return error


def _same(error: ClaimCheckError) -> Outcome:
    return error
