"""A model of Kafka: partitions, groups, rebalances, retention, delivery reports; and the clients that talk to it.

It does what was measured on a broker of version 4.2 with librdkafka 2.16.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import confluent_kafka as kafka

from claimcheck.transports.kafka import _asyncio, _client
from tests.harness import topic
from tests.harness.scheduler import Patch, Process
from tests.harness.topic import TOPIC, Record, Topic


def failure(code: str) -> kafka.KafkaError:
    return kafka.KafkaError(getattr(kafka.KafkaError, code))


def raised(code: str) -> kafka.KafkaException:
    return kafka.KafkaException(failure(code))


class Group:
    """A consumer group: committed offsets with their metadata, members, and who owns which partition."""

    def __init__(self, name: str, log: Topic) -> None:
        self.name, self.log = name, log
        self.committed: dict[int, tuple[int, str | None]] = dict.fromkeys(range(len(log.logs)), (0, None))
        self.members: list[ConsumerClient] = []
        self.owners: dict[int, ConsumerClient | None] = {}
        self.targets: dict[int, ConsumerClient] = {}
        self.is_orderly = True  # nothing happened that may deliver a record twice

    def rebalance(self) -> None:
        """Give each partition to some member; its owner has to give it up first, in a call of its own."""
        for number in range(len(self.log.low) if self.members else 0):
            target = self.targets[number] = self.log.scheduler.choice(self.members)
            owner = self.owners.get(number)
            if owner is not None and owner is not target:
                owner.pending.append(("revoke", number))

    def lose(self) -> None:
        """Take a member's partitions away without asking it."""
        owned = [(number, owner) for number, owner in self.owners.items() if owner in self.members]
        if owned:
            number, owner = self.log.scheduler.choice(owned)
            owner.pending.append(("lost", number))
            self.owners[number] = None
            self.is_orderly = False
            self.rebalance()

    def leave(self, client: Any) -> None:
        if client in self.members:
            self.members.remove(client)
        self.owners = {number: owner for number, owner in self.owners.items() if owner is not client}
        self.rebalance()

    def begin(self, number: int) -> int:
        """Return where the owner of a partition begins."""
        return self.committed[number][0]

    def commit(self, at: Any) -> None:
        self.committed[at.partition] = at.offset, at.metadata

    def skip(self, number: int, offset: int) -> None:
        """A client has skipped what is in a partition from an offset on."""

    def go_back(self, number: int, offset: int) -> None:
        """A client was sent to an offset, and skips nothing from there on."""


QUIET = {"auto_commit": False, "reset": "earliest", "calls_back": 0.0}


