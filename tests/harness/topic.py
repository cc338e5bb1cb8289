"""A topic in memory, and what the native producers of all brokers do: the faults of a schedule happen here."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from claimcheck._operate.gc import Topics
from claimcheck._wire.envelope import encode_abort
from claimcheck.transports._common.topics import IncompleteReadError, TopicMessage
from tests.harness.scheduler import OWNER, Process, Scheduler

TOPIC = "t"
ABORT = encode_abort("0" * 36)[:21]


@dataclass(eq=False)
class Record:
    """A message of the broker. ``owner`` is what its sender works for, ``callback`` what gets the answer."""

    value: bytes
    key: Any = None
    headers: Any = None
    partition: int = 0
    callback: Callable[..., object] = lambda *_: None
    owner: int = -1
    position: int = -1
    is_lost: bool = False  # it never gets into the topic, which nobody knows


class Topic:
    """The records of each partition, of which retention has removed those below ``low``."""

    def __init__(self, scheduler: Scheduler, partitions: int = 1) -> None:
        self.scheduler = scheduler
        self.logs: list[list[Record]] = [[] for _ in range(partitions)]
        self.low = [0] * partitions
        self.launched: list[Record] = []  # in the topic, or may get there
        self.aborting: set[str] = set()  # uuids whose abort envelope was to be sent, and is not in the topic

    def append(self, record: Record) -> int:
        """A record is in the topic now; returns its position."""
        record.position = len(self.logs[record.partition])
        self.logs[record.partition].append(record)
        return record.position

    def fill(self, values: Iterable[bytes]) -> None:
        for value in values:
            self.append(Record(value))

    def pointing_at(self, key: str) -> list[Record]:
        """Return the records that point at a payload, and can be read or may get here."""
        text, low = key.encode(), self.low
        return [each for each in self.launched if text in each.value and not 0 <= each.position < low[each.partition]]


def topic_of(values: Iterable[bytes]) -> tuple[Topic, Process]:
    """Return a topic with messages, and a process without faults that reads it."""
    scheduler = Scheduler(0)
    scheduler.is_faulty = False
    topic = Topic(scheduler)
    topic.fill(values)
    return topic, Process(scheduler, "reader")


class CollectedTopic(Topics):
    """What a garbage collection reads of a topic, as `KafkaTopics` does."""

    topics = (TOPIC,)

    def __init__(self, topic: Topic, cluster: str) -> None:
        self._topic, self._cluster = topic, cluster
        self._next: list[int] = []

    def cluster(self) -> str:
        return self._cluster

    def known(self) -> list[str]:
        return [TOPIC]

    def read(self) -> Iterator[TopicMessage]:
        topic, starts, ends = self._topic, self._next or self._topic.low[:], [len(log) for log in self._topic.logs]
        for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
            for position in range(start, end):
                topic.scheduler.point()
                if position >= topic.low[partition]:
                    yield TopicMessage(TOPIC, f"offset {position}", topic.logs[partition][position].value)
                elif self._next:
                    raise IncompleteReadError(f"offset {position} was removed before it was read")
        self._next = ends


class ProducerClient:
    """What the native producers share."""

    faults = 0.03
    is_idempotent = False
    may_hang = False

    def __init__(self, topic: Topic, process: Process) -> None:
        self.log, self.process, self.scheduler = topic, process, process.scheduler
        self.open, self.is_lost = 0, False
        self._queue: deque[Record] = deque()

    def reach(self, value: bytes) -> None:
        """The application asks to send a record."""
        self.process.check()
        if value.startswith(ABORT):
            self.log.aborting.add(value[len(ABORT) :].decode())
        self.scheduler.point()

    def take(self, record: Record) -> None:
        """From now on a record may get into the topic."""
        record.owner = OWNER.get()
        self.log.launched.append(record)
        self._queue.append(record)
        self.open += 1
        self.scheduler.spawn(self._send_next, None, self.scheduler.choice((0.0, 0.001, 0.05)))

    def _send_next(self) -> None:
        """Send the oldest record of the queue; the answer is lost, late, wrong, or what it should be."""
        record, strikes, scheduler = self._queue.popleft(), self.scheduler.strikes, self.scheduler
        append = functools.partial(self.log.append, record)
        if not self.process.alive:
            append() if scheduler.chance(0.5) else self.log.launched.remove(record)
        elif strikes("broker refuses a record", self.faults / 2):
            self.log.launched.remove(record)
            self.answer(record, "refused", -1)
        elif strikes("answer of the broker is lost", self.faults):
            append()
            self.answer(record, "timeout", -1)
        elif strikes("record arrives after its timeout", self.faults):
            scheduler.spawn(append, None, 3.0)
            self.answer(record, "timeout", -1)
        elif strikes("record never arrives", self.faults / 2):
            record.is_lost = True
            self.answer(record, "timeout", -1)
        elif self.may_hang and not record.value.startswith(ABORT) and strikes("no answer ever", self.faults / 4):
            self.is_lost = record.is_lost = True
        else:
            position = append()
            if not self.is_idempotent and strikes("record is stored twice", self.faults):
                scheduler.spawn(append, None, scheduler.choice((0.0, 0.1, 3.0)))
            self.answer(record, "ok", position)

    def answer(self, record: Record, result: Literal["ok", "refused", "timeout"], position: int) -> None:
        """Pass the answer of the broker on."""
        raise NotImplementedError
