"""What is needed of a `claimcheck.ClaimCheck`, which stands above the transports and is never imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from claimcheck._decorator import OutboundBlock
from claimcheck._pointer import Pointer
from claimcheck._resolver import Resolver
from claimcheck._sending import Classifier
from claimcheck._wire_size import WireLimit
from claimcheck.config import ChunkingConfig
from claimcheck.hooks import Hooks

__all__ = ["Offloads", "Resolves"]


class _Config(Protocol):
    @property
    def header(self) -> bytes: ...

    @property
    def chunking(self) -> ChunkingConfig: ...


class Offloads(Protocol):
    """The writer's half."""

    @property
    def hooks(self) -> Hooks:
        """Who hears of what is sent."""

    @property
    def config(self) -> _Config:
        """Knows what envelopes begin with."""

    def threshold(self, destination: str, limit: WireLimit) -> int:
        """Bytes that a message may have and still go as it is."""

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


class Resolves(Protocol):
    """The reader's half."""

    @property
    def config(self) -> _Config:
        """Knows what envelopes begin with."""

    def resolve(self, message: bytes) -> Any:
        """Return the payload of a pointer."""

    def pointer(self, message: bytes) -> Pointer | None:
        """Read a pointer without following it."""

    def resolver(self, *, clock: Callable[[], float], max_redeliveries: int | None = None) -> Resolver:
        """Return a resolver of chunks; ``max_redeliveries`` overrides the configuration."""