class ConsumerClient:
    """A `confluent_kafka.Consumer`: rebalances, its own commits and the application's callbacks run inside its calls.

    Revoked partitions come back with a later call. Records that one call has collected and not returned are discarded
    if their partition is revoked, sought or paused. A callback that raises is followed by what it did not do.
    """

    def __init__(self, group: Group, process: Process, options: Mapping[str, Any] = QUIET) -> None:
        self.group, self.process, self.log, self.scheduler = group, process, group.log, process.scheduler
        self.auto_commit, self.reset, self.calls_back = (options[key] for key in ("auto_commit", "reset", "calls_back"))
        self.react: Callable[[], object] = lambda: None  # the application's callback
        self.positions: dict[int, int] = {}
        self.furthest: dict[int, int] = {}  # position since a partition was assigned
        self.stored: dict[int, Any] = {}
        self.paused: set[int] = set()
        self.callbacks: dict[str, Any] = {}
        self.pending: list[Any] = []  # what the next call serves: a kind of rebalance, and a partition
        self.collected: list[Any] = []
        self.closed = self.is_closing = self.in_callback = self.in_call = self.is_leaving = False
        self.misplaced: dict[int, bool] = {}  # sought below the low watermark: the caller's mistake, no excuse
        self.known_low: dict[int, int] = {}  # what a caller was told before it seeks; retention may go on since
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
        with self._alone():
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
                    self.scheduler.wait(self._has_work, min(1.0, end - self.scheduler.now))
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
        with self._alone():
            self._reach()
            if self.is_closing:
                return
            self.is_closing = True
            self._give_up()
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
        for each in partitions:
            number = each.partition
            self.group.owners[number] = self
            self.misplaced.pop(number, None)
            self.sought.pop(number, None)
            self.halted.discard(number)
            committed = self.group.begin(number)
            self.positions[number] = self.furthest[number] = each.offset if each.offset >= 0 else committed

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
        if self.group.owners.get(number) is self:
            stored = self.stored.get(number, partition)  # may still be committed
            self.group.go_back(number, max(partition.offset, stored.offset))
        self._discard([number])
        self.halted.discard(number)
        self.misplaced[number] = partition.offset < self.known_low.pop(number, self.log.low[number])

    def pause(self, partitions: list[Any]) -> None:
        numbers = [each.partition for each in partitions]
        self.paused.update(numbers)
        for record in reversed(self.collected):
            if record.partition() in numbers:
                self.positions[record.partition()] = self.furthest[record.partition()] = record.offset()
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
        found = [(each.partition, *self.group.committed[each.partition]) for each in partitions]
        return [kafka.TopicPartition(TOPIC, *(each if each[2] is not None else each[:2])) for each in found]

    def get_watermark_offsets(self, partition: Any, **_: Any) -> tuple[int, int]:
        self.process.check()
        if self.scheduler.strikes("no answer about watermarks", 0.02):
            raise raised("_TIMED_OUT")
        low = self.known_low[partition.partition] = self.log.low[partition.partition]
        return low, len(self.log.logs[partition.partition])

    # What happens inside

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Note two calls at the same time, which this client does not allow."""
        if self.in_call and not self.in_callback:
            self.scheduler.violated("a consumer was called in two threads at the same time")
        before, self.in_call = self.in_call, True
        try:
            yield
        finally:
            self.in_call = before

    def _reach(self) -> None:
        """Let others run here, and perhaps a callback of the application, which may call this client again."""
        self.process.reach()
        if not self.in_callback and self.scheduler.strikes("callback", self.calls_back):
            self.in_callback = True
            try:
                self.react()
            finally:
                self.in_callback = False
            self.process.check()

    def _has_work(self) -> bool:
        stopped, logs = self.paused | self.halted, self.log.logs
        return bool(self.pending or [n for n, at in self.positions.items() if at < len(logs[n]) and n not in stopped])

    def _serve(self) -> None:
        if self.in_callback:
            return
        pending, self.pending = self.pending, []
        for kind, number in pending:
            if number in self.positions:
                self._rebalance(kind, [number])
        if self.is_leaving:
            self._give_up()
            self.is_leaving, self.callbacks = False, {}
            if self in self.group.members:  # partitions that were assigned by hand stay
                self.group.leave(self)
        targets, owners = self.group.targets, self.group.owners
        free = [n for n in targets if targets[n] is self and owners.get(n) is None and n not in self.positions]
        if free and self.callbacks and not self.closed:
            self._rebalance("assign", free)

    def _give_up(self) -> None:
        if self.callbacks and self.positions:
            self._rebalance("revoke", sorted(self.positions))

    def _rebalance(self, kind: str, numbers: list[int]) -> None:
        partitions = [kafka.TopicPartition(TOPIC, number) for number in numbers]
        nested, self.in_callback = self.in_callback, True
        if kind == "assign":
            self.group.owners.update(dict.fromkeys(numbers, self))
        try:
            if callback := self.callbacks.get(f"on_{kind}"):
                callback(self, partitions)
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

    def _fetch(self) -> Any:
        for number in [*self.positions]:
            log = self.log.logs[number]
            offset = self.positions.pop(number)
            self.positions[number] = offset  # the next record comes from another partition, if there is one
            if number in self.paused or number in self.halted:
                continue
            if offset < self.log.low[number]:
                if (event := self._jump(number, offset)) is not None:
                    return event
                offset = self.positions[number]
            if offset < len(log):
                self.positions[number] = offset + 1
                self.furthest[number] = max(offset + 1, self.furthest[number])
                record = log[offset]
                return message_of(number, offset, value=record.value, key=record.key, headers=record.headers)
        return None

    def _jump(self, number: int, offset: int) -> Any:
        """What ``auto.offset.reset`` says, because retention has removed the next record."""
        is_misplaced = self.misplaced.pop(number, False)
        if self.reset == "error":
            self.halted.add(number)
            if is_misplaced:
                self.scheduler.violated(f"sought to {offset}, below the low watermark: the partition stops")
            return message_of(number, offset, error=failure("_AUTO_OFFSET_RESET"))
        self.positions[number] = self.log.low[number] if self.reset == "earliest" else len(self.log.logs[number])
        if self.reset == "latest" and not is_misplaced:
            self.group.skip(number, max(offset, self.furthest[number]))  # the library reads again what it has read
        return None


class ProducerClient(topic.ProducerClient):
    """A `confluent_kafka.Producer`."""

    def __init__(self, log: Topic, process: Process) -> None:
        super().__init__(log, process)
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
        number = partition if partition >= 0 else self.scheduler.random.randrange(len(self.log.logs))
        self.take(Record(bytes(value), key, options.get("headers"), number, options["on_delivery"]))

    def poll(self, timeout: float = -1) -> int:
        self.process.reach()
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
        code = {"refused": "MSG_SIZE_TOO_LARGE", "timeout": "_MSG_TIMED_OUT"}.get(result)
        error = None if code is None else failure(code)
        report = message_of(record.partition, max(0, position), value=record.value, key=record.key, error=error)
        self._reports.append((record.callback, error, report))


class AioClient:
    """What `AIOProducer` and `AIOConsumer` share: calls run in threads; `close` closes the client and ends them."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.executor = concurrent.futures.ThreadPoolExecutor(4)

    async def _call(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work, *args)

    async def close(self) -> None:
        await self._call(self.client.close)
        self.executor.shutdown(wait=False)


def message_of(partition: int, offset: int, **more: Any) -> Any:
    return kafka.Message(topic=TOPIC, partition=partition, offset=offset, timestamp=(1, 1), **more)


_CLIENT = types.SimpleNamespace(**{**vars(kafka), "Consumer": ConsumerClient, "Producer": ProducerClient})
CLIENTS: list[Patch] = [
    (_client, "vendor", lambda: _CLIENT),
    (_asyncio, "native_client", lambda wrapper, kind: wrapper.client),
]
"""What lets the wrappers take the clients above."""
