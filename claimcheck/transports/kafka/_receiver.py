"""The receive loop of consumers: native records in, messages of whole payloads out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from claimcheck.transports._common.prefetch import Prefetch
from claimcheck.transports.kafka._assignment import Assigned, Rebalances
from claimcheck.transports.kafka._message import KafkaMessage
from claimcheck.transports.kafka._partition import Partition
from claimcheck.transports.kafka._record_reader import ReadyMessage, RecordReader

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["Receiver"]

_STEP_SECONDS = 0.2
_FOREVER = float("inf")


class Receiver:
    """Takes records from the client until there are messages for the caller.

    `poll` and `consume` wait for messages and hand them out. For an event loop, `gather` waits, `waiting` shows what
    came, and `hand_out` takes it: a message that waits is not committed, is dropped by a seek or when its partition is
    revoked, and otherwise goes to the next caller.

    Args:
        native: A `confluent_kafka.Consumer`.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        max_redeliveries: See `KafkaConsumer`, as for the next two.
        prefetch_bytes: Bytes of look-ahead.
        prefetch_threads: Payloads that are read ahead at once.
        before_next: Called when the caller asks for more: everything that was handed out before is processed.
        is_timed: Whether ``before_next`` has to be called from time to time while no record arrives.
        clock: Seconds, monotonic.

    Attributes:
        records: Keeps track of chunks.
        assigned: Keeps track of partitions.
        rebalances: Keeps what callbacks of a rebalance raise.
        paused: Topic and number of the partitions that are paused.
    """

    def __init__(
        self,
        native: Any,
        cc: ClaimCheck,
        *,
        max_redeliveries: int | None,
        prefetch_bytes: int,
        prefetch_threads: int,
        before_next: Callable[[], None],
        is_timed: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records = RecordReader(
            cc,
            max_redeliveries=max_redeliveries,
            find_first=lambda *chunk: self.assigned.find_first(*chunk),
            starts_late=lambda partition: self.assigned.starts_late(partition),
            clock=clock,
        )
        wait = cc.config.chunking.expire_after_seconds
        self.assigned = Assigned(native, self.records, wait_seconds=wait, clock=clock)
        self.rebalances = Rebalances()
        self.paused: set[tuple[str, int]] = set()
        self._native = native
        self._header = cc.config.header
        self._before_next = before_next
        self._clock = clock
        self._ready: deque[ReadyMessage] = deque()
        self._looks_ahead = prefetch_bytes > 0
        self._in_steps = is_timed or self._looks_ahead
        self._prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)

    # Blocking callers ------------------------------------------------------------------------------------------

    def poll(self, timeout: float) -> Any:
        """Wait for one message; ``None`` when time is up."""
        if not (self._ready or self._in_steps or self.records.busy):
            native = self._native.poll(timeout)
            if self.rebalances.kept is not None:
                self._raise_kept(native)
            if native is None or self._is_plain(native):
                return native
            self._take(native)
        end = self._end(timeout)
        while True:
            self._before_next()
            self._tick()
            message = self._next()
            if message is not None:
                self._fill()
                return message
            left = self._left(end)
            native = self._poll(self._step(left))
            if native is not None:
                if not self._ready and not self._looks_ahead and self._is_plain(native):
                    return native
                self._take(native)
            elif left == 0:
                return None

    def consume(self, count: int, timeout: float) -> list[Any]:
        """Wait for ``count`` messages; returns those that came in time."""
        end, found = self._end(timeout), list[Any]()
        while True:
            if not found:  # else they would be committed before the caller has them
                self._before_next()
            self._tick()
            while len(found) < count and (message := self._next()) is not None:
                found.append(message)
            left = self._left(end)
            if len(found) >= count or (left == 0 and found):
                return found
            natives = self._native.consume(count - len(found), self._step(left))
            self._take_all(natives, found)
            self.rebalances.raise_kept()
            if not natives and left == 0:
                return found

    # Callers on an event loop ----------------------------------------------------------------------------------

    def gather(self, count: int, seconds: float) -> None:
        """Wait for records; blocks, and may call the user's callbacks."""
        self._before_next()
        self._tick()
        self._take_all(self._native.consume(count, seconds))
        self.rebalances.raise_kept()
        self._fill()

    @property
    def looks_ahead(self) -> bool:
        """Whether records are taken before a caller asks for them."""
        return self._looks_ahead

    def look_ahead(self) -> None:
        """Take the records for which there is room; incomplete payloads expire here, too."""
        self._tick()
        self._fill()

    def waiting(self, count: int) -> list[Any]:
        """Return the next messages, at most ``count``; they stay in the queue."""
        found: list[Any] = []
        for ready in self._ready:
            if len(found) == count:
                break
            if not self._is_paused(ready):
                found.append(ready.message)
        return found

    def hand_out(self, count: int) -> list[Any]:
        """Take the next messages out of the queue; they count as delivered."""
        self._before_next()
        return [self._next() for _ in range(count)]

    # Partitions ------------------------------------------------------------------------------------------------

    def drop(self, partitions: list[Any]) -> None:
        """Drop the waiting messages of these partitions."""
        gone = {(each.topic, each.partition) for each in partitions}
        for ready in [each for each in self._ready if each.partition and each.partition.source in gone]:
            self._remove(ready)

    def revoke(self, partitions: list[Any]) -> None:
        """Forget partitions that belong to another consumer now."""
        self.drop(partitions)
        self.assigned.end(partitions)

    def forget(self) -> None:
        """Forget all partitions and what waits."""
        self._ready.clear()
        self._prefetch.forget()
        self.assigned.end_all()

    # Within ----------------------------------------------------------------------------------------------------

    def _poll(self, timeout: float) -> Any:
        native = self._native.poll(timeout)
        if self.rebalances.kept is not None:
            self._raise_kept(native)
        return native

    def _raise_kept(self, native: Any) -> None:
        if native is not None:
            self._take(native)
        self.rebalances.raise_kept()

    def _is_plain(self, native: Any) -> bool:
        """Whether a record is its own payload, as most are; then it counts as handed out."""
        value = native.value()
        if native.error() is not None or (value is not None and value.startswith(self._header)):
            return False
        partition, offset = self.assigned.known.get((native.topic(), native.partition())), native.offset()
        if partition is None or partition.start is None:
            partition = self.assigned.of(native)
        if offset < partition.skip_below or partition.went_back:
            return False
        partition.read = partition.taken = partition.position = offset + 1
        partition.changed = True
        return True

    def _take_all(self, natives: Iterable[Any], found: list[Any] | None = None) -> None:
        """Take several records; plain ones go into ``found`` at once while no other message waits."""
        stale: set[Partition] = set()
        for native in natives:
            if found is not None and not self._ready and not stale and self._is_plain(native):
                found.append(native)
            elif (partition := self._take(native, stale)) is not None and partition.went_back:
                stale.add(partition)  # the rest of it comes again

    def _take(self, native: Any, stale: Iterable[Partition] = ()) -> Partition | None:
        if native.error() is not None:
            self._add(ReadyMessage(None, native))
            return None
        partition, offset, value = self.assigned.of(native), native.offset(), native.value()
        if partition in stale:
            return None
        if partition.went_back and self.assigned.was_overtaken(partition, offset):
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
        if self._looks_ahead:
            self._prefetch.add(ready)

    def _remove(self, ready: ReadyMessage) -> None:
        self._ready.remove(ready)
        if self._looks_ahead:
            self._prefetch.remove(ready)

    def _is_paused(self, ready: ReadyMessage) -> bool:
        return ready.partition is not None and ready.partition.source in self.paused

    def _next(self) -> Any:
        """Take the next message out of the queue; ``None`` where none waits or their partitions are paused."""
        ready = next((each for each in self._ready if not self._is_paused(each)), None)
        if ready is None:
            return None
        self._remove(ready)
        if ready.partition is not None:
            ready.partition.handed_out(ready.first, ready.last)
            if isinstance(ready.message, KafkaMessage):
                ready.message.behind = ready.partition.position or 0
            if ready.outcome is not None:
                self.records.settle(ready.partition, ready.outcome)
        return ready.message

    def _fill(self) -> None:
        while self._looks_ahead and self._prefetch.room and (native := self._poll(0)) is not None:
            self._take(native)

    def _tick(self) -> None:
        """Expire incomplete payloads, and go back for those that are to be read again."""
        if self.records.busy:
            for ready in (*self.records.tick(), *self.assigned.reread(self.paused)):
                self._add(ready)

    def _step(self, left: float) -> float:
        """Return how long one call of the client may wait: chunks may expire meanwhile, and offsets are stored."""
        if self._in_steps or self.records.busy:
            return min(left, _STEP_SECONDS)
        return -1 if left == _FOREVER else left

    def _end(self, timeout: float | None) -> float:
        return _FOREVER if timeout is None or timeout < 0 else self._clock() + timeout

    def _left(self, end: float) -> float:
        return max(0.0, end - self._clock())
