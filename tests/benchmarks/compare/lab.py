"""What an experiment works with: the broker, configurations, topics and workers, and a `Trial` of one mode."""

from __future__ import annotations

import contextlib
import itertools
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from claimcheck._client import ClaimCheck
from claimcheck.config import Config
from tests.benchmarks.children import ChildEndedError
from tests.benchmarks.compare.broker import Broker, Consumer, Delivery, TopicSettings, make, recognized
from tests.benchmarks.compare.model import MODES, STRATEGIES, CompareError, Mode, NotMeasuredError, Row, Tally
from tests.benchmarks.compare.store_space import StoreSpace
from tests.benchmarks.compare.worker import Role, Worker, WorkerSpec

PREFIX = "claimcheck-compare-"
"""The names of all topics and the parts of stores begin with this."""

_HEADROOM_BYTES = 64 << 10  # for key, headers and framing of a whole record

CHUNKS = 8
"""Into how many chunks a payload is split, at least."""

_SEND_SECONDS = 30.0
_STEP_SECONDS = 0.2
_LARGEST_BYTES = 1 << 20


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
    progress: Callable[[str], None] = lambda text: None
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

    @contextmanager
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

    @contextmanager
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


@dataclass(slots=True)
class Trial:
    """A topic with payloads of one size in one mode; ``sent`` are those whose send was tried."""

    lab: Lab
    mode: Mode
    topic: str
    size: int
    config: Config
    sent: set[int] = field(default_factory=set)

    @classmethod
    @contextmanager
    def of(cls, lab: Lab, mode: Mode, purpose: str, *, partitions: int = 1) -> Iterator[Trial]:
        """Create the topic, and delete it after the block."""
        size = min(lab.broker.limit_bytes + lab.broker.limit_bytes // 4, _LARGEST_BYTES)
        config = lab.config(mode)
        chunking = replace(config.chunking, max_message_bytes=max(200, size // CHUNKS))
        config = replace(config, threshold_bytes=size // 2, chunking=chunking)
        with lab.topic(mode, purpose, TopicSettings(partitions=partitions)) as topic:
            yield cls(lab, mode, topic, size, config)

    def consumer(self, cc: ClaimCheck, group: str) -> closing[Consumer]:
        return closing(self.lab.broker.consumer(self.mode, self.topic, cc, group=group))

    def try_to_send(
        self, cc: ClaimCheck, numbers: Iterable[int], *, together: bool = False
    ) -> list[Exception | int | None]:
        """Send payloads one after the other, or together, and wait; returns the error or the partition of each."""
        results: dict[int, Exception | int | None] = {}
        with closing(self.lab.broker.producer(self.mode, self.topic, cc)) as producer:
            for number in numbers:

                def done(error: Exception | None, partition: int | None, number: int = number) -> None:
                    results[number] = partition if error is None else error

                self.sent.add(number)
                results[number] = TimeoutError("the send has no result")
                try:
                    producer.send(make(self.size, number), done=done)
                    if not together:
                        producer.flush(_SEND_SECONDS)
                except Exception as error:
                    results[number] = error
            producer.flush(_SEND_SECONDS)
        return list(results.values())

    def send(self, cc: ClaimCheck, numbers: Iterable[int], *, together: bool = False) -> list[int]:
        """Send payloads, and return their partitions; raises the first error."""
        partitions = list[int]()
        for result in self.try_to_send(cc, numbers, together=together):
            if isinstance(result, Exception):
                raise result
            partitions.append(-1 if result is None else result)
        return partitions

    def receive(
        self,
        consumer: Consumer,
        is_enough: Callable[[list[Delivery]], bool],
        *,
        seconds: float = 30.0,
        late: float = 0.2,
        commit: bool = False,
    ) -> list[Delivery]:
        """Receive until there is enough, or for this long at most, and what follows within ``late`` seconds."""
        found: list[Delivery] = []
        end, is_late = time.monotonic() + seconds, False
        while (left := end - time.monotonic()) > 0:
            if not is_late and is_enough(found):
                end, is_late = time.monotonic() + late, True
                continue
            received = consumer.receive(min(left, _STEP_SECONDS))
            if received is not None:
                found.append(self.checked(recognized(received)))
                if commit:
                    consumer.commit(received)
        return found

    def checked(self, delivery: Delivery) -> Delivery:
        """Return a delivery whose number is that of a payload that was sent, and is whole."""
        is_whole = delivery.number in self.sent and delivery.size == self.size
        return delivery if is_whole else replace(delivery, number=None)


def each_mode(lab: Lab, purpose: str, measure: Callable[[Trial], list[Row]], *, partitions: int = 1) -> Tally:
    """Measure in each mode, with a topic of its own."""
    rows: list[Row] = []
    for mode in lab.strategies:
        lab.progress(mode)
        with Trial.of(lab, mode, purpose, partitions=partitions) as trial:
            rows += measure(trial)
    return Tally(rows)


def numbers_of(found: Iterable[Delivery]) -> list[int]:
    """Return the numbers of the payloads that were received, in order."""
    return [each.number for each in found if each.number is not None]


def until_killed(worker: Worker, command: Callable[[], object]) -> None:
    """Run a command of a worker that kills itself in its middle."""
    who = f"a {worker.spec.role} was to be killed after {worker.spec.kill_after} messages"
    with worker:
        try:
            command()
        except ChildEndedError as error:
            status = worker.status()
            if status != -signal.SIGKILL:
                raise CompareError(f"{who}, and ended with status {status}") from error
        else:
            raise CompareError(f"{who}, and was not")
