"""Counts redeliveries of payloads: on Exclusive and Failover subscriptions the broker does not."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Any

from claimcheck._validation import check_type
from claimcheck.errors import ConfigError
from claimcheck.transports.pulsar._errors import vendor
from claimcheck.transports.pulsar._message_ids import Place, Position, id_of, natives, position_of
from claimcheck.transports.pulsar._send_options import without_schema

__all__ = [
    "check_dead_letters",
    "place_of",
    "put_aside",
    "Redeliveries",
    "tried_to_put_aside",
]

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


_log = logging.getLogger(__name__)

_ORIGIN_ID, _ORIGIN_TOPIC = "ORIGIN_MESSAGE_ID", "REAL_TOPIC"  # as the clients' own dead letters say it
_REASON = "dead-letter-reason"
_REASON_CHARACTERS = 300


def check_dead_letters(producer: Any, max_redeliveries: int | None) -> None:
    """Reject options that would fail at the first dead letter.

    Raises:
        ConfigError: It is not a native producer, or there is none and ``max_redeliveries`` needs one.
    """
    if producer is None and max_redeliveries is not None:
        raise ConfigError("max_redeliveries needs a dead_letter_producer", path="max_redeliveries")
    if producer is not None:
        native = isinstance(producer, vendor().Producer)
        check_type("dead_letter_producer", producer, valid=native, expected="a pulsar.Producer, as the client made it")


def put_aside(producer: Any, natives: tuple[Any, ...], *, reason: str) -> None:
    """Send messages to the dead-letter topic, one by one, and return when all are there.

    They are sent as they came, so that whoever wraps a consumer of that topic gets the payload; chunks keep their key,
    and with it their partition.

    Args:
        producer: A native producer.
        natives: Native messages.
        reason: Goes into the property ``dead-letter-reason``, at most 300 characters of it.

    Raises:
        Exception: The client's own; some of them may be there by then, and would be there twice after a second try.
    """
    raw = without_schema(producer)
    for native in natives:
        origin = {
            _ORIGIN_ID: str(native.message_id()),
            _ORIGIN_TOPIC: native.topic_name(),
            _REASON: reason[:_REASON_CHARACTERS],
        }
        raw.send(
            None if native.has_null_value() else native.data(),
            properties={**native.properties(), **origin},
            partition_key=native.partition_key() or None,
            ordering_key=native.ordering_key() or None,
            event_timestamp=native.event_timestamp() or None,
        )


def tried_to_put_aside(producer: Any, natives: tuple[Any, ...], *, reason: str, topic: str) -> bool:
    """Return whether the messages are in the dead-letter topic now; an error is logged.

    Args:
        producer: As of `put_aside`; ``None`` where there is none.
        natives: As of `put_aside`.
        reason: As of `put_aside`.
        topic: Where they come from.
    """
    if producer is None:
        return False
    try:
        put_aside(producer, natives, reason=reason)
    except Exception as error:
        _log.warning("%s: %d messages could not be sent to the dead-letter topic: %s", topic, len(natives), error)
        return False
    return True
