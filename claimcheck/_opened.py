"""What one process has opened of a configuration: its stores, and how messages are sent by destination.

A forked child opens its own: connections cannot be shared.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack

from claimcheck._content.coder import ContentCoder, Unpacker, package_users
from claimcheck._content.data_keys import DataKeys
from claimcheck._receive.messages import MessageReader
from claimcheck._registry import STRATEGIES, build_store, check_store, load_class
from claimcheck._send.strategy import Breaker, Plan, Strategy, StrategyContext
from claimcheck._store.contract import StoreContext
from claimcheck._store.store import Store
from claimcheck._validation import Problems, fail
from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import encode_pointer
from claimcheck._wire.headers import DEFAULT_LIMIT, WireLimit
from claimcheck._wire.pointer import Pointer
from claimcheck._wire.signing import Seal
from claimcheck.config import Config
from claimcheck.errors import ConfigError
from claimcheck.hooks import Hooks

_REMEMBERED = 1000  # destinations; most programs have few

process = object()
"""This process: another object in each forked child. Comparing it costs no system call, as a process id does."""

after_fork = threading.Lock()
"""For what several threads of a forked child may begin at once."""


def _begin_process() -> None:
    """Called in a forked child, where the lock's owner at the time of the fork does not exist."""
    global process, after_fork
    process, after_fork = object(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_process)


class Opened:
    """The stores of one process, and what holds keys or refers to these stores."""

    def __init__(self, config: Config, *, store: Callable[[str], Store], hooks: Hooks) -> None:
        self.process = process
        self._config, self._store, self._hooks = config, store, hooks
        self.seal = Seal(config)
        self._keys = DataKeys(config.encryption) if config.encryption.keys else None
        self.content = ContentCoder(config, self._keys)
        limit, check = config.chunks.max_payload_bytes, self.seal.check_origin
        self.unpacker = Unpacker(self.content, header=config.header, limit=limit, check_origin=check)
        self.stores: dict[str, Store] = {}
        self.messages = MessageReader(config.header, self.seal, self.unpacker, store, self.stores)
        self.plans: dict[tuple[str, WireLimit | None], Plan] = {}
        self._strategies: dict[int, Strategy] = {}
        self._breakers: dict[tuple[str | None, float], Breaker] = {}
        self._has_keys = False

    def open(self, name: str) -> Store:
        """Return a store by its name, opened by the first call; see `ClaimCheck.store`. One thread at a time."""
        if name in self.stores:
            return self.stores[name]
        if name not in self._config.stores:
            known = ", ".join(sorted(self._config.stores)) or "none"
            text = f"no store is called {name!r}; configured: {known}"
            raise ConfigError(text, path="stores", found=name, expected=known)
        store: Store = build_store(self._config.stores[name], path=f"stores.{name}")
        store.context = StoreContext(
            name=name,
            max_payload_bytes=self._config.limits.max_payload_bytes,
            checksum=self._config.content_checksum,
            content=self.content,
            hooks=self._hooks,
            binds=self.seal.signs,
        )
        self.stores[name] = store
        return store

    def check_keys(self) -> None:
        """Check that this process has all keys and codecs of its configuration, before a message needs one of them."""
        if not self._has_keys:
            problems = Problems()
            self.seal.check_keys(problems)
            if self._keys is not None:
                self._keys.check_keys(problems)
            problems.raise_all()
            for _, use in package_users(self._config):
                use()
            self._has_keys = True

    def reseal(self, pointer: Pointer, *, original: Pointer) -> bytes:
        """Return the message of a pointer that replaces an accepted one. It is signed only if that one was."""
        data = pointers.encode(pointer) if original.mac is None else self.seal.sign(pointer)
        return encode_pointer(data, header=self._config.header)

    def close(self) -> None:
        """Close all stores, and forget them: who still has this object must not use them."""
        stores = list(self.stores.values())
        self.stores.clear()
        with ExitStack() as closing:  # closes all of them even if one fails
            for store in stores:
                closing.callback(store.close)

    def plan(self, destination: str, limit: WireLimit | None = None) -> Plan:
        """Return how messages for a destination are sent; thread-safe. `plans` has those that are known."""
        if len(self.plans) >= _REMEMBERED:
            self.plans.clear()
        plan = self.plans[destination, limit] = self._new_plan(destination, limit)
        return plan

    def strategy(self, config: Config) -> Strategy:
        if id(config) not in self._strategies:
            self._strategies.setdefault(id(config), strategy_class(config)(self._context(config)))
        return self._strategies[id(config)]

    def _new_plan(self, destination: str, limit: WireLimit | None) -> Plan:
        config = self._config.for_destination(destination)
        wire, threshold = limit or DEFAULT_LIMIT, config.threshold_bytes
        if threshold == "auto":
            threshold = wire.max_message_bytes
        elif limit is None and threshold > wire.max_message_bytes:  # without a transport, the caller knows the limit
            wire = WireLimit(threshold, wire.overhead)
        strategy, most = self.strategy(config), min(threshold, wire.max_message_bytes)
        encrypts = self.content.encrypts_inline
        return Plan(strategy, most, wire, -1 if strategy.escapes_all else 0 if encrypts else most)

    def _context(self, config: Config) -> StrategyContext:
        name, pause = config.store, config.hybrid.retry_store_after_seconds
        signs = bool(config.signing.key_id)
        return StrategyContext(
            config=config,
            store=functools.partial(self._store, name or ""),
            seal=self.seal.sign if signs else pointers.encode,
            signer=self.seal if signs else None,
            breaker=self._breakers.setdefault((name, pause), Breaker(retry_after_seconds=pause)),
            content=self.content,
            hooks=self._hooks,
        )


def strategy_class(config: Config, *, path: str = "strategy") -> type[Strategy]:
    cls = load_class(config.strategy, STRATEGIES, group="claimcheck.strategies", path=path)
    if not issubclass(cls, Strategy):
        fail(path, found=repr(config.strategy), expected="a subclass of claimcheck.Strategy")
    return cls


def check_classes(config: Config) -> None:
    """Raise one error for all that is wrong with the classes that a configuration names, and with their options."""
    problems = Problems()
    with problems:
        _check(config, "")
    for pattern, override in config.destinations:
        inherited = override.strategy == config.strategy and "strategy" in problems.sections()
        with problems:
            if not inherited:
                _check(override, f"destinations.{pattern}.")
    for name, store in config.stores.items():
        with problems:
            check_store(store, path=f"stores.{name}")
    if config.encryption.keys:
        with problems:
            DataKeys(config.encryption).check()
    problems.raise_all()


def _check(config: Config, prefix: str) -> None:
    strategy = strategy_class(config, path=f"{prefix}strategy")
    if strategy.needs_store and config.store is None:
        expected = f"the name of a store: strategy {config.strategy!r} writes to one"
        fail(f"{prefix}store", found="nothing", expected=expected)
