"""How the sources and sinks fail; Spark shows the class and the text of what ended a query."""

from __future__ import annotations

from claimcheck.errors import TransportError

__all__ = ["AccessError", "DataLossError", "ForeignMessageError", "RowSendError", "SubscriptionBusyError"]


class AccessError(TransportError):
    """The broker does not let this process in, or this process does not trust the broker. Nothing is committed.

    The text says which option is about it. No part of a token is in it.
    """


class DataLossError(TransportError):
    """What the checkpoint wants next is not in the topic any more. Nothing was read, and the checkpoint stays."""


class ForeignMessageError(TransportError):
    """A message that this source does not read. Nothing of its micro-batch is committed, and the checkpoint stays."""


class SubscriptionBusyError(TransportError):
    """Somebody else holds the subscription of this query, perhaps a second run of it. Nothing was read."""

    retryable = True


class RowSendError(TransportError):
    """A row was not sent, or nobody knows whether it was; other rows of its task were, perhaps.

    Attributes:
        row: Its number in its task, from 0.
    """

    row: int | None = None
