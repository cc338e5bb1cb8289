"""What one process has opened of a configuration. A forked child opens its own: connections cannot be shared."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack

from claimcheck._content.coder import ContentCoder, Unpacker, package_users
from claimcheck._content.data_keys import DataKeys
from claimcheck._plans import Plans
from claimcheck._receive.messages import MessageReader
from claimcheck._registry import build_store
from claimcheck._store.contract import StoreContext
from claimcheck._store.store import Store
from claimcheck._validation import Problems
from claimcheck._wire.signing import Seal
from claimcheck.config import Config
from claimcheck.errors import ConfigError
from claimcheck.hooks import Hooks

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

    def __init__(self, config: Config, *, store: Callable[[str], Store], hooks: Callable[[], Hooks]) -> None:
        self.process = process
        self.seal = Seal(config)
        self.content = ContentCoder(config, DataKeys(config.encryption) if config.encryption.keys else None)
        limit, check = config.chunks.max_payload_bytes, self.seal.check_origin
        self.unpacker = Unpacker(self.content, header=config.header, limit=limit, check_origin=check)
        self.stores: dict[str, Store] = {}
        self.plans = Plans(config, store=store, seal=self.seal, content=self.content, hooks=hooks)
        self.messages = MessageReader(config.header, self.seal, self.unpacker, store, self.stores)
        self._config = config
        self._hooks = hooks
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
            hooks=self._hooks(),
            binds=self.seal.signs,
        )
        self.stores[name] = store
        return store

    def check_keys(self) -> None:
        """Check that this process has all keys and codecs of its configuration, before a message needs one of them."""
        if not self._has_keys:
            problems = Problems()
            self.seal.check_keys(problems)
            if self.content.keys is not None:
                self.content.keys.check_keys(problems)
            problems.raise_all()
            for _, use in package_users(self._config):
                use()
            self._has_keys = True

    def close(self) -> None:
        """Close all stores, and forget them: who still has this object must not use them."""
        stores = list(self.stores.values())
        self.stores.clear()
        with ExitStack() as closing:  # closes all of them even if one fails
            for store in stores:
                closing.callback(store.close)
