"""The receive loop of consumers: takes records from the client and returns messages of whole payloads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from claimcheck.transports._common.prefetch import Prefetch
from claimcheck.transports.kafka._assignment import Assignment
from claimcheck.transports.kafka._message import KafkaMessage
from claimcheck.transports.kafka._partition import Partition
from claimcheck.transports.kafka._record_reader import ReadyMessage, RecordReader

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

    from claimcheck._client import ClaimCheck
    from claimcheck.transports.kafka._client import Record

__all__ = ["Receiver"]

_STEP_SECONDS = 0.2
_FOREVER = float("inf")


class Receiver:
    """Takes records from the client until there are messages for the caller.

    `poll` and `consume` wait for messages and return them. For an event loop, `gather` waits, `waiting` returns the
    messages that arrived, and `hand_out` removes them from the queue. Messages in the queue are not committed. A seek
    or a revocation of their partition drops them.

    Args:
        native: The consumer.
        cc: A `claimcheck.ClaimCheck` with the writers' stores.
        max_redeliveries: See `KafkaConsumer`.
        prefetch_bytes: See `KafkaConsumer`.
        prefetch_threads: See `KafkaConsumer`.
        before_next: Called when the caller requests more, and so has processed everything that was returned before.
        is_timed: Whether to call ``before_next`` regularly while no record arrives.
        clock: Seconds, monotonic.

    Attributes:
        records: Tracks chunks.
        assignment: Tracks partitions.
        paused: Topic and number of paused partitions.
        looks_ahead: Whether records are taken before the caller requests them.
    """

    def __init__(
        self,
        native: Consumer,
        cc: ClaimCheck,
        *,
        max_redeliveries: int | None,
        prefetch_bytes: int,
        prefetch_threads: int,
        before_next: Callable[[], object],
        is_timed: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records = RecordReader(
            cc,
            max_redeliveries=max_redeliveries,
            find_first=lambda *chunk: self.assignment.find_first(*chunk),
            starts_late=lambda partition: self.assignment.starts_late(partition),
            clock=clock,
        )
        wait = cc.config.chunking.expire_after_seconds
        self.assignment = Assignment(native, self.records, wait_seconds=wait, clock=clock)
        self.paused: set[tuple[str, int]] = set()
        self.looks_ahead = prefetch_bytes > 0
        self._native: Any = native  # it returns `Record`
        self._header = cc.config.header
        self._before_next = before_next
        self._clock = clock
        self._ready: deque[ReadyMessage] = deque()
        self._in_steps = is_timed or self.looks_ahead
        self._prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)
        self._errors: list[Exception] = []

    def poll(self, timeout: float | None) -> Message | None:
        """Wait for one message; returns ``None`` on time-out."""
        if not (self._ready or self._in_steps or self.records.busy or self._errors):
            native: Record | None = self._native.poll(timeout)
            if self._errors:
                if native is not None:
                    self._take(native)
                self.raise_deferred()
            if native is None or self._is_plain(native):
                return native
            self._take(native)
        messages = self.consume(1, timeout)
        return messages[0] if messages else None

    def consume(self, count: int, timeout: float | None) -> list[Message]:
        """Wait for ``count`` messages; returns those that arrived in time, or before a callback raised an exception."""
        self.raise_deferred()
        end, messages = self._end(timeout), list[Any]()
        while True:
            if not messages:  # otherwise offsets of messages that the caller does not have yet would be stored
                self._before_next()
            self._tick()
            while len(messages) < count and (message := self._next()) is not None:
                messages.append(message)
            left = max(0.0, end - self._clock())
            if len(messages) >= count or (messages and (left == 0 or self._errors)):
                self.defer_errors(self._look_ahead)
                return messages
            natives = self._receive(count - len(messages), self._step(left))
            self._take_all(natives, None if self._errors else messages)
            if not messages:
                self.raise_deferred()
            if not natives and left == 0:
                return messages

    def gather(self, count: int, seconds: float) -> None:
        """Wait for up to ``count`` records; blocks, and may call the user's callbacks."""
        self._before_next()
        self._tick()
        self._take_all(self._receive(count, seconds))
        self.raise_deferred()
        self._look_ahead()

    def look_ahead(self) -> None:
        """Take the records for which there is room; also expires incomplete payloads."""
        self._tick()
        self._look_ahead()
        self.raise_deferred()

    def waiting(self, count: int) -> list[Message]:
        """Return up to ``count`` of the next messages; they stay in the queue."""
        return [ready.message for ready in self._ready if not self._is_paused(ready)][:count]

    def hand_out(self, count: int) -> list[Message | None]:
        """Remove the next messages from the queue; they count as delivered."""
        self._before_next()
        return [self._next() for _ in range(count)]

    def drop(self, partitions: list[TopicPartition]) -> None:
        """Drop the waiting messages of these partitions."""
        dropped = {(each.topic, each.partition) for each in partitions}
        for ready in [each for each in self._ready if each.partition and each.partition.source in dropped]:
            self._remove(ready)

    def revoke(self, partitions: list[TopicPartition]) -> None:
        """Forget partitions that now belong to another consumer."""
        self.drop(partitions)
        self.assignment.end(partitions)

    def forget(self) -> None:
        """Forget all partitions and waiting messages."""
        self._ready.clear()
        self._prefetch.forget()
        self.assignment.end_all()

    def defer_errors(self, work: Callable[[], object]) -> None:
        """Call ``work``, and keep its first exception for `raise_deferred`.

        For callbacks of a rebalance: an exception there would end the client's call in the middle.
        """
        try:
            work()
        except Exception as error:
            self._errors.append(error)

    def raise_deferred(self) -> None:
        """Raise the first exception that was kept, once."""
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def _receive(self, count: int, seconds: float) -> list[Record]:
        if count != 1:
            natives: list[Record] = self._native.consume(count, seconds)
            return natives
        native = self._native.poll(seconds)
        return [] if native is None else [native]

    def _is_plain(self, native: Record) -> bool:
        """Whether a record is its own payload, as most are; then it counts as delivered."""
        value = native.value()
        if native.error() is not None or (value is not None and value.startswith(self._header)):
            return False
        partition, offset = self.assignment.partitions.get((native.topic(), native.partition())), native.offset()
        if partition is None or partition.start is None:
            partition = self.assignment.of(native)
        if offset < partition.skip_below or partition.went_back:
            return False
        partition.read = partition.taken = partition.position = offset + 1
        partition.changed = True
        return True

    def _take_all(self, natives: Iterable[Record], messages: list[Message] | None = None) -> None:
        """Take several records; plain ones go directly into ``messages`` while no other message waits."""
        stale: set[Partition] = set()
        for native in natives:
            if messages is not None and not self._ready and not stale and self._is_plain(native):
                messages.append(native)
            elif (partition := self._take(native, stale)) is not None and partition.went_back:
                stale.add(partition)  # the client returns its other records again

    def _take(self, native: Record, stale: Iterable[Partition] = ()) -> Partition | None:
        if native.error() is not None:
            self._add(ReadyMessage(None, native))
            return None
        partition, offset, value = self.assignment.of(native), native.offset(), native.value()
        if partition in stale:
            return None
        if partition.went_back and self.assignment.was_overtaken(partition, offset):
            return partition
        partition.read, partition.went_back = offset + 1, False
        if value is None or not value.startswith(self._header):
            if offset >= partition.skip_below:
                self._add(ReadyMessage(partition, native, offset, offset))
            return partition
        for ready in self.records.take(partition, native):
            self._add(ready)
        return partition

    def _add(self, ready: ReadyMessage) -> None:
        if ready.partition is not None:
            ready.partition.taken = max(ready.partition.taken, ready.last + 1)
        self._ready.append(ready)
        if self.looks_ahead:
            self._prefetch.add(ready)

    def _remove(self, ready: ReadyMessage) -> None:
        self._ready.remove(ready)
        if self.looks_ahead:
            self._prefetch.remove(ready)

    def _is_paused(self, ready: ReadyMessage) -> bool:
        return ready.partition is not None and ready.partition.source in self.paused

    def _next(self) -> Message | None:
        """Remove the next message from the queue; returns ``None`` if none waits or all partitions are paused."""
        ready = next((each for each in self._ready if not self._is_paused(each)), None)
        if ready is None:
            return None
        self._remove(ready)
        if ready.partition is not None:
            ready.partition.delivered(ready.first, ready.last)
            if isinstance(ready.message, KafkaMessage):
                ready.message.next_offset = ready.partition.position or 0
            if ready.outcome is not None:
                self.records.settle(ready.partition, ready.outcome)
        return ready.message

    def _look_ahead(self) -> None:
        while self.looks_ahead and self._prefetch.room and (native := self._native.poll(0)) is not None:
            self._take(native)

    def _tick(self) -> None:
        """Expire incomplete payloads, and go back for those that are to be read again."""
        if self.records.busy:
            for ready in (*self.records.tick(), *self.assignment.reread(self.paused)):
                self._add(ready)

    def _step(self, left: float) -> float:
        """Return how long one call of the client may wait: meanwhile chunks may expire, and offsets must be stored."""
        if self._in_steps or self.records.busy:
            return min(left, _STEP_SECONDS)
        return -1 if left == _FOREVER else left

    def _end(self, timeout: float | None) -> float:
        return _FOREVER if timeout is None or timeout < 0 else self._clock() + timeout
