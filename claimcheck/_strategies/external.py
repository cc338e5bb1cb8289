"""The payload is written to a store, and a pointer is sent."""

from __future__ import annotations

import functools

from claimcheck import _hints as hints
from claimcheck._envelope import Envelope, Kind, encode_pointer
from claimcheck._outbound import Outbound
from claimcheck._strategy import Message, Strategy
from claimcheck.errors import PayloadTooLargeError

__all__ = ["ExternalStrategy"]


class ExternalStrategy(Strategy):
    """Every payload that is too large for its broker goes to the writers' store."""

    def _offload(self, message: Message) -> Outbound:
        store = self.context.store()
        limit = self.context.config.limits.max_payload_bytes
        pointer = store.write(message.payload, destination=message.destination, limit=limit, identity=message.identity)
        undo = None if message.identity else functools.partial(store.rollback, pointer)
        try:
            envelope = self._envelope(message, self.context.seal(pointer), pointer.size or 0)
        except BaseException as error:
            Outbound((), undo=undo).settle(error)
            raise
        return Outbound([envelope], undo=undo)

    def _envelope(self, message: Message, pointer: bytes, size: int) -> Envelope:
        data = encode_pointer(pointer, header=self._header)
        headers = message.hinted({hints.TYPE: "pointer", hints.SIZE: str(size)})
        needed = len(data) + message.limit.overhead(message.key, headers)
        limit = message.limit.max_message_bytes
        if needed > limit:
            raise PayloadTooLargeError(
                f"key and headers leave no room for a pointer: {needed} bytes needed, the broker takes {limit}",
                size=needed,
                limit=limit,
            )
        if len(pointer) > self.context.config.limits.max_pointer_bytes:
            raise PayloadTooLargeError(
                f"the pointer has {len(pointer)} bytes, limits.max_pointer_bytes is "
                f"{self.context.config.limits.max_pointer_bytes}",
                size=len(pointer),
                limit=self.context.config.limits.max_pointer_bytes,
            )
        return Envelope(data, headers, message.key, Kind.POINTER)
