"""A model of Kafka: partitions, groups, rebalances, retention, delivery reports; and the clients that talk to it.

It does what was measured on a broker of version 4.2 with librdkafka 2.16.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka as kafka

from claimcheck.transports.kafka._partition import CommitMetadata
from tests.harness.async_clients import kafka_clients
from tests.simulation import ledger
from tests.simulation.ledger import TOPIC, Group, Ledger, Record
from tests.simulation.scheduler import Process, Scheduler

DEFINITE = ("MSG_SIZE_TOO_LARGE", "_UNKNOWN_PARTITION", "_QUEUE_FULL")


def failure(code: str) -> kafka.KafkaError:
    return kafka.KafkaError(getattr(kafka.KafkaError, code))


def raised(code: str) -> kafka.KafkaException:
    return kafka.KafkaException(failure(code))


@dataclass(eq=False)
class KafkaGroup(Group):
    """A consumer group: committed offsets with their metadata, members, and who owns which partition."""

    committed: dict[int, tuple[int, str | None]] = field(default_factory=dict)
    members: list[Any] = field(default_factory=list)
    owners: dict[int, Any] = field(default_factory=dict)
    targets: dict[int, Any] = field(default_factory=dict)

    def rebalance(self) -> None:
        """Give each partition to some member; its owner has to give it up first, in a call of its own."""
        for number in range(len(self.ledger.low) if self.members else 0):
            target = self.targets[number] = self.ledger.scheduler.choice(self.members)
            owner = self.owners.get(number)
            if owner is not None and owner is not target:
                owner.pending.append(("revoke", number))

    def lose(self) -> None:
        """Take a member's partitions away without asking it."""
        owned = [number for number, owner in self.owners.items() if owner in self.members]
        if owned:
            number = self.ledger.scheduler.choice(owned)
            self.owners[number].pending.append(("lost", number))
            self.owners[number] = None
            self.is_orderly = False
            self.rebalance()

    def is_done(self) -> bool:
        return all(self.committed[number][0] == len(log) for number, log in enumerate(self.ledger.logs))

    def place(self) -> object:
        return self.committed

    def leave(self, client: Any) -> None:
        if client in self.members:
            self.members.remove(client)
        self.owners = {number: owner for number, owner in self.owners.items() if owner is not client}
        self.rebalance()

    def begin(self, number: int) -> int:
        """Return where an owner begins; chunks that are stored twice may be committed only in their first copies."""
        offset, metadata = self.committed[number]
        mark = CommitMetadata.decode(metadata) or CommitMetadata(offset)
        for unit in self.ledger.units:
            left = {each for each in unit.records if each >= offset and (each >= mark.upto or each in mark.owed)}
            is_reported = unit.is_removed and unit in self.reported and unit.last >= offset  # no mark names its chunks
            if unit.partition == number and (is_reported or (left and left.isdisjoint(unit.positions.values()))):
                self.repeatable.add(unit)
        return offset

    def commit(self, at: Any) -> None:
        """Commit, and check that this covers nothing that no earlier call returned."""
        self.committed[at.partition] = at.offset, at.metadata
        mark = CommitMetadata.decode(at.metadata)
        for unit in self.ledger.units:
            if unit.partition != at.partition or self.may_pass(unit):
                continue
            is_marked = mark is not None and unit.is_complete and unit.last < mark.upto and unit.first not in mark.owed
            if unit.first < at.offset or is_marked:
                text = (
                    f"{self.name} committed {at.offset} {mark or ''}, which covers {unit}: no earlier call returned it"
                )
                self.ledger.scheduler.violated(text)


