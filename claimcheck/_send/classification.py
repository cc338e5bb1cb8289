"""Which errors of a send are definite: the message is then certainly not in the topic.

Brokers' clients are known by the names of their errors; nothing is imported.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from claimcheck.errors import ConfigError

_log = logging.getLogger(__name__)

Classification = Literal["failed", "unknown"]
"""What an error means for its message. ``failed``: it is definitely not in the topic. ``unknown``: it may be."""

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


def judge(error: BaseException, classify: Classifier | None) -> Classification:
    """Return what an error means according to a classifier; by default according to the table."""
    if isinstance(error, NotSentError):
        return "failed"
    if not isinstance(error, Exception) or type(error).__name__ == "CancelledError":
        return "unknown"
    try:
        return "failed" if (classify or classify_error)(error) == "failed" else "unknown"
    except Exception:
        _log.exception("the classifier failed on %s; the outcome counts as unknown", type(error).__name__)
        return "unknown"
