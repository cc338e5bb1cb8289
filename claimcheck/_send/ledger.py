"""The outcome of a send. This is the one place that decides on the rollback, the abort envelope and the error.

A `SendLedger` records what happens to each message of one payload and returns a `Verdict`. It does no I/O, has no clock
and knows no broker: the decorator, `outbound` blocks and the producers of all transports use it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from claimcheck.errors import ConfigError, PartialSendError
from claimcheck.hooks import SendEvent

_log = logging.getLogger(__name__)

Classification = Literal["failed", "unknown"]
"""What an error means for its message. ``failed``: it is definitely not in the topic. ``unknown``: it may be."""

SendOutcome = Literal["sent", "failed", "unknown", "partial"]
"""The outcome of the send of a payload; see `Verdict`."""

Classifier = Callable[[BaseException], Classification]

Definite = Mapping[tuple[str, str], frozenset[str]]
"""Errors after which the message is definitely not in the topic: package and class to codes; no codes mean any.

The first listed class of an error and its base classes decides; `NEVER` excepts a class from its base class.
"""

NEVER = frozenset({"never"})

# Each of these is about a message that was not accepted. A function that hands several messages on, or tries again by
# itself, may raise one of them after another message was accepted: its author passes a classifier. The key names the
# package and the class of the error, or of one of its base classes; nothing has to be imported.
_DEFINITE: Definite = {
    (package, name): frozenset(codes)
    for package, name, *codes in (
        ("claimcheck", "MessageTooLargeError"),
        ("claimcheck", "NotSentError"),
        ("claimcheck", "UnknownPartitionError"),
        ("claimcheck", "UnknownTopicError"),
        ("builtins", "BufferError", "Local: Queue full"),  # confluent-kafka
        ("cimpl", "KafkaException", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "_QUEUE_FULL",
         "_KEY_SERIALIZATION", "_VALUE_SERIALIZATION"),
        ("confluent_kafka", "ConsumeError", *NEVER),
        ("confluent_kafka", "SerializationError"),
        ("kafka", "InvalidRecordError"),
        ("kafka", "MessageSizeTooLargeError"),
        ("kafka", "RecordListTooLargeError"),
        ("aiokafka", "MessageSizeTooLargeError"),
        ("aiokafka", "RecordListTooLargeError"),
        ("aiokafka", "RecordTooLargeError"),
        ("_pulsar", "InvalidMessage"),
        ("_pulsar", "MemoryBufferIsFull"),
        ("_pulsar", "MessageTooBig"),
        ("_pulsar", "ProducerQueueIsFull"),
        ("pulsar", "PulsarException", "InvalidMessage", "MemoryBufferIsFull", "MessageTooBig", "ProducerQueueIsFull"),
        ("pika", "BodyTooLongError"),
        ("pika", "UnroutableError"),
        ("aiormq", "PublishError"),
        ("botocore", "ClientError", "InvalidMessageContents"),  # of SQS
        ("google", "MessageTooLargeError"),
        ("azure", "MessageSizeExceededError"),
        ("nats", "MaxPayloadError"),
    )
}  # fmt: skip

# Where clients keep the code of an error.
_CODES: tuple[Callable[[Any], object], ...] = (
    lambda error: error.args[0].name(),  # confluent-kafka
    lambda error: error.error().name,  # pulsar.asyncio
    lambda error: error.response["Error"]["Code"],  # botocore
    str,
)


class NotSentError(ConfigError):
    """Raised by claimcheck in place of a message that it did not send; definite whatever the classifier says."""


def classifier(more: Definite) -> Classifier:
    """Return a classifier that calls an error ``failed`` if the table or ``more`` lists it, else ``unknown``."""
    table = {**_DEFINITE, **{key: codes and codes | _DEFINITE.get(key, codes) for key, codes in more.items()}}

    def classify(error: BaseException) -> Classification:
        for cls in type(error).__mro__:
            codes = table.get((cls.__module__.partition(".")[0], cls.__name__))
            if codes is not None:
                return "unknown" if codes and codes.isdisjoint(_codes_of(error)) else "failed"
        return "unknown"

    return classify


def _codes_of(error: BaseException) -> Iterator[str]:
    for read in _CODES:
        with contextlib.suppress(Exception):
            yield str(read(error))


classify_error = classifier({})
"""The default classifier."""


class Verdict(NamedTuple):
    """The outcome of the send of one payload."""

    outcome: SendOutcome
    acknowledged: int
    unknown: int
    total: int
    chunked: bool

    @property
    def unsent(self) -> int:
        """Messages that are definitely not in the topic."""
        return self.total - self.acknowledged - self.unknown

    @property
    def rollback(self) -> bool:
        """Whether to delete the stored payload, because no message can point at it."""
        return self.outcome == "failed"

    @property
    def abort(self) -> bool:
        """Whether to send an abort envelope, because a reader may hold chunks that will not be completed."""
        return self.chunked and self.outcome in ("partial", "unknown")


class SendLedger:
    """Records what happens to the messages of one payload. Not thread-safe: callers use their own lock."""

    __slots__ = ("_judged", "_refused", "_results", "classify", "count", "error", "total", "uuid")

    def __init__(self, *, total: int = 1, uuid: str | None = None, classify: Classifier | None = None) -> None:
        self.total = total
        self.uuid = uuid
        self.classify = classify
        self.count = 0
        self.error: BaseException | None = None
        self._results: dict[int, Any] = {}
        self._refused: set[int] = set()
        self._judged: dict[int, tuple[BaseException, Classification]] = {}

    def launched(self) -> int:
        """Record that the next message is handed to the client; returns its number, from 0."""
        self.count += 1
        return self.count - 1

    def postponed(self, number: int) -> None:
        """Record that the client refused a message for now; it is not in flight until it is `resumed`."""
        self._refused.add(number)

    def resumed(self, number: int) -> None:
        """Record that a postponed message is handed to the client again."""
        self._refused.discard(number)

    def acknowledged(self, number: int, result: object = None) -> None:
        """Record that a message is in the topic, and what its send returned."""
        self._refused.discard(number)
        self._results[number] = result

    def failed(self, number: int, error: BaseException) -> None:
        """Record that the send of a message failed."""
        self.stopped(error)
        if number not in self._results and self._judge(error) == "failed":
            self._refused.add(number)

    def stopped(self, error: BaseException) -> None:
        """Record an error that ends the send but belongs to no message: messages in flight stay unknown."""
        if self.error is None:
            self.error = error

    def forget_errors(self) -> None:
        """Drop all errors: their tracebacks refer to the payload."""
        self.error = None
        self._judged.clear()

    @property
    def results(self) -> list[Any]:
        """What the sends of the acknowledged messages returned, in message order."""
        return [self._results[number] for number in sorted(self._results)]

    def verdict(self) -> Verdict:
        """Return the outcome according to what was recorded so far."""
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
        are = "is" if verdict.acknowledged == 1 else "are"
        were = "was" if verdict.unsent == 1 else "were"
        return PartialSendError(
            f"{verdict.acknowledged} of {verdict.total} chunks {are} in the topic, {verdict.unknown} may be, "
            f"{verdict.unsent} {were} not sent (payload {self.uuid}): {type(error).__name__}: {error}",
            uuid=self.uuid,
            seen=verdict.acknowledged,
            total=verdict.total,
            acknowledged=verdict.acknowledged,
            unknown=verdict.unknown,
            unsent=verdict.unsent,
            results=tuple(self.results),
        )

    def _judge(self, error: BaseException) -> Classification:
        known = self._judged.get(id(error))
        if known is None:
            known = self._judged[id(error)] = error, _judge(error, self.classify or classify_error)
        return known[1]


def _judge(error: BaseException, classify: Classifier) -> Classification:
    if isinstance(error, NotSentError):
        return "failed"
    if not isinstance(error, Exception) or type(error).__name__ == "CancelledError":
        return "unknown"
    try:
        return "failed" if classify(error) == "failed" else "unknown"
    except Exception:
        _log.exception("the classifier failed on %s; the outcome counts as unknown", type(error).__name__)
        return "unknown"
