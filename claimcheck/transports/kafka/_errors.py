"""What Kafka refuses, and how it fails; which of its errors mean that a record is definitely not in the topic."""

from __future__ import annotations

from typing import Any

from claimcheck._registry import import_vendor
from claimcheck._sending import Outcome
from claimcheck._validation import check_type
from claimcheck.errors import ChunkError, TransportError

__all__ = [
    "CompactedTopicError",
    "MissingReportError",
    "OffsetStoreError",
    "ShareGroupError",
    "classify",
    "exception_of",
    "vendor",
    "within",
]

# Refused before the record was stored, as seen on a broker of version 4.2 with librdkafka 2.16. A time-out, a lost
# connection and a purge of what was on its way are none of these: such records were found in the topic all the same.
_REFUSALS = {
    "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION",
    "_FATAL", "_INVALID_ARG", "_PURGE_QUEUE", "_QUEUE_FULL", "_STATE", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC",
}  # fmt: skip


class CompactedTopicError(TransportError):
    """A payload would go as chunks to a compacted topic, which keeps one of them. Nothing was sent."""


class MissingReportError(TransportError):
    """A record was settled without a word, and nobody can tell where a chunk is, or that it is there.

    The producer reports only what fails, or a signal interrupted it while it reported.
    """


class OffsetStoreError(TransportError):
    """The consumer itself stores the offset of every record that it gives, chunks of incomplete payloads included."""


class ShareGroupError(ChunkError):
    """A chunk in a share group, where the others of its payload may go to other consumers."""


def vendor() -> Any:
    """The client library.

    Raises:
        MissingDependencyError: It is not installed.
    """
    return import_vendor("confluent_kafka", extra="kafka")


def within(wrapper: Any, kind: str) -> Any:
    """Return the client that an object of `confluent_kafka.aio` wraps.

    Args:
        wrapper: The object.
        kind: ``Producer`` or ``Consumer``.

    Raises:
        ConfigError: It is of another type; also a `TypeError`.
    """
    expected = getattr(import_vendor("confluent_kafka.aio", extra="kafka"), f"AIO{kind}")
    check_type(
        kind.lower(), wrapper, valid=type(wrapper) is expected,
        expected=f"a confluent_kafka.aio.AIO{kind}, and none that serializes",
    )  # fmt: skip
    return getattr(wrapper, f"_{kind.lower()}")


def classify(error: BaseException) -> Outcome:
    """Whether an error of a send means that the record is not in the topic: only what is a refusal for certain."""
    if isinstance(error, MissingReportError):
        return "unknown"
    if isinstance(error, BufferError | TransportError | TypeError | ValueError | RuntimeError):
        return "failed"  # raised by the call itself, before the client had the record
    cause = error.args[0] if error.args else None
    name = cause.name() if isinstance(cause, vendor().KafkaError) else ""
    return "failed" if name in _REFUSALS else "unknown"


def exception_of(error: Any) -> Exception:
    """The exception for the error of a delivery report."""
    exception: Exception = vendor().KafkaException(error)
    return exception
