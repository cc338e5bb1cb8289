"""Decodes received messages, once each, for all transports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from claimcheck._wire import headers as hints
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import Abort, Chunk, Encoded, Literal, Plain, PointerData, decode
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.received import StoredPayload

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck
    from claimcheck._receive.resolver import Resolver

Content = Plain | Literal | StoredPayload | Chunk | Abort | ClaimCheckError
"""A plain message, an escaped payload, one that is read or decoded on access, a chunk, an abort envelope, or an error.
"""


def dispatch(cc: ClaimCheck, message: bytes, headers: Callable[[], object], *, destination: str) -> Content:
    try:
        envelope = decode(message, header=cc.config.header)
        if isinstance(envelope, PointerData):
            return _stored(cc, envelope, headers(), destination)
        if not isinstance(envelope, Chunk | Abort):
            signed = headers() if isinstance(envelope, Literal | Encoded) else None
            cc.opened.seal.check_whole(envelope, signed, destination)
        return _encoded(cc, envelope.content, destination) if isinstance(envelope, Encoded) else envelope
    except ClaimCheckError as error:
        return error


def _encoded(cc: ClaimCheck, content: memoryview, destination: str) -> StoredPayload:
    """Decode on access: many messages may decompress to a lot of memory."""
    unpacker = cc.opened.unpacker
    return StoredPayload(lambda: unpacker.content(content, destination=destination), size=unpacker.size_of(content))


def _stored(cc: ClaimCheck, envelope: PointerData, headers: object, destination: str) -> StoredPayload:
    pointer = cc.opened.seal.accept(envelope.data, destination=destination)
    claims, messages = hints.declared(headers), cc.opened.messages

    def load() -> bytes:
        payload = cc.read(pointer)
        hints.check(claims, size=len(payload), checksum=lambda name: digest_of(payload, algorithm=name))
        return payload

    return StoredPayload(load, size=pointer.size or 0, pipelined=lambda: messages.pipelined(pointer))


def resolver_of(cc: ClaimCheck, *, clock: Callable[[], float]) -> Resolver:
    """Return a resolver; the payload of encoded chunks is a `StoredPayload`, which is decoded on access."""
    resolver = cc.resolver(clock=clock)
    resolver.decode_later = lambda decode, size: StoredPayload(decode, size=size)
    return resolver


def passes_plain(cc: ClaimCheck) -> bool:
    """Whether plain messages are delivered as they are; otherwise they are errors, except for tombstones."""
    return not cc.config.signing.require_envelope
