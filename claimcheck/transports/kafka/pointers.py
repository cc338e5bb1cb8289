"""The record of a stored payload, as a message that reads it when its value is asked for."""

from __future__ import annotations

from typing import Any

from claimcheck import hints
from claimcheck.errors import ClaimCheckError
from claimcheck.payload import crc32_of
from claimcheck.transports.kafka.message import KafkaMessage, failed, stored
from claimcheck.transports.needs import Resolves

__all__ = ["pointed_at"]


def pointed_at(cc: Resolves, native: Any, value: bytes) -> KafkaMessage:
    """Make the message of a pointer; of one that is not followed, a bad one.

    Args:
        cc: Resolves it.
        native: The record.
        value: Its own.
    """
    try:
        pointer = cc.pointer(value)
    except ClaimCheckError as error:
        return failed(native, error)
    return stored(native, lambda: _load(cc, native, value), size=(pointer and pointer.size) or 0)


def _load(cc: Resolves, native: Any, value: bytes) -> bytes:
    payload: bytes = cc.resolve(value)
    hints.check(hints.declared(native.headers()), size=len(payload), checksum=lambda: crc32_of(payload))
    return payload
