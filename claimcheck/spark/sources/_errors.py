"""Errors of the sources and sinks. Spark shows class and text of the error that ended a query."""

from __future__ import annotations

from claimcheck.errors import TransportError


class AccessError(TransportError):
    """The broker refuses this process, or its certificate is not trusted. Nothing is committed.

    The text names the option to change. It contains no part of a token.
    """


class DataLossError(TransportError):
    """The messages after the checkpoint are no longer in the topic. Nothing was read, and the checkpoint is kept."""


class ForeignMessageError(TransportError):
    """A message that this source cannot read. Nothing of its micro-batch is committed, and the checkpoint is kept."""


class SubscriptionBusyError(TransportError):
    """Another consumer holds the subscription of this query, perhaps a second run of it. Nothing was read."""

    retryable = True


class RowSendError(TransportError):
    """A row was not sent, or the result is unknown; other rows of its task may have been sent.

    Attributes:
        row: Its number in its task, from 0.
    """

    row: int | None = None