class ConsumerClient:
    """A `confluent_kafka.Consumer`: rebalances, its own commits and the application's callbacks run inside its calls.

    Revoked partitions come back with a later call. Records that one call has collected and not returned are discarded
    if their partition is revoked, sought or paused. A callback that raises is followed by what it did not do.
    """

    def __init__(self, group: KafkaGroup, process: Process, options: dict[str, Any]) -> None:
        self.group, self.process, self.ledger = group, process, group.ledger
        self.auto_commit, self.reset, self.calls_back = (options[key] for key in ("auto_commit", "reset", "calls_back"))
        self.scheduler: Scheduler = self.ledger.scheduler
        self.react: Callable[[], object] = lambda: None  # the application's callback
        self.positions: dict[int, int] = {}
        self.stored: dict[int, Any] = {}
        self.paused: set[int] = set()
        self.callbacks: dict[str, Any] = {}
        self.pending: list[Any] = []  # what the next call serves: a kind of rebalance, and a partition
        self.collected: list[Any] = []
        self.closed = self.is_closing = self.in_callback = self.is_leaving = False
        self.misplaced: dict[int, bool] = {}  # sought below the low watermark: the caller's mistake, no excuse
        self.sought: dict[int, int] = {}  # by the application, in partitions that it has kept since
        self.halted: set[int] = set()  # reported as out of range; goes on after a seek

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.process.check()
        self.callbacks, self.is_leaving = callbacks, False
        if self not in self.group.members:
            self.group.members.append(self)
        self.group.rebalance()

    def unsubscribe(self) -> None:
        self._reach()
        self.is_leaving = True

    def poll(self, timeout: float = -1) -> Any:
        return next(iter(self.consume(1, timeout)), None)

    def consume(self, count: int = 1, timeout: float = -1) -> list[Any]:
        self.process.check()
        self._check_open()
        end = self.scheduler.now + (timeout if timeout >= 0 else 1e9)
        outer, self.collected = self.collected, []
        while len(self.collected) < count:
            self._reach()
            self._check_open()
            self._serve()
            self._check_open()
            record = self._fetch()
            if record is not None:
                self.collected.append(record)
            elif self.scheduler.now >= end:
                break
            else:
                self.scheduler.wait(lambda: self._has_work(), min(1.0, end - self.scheduler.now))
        found, self.collected = self.collected, outer
        if self.scheduler.chance(0.2):
            self._commit_stored()
        return found

    def commit(self, message: Any = None, offsets: Any = None, asynchronous: bool = True) -> Any:
        self._check_open()
        self._reach()
        if offsets is None:
            known = self.group.committed
            offsets = [each for number, each in self.stored.items() if each.offset > known.get(number, (-1, ""))[0]]
            if not offsets:
                raise raised("_NO_OFFSET")
        if any(self.group.owners.get(each.partition) is not self for each in offsets):
            if asynchronous:
                return None
            raise raised("ILLEGAL_GENERATION")
        if self.scheduler.strikes("commit without an answer", 0.03):
            self.group.is_orderly = False
            if self.scheduler.chance(0.5):
                self._apply(offsets)
            raise raised("_TIMED_OUT")
        self._apply(offsets)
        return offsets

    def close(self) -> None:
        self._reach()
        if self.closed or self.is_closing:
            return
        self.is_closing = True
        if self.callbacks and self.positions:
            self._rebalance("revoke", sorted(self.positions))
        self._commit_last()
        self.closed = True
        self.positions.clear()
        self.group.leave(self)

    def store_offsets(self, offsets: list[Any]) -> None:
        self._check_open()
        for each in offsets:
            if each.partition not in self.positions:
                raise raised("_STATE")
            self.stored[each.partition] = each

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.group.owners.update(dict.fromkeys([each.partition for each in partitions], self))
        self.positions |= {each.partition: self._start(each) for each in partitions}

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self._commit_last()
        self._remove([each.partition for each in partitions])

    def seek(self, partition: Any) -> None:
        number = partition.partition
        self.process.check()
        self._check_open()
        if number not in self.positions:
            raise raised("_UNKNOWN_PARTITION")
        self.positions[number] = partition.offset
        self._discard([number])
        self.halted.discard(number)
        self.misplaced[number] = partition.offset < self.ledger.low[number]

    def pause(self, partitions: list[Any]) -> None:
        numbers = [each.partition for each in partitions]
        self.paused.update(numbers)
        for record in reversed(self.collected):
            if record.partition() in numbers:
                self.positions[record.partition()] = record.offset()
        self.collected = [each for each in self.collected if each.partition() not in numbers or each.error()]

    def resume(self, partitions: list[Any]) -> None:
        self.paused -= {each.partition for each in partitions}

    def assignment(self) -> list[Any]:
        return [kafka.TopicPartition(TOPIC, number) for number in self.positions]

    def committed(self, partitions: list[Any], timeout: float = -1) -> list[Any]:
        self.process.check()
        if self.scheduler.strikes("no answer about committed offsets", 0.02):
            self.group.is_orderly = False
            raise raised("_TIMED_OUT")
        found = []
        for each in partitions:
            offset, metadata = self.group.committed[each.partition]
            more: list[Any] = [] if metadata is None else [metadata]
            found.append(kafka.TopicPartition(TOPIC, each.partition, offset, *more))
        return found

    def get_watermark_offsets(self, partition: Any, **_: Any) -> tuple[int, int]:
        self.process.check()
        if self.scheduler.strikes("no answer about watermarks", 0.02):
            raise raised("_TIMED_OUT")
        return self.ledger.low[partition.partition], len(self.ledger.logs[partition.partition])

    # What happens inside

    def _reach(self) -> None:
        """Let other events happen here, and perhaps a callback of the application, which may call this client again."""
        self.scheduler.point()
        self.process.check()
        if not self.in_callback and self.scheduler.strikes("callback", self.calls_back):
            self.in_callback = True
            try:
                self.react()
            finally:
                self.in_callback = False
            self.process.check()

    def _has_work(self) -> bool:
        stopped, logs = self.paused | self.halted, self.ledger.logs
        return bool(self.pending or [n for n, at in self.positions.items() if at < len(logs[n]) and n not in stopped])

    def _serve(self) -> None:
        if self.in_callback:
            return
        if self.pending:
            pending, self.pending = self.pending, []
            for kind, number in pending:
                if number in self.positions:
                    self._rebalance(kind, [number])
        if self.is_leaving:
            if self.callbacks and self.positions:
                self._rebalance("revoke", sorted(self.positions))
            self.is_leaving, self.callbacks = False, {}
            if self in self.group.members:  # partitions that were assigned by hand stay
                self.group.leave(self)
        targets, owners = self.group.targets, self.group.owners
        free = [n for n in targets if targets[n] is self and owners.get(n) is None and n not in self.positions]
        if free and self.callbacks and not self.closed:
            self._rebalance("assign", free)

    def _rebalance(self, kind: str, numbers: list[int]) -> None:
        partitions = [kafka.TopicPartition(TOPIC, number) for number in numbers]
        nested, self.in_callback = self.in_callback, True
        if kind == "assign":
            self.group.owners.update(dict.fromkeys(numbers, self))
        try:
            self.callbacks[f"on_{kind}"](self, partitions)
        finally:
            self.in_callback = nested
            if not self.closed:
                self._after_callback(kind, numbers)

    def _after_callback(self, kind: str, numbers: list[int]) -> None:
        if kind == "assign":
            missing = [number for number in numbers if number not in self.positions]
            self.incremental_assign([kafka.TopicPartition(TOPIC, number) for number in missing])
            return
        if kind == "revoke":
            self._commit_last()
            for number in numbers:
                if self.group.owners.get(number) is self:
                    self.group.owners[number] = None
        self.pending = [each for each in self.pending if each[1] not in numbers]  # of an assignment that has ended
        self._remove(numbers)

    def _remove(self, numbers: list[int]) -> None:
        for number in numbers:
            self.positions.pop(number, None)
            self.stored.pop(number, None)
        self._discard(numbers)

    def _discard(self, numbers: list[int]) -> None:
        self.collected = [each for each in self.collected if each.partition() not in numbers]

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("Consumer closed")

    def _commit_stored(self) -> None:
        """Commit what is stored, if this client commits by itself."""
        known = self.group.committed
        newer = [each for n, each in self.stored.items() if self.auto_commit and self.group.owners.get(n) is self]
        self._apply([each for each in newer if each.offset > known[each.partition][0]])

    def _commit_last(self) -> None:
        """Commit what is stored before partitions are given up, except an offset whose metadata alone has changed."""
        self._commit_stored()
        for each in self.stored.values() if self.auto_commit else ():
            self.group.is_orderly &= self.group.committed[each.partition][1] == each.metadata

    def _apply(self, offsets: list[Any]) -> None:
        for each in offsets:
            if each.offset >= 0:
                self.group.commit(each)

    def _start(self, given: Any) -> int:
        self.misplaced.pop(given.partition, None)
        self.sought.pop(given.partition, None)
        self.halted.discard(given.partition)
        offset = self.group.begin(given.partition)
        return int(given.offset if given.offset >= 0 else offset)

    def _fetch(self) -> Any:
        for number in [*self.positions]:
            log, low = self.ledger.logs[number], self.ledger.low[number]
            offset = self.positions.pop(number)
            self.positions[number] = offset  # the next record comes from another partition, if there is one
            if number in self.paused or number in self.halted:
                continue
            if offset < low:
                if (event := self._jump(number, offset)) is not None:
                    return event
                offset = self.positions[number]
            if offset < len(log):
                self.positions[number] = offset + 1
                record = log[offset]
                return kafka.Message(
                    topic=TOPIC, partition=number, offset=offset, value=record.value, timestamp=(1, 1),
                    key=record.key, headers=record.headers,
                )  # fmt: skip
        return None

    def _jump(self, number: int, offset: int) -> Any:
        """What ``auto.offset.reset`` says, because retention has removed the next record."""
        low, end = self.ledger.low[number], len(self.ledger.logs[number])
        is_misplaced = self.misplaced.pop(number, False)
        if self.reset == "error":
            self.halted.add(number)
            if is_misplaced:
                self.scheduler.violated(f"sought to {offset}, below the low watermark: the partition stops")
            return kafka.Message(
                topic=TOPIC, partition=number, offset=offset, error=failure("_AUTO_OFFSET_RESET"), timestamp=(1, 1)
            )
        self.positions[number] = low if self.reset == "earliest" else end
        if self.reset == "latest" and not is_misplaced:
            self.group.excused.update(u for u in self.ledger.units if u.partition == number and u.last >= offset)
        return None


