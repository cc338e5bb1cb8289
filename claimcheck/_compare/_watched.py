"""A `ClaimCheck` that calls back for each message between wrapper and client, and a point at which the process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from claimcheck._client import ClaimCheck
from claimcheck._compare._faults import PassingBlock
from claimcheck._decorator import OutboundBlock
from claimcheck._envelope import Envelope
from claimcheck._pointer import Pointer
from claimcheck._resolver import Outcome, Resolver
from claimcheck.config import Config

__all__ = ["KillPoint", "WatchedClaimCheck"]


class KillPoint:
    """Kills this process when a number of messages has passed.

    Args:
        limit: After how many; ``None`` for never.

    Attributes:
        flush: Called before.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._passed = 0
        self.flush: Callable[[], object] = lambda: None

    def check(self) -> None:
        """Kill the process if enough messages have passed."""
        if self._limit is not None and self._passed >= self._limit:
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def passed(self) -> None:
        """Count one message."""
        self._passed += 1
        self.check()


class WatchedClaimCheck(ClaimCheck):
    """Calls functions before and after each message that passes between the wrapper and the client."""

    before: Callable[[], None]
    after: Callable[[], None]
    _is_feeding = False

    @classmethod
    def of(cls, config: Config, before: Callable[[], None], after: Callable[[], None]) -> WatchedClaimCheck:
        """Return a `ClaimCheck` with these functions, which may be called in any thread."""
        cc = cls(config)
        cc.before, cc.after = before, after
        return cc

    def resolver(self, **options: Any) -> Resolver:
        """Return a resolver that counts what it is fed."""
        resolver = super().resolver(**options)
        feed = resolver.feed

        def watched(*args: Any, **kwargs: Any) -> list[Outcome]:
            self.before()
            self._is_feeding = True
            outcomes = feed(*args, **kwargs)
            self._is_feeding = False
            self.after()
            return outcomes

        resolver.feed = watched  # type: ignore[method-assign]
        return resolver

    def read(self, pointer: Pointer) -> bytes:
        """Count a pointer that was not passed to the resolver: only the embedded broker's consumer does that."""
        if self._is_feeding:
            return super().read(pointer)
        self.before()
        payload = super().read(pointer)
        self.after()
        return payload

    def outbound(self, *args: Any, **kwargs: Any) -> OutboundBlock:
        """Return a block that counts the messages of its payload."""
        return PassingBlock(super().outbound(*args, **kwargs), self._watched)

    def _watched(self, messages: Iterable[Envelope]) -> Iterator[Envelope]:
        for message in messages:
            self.before()
            yield message
            self.after()
