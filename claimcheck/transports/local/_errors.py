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


class StaleDeliveryError(TransportError):
    """The message was received before a seek, which decides what is delivered next; nothing was acknowledged."""


class GroupTakenOverError(TransportError):
    """Another consumer of the group was opened, or the group was deleted; nothing was changed."""


class BrokerClosedError(TransportError):
    """The broker or the consumer was closed; nothing was changed."""


class BrokerStorageError(TransportError):
    """The broker's file, ``path``, cannot be used; the current change was not made."""

    path: str | None = None


class BrokerBusyError(BrokerStorageError):
    """Another process locked the file for too long; the current change was not made."""

    retryable = True


class BrokerCommitError(BrokerStorageError):
    """The disk failed during a commit; whether the change was made is unknown."""
