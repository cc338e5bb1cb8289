"""What the embedded broker refuses, and how it fails; every error names the topic or the file and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from claimcheck.errors import ConfigError, TransportError

__all__ = [
    "BrokerArgumentError",
    "BrokerBusyError",
    "BrokerClosedError",
    "BrokerCommitError",
    "BrokerStorageError",
    "MessageTooLargeError",
    "OffsetOutOfRangeError",
    "StaleDeliveryError",
    "TopicExistsError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "checking_arguments",
]


class BrokerArgumentError(TransportError, ConfigError, ValueError):
    """An argument that the broker cannot use: a name, a count, a header. Nothing was changed."""


@contextmanager
def checking_arguments(**facts: Any) -> Iterator[None]:
    """Raise a `ConfigError` of the block as a `BrokerArgumentError`, with these attributes in addition."""
    try:
        yield
    except ConfigError as error:
        known = {"path": error.path, "found": error.found, "expected": error.expected}
        raise BrokerArgumentError(str(error), **known, **facts) from None


class MessageTooLargeError(TransportError):
    """The message is larger than the broker accepts; nothing was written. ``size`` and ``limit`` are bytes."""


class UnknownTopicError(TransportError):
    """Nobody has created this topic; nothing was changed."""


class UnknownPartitionError(TransportError):
    """The topic has no such partition; nothing was changed.

    Attributes:
        partition: The number that was asked for.
        partitions: How many the topic has, numbered from 0.
    """

    partition: int | None = None
    partitions: int | None = None


class TopicExistsError(TransportError):
    """The topic is there with another number of partitions; it was left as it is.

    Attributes:
        partitions: How many the topic has.
    """

    partitions: int | None = None


class OffsetOutOfRangeError(TransportError):
    """The partition has no such offset; nothing was changed.

    Attributes:
        partition: The partition.
        offset: The offset that was asked for.
        end: The offset of the next message to come, the largest that is allowed.
    """

    partition: int | None = None
    offset: int | None = None
    end: int | None = None


class StaleDeliveryError(TransportError):
    """The message comes again, here or elsewhere: its partition was leased to another member, or sought, since.

    Nothing was acknowledged.

    Attributes:
        partition: The partition.
        offset: The lowest offset of the delivery.
    """

    partition: int | None = None
    offset: int | None = None


class BrokerClosedError(TransportError):
    """The broker or the group member was closed; nothing was changed."""


class BrokerStorageError(TransportError):
    """The broker's file cannot be used; the change at hand was not made.

    Attributes:
        path: The file.
    """

    path: str | None = None


class BrokerBusyError(BrokerStorageError):
    """Another process kept the file locked for too long; the change at hand was not made."""

    retryable = True


class BrokerCommitError(BrokerStorageError):
    """The disk failed while a change was made final; whether it was made is unknown."""
