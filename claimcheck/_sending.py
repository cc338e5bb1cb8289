"""What became of a send: the one place that decides its outcome, the rollback, the abort envelope and the error.

A `SendLedger` is told what happens to each message of one payload and returns a `Verdict`. It does no I/O, has no
clock and knows no broker: the decorator, `outbound` blocks and the producers of all transports use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from claimcheck.errors import ConfigError, PartialSendError
from claimcheck.hooks import SendEvent

__all__ = ["Classifier", "Outcome", "SendLedger", "SendOutcome", "Verdict", "classify_error"]

_log = logging.getLogger(__name__)

Outcome = Literal["failed", "unknown"]
"""What an error means for its message. ``failed``: it is definitely not in the topic. ``unknown``: it may be."""

SendOutcome = Literal["sent", "failed", "unknown", "partial"]
"""What became of a payload; see `Verdict`."""

Classifier = Callable[[BaseException], Outcome]

_UNKNOWN = (TimeoutError, ConnectionError, EOFError)
_VAGUE = ("timeout", "timedout", "connect", "cancelled")


def classify_error(error: BaseException) -> Outcome:
    """The default classifier: time-outs, lost connections and whatever is not an `Exception` are ``unknown``.

    An error whose class, or a base of it, has ``Timeout``, ``Connection`` or ``Cancelled`` in its name counts as one:
    most drivers do not derive theirs from Python's.
    """
    if not isinstance(error, Exception) or isinstance(error, _UNKNOWN):
        return "unknown"
    names = [cls.__name__.lower() for cls in type(error).__mro__]
    return "unknown" if any(word in name for name in names for word in _VAGUE) else "failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one payload.

    Attributes:
        outcome: ``sent``: every message is in the topic. ``failed``: none is, for certain. ``partial``: some are, and
            not all are known to be. ``unknown``: none is known to be in the topic, and at least one may be.
        acknowledged: Messages that are in the topic.
        unknown: Messages that may be in the topic.
        total: Messages that the payload has.
        chunked: Whether the messages are chunks.
    """

    outcome: SendOutcome
    acknowledged: int
    unknown: int
    total: int
    chunked: bool

    @property
    def unsent(self) -> int:
        """Messages that are not in the topic, for certain."""
        return self.total - self.acknowledged - self.unknown

    @property
    def rollback(self) -> bool:
        """Whether no message can point at the stored payload, so that it is to be deleted."""
        return self.outcome == "failed"

    @property
    def abort(self) -> bool:
        """Whether a reader may hold chunks that will not be completed, so that an abort envelope is to be sent."""
        return self.chunked and self.outcome in ("partial", "unknown")


class SendLedger:
    """Records what happens to the messages of one payload. Not safe under threads: callers use a lock of their own.

    A message that was launched is on its way until it is acknowledged or fails. While it is on its way it may be in
    the topic, so it counts as unknown.

    Args:
        total: Messages that the payload has.
        uuid: The payload's identity, if its messages are chunks.
        classify: Called once for each error of a message; an error in it, and any other answer than ``failed``, count
            as ``unknown``.

    Attributes:
        total: Messages that the payload has.
        uuid: The payload's identity, if its messages are chunks.
        classify: The classifier.
        count: Messages that were launched.
        error: What ended the send: the first error that was recorded.
    """

    __slots__ = ("_judged", "_refused", "_results", "classify", "count", "error", "total", "uuid")

    def __init__(self, *, total: int = 1, uuid: str | None = None, classify: Classifier | None = None) -> None:
        self.total = total
        self.uuid = uuid
        self.classify = classify
        self.count = 0
        self.error: BaseException | None = None
        self._results: dict[int, Any] = {}
        self._refused: set[int] = set()
        self._judged: dict[int, tuple[BaseException, Outcome]] = {}

    def launched(self) -> int:
        """Record that the next message is handed to the client; returns its number, from 0."""
        self.count += 1
        return self.count - 1

    def postponed(self, number: int) -> None:
        """Record that the client refused a message for now; it is not on its way until it is `resumed`."""
        self._refused.add(number)

    def resumed(self, number: int) -> None:
        """Record that a postponed message is handed to the client again."""
        self._refused.discard(number)

    def acknowledged(self, number: int, result: Any = None) -> None:
        """Record that a message is in the topic, and what its send returned."""
        self._refused.discard(number)
        self._results[number] = result

    def failed(self, number: int, error: BaseException) -> None:
        """Record the error that a message's send ended with."""
        self.stopped(error)
        if number not in self._results and self._judge(error) == "failed":
            self._refused.add(number)

    def stopped(self, error: BaseException) -> None:
        """Record an error that ends the send and is not a message's own: messages on their way stay unknown."""
        if self.error is None:
            self.error = error

    def forget_errors(self) -> None:
        """Drop all errors: their tracebacks refer to the payload."""
        self.error = None
        self._judged.clear()

    @property
    def results(self) -> list[Any]:
        """What the sends of the acknowledged messages returned, in the order of the messages."""
        return [self._results[number] for number in sorted(self._results)]

    def verdict(self) -> Verdict:
        """Decide by what was recorded so far."""
        total, acknowledged = max(self.total, self.count), len(self._results)
        unknown = self.count - acknowledged - len(self._refused)
        outcome: SendOutcome = "failed"
        if acknowledged:
            outcome = "sent" if acknowledged == total else "partial"
        elif unknown:
            outcome = "unknown"
        return Verdict(outcome, acknowledged, unknown, total, chunked=self.uuid is not None)

    def event(self, destination: str) -> SendEvent:
        """Return the event of this send."""
        verdict = self.verdict()
        return SendEvent(
            destination=destination,
            outcome=verdict.outcome,
            messages=verdict.total,
            uuid=self.uuid,
            error=None if verdict.outcome == "sent" else self.error,
        )

    def partial_error(self, error: Exception) -> PartialSendError:
        """Return the error to raise for chunks of which some are or may be in the topic."""
        verdict = self.verdict()
        return PartialSendError(
            f"{verdict.acknowledged} of {verdict.total} chunks {_are(verdict.acknowledged)} in the topic, "
            f"{verdict.unknown} may be, {verdict.unsent} {_were(verdict.unsent)} not sent "
            f"(payload {self.uuid}): {type(error).__name__}: {error}",
            uuid=self.uuid,
            seen=verdict.acknowledged,
            total=verdict.total,
            acknowledged=verdict.acknowledged,
            unknown=verdict.unknown,
            unsent=verdict.unsent,
            results=tuple(self.results),
        )

    def _judge(self, error: BaseException) -> Outcome:
        known = self._judged.get(id(error))
        if known is None:
            known = self._judged[id(error)] = error, _judge(error, self.classify or classify_error)
        return known[1]


def _judge(error: BaseException, classify: Classifier) -> Outcome:
    if isinstance(error, ConfigError):  # our own, raised before anything was sent
        return "failed"
    if not isinstance(error, Exception) or type(error).__name__ == "CancelledError":
        return "unknown"
    try:
        return "failed" if classify(error) == "failed" else "unknown"
    except Exception:
        _log.exception("the classifier failed on %s; the outcome counts as unknown", type(error).__name__)
        return "unknown"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
