"""Native records in, payloads out, one after the other: what a consumer does between two calls of its user's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from claimcheck.transports._common.prefetch import Prefetch
from claimcheck.transports.kafka._assignment import Assigned, Rebalances
from claimcheck.transports.kafka._dispatch import Arrival, Inbox
from claimcheck.transports.kafka._message import KafkaMessage
from claimcheck.transports.kafka._partition import Partition

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = [
    "FOR_EVER",
    "NativeConsumer",
    "Receiving",
]


class NativeConsumer:
    """The methods of a `confluent_kafka.Consumer` that payloads change nothing about.

    Args:
        native: It.
    """

    def __init__(self, native: Any) -> None:
        self._native = native

    def assignment(self) -> Any:
        """The partitions that this consumer has."""
        return self._native.assignment()

    def consumer_group_metadata(self) -> Any:
        """For `KafkaProducer.send_offsets_to_transaction`."""
        return self._native.consumer_group_metadata()

    def memberid(self) -> Any:
        """This consumer's name within its group."""
        return self._native.memberid()

    def get_watermark_offsets(self, partition: Any, timeout: float = -1, cached: bool = False) -> Any:
        """The lowest offset of a partition, and the one behind its highest."""
        return self._native.get_watermark_offsets(partition, timeout=timeout, cached=cached)

    def offsets_for_times(self, partitions: list[Any], timeout: float = -1) -> Any:
        """The first offsets at or after given times; a payload may begin before one."""
        return self._native.offsets_for_times(partitions, timeout=timeout)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """What the cluster says of its topics."""
        return self._native.list_topics(*([] if topic is None else [topic]), timeout=timeout)

    def cluster_id(self, timeout: float = -1) -> Any:
        """The cluster's own name."""
        return self._native.cluster_id(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """As the client has it."""
        self._native.set_sasl_credentials(username, password)


_STEP_SECONDS = 0.2
FOR_EVER = float("inf")


class Receiving(NativeConsumer):
    """Takes records until there is a message for the user.

    Args:
        consumer: A `confluent_kafka.Consumer`.
        cc: ClaimCheck them.
        max_redeliveries: See `KafkaConsumer`, as for all others.
        prefetch_bytes: See there.
        prefetch_threads: See there.
        steps: Whether there is something to do while nothing comes, even without chunks.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        consumer: Any,
        cc: ClaimCheck,
        *,
        max_redeliveries: int | None,
        prefetch_bytes: int,
        prefetch_threads: int,
        steps: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(consumer)
        self._inbox = Inbox(
            cc,
            max_redeliveries=max_redeliveries,
            find_first=lambda *chunk: self._assigned.find_first(*chunk),
            starts_late=lambda partition: self._assigned.starts_late(partition),
            clock=clock,
        )
        self._header = self._inbox.header
        wait = cc.config.chunking.expire_after_seconds
        self._assigned = Assigned(consumer, self._inbox, wait_seconds=wait, clock=clock)
        self._clock = clock
        self._ready: deque[Arrival] = deque()
        self._rebalances = Rebalances()
        self._paused: set[tuple[str, int]] = set()
        self._steps = steps
        self._looks_ahead = prefetch_bytes > 0
        self._prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._inbox.resolver.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._inbox.resolver.pending_bytes

    # Within ----------------------------------------------------------------------------------------------------

    def _is_plain(self, native: Any) -> bool:
        """Whether a message stands for itself, as most do, and is handed out by this."""
        value = native.value()
        if native.error() is not None or (value is not None and value.startswith(self._header)):
            return False
        partition, offset = self._assigned.known.get((native.topic(), native.partition())), native.offset()
        if partition is None or partition.start is None:
            partition = self._assigned.of(native)
        if offset < partition.skip_below or partition.went_back:
            return False
        partition.read = partition.taken = partition.position = offset + 1
        partition.changed = True
        return True

    def _take_all(self, natives: Iterable[Any], found: list[Any]) -> None:
        """Take several messages; plain ones are found at once, as long as no other waits to be handed out."""
        stale: set[Partition] = set()
        for native in natives:
            if not self._ready and not stale and self._is_plain(native):
                found.append(native)
            elif (partition := self._take(native, stale)) is not None and partition.went_back:
                stale.add(partition)  # the rest of it comes again

    def _take(self, native: Any, stale: Iterable[Partition] = ()) -> Partition | None:
        if native.error() is not None:
            self._add(Arrival(None, native))
            return None
        partition, offset, value = self._assigned.of(native), native.offset(), native.value()
        if partition in stale:
            return None
        if partition.went_back and self._assigned.was_overtaken(partition, offset):
            return partition
        partition.read, partition.went_back = offset + 1, False
        if value is None or not value.startswith(self._header):
            if offset >= partition.skip_below:
                self._add(Arrival(partition, native, offset, offset))
            return partition
        for arrival in self._inbox.take(partition, native):
            self._add(arrival)
        return partition

    def _add(self, arrival: Arrival) -> None:
        if arrival.partition is not None:
            arrival.partition.taken = max(arrival.partition.taken, arrival.last + 1)
        self._ready.append(arrival)
        if self._looks_ahead:
            self._prefetch.add(arrival)

    def _hand_out(self) -> Any:
        """The next message that waits, if its partition is not paused."""
        for arrival in self._ready:
            if arrival.partition is None or arrival.partition.source not in self._paused:
                break
        else:
            return None
        self._ready.remove(arrival)
        if self._looks_ahead:
            self._prefetch.remove(arrival)
        if arrival.partition is not None:
            arrival.partition.handed_out(arrival.first, arrival.last)
            if isinstance(arrival.message, KafkaMessage):
                arrival.message.behind = arrival.partition.position or 0
            if arrival.outcome is not None:
                self._inbox.settle(arrival.partition, arrival.outcome)
        return arrival.message

    def _wait(self, timeout: float) -> Any:
        end = self._end(timeout)
        while True:
            self._between()
            self._do_chores()
            message = self._hand_out()
            if message is not None:
                self._look_ahead()
                return message
            left = self._left(end)
            native = self._native_poll(self._step(left))
            if native is not None:
                if not self._ready and not self._looks_ahead and self._is_plain(native):
                    return native
                self._take(native)
            elif left == 0:
                return None

    def _look_ahead(self) -> None:
        while self._looks_ahead and self._prefetch.room and (native := self._native_poll(0)) is not None:
            self._take(native)

    def _between(self) -> None:
        """Do what is to be done when the user asks for more."""

    def _do_chores(self) -> None:
        if self._inbox.busy:
            for arrival in (*self._inbox.tick(), *self._assigned.reread(self._paused)):
                self._add(arrival)

    def _drop(self, partitions: list[Any]) -> None:
        """Forget what waits of these partitions."""
        gone = {(each.topic, each.partition) for each in partitions}
        for arrival in [each for each in self._ready if each.partition and each.partition.source in gone]:
            self._ready.remove(arrival)
            if self._looks_ahead:
                self._prefetch.remove(arrival)

    def _end_of(self, partitions: list[Any]) -> None:
        """They belong to somebody else now."""
        self._drop(partitions)
        self._assigned.end(partitions)

    def _native_poll(self, timeout: float) -> Any:
        native = self._native.poll(timeout)
        if self._rebalances.kept is not None:
            if native is not None:
                self._take(native)
            self._rebalances.raise_kept()
        return native

    def _forget(self) -> None:
        self._ready.clear()
        self._prefetch.forget()
        self._assigned.end_all()

    def _step(self, left: float) -> float:
        """How long to wait for the client at once: chunks may expire meanwhile, and offsets are to be stored."""
        if self._steps or self._inbox.busy:
            return min(left, _STEP_SECONDS)
        return -1 if left == FOR_EVER else left

    def _end(self, timeout: float | None) -> float:
        return FOR_EVER if timeout is None or timeout < 0 else self._clock() + timeout

    def _left(self, end: float) -> float:
        return max(0.0, end - self._clock())
