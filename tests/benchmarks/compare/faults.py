"""Failures at an exact point: a store that is down, a message that the broker refuses, a process that is killed."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from claimcheck._client import ClaimCheck
from claimcheck._receive.resolver import Outcome, Resolver
from claimcheck._send.decorator import OutboundBlock
from claimcheck._send.outbound import Outbound
from claimcheck._wire.envelope import Envelope
from claimcheck._wire.pointer import Pointer
from claimcheck.config import Config, StoreConfig, expand
from claimcheck.hooks import Hook
from claimcheck.testing import FaultyStore, Operation, When

_FAULTY = "claimcheck.testing:FaultyStore"
_ADDRESSES = ("url", "endpoint_url")
_NETWORK_SCHEMES = ("redis", "http")

Interceptor = Callable[[int, Envelope], Envelope]


# Stores --------------------------------------------------------------------------------------------------------


@contextmanager
def refused_address() -> Iterator[str]:
    """Reserve a port of this machine that refuses connections; yields ``host:port``."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # and does not listen
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


class KillingStore(FaultyStore):
    """Kills the process in the middle of a write."""

    @classmethod
    def around(cls, store: StoreConfig) -> StoreConfig:
        """Return the configuration of this store around another one."""
        return StoreConfig(f"{__name__}:{cls.__name__}", dict(_wrapped(store).options))

    def _strike(self, operation: Operation, when: When) -> None:
        if (operation, when) == ("write", "during"):
            os.kill(os.getpid(), signal.SIGKILL)


def with_faulty_stores(config: Config) -> Config:
    """Return a configuration in which each store is a `FaultyStore`."""
    wrapped = {name: _wrapped(store) for name, store in config.stores.items()}
    return replace(config, stores=wrapped)


@contextmanager
def without_stores(config: Config, *, hooks: Iterable[Hook] = ()) -> Iterator[ClaimCheck]:
    """Yield a `ClaimCheck` whose stores are down: their servers refuse connections; without a server, they fail."""
    with refused_address() as address:
        stores = {name: _elsewhere(store, address) or _wrapped(store) for name, store in config.stores.items()}
        with ClaimCheck(replace(config, stores=stores), hooks=hooks) as cc:
            for name in stores:
                if stores[name].type == _FAULTY:
                    _fail_always(cc, name)
            yield cc


def _fail_always(cc: ClaimCheck, name: str) -> None:
    """Make a `FaultyStore` fail until further notice."""
    store = cc.store(name)
    assert isinstance(store, FaultyStore)
    store.fail("write")
    store.fail("read")


def _wrapped(store: StoreConfig) -> StoreConfig:
    return StoreConfig(_FAULTY, {"store": {"type": store.type, **store.options}})


def _elsewhere(store: StoreConfig, address: str) -> StoreConfig | None:
    """Return the store at another address; ``None`` if it has no server, or the address is not an option."""
    for name in _ADDRESSES:
        url = urlsplit(str(expand(store.options.get(name) or "", path=name)))
        if url.scheme.startswith(_NETWORK_SCHEMES) and url.netloc:
            return StoreConfig(store.type, {**store.options, name: url._replace(netloc=address).geturl()})
    return None


# Messages ------------------------------------------------------------------------------------------------------


class SendingClaimCheck(ClaimCheck):
    """Calls a function for each message before the broker's client gets it.

    Args:
        config: As for `ClaimCheck`.
        before_message: Called with the message's number within its payload, from 0, and the message; returns the
            message to send. Any client then treats the message, and its refusal, as usual.
        unknown: Whether to treat errors of the send as if the outcome were unknown.
    """

    def __init__(self, config: Config, before_message: Interceptor, *, unknown: bool = False) -> None:
        super().__init__(config)
        self._before_message = before_message
        self._unknown = unknown

    def outbound(self, payload: Any, **options: Any) -> OutboundBlock:
        """Same as for `ClaimCheck`."""
        if self._unknown:
            options["classify"] = lambda error: "unknown"
        return _PassingBlock(super().outbound(payload, **options), self._passed)

    def _passed(self, messages: Iterable[Envelope]) -> Iterator[Envelope]:
        return (self._before_message(number, envelope) for number, envelope in enumerate(messages))


class _PassingBlock(OutboundBlock):
    """A block whose messages pass through a function."""

    def __init__(self, block: OutboundBlock, through: Callable[[Iterable[Envelope]], Iterator[Envelope]]) -> None:
        super().__init__(block._strategy, block._message, block._classify)
        self._through = through

    def __enter__(self) -> Outbound:
        out = super().__enter__()
        out._messages = self._through(out._messages)
        return out


# Processes ---------------------------------------------------------------------------------------------------


class KillPoint:
    """Kills this process when a number of messages has passed, after a call of ``flush``; ``None`` for never."""

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
        return _PassingBlock(super().outbound(*args, **kwargs), self._watched)

    def _watched(self, messages: Iterable[Envelope]) -> Iterator[Envelope]:
        for message in messages:
            self.before()
            yield message
            self.after()
