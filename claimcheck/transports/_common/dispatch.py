"""Answers what a received message is: the one place for all transports. Each message is decoded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from claimcheck import _hints as hints
from claimcheck._envelope import Abort, Chunk, Literal, Plain, PointerData, decode
from claimcheck._payload import crc32_of
from claimcheck._pointer import Pointer
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.stored_payload import StoredPayload

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["Content", "dispatch"]

Content = Plain | Literal | StoredPayload | Chunk | Abort | ClaimCheckError
"""What a message is: its own payload, an escaped one, one in a store, a part of one, or bad, with the error."""


def dispatch(cc: ClaimCheck, message: bytes, headers: Callable[[], Any]) -> Content:
    """Return what a message is.

    The pointer of a stored payload is decoded and its signature is checked here, once; nothing is read from the store
    before `StoredPayload.get`. Chunks and abort envelopes are for `Resolver.feed`, whose ``envelope`` they are.

    Args:
        cc: Knows the writers' stores and signing keys.
        message: Its value. Callers need not ask about one that does not begin with ``cc.config.header``.
        headers: Returns the message's headers; called for pointers only, whose payloads are compared with the hints.

    Returns:
        A `ClaimCheckError`, not raised, where the message is damaged or its pointer is not followed.
    """
    try:
        envelope = decode(message, header=cc.config.header)
        return _stored(cc, envelope, headers()) if isinstance(envelope, PointerData) else envelope
    except ClaimCheckError as error:
        return error


def _stored(cc: ClaimCheck, envelope: PointerData, headers: Any) -> StoredPayload:
    pointer, claims = cc._accept(envelope.data), hints.declared(headers)
    return StoredPayload(lambda: _load(cc, pointer, claims), size=pointer.size or 0)


def _load(cc: ClaimCheck, pointer: Pointer, claims: frozenset[tuple[str, str]]) -> bytes:
    payload = cc.read(pointer)
    hints.check(claims, size=len(payload), checksum=lambda: crc32_of(payload))
    return payload
