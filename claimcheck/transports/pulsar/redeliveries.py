"""Counts redeliveries of payloads: on Exclusive and Failover subscriptions the broker does not."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from claimcheck.transports.pulsar.ids import Place, Position, id_of, natives, position_of

__all__ = ["Redeliveries", "place_of"]

_REMEMBERED = 10_000


class Redeliveries:
    """Counts the redeliveries of the last payloads that were given back, if there is a maximum. Falsy without any.

    Args:
        maximum: How often a payload may be redelivered; ``None`` for no limit.
    """

    def __init__(self, maximum: int | None) -> None:
        self._maximum = maximum
        self._counts: OrderedDict[Place, int] = OrderedDict()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def too_many(self, place: Place, told: int) -> int | None:
        """Return how often a payload was redelivered, if that reaches the maximum: the larger of two counts.

        Args:
            place: Of the payload.
            told: The broker's count.
        """
        count = max(self._counts.get(place, 0), told)
        return count if self._maximum is not None and count >= self._maximum else None

    def add(self, place: Place) -> None:
        """Count a payload that is given back."""
        if self._maximum is None:
            return
        with self._lock:
            self._counts[place] = self._counts.pop(place, 0) + 1
            if len(self._counts) > _REMEMBERED:
                self._counts.popitem(last=False)

    def forget(self, place: Place) -> None:
        """Forget a payload that is acknowledged."""
        self._counts.pop(place, None)

    def forget_up_to(self, topic: str, position: Position) -> None:
        """Forget all payloads that begin there: they are acknowledged."""
        with self._lock:
            for place in [place for place in self._counts if place[0] == topic and place[1] <= position]:
                del self._counts[place]

    def clear(self) -> None:
        """Forget all payloads."""
        with self._lock:
            self._counts.clear()


def place_of(message: Any, topic: str) -> Place:
    """Return where a payload begins.

    Args:
        message: A message or its id.
        topic: For a native id, which does not have it.
    """
    message_id = id_of(message)
    own = message.topic_name() if message is not message_id else getattr(message_id, "topic", None)
    return own or topic, position_of(natives(message_id)[0])
