"""Errors of the embedded broker. Each text names the topic or the file."""

from __future__ import annotations

from claimcheck.errors import TransportError


class MessageTooLargeError(TransportError):
    """The message exceeds the broker's limit; nothing was written. ``size`` and ``limit`` are bytes."""


class UnknownTopicError(TransportError):
    """The topic does not exist; nothing was changed."""


class UnknownPartitionError(TransportError):
    """The topic has no such ``partition``, only 0 to ``partitions`` - 1; nothing was changed."""

    partition: int | None = None
    partitions: int | None = None


class TopicExistsError(TransportError):
    """The topic exists with another number of ``partitions``; it was not changed."""

    partitions: int | None = None


class OffsetOutOfRangeError(TransportError):
    """The ``partition`` has no such ``offset``, only 0 to ``end``, that of its next message; nothing was changed."""

    partition: int | None = None
    offset: int | None = None
    end: int | None = None


class StaleDeliveryError(TransportError):
    """The message is redelivered: its partition was leased to another member, or a seek moved the group's position.

    Nothing was acknowledged. ``offset`` is the lowest offset of the delivery in its ``partition``.
    """

    partition: int | None = None
    offset: int | None = None


class BrokerClosedError(TransportError):
    """The broker or the group member was closed; nothing was changed."""


class BrokerStorageError(TransportError):
    """The broker's file, ``path``, cannot be used; the current change was not made."""

    path: str | None = None


class BrokerBusyError(BrokerStorageError):
    """Another process locked the file for too long; the current change was not made."""

    retryable = True


class BrokerCommitError(BrokerStorageError):
    """The disk failed during a commit; whether the change was made is unknown."""
