"""A pointer where the store answers, chunks where it does not."""

from __future__ import annotations

import logging
from dataclasses import replace

from claimcheck._outbound import Outbound
from claimcheck._payload import remaining_bytes
from claimcheck._strategies.chunking import ChunkingStrategy
from claimcheck._strategies.external import ExternalStrategy
from claimcheck._strategy import Message, Strategy, StrategyContext, rewindable
from claimcheck.errors import ClaimCheckError, PayloadTooLargeError, StoreError
from claimcheck.hooks import BreakerEvent, FallbackEvent

__all__ = ["HybridStrategy"]

_log = logging.getLogger(__name__)


class HybridStrategy(Strategy):
    """Store first; when it fails the payload goes as chunks, and the store is left alone for a while.

    A payload too large for the chunking limits is offered to the store whatever the breaker says. Small ones can be
    sent as chunks on purpose (``hybrid.chunk_below_bytes``).
    """

    may_chunk = True

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._external = ExternalStrategy(context)
        self._chunking = ChunkingStrategy(context)

    def _offload(self, message: Message) -> Outbound:
        payload, rewind = rewindable(message.payload, limit=self.context.config.limits.max_payload_bytes)
        message = replace(message, payload=payload)
        size = remaining_bytes(payload) or 0
        try:
            if size <= self.context.config.hybrid.chunk_below_bytes:
                return self._chunking._offload(message)
            if not self.context.breaker.allows():
                return self._fall_back(message, size, None)
        except PayloadTooLargeError:  # too large for chunks: only the store can take it
            rewind()
        try:
            outbound = self._external._offload(message)
        except StoreError as error:
            if isinstance(error, PayloadTooLargeError):
                self.context.breaker.give_back()
                raise
            self._store_failed(error)
            rewind()
            return self._fall_back(message, size, error)
        except BaseException:  # the payload's own fault, or the end of the program: nothing was learnt of the store
            self.context.breaker.give_back()
            raise
        self._store_answered()
        return outbound

    def _fall_back(self, message: Message, size: int, error: StoreError | None) -> Outbound:
        try:
            outbound = self._chunking._offload(message)
        except ClaimCheckError as second:
            if error is None:
                raise
            error.add_note(f"and the payload cannot go as chunks: {second}")
            raise error from second
        self.context.hooks.emit(FallbackEvent(destination=message.destination, size=size, error=error))
        level = logging.WARNING if error else logging.INFO  # once for each try of the store, not for each payload
        _log.log(level, "%s: %d bytes go as chunks: %s", message.destination, size, error or "the breaker is open")
        return outbound

    def _store_failed(self, error: StoreError) -> None:
        if self.context.breaker.failed():
            self.context.hooks.emit(BreakerEvent(store=error.store or "", state="open"))

    def _store_answered(self) -> None:
        if self.context.breaker.succeeded():
            self.context.hooks.emit(BreakerEvent(store=self.context.config.store or "", state="closed"))
