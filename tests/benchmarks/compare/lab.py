"""What an experiment works with: the broker, the user's configuration in each mode, topics and workers."""

from __future__ import annotations

import contextlib
import itertools
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from claimcheck._client import ClaimCheck
from claimcheck.config import Config
from tests.benchmarks.compare.broker import Broker, TopicSettings
from tests.benchmarks.compare.model import MODES, STRATEGIES, Mode, NotMeasuredError
from tests.benchmarks.compare.store_space import StoreSpace
from tests.benchmarks.compare.worker import Role, Worker, WorkerSpec

PREFIX = "claimcheck-compare-"
"""The names of all topics and the parts of stores begin with this."""

_HEADROOM_BYTES = 64 << 10  # for key, headers and framing of a whole record


def silent(text: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class WorkerPair:
    """A producer and a consumer of one topic, each in a process of its own."""

    mode: Mode
    producer: Worker
    consumer: Worker


@dataclass(slots=True, kw_only=True)
class Lab:
    """The surroundings of the experiments of one run."""

    broker: Broker
    space: StoreSpace
    sizes: tuple[int, ...]
    rounds: int = 5
    quick: bool = False
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    progress: Callable[[str], None] = silent
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that can be compared: without a store there is no ``external`` and no ``hybrid``."""
        return MODES if self.space.name is not None else ("chunking", "native")

    @property
    def strategies(self) -> tuple[Mode, ...]:
        return STRATEGIES if self.space.name is not None else ("chunking",)

    def config(self, mode: Mode, **store_options: object) -> Config:
        """Return the user's configuration with the strategy of a mode, in the run's part of the store.

        In mode ``external`` every payload goes to the store, also one that would fit into a message. The others use the
        broker's limit. ``native`` does not use the configuration.
        """
        return replace(
            self.space.config,
            strategy="chunking" if mode == "native" else mode,
            threshold_bytes=0 if mode == "external" else "auto",
            store=self.space.name,
            stores=self.space.stores(**store_options),
            reads_from=None,
            destinations=(),
        )

    def claimcheck(self, mode: Mode, **store_options: object) -> ClaimCheck:
        """Return a `ClaimCheck` for a mode; close it. Payloads it stores are removed after the experiment."""
        return ClaimCheck(self.config(mode, **store_options))

    def settings(self, mode: Mode, largest: int) -> TopicSettings:
        """Return settings for payloads up to a size: ``native`` needs a raised limit."""
        raised = max(largest + _HEADROOM_BYTES, self.broker.limit_bytes) if mode == "native" else None
        return TopicSettings(max_message_bytes=raised)

    @contextlib.contextmanager
    def topic(self, mode: Mode, purpose: str, settings: TopicSettings | None = None) -> Iterator[str]:
        """Create a topic with a unique name, and delete it after the block."""
        name = f"{PREFIX}{self.run}-{purpose}-{mode}-{next(self._names)}"
        try:
            self.broker.create_topic(name, settings or TopicSettings())
            yield name
        finally:
            self.broker.delete_topic(name)

    def worker(self, role: Role, mode: Mode, topic: str, *, config: Config | None = None, **options: Any) -> Worker:
        """Start a producer or consumer in a process of its own; close it. Options are those of `WorkerSpec`."""
        config = config or self.config(mode)
        return Worker(
            WorkerSpec(role=role, mode=mode, topic=topic, address=self.broker.address, config=config, **options)
        )

    @contextlib.contextmanager
    def pairs(self, purpose: str, largest: int, *, modes: Sequence[Mode] = ()) -> Iterator[list[WorkerPair]]:
        """Create a topic for each mode, start a producer and a consumer of each at the same time, and close all.

        A mode in which the broker cannot take payloads of this size is left out.
        """
        with contextlib.ExitStack() as stack:
            pairs = []
            for mode in modes or self.modes:
                settings = self.settings(mode, largest)
                try:
                    topic = stack.enter_context(self.topic(mode, purpose, settings))
                except NotMeasuredError as error:  # whole records of this size
                    self.progress(f"without {mode}: {error}")
                    continue
                producer = stack.enter_context(self.worker("producer", mode, topic))
                consumer = stack.enter_context(self.worker("consumer", mode, topic, group=topic))
                pairs.append(WorkerPair(mode, producer, consumer))
            for pair in pairs:
                pair.producer.ready()
                pair.consumer.ready()
            yield pairs
