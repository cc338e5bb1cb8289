"""Payloads stay in their messages, whatever their size; only look-alikes are escaped."""

from __future__ import annotations

from dataclasses import replace

from claimcheck._outbound import Outbound
from claimcheck._payload import Source
from claimcheck._strategy import Message, Strategy

__all__ = ["InlineStrategy"]


class InlineStrategy(Strategy):
    """For destinations whose broker takes everything, and for switching claimcheck off without touching code."""

    needs_store = False

    def _fits(self, message: Message, size: int) -> bool:
        return True

    def _offload(self, message: Message) -> Outbound:
        """Reached by a file of unknown size only: it is read into memory, up to ``limits.max_payload_bytes``."""
        whole = Source(message.payload, limit=self.context.config.limits.max_payload_bytes).take_all()
        return self.offload(replace(message, payload=bytes(whole)))
