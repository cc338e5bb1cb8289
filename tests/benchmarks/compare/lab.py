"""What an experiment works with: the broker, the user's configuration in each mode, payloads, topics and workers."""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from claimcheck._client import ClaimCheck
from claimcheck.config import Config
from claimcheck.hooks import Hook
from tests.benchmarks.compare.broker import Broker, TopicSettings
from tests.benchmarks.compare.model import MODES, STRATEGIES, Mode, NotMeasuredError
from tests.benchmarks.compare.payloads import make
from tests.benchmarks.compare.store_space import StoreSpace
from tests.benchmarks.compare.worker import Role, Worker, WorkerSpec

PREFIX = "claimcheck-compare-"
"""The names of all topics and the parts of stores begin with this."""

_HEADROOM_BYTES = 64 << 10  # for key, headers and framing of a whole record


def _silent(text: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class WorkerPair:
    """A producer and a consumer of one topic, each in a process of its own."""

    mode: Mode
    topic: str
    producer: Worker
    consumer: Worker


@dataclass(slots=True, kw_only=True)
class Lab:
    """The surroundings of the experiments of one run; ``stored``: whether there may be payloads in the store."""

    broker: Broker
    space: StoreSpace
    sizes: tuple[int, ...]
    rounds: int = 5
    quick: bool = False
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    progress: Callable[[str], None] = _silent
    clock: Callable[[], float] = time.monotonic
    deadline: float | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    topics: list[str] = field(default_factory=list)
    stored: bool = False
    _workers: list[Worker] = field(default_factory=list, repr=False)
    _names: int = 0

    # Configuration ---------------------------------------------------------------------------------------------

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
        strategy = "chunking" if mode == "native" else mode
        base = self.space.config
        return replace(
            base,
            strategy=strategy,
            threshold_bytes=0 if mode == "external" else "auto",
            store=self.space.name,
            stores=self.space.stores(**store_options),
            reads_from=None,
            destinations=(),
        )

    def claimcheck(self, mode: Mode, *, hooks: Iterable[Hook] = (), **store_options: object) -> ClaimCheck:
        """Return a `ClaimCheck` for a mode; close it. Payloads it stores are removed after the experiment."""
        self.stored = self.space.name is not None
        return ClaimCheck(self.config(mode, **store_options), hooks=hooks)

    # The store -------------------------------------------------------------------------------------------------

    def store_objects(self) -> int | None:
        """Return the number of payloads that the experiment has in the store; ``None`` if it cannot be listed."""
        return self.space.count()

    def clear_store(self) -> bool:
        """Remove everything that the run has in the store; return whether that is known to be complete."""
        return self.space.clear()

    # Payloads and topics ---------------------------------------------------------------------------------------

    def payload(self, size: int, number: int) -> bytes:
        """Return payload ``number`` of this size; `verify` recognizes it."""
        return make(size, number)

    def settings(self, mode: Mode, largest: int) -> TopicSettings:
        """Return settings for payloads up to a size: ``native`` needs a raised limit."""
        raised = max(largest + _HEADROOM_BYTES, self.broker.limit_bytes) if mode == "native" else None
        return TopicSettings(max_message_bytes=raised)

    def topic(self, mode: Mode, purpose: str, settings: TopicSettings | None = None) -> str:
        """Create a topic with a unique name; it is deleted after the experiment, or by `delete_topic`."""
        self._names += 1
        name = f"{PREFIX}{self.run}-{purpose}-{mode}-{self._names}"
        self.topics.append(name)  # before it exists
        self.broker.create_topic(name, settings or TopicSettings())
        return name

    def delete_topic(self, topic: str) -> None:
        """Delete a topic of `topic`."""
        self.broker.delete_topic(topic)
        with contextlib.suppress(ValueError):
            self.topics.remove(topic)

    # Processes -------------------------------------------------------------------------------------------------

    def worker(
        self,
        role: Role,
        mode: Mode,
        topic: str,
        *,
        group: str = "compare",
        max_message_bytes: int | None = None,
        session_seconds: float | None = None,
        kill_after: int | None = None,
        wait: bool = True,
        config: Config | None = None,
    ) -> Worker:
        """Start a producer or consumer in a process of its own; killed after the experiment unless it is closed."""
        self.stored = self.space.name is not None
        spec = WorkerSpec(
            role=role,
            mode=mode,
            topic=topic,
            address=self.broker.address,
            config=config or self.config(mode),
            group=group,
            max_message_bytes=max_message_bytes,
            session_seconds=session_seconds,
            kill_after=kill_after,
        )
        worker = Worker(spec, ended=self._forget)
        self._workers.append(worker)
        return worker.ready() if wait else worker

    @contextlib.contextmanager
    def pairs(self, purpose: str, largest: int, *, modes: Sequence[Mode] | None = None) -> Iterator[list[WorkerPair]]:
        """Create a topic for each mode, start a producer and a consumer of each at the same time, and close all.

        A mode that the broker cannot take payloads of this size in is left out.
        """
        with contextlib.ExitStack() as stack:
            pairs = []
            for mode in modes or self.modes:
                settings = self.settings(mode, largest)
                try:
                    topic = self.topic(mode, purpose, settings)
                except NotMeasuredError as error:  # whole records of this size
                    self.progress(f"without {mode}: {error}")
                    continue
                stack.callback(self.delete_topic, topic)
                limit = settings.max_message_bytes
                producer = self.worker("producer", mode, topic, max_message_bytes=limit, wait=False)
                stack.enter_context(producer)
                consumer = stack.enter_context(self.worker("consumer", mode, topic, group=topic, wait=False))
                pairs.append(WorkerPair(mode, topic, producer, consumer))
            for pair in pairs:
                pair.producer.ready()
                pair.consumer.ready()
            yield pairs

    def _forget(self, worker: Worker) -> None:
        with contextlib.suppress(ValueError):
            self._workers.remove(worker)

    # The run ---------------------------------------------------------------------------------------------------

    @property
    def is_late(self) -> bool:
        """Whether the experiment should stop repeating."""
        return self.deadline is not None and self.clock() >= self.deadline

    def clean_up(self) -> None:
        """Kill the workers, delete the topics and remove the payloads of the experiment."""
        for worker in list(self._workers):
            worker.kill()
        for topic in list(self.topics):
            self.delete_topic(topic)
        if self.stored and self.clear_store():
            self.stored = False
