"""What the measurements work with: the broker, the run's part of the store, topics, and pairs of processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from claimcheck._client import ClaimCheck
from claimcheck._texts import size_text
from claimcheck.config import Config, StoreConfig, expand
from claimcheck.errors import ScanNotSupportedError
from tests.benchmarks.compare.broker import MODES, Broker, CompareError, Mode, NotMeasuredError
from tests.benchmarks.compare.worker import Report, Worker, WorkerSpec

PREFIX = "claimcheck-compare-"
"""The names of all topics and the parts of stores begin with this."""

_HEADROOM_BYTES = 64 << 10  # for key, headers and framing of a whole record
_TTL_SECONDS = 3600.0  # what cannot be removed expires soon


def _joined(base: object, name: str) -> str:
    return f"{str(base).rstrip('/')}/{name}" if base else f"{name}/"


_OWN: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "filesystem": lambda options, name: {"path": os.path.join(str(options.get("path", "")), name), "create": True},
    "redis": lambda options, name: {"key_prefix": f"{options.get('key_prefix', 'claimcheck:')}{name}:"},
    "s3": lambda options, name: {"prefix": f"{_joined(options.get('prefix'), name).rstrip('/')}/"},
    "obstore": lambda options, name: {"url": _joined(options.get("url"), name)},
    "pulsar-topic": lambda options, name: {},
}
"""The options that confine a store to a part of its medium, by its type."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A producer and a consumer of one topic, each in a process of its own."""

    mode: Mode
    producer: Worker
    consumer: Worker

    def check(self, size: int, *reports: Report) -> None:
        """Raise `CompareError` if a payload was not sent, or did not arrive whole and once."""
        for error in (error for report in reports for error in report.errors):
            raise CompareError(f"{self.mode}: payloads of {size_text(size)} did not arrive: {error}")


@dataclass(slots=True, kw_only=True)
class Lab:
    """The surroundings of the measurements of one run."""

    broker: Broker
    user: Config
    run: str
    sizes: tuple[int, ...]
    rounds: int
    quick: bool = False
    progress: Callable[[str], None] = lambda text: None
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def store(self) -> str | None:
        """The name of the store that writers use; ``None`` if the configuration has no store."""
        stores = self.user.stores
        name = self.user.store or (next(iter(stores)) if len(stores) == 1 else None)
        if name is None and stores:
            raise CompareError("the configuration has several stores: name the one to compare with 'store:'")
        if name is not None and stores[name].type == "memory":
            raise CompareError(f"store {name!r} is in the memory of one process: a comparison needs another store")
        return name

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that can be compared: without a store there is no ``external`` and no ``hybrid``."""
        return MODES if self.store is not None else ("chunking", "native")

    def config(self, mode: Mode) -> Config:
        """Return the user's configuration with the strategy of a mode, in the run's part of the store.

        In mode ``external`` every payload goes to the store, also one that would fit into a message. The others use the
        broker's limit. ``native`` does not use the configuration.
        """
        return replace(
            self.user,
            strategy="chunking" if mode == "native" else mode,
            threshold_bytes=0 if mode == "external" else "auto",
            store=self.store,
            stores=self._stores(),
            reads_from=None,
            destinations=(),
        )

    def _stores(self) -> dict[str, StoreConfig]:
        """Return the store, confined to the run's part of it."""
        if self.store is None:
            return {}
        entry = self.user.stores[self.store]
        known = dict(entry.options)
        if own := _OWN.get(entry.type):  # a store of a third party may not have a lifetime
            lifetime = known.get("ttl_seconds", _TTL_SECONDS)
            is_number = isinstance(lifetime, int | float)  # and not a placeholder
            known["ttl_seconds"] = min(lifetime, _TTL_SECONDS) if is_number else _TTL_SECONDS
            known |= own(known, PREFIX + self.run)
        return {self.store: replace(entry, options=known)}

    def clear_store(self) -> None:
        """Remove everything from the run's part of the store, if it can be listed."""
        if self.store is None:
            return
        with ClaimCheck(self.config("external")) as cc, contextlib.suppress(ScanNotSupportedError):
            store = cc.store(self.store)
            for deletion in store.delete(store.scan()):
                if deletion.error:
                    raise CompareError(f"payloads of {PREFIX}{self.run} could not be removed: {deletion.error}")
        if self.user.stores[self.store].type == "filesystem":
            path = expand(self._stores()[self.store].options["path"], path=f"stores.{self.store}.path")
            shutil.rmtree(Path(path).expanduser(), ignore_errors=True)

    @contextmanager
    def topic(self, mode: Mode, purpose: str, largest: int = 0) -> Iterator[str]:
        """Create a topic with a unique name for payloads up to a size, and delete it after the block.

        ``native`` needs a raised limit; raises `NotMeasuredError` if the broker does not permit it.
        """
        name = f"{PREFIX}{self.run}-{purpose}-{mode}-{next(self._names)}"
        limit = max(largest + _HEADROOM_BYTES, self.broker.limit_bytes) if mode == "native" else None
        try:
            self.broker.create_topic(name, limit)
            yield name
        finally:
            self.broker.delete_topic(name)

    @contextmanager
    def pairs(self, purpose: str, largest: int) -> Iterator[list[Pair]]:
        """Create a topic for each mode, start a producer and a consumer of each at the same time, and close all.

        A mode in which the broker cannot take payloads of this size is left out.
        """
        with contextlib.ExitStack() as stack:
            pairs = []
            for mode in self.modes:
                try:
                    topic = stack.enter_context(self.topic(mode, purpose, largest))
                except NotMeasuredError as error:  # whole records of this size
                    self.progress(f"without {mode}: {error}")
                    continue
                common = mode, topic, self.broker.address, self.config(mode)
                producer = stack.enter_context(Worker(WorkerSpec("producer", *common)))
                consumer = stack.enter_context(Worker(WorkerSpec("consumer", *common)))
                pairs.append(Pair(mode, producer, consumer))
            for pair in pairs:
                for worker in (pair.producer, pair.consumer):
                    worker.report()  # it is connected
            yield pairs
