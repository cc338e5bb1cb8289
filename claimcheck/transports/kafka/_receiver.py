"""The receive loop of a consumer: waits for records, and queues their messages until they are returned."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck.transports._common.received import Prefetch
from claimcheck.transports.kafka._client import vendor
from claimcheck.transports.kafka._message import KafkaMessage
from claimcheck.transports.kafka._partition import (
    TIMEOUT_SECONDS,
    Assignment,
    CommitMetadata,
    Offsets,
    Partition,
    ReadyMessage,
    StartReason,
    place,
)

if TYPE_CHECKING:
    from confluent_kafka import Message, TopicPartition

    from claimcheck.transports.kafka._client import Record

_log = logging.getLogger(__name__)

_STORE_SECONDS = 0.2  # how often offsets are stored
_STEP_SECONDS = 0.2  # how long one call of the client may wait while something else is to be done
_FOREVER = float("inf")


class Start(NamedTuple):
    """Where a partition starts: the place for the client, and the known one with its metadata."""

    at: TopicPartition
    known: TopicPartition
    reason: StartReason
    is_moved: bool = False


class Receiver:
    """Receives for a consumer. For one thread."""

    def __init__(
        self, assignment: Assignment, client: Any, prefetch: Prefetch, *, checked_start: bytes, stores_offsets: bool
    ) -> None:
        self.assignment = assignment
        self.partitions = assignment.partitions
        self.prefetch = prefetch
        self.paused: set[tuple[str, int]] = set()
        self.ready: deque[ReadyMessage] = deque()  # not delivered: never committed, dropped by a seek or a revocation
        self.errors: list[Exception] = []  # of rebalance callbacks
        self.in_steps = stores_offsets or prefetch.always
        self.stores_offsets = stores_offsets
        self._native = assignment.native
        self._poll: Callable[[float], Record | None] = client.poll
        self._consume: Callable[[int, float], list[Record]] = client.consume
        # Records whose values begin like this are decoded and checked before they are delivered.
        self._checked_start = checked_start
        self._checked_first = checked_start[:1] or bytes(range(256))
        self._clock = assignment.clock
        self.stored_at = 0.0

    # On an event loop `gather` waits, `waiting` returns what arrived, `hand_out` removes it.

    def receive(self, count: int, timeout: float | None) -> list[Message]:
        """Wait for ``count`` messages; returns those that arrived in time, or before a callback raised an exception."""
        self.raise_deferred()
        end = _FOREVER if timeout is None or timeout < 0 else self._clock() + timeout
        while True:
            self.begin_call()
            self._tick()
            found, left = len(self.waiting(count)), max(0.0, end - self._clock())
            if found and (found == count or left == 0):
                if messages := self.hand_out(found, look_ahead=True):
                    return messages
                continue
            natives = self._records(count - found, self._step(left))
            if self.errors:
                found = len(self.waiting(found))  # what came after the exception is for the next call
                self._take_all(natives)
                if messages := self.hand_out(found):
                    return messages
                self.raise_deferred()
            elif self.ready or self.prefetch.room or (len(natives) < count and self._clock() < end):
                self._take_all(natives)  # the client is called again before this returns
            elif messages := self._take_plain(natives):
                return messages
            if not natives and left == 0:
                return []

    def gather(self, count: int, seconds: float) -> None:
        """Wait for up to ``count`` records; blocks, and may call the user's callbacks."""
        self.begin_call()
        self._tick()
        self._take_all(self._records(count, seconds))
        self.raise_deferred()
        self._look_ahead()

    def look_ahead(self) -> None:
        """Take the records for which there is room; also expires incomplete payloads."""
        self._tick()
        self._look_ahead()
        self.raise_deferred()

    def waiting(self, count: int) -> list[ReadyMessage]:
        """Return up to ``count`` of the next messages; they stay in the queue."""
        if not self.ready:
            return []
        return list(islice((ready for ready in self.ready if not self._is_paused(ready)), count))

    def hand_out(self, count: int, *, look_ahead: bool = False) -> list[Message]:
        """Remove the next messages from the queue; they count as delivered."""
        chosen = self.waiting(count)
        for ready in chosen:
            self.prefetch.deliver(ready)
        if look_ahead:
            self.defer_errors(self._look_ahead)
            waiting = set(self.waiting(len(self.ready)))
            chosen = [ready for ready in chosen if ready in waiting]
        return [self._deliver(ready) for ready in chosen]

    def plain(self, native: Record) -> Offsets | None:
        """Return the offsets of a partition if a record of it is its own payload, as most are, and can be delivered."""
        value = native.value()
        may_be_ours = not value or value[0] in self._checked_first  # rules most records out
        if (may_be_ours and value is not None and value.startswith(self._checked_start)) or native.error() is not None:
            return None
        partition = self.partitions.get((native.topic(), native.partition()))
        if partition is None or partition.offsets.start is None:
            partition = self.assignment.of(native)
        offsets = partition.offsets
        is_reread = offsets.went_back or (offsets.skip_below and native.offset() < offsets.skip_below)
        return None if is_reread else offsets

    def take(self, native: Record) -> None:
        self._take_all([native])

    def begin_call(self) -> None:
        """The user has processed everything that was returned; store its offsets if that was not done for a while."""
        self.prefetch.begin_receive()
        if self.stores_offsets and self._clock() - self.stored_at > _STORE_SECONDS:
            self.store_offsets()

    def drop(self, partitions: list[TopicPartition]) -> None:
        dropped = {(each.topic, each.partition) for each in partitions}
        for ready in [each for each in self.ready if each.partition and each.partition.source in dropped]:
            self.ready.remove(ready)
            self.prefetch.remove(ready)

    def forget(self, partitions: list[TopicPartition] | None = None) -> None:
        """Forget partitions that now belong to another consumer, with their waiting messages; by default all."""
        if partitions is None:
            self.ready.clear()
            self.prefetch.forget()
            self.assignment.end(list(self.partitions))
            self.assignment.resolver.clear()
        else:
            self.drop(partitions)
            self.assignment.end((each.topic, each.partition) for each in partitions)

    def defer_errors(self, work: Callable[[], object]) -> None:
        """Call ``work``, and keep its exception, which must not end a call of the client in the middle."""
        try:
            work()
        except Exception as error:
            self.errors.append(error)

    def raise_deferred(self) -> None:
        """Raise the first exception that was kept, once."""
        errors, self.errors = self.errors, []
        if errors:
            raise errors[0]

    def _deliver(self, ready: ReadyMessage) -> Message:
        self.ready.remove(ready)
        if ready.partition is not None:
            ready.partition.offsets.delivered(ready.first, ready.last)
            if isinstance(ready.message, KafkaMessage):
                ready.message.next_offset = ready.partition.offsets.position or 0
            if ready.outcome is not None:
                ready.partition.settle(ready.outcome)
        return ready.message

    def _records(self, count: int, seconds: float) -> list[Record]:
        if count != 1:
            return self._consume(count, seconds)
        native = self._poll(seconds)
        return [] if native is None else [native]

    def _take_plain(self, natives: list[Record]) -> list[Message]:
        """Return records that are their own payloads, as most are; if one of them is not, they all go to the queue."""
        last = dict(zip(map(self.plain, natives), natives, strict=True))  # record of each partition
        if None in last:
            self._take_all(natives)
            return []
        for offsets, native in last.items():
            if offsets is not None:
                offsets.delivered_plain(native.offset())
        return natives  # type: ignore[return-value]

    def _take_all(self, natives: Iterable[Record]) -> None:
        stale: set[Partition] = set()
        for native in natives:
            if native.error() is not None:
                self._add(ReadyMessage(None, native))
            elif (partition := self.assignment.of(native)) not in stale:
                value = native.value()
                is_plain = value is None or not value.startswith(self._checked_start)
                for ready in partition.take(native, is_plain=is_plain):
                    self._add(ready)
                if partition.offsets.went_back:
                    stale.add(partition)  # the client returns its other records again

    def _add(self, ready: ReadyMessage) -> None:
        if ready.partition is not None:
            ready.partition.offsets.taken = max(ready.partition.offsets.taken, ready.last + 1)
            if ready.outcome is not None:
                ready.partition.offsets.waiting.add(ready.first)
        self.ready.append(ready)
        self.prefetch.add(ready)

    def _is_paused(self, ready: ReadyMessage) -> bool:
        return ready.partition is not None and ready.partition.source in self.paused

    def _look_ahead(self) -> None:
        while self.prefetch.room and (native := self._poll(0)) is not None:
            self.take(native)

    def _tick(self) -> None:
        """Expire incomplete payloads, and go back for those that are to be read again."""
        if self.assignment.busy:
            for ready in self.assignment.tick(self.paused):
                self._add(ready)

    def _step(self, left: float) -> float:
        """Return how long one call of the client may wait: meanwhile chunks may expire, and offsets must be stored."""
        if self.in_steps or self.assignment.busy:
            return min(left, _STEP_SECONDS)
        return -1 if left == _FOREVER else left

    # Where partitions start

    def starts(self, assigned: list[TopicPartition]) -> list[Start]:
        """Return where partitions start: at the given offset, or else at the group's committed offset."""
        unknown = (vendor().OFFSET_INVALID, vendor().OFFSET_STORED)
        queries = [place((each.topic, each.partition)) for each in assigned if each.offset in unknown]
        committed = {(each.topic, each.partition): each for each in (self._committed(queries) if queries else ())}
        return [self._start(each, committed.get((each.topic, each.partition))) for each in assigned]

    def begin(self, starts: Iterable[Start]) -> None:
        for start in starts:
            self.assignment.begin(start.known, start.reason)

    def assign_moved(self, starts: list[Start]) -> None:
        """Within a rebalance: assign partitions, which the client does by itself unless one starts elsewhere."""
        if not any(start.is_moved for start in starts):
            return
        places = [start.at for start in starts]
        assigned = {(each.topic, each.partition) for each in self._native.assignment()}
        if any((each.topic, each.partition) in assigned for each in places):  # the user's callback assigned them
            return
        try:
            self._native.incremental_assign(places)
        except vendor().KafkaException as error:
            if error.args[0].name() != "_STATE":
                raise
            self._native.assign(places)  # an eager protocol

    def _start(self, assigned: TopicPartition, committed: TopicPartition | None) -> Start:
        if committed is None:
            return Start(assigned, assigned, "sought" if assigned.offset >= 0 else "reset")
        if committed.offset < 0:
            return Start(assigned, committed, "reset")
        source, is_ours = (committed.topic, committed.partition), CommitMetadata.decode(committed.metadata) is not None
        low = self.assignment.low(source) if is_ours else None
        if low is None or low <= committed.offset:
            return Start(assigned, committed, "committed")
        moved = place(source, low, committed.metadata)
        return Start(moved, moved, "committed", is_moved=True)

    def _committed(self, queries: list[TopicPartition]) -> list[TopicPartition]:
        """Return the group's committed offsets; if the broker does not answer, payloads may be delivered twice."""
        try:
            return list(self._native.committed(queries, timeout=TIMEOUT_SECONDS))
        except (vendor().KafkaException, RuntimeError) as error:
            _log.warning("failed to read committed offsets; delivered payloads may be delivered again: %s", error)
            return queries

    # Offsets for commits

    def safe_for(self, given: TopicPartition) -> TopicPartition:
        """Return the offset to commit in place of one that the user chose; the user's own metadata replaces ours."""
        partition = self.assignment.find(given)
        if partition is None or given.offset < 0 or CommitMetadata.decode(given.metadata) is not None:
            return given
        safe = partition.safe(given.offset)
        return place(partition.source, safe.offset, given.metadata) if given.metadata else safe

    def store(self, offsets: list[TopicPartition]) -> None:
        """Store offsets for the next automatic commit."""
        self._native.store_offsets(offsets=offsets)
        for each in offsets:
            if (partition := self.assignment.find(each)) is not None:
                partition.offsets.stored = each

    def store_offsets(self) -> None:
        """Store the offsets of everything that was returned, for the next automatic commit."""
        self.stored_at = self._clock()
        partitions = self.partitions.values() if self.stores_offsets else ()
        changed = [each for each in partitions if each.offsets.changed]
        if not changed:
            return
        try:
            self.store([each.safe(each.offsets.position or 0) for each in changed])
        except (vendor().KafkaException, RuntimeError) as error:  # revoked: another member reads them again
            _log.info("offsets were not stored: %s", error)
        for each in changed:
            each.offsets.changed = each.offsets.is_rereading  # then a higher one can be stored without another delivery
