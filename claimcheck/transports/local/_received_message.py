"""What the consumer hands out: one payload, with the metadata of the message that brought it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from claimcheck._resolver import Failed, Resolved
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.stored_payload import StoredPayload
from claimcheck.transports.local._groups import Delivery
from claimcheck.transports.local._messages import LocalMessage

__all__ = ["ReceivedMessage", "received"]


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedMessage:
    """One payload, or the error that stands in its place. Of a chunked payload it stands for all chunks.

    Attributes:
        topic: The topic.
        partition: The partition, from 0.
        offset: The message's place, or that of the first chunk.
        key: As it was sent; ``None`` where there was none, also for chunks.
        headers: As they were sent, in order, without hints of claimcheck.
        timestamp: Seconds since 1970 when the message, or its first chunk, was appended.
        redelivery_count: How often it was given back before, from 0.
        error: Why there was no payload when the message was received; ``None`` where there was one.
        outcome: What the resolver made of it.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None = field(repr=False)
    headers: list[tuple[str, bytes]] = field(repr=False)
    timestamp: float
    redelivery_count: int
    error: ClaimCheckError | None
    outcome: Resolved | Failed = field(repr=False)
    _again: StoredPayload | None = field(default=None, repr=False)

    @property
    def value(self) -> Any:
        """The payload, whole and verified; ``None`` for a tombstone.

        Raises:
            ClaimCheckError: The payload could not be read. If the error is ``retryable``, this has just tried again,
                and so does another call.
        """
        if isinstance(self.outcome, Resolved):
            return self.outcome.payload
        if self._again is not None:
            return self._again.get()
        raise self.outcome.error

    @property
    def positions(self) -> tuple[int, ...]:
        """The offsets of all messages that brought the payload, lowest first."""
        return self.outcome.positions


def received(outcome: Resolved | Failed, read: Callable[[LocalMessage], bytes]) -> ReceivedMessage:
    """Make the message for an outcome whose handles are deliveries."""
    deliveries: tuple[Delivery, ...] = outcome.handles
    error = outcome.error if isinstance(outcome, Failed) else None
    first = min(deliveries, key=lambda delivery: delivery.message.offset).message
    return ReceivedMessage(
        topic=first.topic,
        partition=first.partition,
        offset=first.offset,
        key=outcome.key,
        headers=outcome.headers,
        timestamp=first.timestamp,
        redelivery_count=max(delivery.redelivery_count for delivery in deliveries),
        error=error,
        outcome=outcome,
        _again=StoredPayload(lambda: read(first)) if error is not None and error.retryable else None,
    )
