"""One mode of an experiment: its topic, its payloads, and which of them arrive."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from claimcheck._client import ClaimCheck
from claimcheck.config import Config
from tests.benchmarks.children import ChildEndedError
from tests.benchmarks.compare.broker import Consumer, TopicSettings
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import CompareError, Mode, Row, Tally
from tests.benchmarks.compare.payloads import Delivery, make, recognized
from tests.benchmarks.compare.worker import Worker

CHUNKS = 8
"""Into how many chunks a payload is split, at least."""

_SEND_SECONDS = 30.0
_STEP_SECONDS = 0.2
_LARGEST_BYTES = 1 << 20


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
        with lab.topic(mode, purpose, TopicSettings(partitions=partitions)) as topic, _quiet():
            yield cls(lab, mode, topic, size, config)

    def consumer(self, cc: ClaimCheck, group: str, session_seconds: float | None = None) -> closing[Consumer]:
        broker = self.lab.broker
        return closing(broker.consumer(self.mode, self.topic, cc, group=group, session_seconds=session_seconds))

    def try_to_send(
        self, cc: ClaimCheck, numbers: Iterable[int], *, key: bytes | None = None, together: bool = False
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
                    producer.send(make(self.size, number), key=key, done=done)
                    if not together:
                        producer.flush(_SEND_SECONDS)
                except Exception as error:
                    results[number] = error
            producer.flush(_SEND_SECONDS)
        return list(results.values())

    def send(self, cc: ClaimCheck, numbers: Iterable[int], **options: Any) -> list[int]:
        """Send payloads, and return their partitions; raises the first error."""
        partitions = list[int]()
        for result in self.try_to_send(cc, numbers, **options):
            if isinstance(result, Exception):
                raise result
            partitions.append(-1 if result is None else result)
        return partitions

    def receive(
        self,
        consumer: Consumer,
        is_enough: Callable[[list[Delivery]], bool],
        *,
        seconds: float,
        late: float,
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Do not log the failures of a block: they are intended."""
    logger = logging.getLogger("claimcheck")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
