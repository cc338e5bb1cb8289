"""Extends the lifetime of stored payloads whose messages go to a dead-letter topic."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from claimcheck._wire.envelope import PointerData, decode
from claimcheck.errors import ClaimCheckError, ConfigError

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_log = logging.getLogger(__name__)

REASON = "dead-letter-reason"
"""The header or property with the reason, for all transports."""

_TOPIC, _PARTITION, _OFFSET = "dead-letter-topic", "dead-letter-partition", "dead-letter-offset"
_LONGEST_REASON = 500

LABELS = frozenset(
    {REASON, _TOPIC, _PARTITION, _OFFSET, "ORIGIN_MESSAGE_ID", "REAL_TOPIC", "REAL_SUBSCRIPTION"}  # Pulsar's clients
)
"""What wrappers, and Pulsar's own clients, add to dead letters."""


ORIGINS = frozenset({_TOPIC, "REAL_TOPIC"})
"""Those of them with the topic that a dead letter came from."""


def origin(topic: str, partition: int, offset: int, reason: str) -> Iterator[tuple[str, bytes]]:
    """Yield the headers with a dead letter's origin and reason, for brokers with partitions and offsets."""
    yield _TOPIC, topic.encode()
    yield _PARTITION, b"%d" % partition
    yield _OFFSET, b"%d" % offset
    yield REASON, reason[:_LONGEST_REASON].encode("utf-8", "replace")


def kept_longer(cc: ClaimCheck, message: bytes | None, *, topic: str, dead_letter_topic: str) -> bytes | None:
    """Return a message for a dead-letter topic, after the lifetime of its stored payload was extended."""
    config = cc.config.for_destination(topic)
    seconds = config.dead_letter_ttl_seconds
    if seconds is None or message is None or not message.startswith(config.header):
        return message
    try:
        return _extended(cc, seconds, message, topic, dead_letter_topic)
    except ClaimCheckError as error:
        if error.retryable:
            raise
        _log.warning("%s: the lifetime of a dead letter's payload was not extended: %s", topic, error)
        return message


def _extended(cc: ClaimCheck, seconds: float, message: bytes, topic: str, dead_letter_topic: str) -> bytes:
    if not isinstance(decode(message, header=cc.config.header), PointerData):
        return message
    pointer = cc.pointer(message, destination=topic)
    assert pointer is not None
    store = cc.opened.messages.store_of(pointer)
    extended = store.extend(pointer, seconds, destination=dead_letter_topic)
    may_sign = pointer.mac is None or cc.config.signing.key_id is not None
    if may_sign and extended is not pointer:
        return cc.opened.reseal(extended, original=pointer)
    if extended.key != pointer.key:
        store.rollback(extended)
        raise ConfigError("signing.key_id is not set, so the pointer to a copy cannot be signed", path="signing.key_id")
    return message
