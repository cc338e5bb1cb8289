"""Puts the messages of a payload aside, as they are, with what is known of their origin."""

from __future__ import annotations

import logging
from typing import Any

from claimcheck.errors import ConfigError
from claimcheck.transports.pulsar.errors import vendor
from claimcheck.transports.pulsar.options import without_schema
from claimcheck.validation import check_type

__all__ = ["check_dead_letters", "put_aside", "tried_to_put_aside"]

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
