"""What is needed of a `claimcheck.ClaimCheck`, which stands above the transports and is never imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from claimcheck.outbound import Classifier
from claimcheck.pointer import Pointer
from claimcheck.produce import OutboundBlock
from claimcheck.resolver import Resolver
from claimcheck.wire import WireLimit

__all__ = ["Offloads", "Resolves"]


class Offloads(Protocol):
    """The writer's half."""

    def stays_plain(self, payload: bytes, *, destination: str, key: Any, headers: Any, limit: WireLimit) -> bool:
        """Whether a message may go as it is."""

    def outbound(
        self,
        payload: Any,
        *,
        destination: str,
        key: Any,
        headers: Any,
        limit: WireLimit,
        text_key: bool,
        classify: Classifier,
    ) -> OutboundBlock:
        """Offload one payload."""


class _Config(Protocol):
    @property
    def header(self) -> bytes: ...


class Resolves(Protocol):
    """The reader's half."""

    @property
    def config(self) -> _Config:
        """Knows what envelopes begin with."""

    def resolve(self, message: bytes) -> Any:
        """Return the payload of a pointer."""

    def pointer(self, message: bytes) -> Pointer | None:
        """Read a pointer without following it."""

    def resolver(self, *, clock: Callable[[], float]) -> Resolver:
        """Return what puts chunks together."""
