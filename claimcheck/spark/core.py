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
from typing import Literal, Protocol

from claimcheck.envelope import Buffer
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
from claimcheck.payload import as_view
from claimcheck.pointer import Pointer
from claimcheck.validation import fail

__all__ = [
    "MAX_INFLIGHT_BYTES",
    "Concurrency",
    "Outcome",
    "Pace",
    "Resolving",
    "check_bytes",
    "check_choice",
    "check_reading",
    "is_bad_message",
    "outcomes",
]

Concurrency = Literal["auto"] | int
"""Fetches at once: 1 to 64, or ``auto`` to find out."""

Outcome = bytes | None | ClaimCheckError
"""What became of one message: its payload, nothing for a tombstone, or why there is none."""

MAX_INFLIGHT_BYTES = 64 << 20
"""Payload bytes that one task fetches ahead at most, unless told otherwise."""

_OF_ONE_MESSAGE = (
    ChunkError,
    EnvelopeError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)
_MAX_CONCURRENCY = 64
_AUTO_THREADS = 16
_SAMPLES = 4
_WORTHWHILE_SECONDS = 0.002  # below this, switching threads costs more than the waiting that it hides
_REMEMBER_SECONDS = 60.0
_QUEUE_PER_THREAD = 4  # tiny payloads: how many messages are read ahead, whatever they weigh


class Resolving(Protocol):
    """The part of a `claimcheck.ClaimCheck` that is needed here; called from several threads at once."""

    def resolve(self, message: Buffer | None, /) -> bytes | None:
        """Return the payload of one message, or raise a `ClaimCheckError`."""

    def pointer(self, message: Buffer, /) -> Pointer | None:
        """Return the pointer that a message carries, if it carries one; no I/O."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """What fetching a message will cost: bytes where they are known, and whether a store has to be asked."""

    size: int | None
    stored: bool


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

    def watch(self, fetch: Callable[[], Outcome]) -> Outcome:
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


def outcomes(
    messages: Iterable[Buffer | None],
    cc: Resolving,
    *,
    pace: Pace,
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
) -> Generator[Outcome]:
    """Resolve messages one by one, in their order; nothing happens before the first is asked for.

    Args:
        messages: Envelopes and plain messages; read ahead no further than payloads are fetched ahead.
        cc: Resolves one message; errors other than `ClaimCheckError` end the iteration.
        pace: How many threads fetch at once.
        max_inflight_bytes: Bound on the payload bytes fetched but not yet handed out, the last one handed out
            included; a payload that alone is larger is fetched alone.

    Yields:
        One outcome per message. Closing the iterator cancels what is not fetched yet and waits for what is.
    """
    line = _Line(cc, pace, max_inflight_bytes)
    try:
        yield from line.run(iter(messages))
    finally:
        line.close()


def is_bad_message(error: ClaimCheckError) -> bool:
    """Whether an error is about one message, so that a task may go on without it.

    Everything else (a store out of reach, a driver that is not installed, a variable that is not set on this worker)
    would befall every message of the task and turn an outage into data.
    """
    return isinstance(error, _OF_ONE_MESSAGE) and not error.retryable


def check_reading(*, concurrency: Concurrency, max_inflight_bytes: int) -> None:
    """Refuse numbers that cannot be meant, on the driver and not in a thousand tasks.

    Raises:
        ConfigError: Says which, and what would be right.
    """
    number = isinstance(concurrency, int) and not isinstance(concurrency, bool)
    if concurrency != "auto" and not (number and 1 <= int(concurrency) <= _MAX_CONCURRENCY):
        fail("concurrency", found=repr(concurrency), expected=f"'auto' or an integer from 1 to {_MAX_CONCURRENCY}")
    check_bytes("max_inflight_bytes", max_inflight_bytes)


def check_bytes(name: str, value: object) -> None:
    """Refuse what is no positive number of bytes.

    Raises:
        ConfigError: Names the option.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        fail(name, found=repr(value), expected="a number of bytes, at least 1")


def check_choice(name: str, value: object, *choices: object) -> None:
    """Refuse what is none of the choices.

    Raises:
        ConfigError: Names the option and the choices.
    """
    if value not in choices:
        fail(name, found=repr(value), expected=" or ".join(map(repr, choices)))


class _Line:
    """The messages that are on their way, in order."""

    def __init__(self, cc: Resolving, pace: Pace, max_bytes: int) -> None:
        self._cc, self._pace, self._max_bytes = cc, pace, max_bytes
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[int, _Weight, Callable[[], Outcome]]] = deque()
        self._held = self._handed_out = 0
        self._largest_undeclared: int | None = None

    def run(self, messages: Iterator[Buffer | None]) -> Iterator[Outcome]:
        planned = self._plan(messages)
        following = next(planned, None)
        while following or self._waiting:
            while following and self._fits(following[1]):
                self._start(*following)
                following = next(planned, None) if self._pace.threads > 1 else None
            yield self._take()  # and keep no name for it here: it would live on while the next ones are fetched
            self._held -= self._handed_out
            following = following or next(planned, None)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _plan(self, messages: Iterator[Buffer | None]) -> Iterator[tuple[Buffer | None, _Weight]]:
        for message in messages:
            yield message, self._weigh(message)

    def _weigh(self, message: Buffer | None) -> _Weight:
        if message is None:
            return _Weight(0, stored=False)
        try:
            pointer = self._cc.pointer(message)
        except ClaimCheckError:  # resolving it will say the same, at its place in the order
            pointer = None
        return _Weight(len(message), stored=False) if pointer is None else _Weight(pointer.size, stored=True)

    def _fits(self, weight: _Weight) -> bool:
        room = _QUEUE_PER_THREAD * self._pace.threads if self._pace.threads > 1 else 1
        inside = len(self._waiting) < room and self._held + self._count(weight) <= self._max_bytes
        return inside or not self._waiting

    def _count(self, weight: _Weight) -> int:
        """Pointers of version 1 declare no size: the first goes alone, the others count as the largest one seen."""
        if weight.size is not None:
            return weight.size
        return self._max_bytes if self._largest_undeclared is None else self._largest_undeclared

    def _start(self, message: Buffer | None, weight: _Weight) -> None:
        fetch: Callable[[], Outcome] = partial(_fetch, self._cc, message)
        if weight.stored and self._pace.threads > 1:
            fetch = self._threads().submit(fetch).result
        elif weight.stored:
            fetch = partial(self._pace.watch, fetch)
        counted = self._count(weight)
        self._held += counted
        self._waiting.append((counted, weight, fetch))

    def _take(self) -> Outcome:
        self._handed_out, weight, fetch = self._waiting.popleft()
        outcome = fetch()
        if weight.size is None and outcome is not None and not isinstance(outcome, ClaimCheckError):
            self._largest_undeclared = max(self._largest_undeclared or 0, len(outcome))
        return outcome

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._pace.threads, thread_name_prefix="claimcheck-fetch")
        return self._pool


def _fetch(cc: Resolving, message: Buffer | None) -> Outcome:
    try:
        payload = cc.resolve(message)
        return payload if payload is None or type(payload) is bytes else bytes(as_view(payload))
    except ClaimCheckError as error:
        return error
