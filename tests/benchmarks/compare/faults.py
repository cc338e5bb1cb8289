"""Failures at an exact point: a store that is down, a message that the broker refuses, a process that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from claimcheck._client import ClaimCheck
from claimcheck._receive.resolver import Outcome, Resolver
from claimcheck._send.decorator import OutboundBlock
from claimcheck._send.outbound import Outbound
from claimcheck._wire.envelope import Envelope
from claimcheck._wire.pointer import Pointer
from claimcheck.config import Config, StoreConfig
from claimcheck.hooks import Hook
from claimcheck.testing import FaultyStore

# Stores --------------------------------------------------------------------------------------------------------


def with_faulty_stores(config: Config) -> Config:
    """Return a configuration in which each store is a `FaultyStore`."""
    stores = {
        name: StoreConfig("claimcheck.testing:FaultyStore", {"store": {"type": store.type, **store.options}})
        for name, store in config.stores.items()
    }
    return replace(config, stores=stores)


def faulty_store(cc: ClaimCheck) -> FaultyStore:
    store = cc.store(cc.config.store or "")
    assert isinstance(store, FaultyStore)
    return store


@contextmanager
def without_stores(config: Config, *, hooks: Iterable[Hook] = ()) -> Iterator[ClaimCheck]:
    """Yield a `ClaimCheck` whose store, if it has one, is down."""
    with ClaimCheck(with_faulty_stores(config), hooks=hooks) as cc:
        if config.store is not None:
            faulty_store(cc).fail("write")
            faulty_store(cc).fail("read")
        yield cc


# Messages ------------------------------------------------------------------------------------------------------


class WatchedClaimCheck(ClaimCheck):
    """Calls functions before and after each message that passes between the wrapper and the client, in any thread.

    ``change`` gets the number of a message to send within its payload, and the message; returns the one to send.
    """

    def __init__(
        self,
        config: Config,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
        change: Callable[[int, Envelope], Envelope] = lambda number, envelope: envelope,
    ) -> None:
        super().__init__(config)
        self._before, self._after, self._change = before, after, change
        self._is_feeding = False

    def resolver(self, **options: Any) -> Resolver:
        """Return a resolver that is watched."""
        resolver = super().resolver(**options)
        feed = resolver.feed

        def watched(*args: Any, **kwargs: Any) -> list[Outcome]:
            self._before()
            self._is_feeding = True
            outcomes = feed(*args, **kwargs)
            self._is_feeding = False
            self._after()
            return outcomes

        resolver.feed = watched  # type: ignore[method-assign]
        return resolver

    def read(self, pointer: Pointer) -> bytes:
        """Read a payload; this is watched, too, unless the resolver does it: consumers read ahead without it."""
        if self._is_feeding:
            return super().read(pointer)
        self._before()
        payload = super().read(pointer)
        self._after()
        return payload

    def outbound(self, payload: Any, **options: Any) -> OutboundBlock:
        """Return a block whose messages are watched."""
        return _WatchedBlock(super().outbound(payload, **options), self._watched)

    def _watched(self, messages: Iterable[Envelope]) -> Iterator[Envelope]:
        for number, message in enumerate(messages):
            self._before()
            yield self._change(number, message)
            self._after()


class _WatchedBlock(OutboundBlock):
    def __init__(self, block: OutboundBlock, through: Callable[[Iterable[Envelope]], Iterator[Envelope]]) -> None:
        super().__init__(block._strategy, block._message, block._classify)
        self._through = through

    def __enter__(self) -> Outbound:
        out = super().__enter__()
        out._messages = self._through(out._messages)
        return out


class KillPoint:
    """Kills this process (SIGKILL) when a number of messages has passed, after a call of ``flush``."""

    def __init__(self, limit: int) -> None:
        self._limit, self._passed = limit, 0
        self.flush: Callable[[], object] = lambda: None

    def check(self) -> None:
        if self._passed >= self._limit:
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def passed(self) -> None:
        """Count one message."""
        self._passed += 1
        self.check()
