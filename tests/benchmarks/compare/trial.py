"""One mode of an experiment: its topic, its payloads, and which of them arrive."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from claimcheck._client import ClaimCheck
from claimcheck.config import Config
from tests.benchmarks.compare.broker import Consumer, Producer, Received, TopicSettings
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import CompareError, Mode, Row, Tally
from tests.benchmarks.compare.payloads import number_of, verify
from tests.benchmarks.compare.worker import Worker, WorkerDiedError

CHUNKS = 8
"""Into how many chunks a payload is split, at least."""

_SEND_SECONDS = 30.0
_STEP_SECONDS = 0.2
_END_SECONDS = 10.0
_LARGEST_BYTES = 1 << 20


def with_small_chunks(config: Config, size: int) -> Config:
    """Return a configuration that offloads payloads of this size, in at least `CHUNKS` chunks."""
    chunking = replace(config.chunking, max_message_bytes=max(200, size // CHUNKS))
    return replace(config, threshold_bytes=size // 2, chunking=chunking, destinations=())


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a consumer received: the number of a payload, or ``None`` for an error, and for bytes that were not sent."""

    number: int | None
    error: Exception | None
    received: Received

    @property
    def is_wrong(self) -> bool:
        """Whether the consumer returned bytes that were not sent."""
        return self.number is None and self.error is None


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
        topic = lab.topic(mode, purpose, TopicSettings(partitions=partitions))
        lab.stored = lab.space.name is not None
        try:
            with _quiet():
                yield cls(lab, mode, topic, size, with_small_chunks(lab.config(mode), size))
        finally:
            lab.delete_topic(topic)

    def payload(self, number: int) -> bytes:
        """Return a payload that is about to be sent."""
        self.sent.add(number)
        return self.lab.payload(self.size, number)

    def identify(self, received: Received) -> Delivery:
        """Return which payload was received."""
        number = None if received.payload is None else self._number(received.payload)
        return Delivery(number, received.error, replace(received, payload=None))

    def _number(self, content: bytes) -> int | None:
        """Return the number of a payload if every byte is right and its send was tried."""
        if not verify(content):
            return None
        number = number_of(content)
        is_whole = number in self.sent and len(content) == self.size  # the beginning of a payload is correct, too
        return number if is_whole else None

    @contextmanager
    def producer(self, cc: ClaimCheck) -> Iterator[Producer]:
        """Open a producer, and close it after the block."""
        with closing(self.lab.broker.producer(self.mode, self.topic, cc)) as producer:
            yield producer

    @contextmanager
    def consumer(self, cc: ClaimCheck, group: str, session_seconds: float | None = None) -> Iterator[Consumer]:
        """Open a consumer, and close it after the block."""
        broker, more = self.lab.broker, {"group": group, "session_seconds": session_seconds}
        with closing(broker.consumer(self.mode, self.topic, cc, **more)) as consumer:  # type: ignore[arg-type]
            yield consumer

    def send(self, producer: Producer, number: int) -> Exception | int | None:
        """Send a payload and wait; returns the error that ended the send, or the partition."""
        results: list[Exception | int | None] = []

        def done(error: Exception | None, partition: int | None) -> None:
            results.append(partition if error is None else error)

        try:
            producer.send(self.payload(number), done=done)
            producer.flush(_SEND_SECONDS)
        except Exception as error:
            return error
        return results[0] if results else TimeoutError("the send has no result")

    def send_or_raise(self, producer: Producer, number: int) -> None:
        """Send a payload and wait; raises the error that ended the send."""
        result = self.send(producer, number)
        if isinstance(result, Exception):
            raise result

    def send_all(self, cc: ClaimCheck, numbers: Iterable[int]) -> None:
        """Send payloads one after the other; raises the first error."""
        with self.producer(cc) as producer:
            for number in numbers:
                self.send_or_raise(producer, number)

    def receive(
        self, consumer: Consumer, enough: Callable[[list[Delivery]], bool], *, seconds: float, late: float
    ) -> list[Delivery]:
        """Receive until there is enough, or for this long at most, and what follows within ``late`` seconds."""
        found: list[Delivery] = []
        for limit, is_enough in ((seconds, enough), (late, lambda found: False)):
            end = time.monotonic() + limit
            while not is_enough(found) and (left := end - time.monotonic()) > 0:
                received = consumer.receive(min(left, _STEP_SECONDS))
                if received is not None:
                    found.append(self.identify(received))
        return found


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
    """Run a command of a worker that is killed in its middle."""
    try:
        command()
    except WorkerDiedError as error:
        status = worker.wait(_END_SECONDS)
        if status != -signal.SIGKILL:
            raise CompareError(f"a {worker.spec.role} was to be killed, and ended with status {status}") from error
    else:
        worker.close()
        raise CompareError(
            f"a {worker.spec.role} was to be killed after {worker.spec.kill_after} messages, and was not"
        )


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
