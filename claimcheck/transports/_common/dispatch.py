"""Decodes received messages, once each, for all transports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from claimcheck import _hints as hints
from claimcheck._digest import digest_of
from claimcheck._envelope import Abort, Chunk, Literal, Plain, PointerData, decode
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.stored_payload import PointerRead, StoredPayload

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["Content", "dispatch"]

Content = Plain | Literal | StoredPayload | Chunk | Abort | ClaimCheckError
"""A plain message, an escaped payload, a stored payload, a chunk, an abort envelope, or the error of a bad message."""


def dispatch(cc: ClaimCheck, message: bytes, headers: Callable[[], object]) -> Content:
    """Decode a message.

    For a stored payload, this decodes the pointer and checks its signature, but reads nothing from the store before
    `StoredPayload.get`. Pass chunks and abort envelopes to `Resolver.feed` as ``envelope``.

    Args:
        cc: Has the writers' stores and signing keys.
        message: The value. A message that does not begin with ``cc.config.header`` is plain and need not be passed.
        headers: Returns the message's headers. Called for pointers only: the payload must match the hints.

    Returns:
        The content. For a damaged message or a rejected pointer it is the `ClaimCheckError`, which is not raised.
    """
    try:
        envelope = decode(message, header=cc.config.header)
        return _stored(cc, envelope, headers()) if isinstance(envelope, PointerData) else envelope
    except ClaimCheckError as error:
        return error


def _stored(cc: ClaimCheck, envelope: PointerData, headers: object) -> StoredPayload:
    read, claims = PointerRead(cc._accept(envelope.data)), hints.declared(headers)
    return StoredPayload(lambda: _load(cc, read, claims), size=read.pointer.size or 0, origin=read)


def _load(cc: ClaimCheck, read: PointerRead, claims: frozenset[tuple[str, str]]) -> bytes:
    read.state = "failed"
    payload = cc.read(read.pointer)
    hints.check(claims, size=len(payload), checksum=lambda name: digest_of(payload, algorithm=name))
    read.state = "verified"
    return payload
