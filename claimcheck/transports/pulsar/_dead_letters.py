"""Redelivery limits: counts redeliveries, and sends payloads that reach the maximum to a dead-letter topic."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Any

from claimcheck._validation import check_type
from claimcheck.errors import ConfigError
from claimcheck.transports.pulsar._errors import vendor
from claimcheck.transports.pulsar._message_ids import Place, Position
from claimcheck.transports.pulsar._send import without_schema

__all__ = ["DeadLetters", "RedeliveryTracker"]

_log = logging.getLogger(__name__)
_REMEMBERED = 10_000
_ORIGIN_ID, _ORIGIN_TOPIC = "ORIGIN_MESSAGE_ID", "REAL_TOPIC"  # the names that Pulsar's own clients use
_REASON = "dead-letter-reason"
_REASON_CHARACTERS = 300


class RedeliveryTracker:
    """Counts redeliveries where the broker does not: on Exclusive and Failover subscriptions. Falsy while empty.

    Args:
        maximum: How often a payload may be redelivered; ``None`` for no limit, and then nothing is counted.
    """

    def __init__(self, maximum: int | None) -> None:
        self._maximum = maximum
        self._counts: OrderedDict[Place, int] = OrderedDict()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def too_many(self, place: Place, broker_count: int) -> int | None:
        """Return how often a payload was redelivered, the larger of two counts, if that reaches the maximum."""
        count = max(self._counts.get(place, 0), broker_count)
        return count if self._maximum is not None and count >= self._maximum else None

    def add(self, place: Place) -> None:
        """Count a payload that was negatively acknowledged."""
        if self._maximum is None:
            return
        with self._lock:
            self._counts[place] = self._counts.pop(place, 0) + 1
            if len(self._counts) > _REMEMBERED:
                self._counts.popitem(last=False)

    def forget(self, place: Place) -> None:
        """Forget a payload that was acknowledged."""
        self._counts.pop(place, None)

    def forget_up_to(self, topic: str, position: Position) -> None:
        """Forget all payloads of a topic that begin at or before a position."""
        with self._lock:
            for place in [place for place in self._counts if place[0] == topic and place[1] <= position]:
                del self._counts[place]

    def clear(self) -> None:
        """Forget all payloads."""
        with self._lock:
            self._counts.clear()


class DeadLetters:
    """Sends messages to a dead-letter topic as they came, so that its readers get the same payloads.

    Chunks keep their key, and with it their partition.

    Args:
        producer: A native producer; ``None`` for no dead-letter topic.
        max_redeliveries: The consumer's.

    Raises:
        ConfigError: It is not a native producer, or there is none and ``max_redeliveries`` needs one.
    """

    def __init__(self, producer: Any, max_redeliveries: int | None) -> None:
        if producer is None and max_redeliveries is not None:
            raise ConfigError("max_redeliveries needs a dead_letter_producer", path="max_redeliveries")
        if producer is not None:
            native = isinstance(producer, vendor().Producer)
            check_type("dead_letter_producer", producer, valid=native, expected="an unwrapped pulsar.Producer")
        self._producer = producer

    def __bool__(self) -> bool:
        return self._producer is not None

    def send(self, natives: tuple[Any, ...], *, reason: str) -> None:
        """Send messages one by one, and return when all are in the dead-letter topic.

        Args:
            natives: Native messages.
            reason: Goes into the property ``dead-letter-reason``, at most 300 characters of it.

        Raises:
            Exception: The client's own. Some messages may have been sent; a second try would send them twice.
        """
        raw = without_schema(self._producer)
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

    def try_send(self, natives: tuple[Any, ...], *, reason: str, topic: str) -> bool:
        """Return whether the messages, from ``topic``, are in the dead-letter topic now; an error is logged."""
        if self._producer is None:
            return False
        try:
            self.send(natives, reason=reason)
        except Exception as error:
            _log.warning("%s: %d messages could not be sent to the dead-letter topic: %s", topic, len(natives), error)
            return False
        return True
