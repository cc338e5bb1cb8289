"""Errors of the Kafka transport, and which of the client's errors mean that a record is not in the topic."""

from __future__ import annotations

from typing import Any

from claimcheck._sending import Classification
from claimcheck.errors import ChunkError, TransportError
from claimcheck.transports.kafka._client import vendor

__all__ = [
    "CompactedTopicError",
    "MissingReportError",
    "OffsetStoreError",
    "ShareGroupError",
    "classify",
    "exception_of",
]

# Refused before the record was stored, as seen on a broker of version 4.2 with librdkafka 2.16. A time-out, a lost
# connection and a purge of records in flight are not refusals: such records were found in the topic all the same.
_REFUSALS = {
    "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION",
    "_FATAL", "_INVALID_ARG", "_PURGE_QUEUE", "_QUEUE_FULL", "_STATE", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC",
}  # fmt: skip


class CompactedTopicError(TransportError):
    """A payload would be sent as chunks to a compacted topic, which keeps one of them. Nothing was sent."""


class MissingReportError(TransportError):
    """A record has no delivery report, so that the outcome of a chunk is unknown.

    The producer is configured to report only failures, or a signal interrupted it while it reported.
    """


class OffsetStoreError(TransportError):
    """The consumer itself stores the offset of every record that it returns, chunks of incomplete payloads included."""


class ShareGroupError(ChunkError):
    """A chunk in a share group, where the other chunks of its payload may go to other consumers."""


def classify(error: BaseException) -> Classification:
    """Return ``failed`` for errors that mean the record is definitely not in the topic, else ``unknown``."""
    if isinstance(error, MissingReportError):
        return "unknown"
    if isinstance(error, BufferError | TransportError | TypeError | ValueError | RuntimeError):
        return "failed"  # raised by the call itself, before the client had the record
    cause = error.args[0] if error.args else None
    name = cause.name() if isinstance(cause, vendor().KafkaError) else ""
    return "failed" if name in _REFUSALS else "unknown"


def exception_of(error: Any) -> Exception:
    """Return the exception for the error of a delivery report."""
    exception: Exception = vendor().KafkaException(error)
    return exception
