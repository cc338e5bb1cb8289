"""The plain core of everything that reads in Spark: messages in, payloads out; lazy, in order, bounded in bytes.

No Spark in here. Payloads are fetched ahead by threads only where that pays: `Pace` watches the first fetches and
finds out whether they wait (a store behind a network) or work (a local one), because threads hide waiting and only
get in the way of work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Protocol

from claimcheck.config import Config
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
from claimcheck.followed import UNUSABLE
from claimcheck.payload import as_view
from claimcheck.pointer import Pointer
from claimcheck.spark.line import Job, Line
from claimcheck.spark.pace import Concurrency, Pace
from claimcheck.validation import MAX_SECONDS, fail

__all__ = [
    "OF_ONE_MESSAGE",
    "MAX_INFLIGHT_BYTES",
    "OUT_BATCH_BYTES",
    "Concurrency",
    "Outcome",
    "Pace",
    "Resolving",
    "check_bytes",
    "check_choice",
    "check_reading",
    "check_seconds",
    "is_bad_message",
    "outcomes",
    "weight",
]

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

    def resolve(self, message: Buffer | None, /) -> bytes | None:
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


def check_seconds(name: str, value: float, *, minimum: float) -> float:
    """Refuse what is no number of seconds.

    Raises:
        ConfigError: Names the option.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not minimum <= value <= MAX_SECONDS:
        fail(name, found=repr(value), expected=f"seconds, {minimum:g} to {MAX_SECONDS}")
    return float(value)


def check_choice(name: str, value: object, *choices: object) -> None:
    """Refuse what is none of the choices.

    Raises:
        ConfigError: Names the option and the choices.
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
