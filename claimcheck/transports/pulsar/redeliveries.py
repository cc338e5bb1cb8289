"""How often payloads were given back: on Exclusive and Failover subscriptions the broker does not count."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from claimcheck.transports.pulsar.ids import Position, id_of, natives, position_of

__all__ = ["Place", "Redeliveries", "place_of"]

_REMEMBERED = 10_000

Place = tuple[Any, Position]
"""Where a payload begins: its topic, and there its first message."""


class Redeliveries:
    """Counts those that were given back last, if there is a maximum. Falsy when there are none.

    Args:
        maximum: How often a payload may come again; ``None`` for no end.
    """

    def __init__(self, maximum: int | None) -> None:
        self._maximum = maximum
        self._counts: OrderedDict[Place, int] = OrderedDict()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def too_many(self, place: Place, told: int) -> int | None:
        """How often a payload came again, if that is enough: as often as it was given back, or as the broker says."""
        count = max(self._counts.get(place, 0), told)
        return count if self._maximum is not None and count >= self._maximum else None

    def add(self, place: Place) -> None:
        """It is given back."""
        if self._maximum is None:
            return
        with self._lock:
            self._counts[place] = self._counts.pop(place, 0) + 1
            if len(self._counts) > _REMEMBERED:
                self._counts.popitem(last=False)

    def forget(self, place: Place) -> None:
        """It is acknowledged."""
        self._counts.pop(place, None)

    def forget_up_to(self, topic: str, position: Position) -> None:
        """All that begin there are acknowledged."""
        with self._lock:
            for place in [place for place in self._counts if place[0] == topic and place[1] <= position]:
                del self._counts[place]

    def clear(self) -> None:
        """Payloads come again, and nobody gave them back."""
        with self._lock:
            self._counts.clear()


def place_of(message: Any, topic: str) -> Place:
    """Where a payload begins, of a message or its id.

    Args:
        message: As a user gives it.
        topic: For a native id, which does not tell.
    """
    message_id = id_of(message)
    own = message.topic_name() if message is not message_id else getattr(message_id, "topic", None)
    return own or topic, position_of(natives(message_id)[0])
