"""The assigned partitions of a consumer: where each one starts, what may be committed, and what is read again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from claimcheck._envelope import Chunk
from claimcheck.transports.kafka._client import vendor
from claimcheck.transports.kafka._partition import CommitMetadata, Partition, StartReason
from claimcheck.transports.kafka._record_reader import FirstChunk, ReadyMessage, RecordReader

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

    from claimcheck.transports.kafka._client import Record

__all__ = ["Assignment", "Start"]

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 10.0
_STUCK_SECONDS = 30.0  # after this time, a record for which the client was sent back will not come any more
_LOOK_BACK = 16  # records for each missing chunk, because so many payloads may have been sent at once


@dataclass(frozen=True, slots=True)
class Start:
    """Where a partition starts.

    Attributes:
        at: The offset for the client.
        committed: The group's offset with its metadata, if reading starts there; otherwise the same as ``at``.
        reason: Why it starts there.
        is_moved: Whether the client would start elsewhere by itself.
    """

    at: TopicPartition
    committed: TopicPartition
    reason: StartReason
    is_moved: bool = False


class Assignment:
    """Keeps a `Partition` for each source of records.

    Args:
        native: The consumer.
        records: Holds the chunks of the partitions.
        wait_seconds: The longest time before a dropped payload is read again.
        clock: Seconds, monotonic.

    Attributes:
        partitions: By topic and number.
    """

    def __init__(
        self,
        native: Consumer,
        records: RecordReader,
        *,
        wait_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._native = native
        self._records = records
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._no_request_before = float("-inf")
        self.partitions: dict[tuple[str, int], Partition] = {}

    def find(self, at: TopicPartition) -> Partition | None:
        """Return a partition, or ``None`` if it is not assigned and no record of it arrived."""
        return self.partitions.get((at.topic, at.partition))

    def of(self, native: Record) -> Partition:
        """Return the partition of a record; one that was not assigned through this consumer starts here."""
        source = native.topic(), native.partition()
        partition = self.partitions.get(source)
        if partition is None:
            partition = self.partitions[source] = Partition(source)
        if partition.start is None:
            partition.start = native.offset()
        return partition

    def starts(self, assigned: list[TopicPartition]) -> list[Start]:
        """Return where partitions start: at the given offset, or else at the group's committed offset.

        Retention may have removed an incomplete payload that held back the committed offset. Then the partition starts
        at the low watermark, and ``auto.offset.reset`` is not used.
        """
        unknown = (vendor().OFFSET_INVALID, vendor().OFFSET_STORED)
        queries = [vendor().TopicPartition(each.topic, each.partition) for each in assigned if each.offset in unknown]
        committed = {(each.topic, each.partition): each for each in (self._committed(queries) if queries else ())}
        return [self._start(each, committed.get((each.topic, each.partition))) for each in assigned]

    def begin_at(self, starts: Iterable[Start]) -> None:
        """Track partitions that were assigned, from their start offsets."""
        for start in starts:
            self._begin(start.committed, start.reason)

    def seek(self, target: TopicPartition) -> None:
        """Forget everything about a partition, which continues at another offset."""
        self._begin(target, "sought")

    def end(self, revoked: list[TopicPartition]) -> None:
        """Forget partitions."""
        for each in revoked:
            self._records.forget((each.topic, each.partition))
            self.partitions.pop((each.topic, each.partition), None)

    def end_all(self) -> None:
        """Forget all partitions."""
        self._records.forget()
        self.partitions.clear()

    def safe(self, partition: Partition, upto: int) -> TopicPartition:
        """Return the offset, with our metadata, to commit when everything below ``upto`` was processed."""
        unsettled = self._records.resolver.safe_position(partition.source)
        offset = partition.safe_offset(upto, unsettled)
        partition.forget_below(upto)
        topic, number = partition.source
        metadata = None if offset == upto else partition.metadata(upto).encode()
        return _place(topic, number, offset, metadata)

    def safe_for(self, given: TopicPartition) -> TopicPartition:
        """Return the same for an offset that the user chose; the user's own metadata replaces ours."""
        partition = self.find(given)
        if partition is None or given.offset < 0 or CommitMetadata.decode(given.metadata) is not None:
            return given
        safe = self.safe(partition, given.offset)
        return _place(given.topic, given.partition, safe.offset, given.metadata) if given.metadata else safe

    def reread(self, paused: Container[tuple[str, int]]) -> list[ReadyMessage]:
        """Seek back for a dropped payload if no other one is incomplete, or after a while.

        Payloads that expired are read again together; those that were evicted are read one at a time, because they did
        not fit in memory together. Returns messages that report payloads whose first records retention has removed:
        a seek to such an offset would continue where ``auto.offset.reset`` says.
        """
        reports = list[ReadyMessage]()
        for partition in self.partitions.values():
            if partition.source not in paused and self._reread_is_due(partition):
                reports += self._reread(partition)
        return reports

    def find_first(self, partition: Partition, chunk: Chunk, offset: int) -> FirstChunk:
        """Look for the first chunk of a payload, once before the group's offset.

        A consumer that does not support chunks may have committed an offset in the middle of the payload. A first chunk
        that is missing far after the start has another reason: the records of the payload were reordered.
        """
        start, reach = partition.start or 0, _LOOK_BACK * (chunk.position + 64)
        if partition.start_reason == "sought" or offset >= start + reach:
            return "awaited"
        if partition.low is None:
            partition.low = self._low_of(partition)
            if partition.low is None:
                return "awaited"
            partition.searched = start
            if partition.start_reason == "committed" and self._look_back(partition, max(partition.low, start - reach)):
                return "reading"
        return "removed" if partition.searched <= partition.low and partition.low > 0 else "awaited"

    def starts_late(self, partition: Partition) -> bool:
        """Whether the user chose to start in the middle of the partition."""
        if partition.start_reason != "reset":
            return partition.start_reason == "sought"
        low = self._low_of(partition) if partition.low is None else partition.low
        return low is not None and (partition.start or 0) > low

    def was_overtaken(self, partition: Partition, offset: int) -> bool:
        """Whether retention removed records before the client, which was sent back, could read them.

        The client then continues where ``auto.offset.reset`` says, which may be the end. If so, this seeks to the low
        watermark and returns true.

        Args:
            partition: The client was sent back in it.
            offset: The first offset that the client returned after that.
        """
        if partition.read is None or offset <= partition.read:
            return False
        low = self._low_of(partition)
        if low is None or low <= partition.read:  # a gap left by a transaction or by compaction
            return False
        partition.current_reread = None  # it may begin below the low watermark now
        if offset <= low:
            return False
        self._seek(partition, low)
        partition.read = low
        return True

    def _begin(self, at: TopicPartition, reason: StartReason) -> None:
        source = at.topic, at.partition
        self._records.forget(source)
        partition = self.partitions[source] = Partition(source, reason, start=at.offset if at.offset >= 0 else None)
        partition.restore(CommitMetadata.decode(at.metadata))

    def _start(self, assigned: TopicPartition, committed: TopicPartition | None) -> Start:
        if committed is None:
            return Start(assigned, assigned, "sought" if assigned.offset >= 0 else "reset")
        if committed.offset < 0:
            return Start(assigned, committed, "reset")
        low = self._low(committed) if CommitMetadata.decode(committed.metadata) is not None else None
        if low is None or low <= committed.offset:
            return Start(assigned, committed, "committed")
        moved = _place(committed.topic, committed.partition, low, committed.metadata)
        return Start(moved, moved, "committed", is_moved=True)

    def _committed(self, queries: list[TopicPartition]) -> list[TopicPartition]:
        """Return the group's committed offsets; if the broker does not answer, payloads may be delivered twice."""
        try:
            return list(self._native.committed(queries, timeout=_TIMEOUT_SECONDS))
        except (vendor().KafkaException, RuntimeError) as error:
            _log.warning("failed to read committed offsets; delivered payloads may be delivered again: %s", error)
            return queries

    def _low_of(self, partition: Partition) -> int | None:
        return self._low(_place(*partition.source))

    def _low(self, place: TopicPartition) -> int | None:
        """Return the low watermark, or ``None`` if the broker does not answer; then wait before the next request."""
        if self._clock() < self._no_request_before:
            return None
        try:
            low, _ = self._native.get_watermark_offsets(place, timeout=_TIMEOUT_SECONDS)
        except vendor().KafkaException as error:
            self._no_request_before = self._clock() + _TIMEOUT_SECONDS
            _log.warning("%s[%d]: failed to read the low watermark: %s", place.topic, place.partition, error)
            return None
        return int(low)

    def _reread_is_due(self, partition: Partition) -> bool:
        if not partition.rereads:
            return False
        current = partition.rereads.get(partition.current_reread) if partition.current_reread else None
        if current is not None:  # it completes or expires, unless its first record never arrived
            longest = 2 * self._wait_seconds + _STUCK_SECONDS if self._wait_seconds else math.inf
            return self._clock() - current.since > longest
        if not self._records.resolver.pending_payloads and not partition.is_rereading:
            return True
        return self._clock() - min(each.since for each in partition.rereads.values()) > self._wait_seconds

    def _reread(self, partition: Partition) -> list[ReadyMessage]:
        low = self._low_of(partition)
        if low is None:
            return []
        removed = [payload for payload, each in partition.rereads.items() if each.first < low]
        if removed:
            return [self._records.removed(partition, payload, low) for payload in removed]
        payload, oldest = min(partition.rereads.items(), key=lambda item: item[1].first)
        partition.current_reread, oldest.since = payload, self._clock()
        if partition.read is None or partition.read > oldest.first:  # otherwise reading gets there anyway
            self._go_back(partition, oldest.first)
        return []

    def _look_back(self, partition: Partition, target: int) -> bool:
        """Go back to before the group's offset."""
        if target >= (partition.start or 0):
            return False
        partition.searched = target
        self._records.forget(partition.source)  # a duplicate chunk seen first must not complete a delivered payload
        self._go_back(partition, target)
        return True

    def _go_back(self, partition: Partition, offset: int) -> None:
        self._seek(partition, offset)
        partition.go_back(offset)

    def _seek(self, partition: Partition, offset: int) -> None:
        self._native.seek(_place(*partition.source, offset))


def _place(topic: str, number: int, offset: int = -1001, metadata: str | None = None) -> TopicPartition:
    place: TopicPartition = vendor().TopicPartition(topic, number, offset, *([] if metadata is None else [metadata]))
    return place