class ProducerClient(ledger.ProducerClient):
    """A `confluent_kafka.Producer`."""

    def __init__(self, ledger: Ledger, process: Process) -> None:
        super().__init__(ledger, process)
        self.closed = False
        self._reports: deque[tuple[Any, Any, Any]] = deque()

    def produce(self, topic: str, value: Any, key: Any = None, partition: int = -1, **options: Any) -> None:
        if self.closed:
            raise RuntimeError("Producer closed")
        self.reach(value)
        if self.scheduler.strikes("queue is full", self.faults):
            raise BufferError("Local: Queue full")
        if self.scheduler.strikes("produce is refused", self.faults / 2):
            raise raised(self.scheduler.choice(("MSG_SIZE_TOO_LARGE", "_UNKNOWN_PARTITION")))
        number = partition if partition >= 0 else self.scheduler.random.randrange(len(self.ledger.logs))
        self.take(Record(self.owner, bytes(value), key, options.get("headers"), number, options["on_delivery"]))

    def poll(self, timeout: float = -1) -> int:
        self.process.check()
        self.scheduler.point()
        self.scheduler.wait(lambda: self._reports or not self.open, max(0.0, timeout) if timeout < 1e6 else 1.0)
        while self._reports:
            callback, error, report = self._reports.popleft()
            self.open -= 1
            if callback is not None:
                callback(error, report)
        return 0

    def flush(self, timeout: float = -1) -> int:
        while self.open:
            self.poll(1.0)
        return 0

    def close(self) -> bool:
        self.flush()
        self.closed = True
        return True

    def __len__(self) -> int:
        return self.open

    def answer(self, record: Record, result: str, position: int) -> None:
        codes = {"refused": "MSG_SIZE_TOO_LARGE", "timeout": "_MSG_TIMED_OUT"}
        error = failure(codes[result]) if result in codes else None
        report = kafka.Message(
            topic=TOPIC, partition=record.partition, offset=max(0, position), value=record.value, key=record.key,
            timestamp=(1, 1), error=error,
        )  # fmt: skip
        self._reports.append((record.callback, error, report))


CLIENTS = kafka_clients(ConsumerClient, ProducerClient)
