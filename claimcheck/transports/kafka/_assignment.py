"""The partitions that a consumer has: where each begins, what may be committed of it, and what is read again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from claimcheck._envelope import Chunk
from claimcheck.transports.kafka._client import vendor
from claimcheck.transports.kafka._partition import Begins, Mark, Partition
from claimcheck.transports.kafka._record_reader import FirstChunk, ReadyMessage, RecordReader

__all__ = ["Assigned", "Rebalances"]

_log = logging.getLogger(__name__)

_ASK_SECONDS = 10.0
_STUCK_SECONDS = 30.0  # by then a record that the client was sent back for has come, or never will
_LOOK_BACK = 16  # records, for each chunk that is missing: so many payloads may have been sent at once


@dataclass(frozen=True, slots=True)
class Start:
    """Where a partition begins.

    Attributes:
        at: What to tell the client.
        found: The group's offset where that counts, with its metadata; else the same.
        begins: Why it begins there.
        is_moved: Whether the client would begin elsewhere by itself.
    """

    at: Any
    found: Any
    begins: Begins
    is_moved: bool = False


class Assigned:
    """Keeps a `Partition` for each that records come from.

    Args:
        native: A `confluent_kafka.Consumer`.
        records: Holds their chunks.
        wait_seconds: How long a payload that was dropped waits at most to be read again.
        clock: Seconds, monotonic.

    Attributes:
        known: By topic and number.
    """

    def __init__(
        self, native: Any, records: RecordReader, *, wait_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._native = native
        self._records = records
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._ask_again_at = float("-inf")
        self.known: dict[tuple[str, int], Partition] = {}

    def find(self, topic: str, number: int) -> Partition | None:
        """Return a partition; ``None`` for one that is not assigned and of which no record arrived."""
        return self.known.get((topic, number))

    def of(self, native: Any) -> Partition:
        """Return the partition of a record; one that was not assigned by this consumer starts here."""
        source = native.topic(), native.partition()
        partition = self.known.get(source)
        if partition is None:
            partition = self.known[source] = Partition(source)
        if partition.start is None:
            partition.start = native.offset()
        return partition

    # Assignment ------------------------------------------------------------------------------------------------

    def starts(self, assigned: list[Any]) -> list[Start]:
        """Return where partitions begin: where no offset is given, at the offset that the group has committed.

        An incomplete payload may have held that back until retention removed it. Then they begin at the low watermark,
        and ``auto.offset.reset`` is not used.
        """
        unknown = (vendor().OFFSET_INVALID, vendor().OFFSET_STORED)
        asked = [vendor().TopicPartition(each.topic, each.partition) for each in assigned if each.offset in unknown]
        committed = {(each.topic, each.partition): each for each in (self._committed(asked) if asked else ())}
        return [self._start(each, committed.get((each.topic, each.partition))) for each in assigned]

    def begin_at(self, starts: Iterable[Start]) -> None:
        """Track partitions that were assigned, from their start offsets."""
        for start in starts:
            self._begin(start.found, start.begins)

    def seek(self, target: Any) -> None:
        """Forget what is held of a partition, which is read from another offset now."""
        self._begin(target, "sought")

    def end(self, revoked: list[Any]) -> None:
        """Forget partitions."""
        for each in revoked:
            self._records.forget((each.topic, each.partition))
            self.known.pop((each.topic, each.partition), None)

    def end_all(self) -> None:
        """Forget all partitions."""
        self._records.forget()
        self.known.clear()

    # Offsets ---------------------------------------------------------------------------------------------------

    def safe(self, partition: Partition, upto: int) -> Any:
        """Return the offset to commit when everything below ``upto`` is processed, with the mark in its metadata."""
        unsettled = self._records.resolver.safe_position(partition.source)
        offset = partition.lowest(upto, unsettled)
        partition.forget_below(upto)
        topic, number = partition.source
        if offset == upto:
            return vendor().TopicPartition(topic, number, offset)
        return vendor().TopicPartition(topic, number, offset, partition.mark(upto).encode())

    def safe_for(self, given: Any) -> Any:
        """Return the same for an offset named by the user, whose own metadata replaces ours."""
        partition = self.find(given.topic, given.partition)
        if partition is None or given.offset < 0 or Mark.decode(given.metadata) is not None:
            return given
        safe = self.safe(partition, given.offset)
        if not given.metadata:
            return safe
        return vendor().TopicPartition(given.topic, given.partition, safe.offset, given.metadata)

    # Reading again ---------------------------------------------------------------------------------------------

    def reread(self, paused: Container[tuple[str, int]]) -> list[ReadyMessage]:
        """Seek back for a payload that was dropped: when no other is incomplete, or after a while.

        Those that expired are read again together; those that were evicted one at a time, since they could not be
        held together before. Returns the messages that report those whose first records retention has removed
        meanwhile: the client must never seek there, since it would start over where ``auto.offset.reset`` says.
        """
        found = list[ReadyMessage]()
        for partition in self.known.values():
            if partition.source not in paused and self._is_time_to_reread(partition):
                found += self._reread(partition)
        return found

    def find_first(self, partition: Partition, chunk: Chunk, offset: int) -> FirstChunk:
        """Look for the first chunk of a payload, once before the group's offset.

        A consumer that does not know chunks may have committed an offset in the middle of the payload. Far behind the
        start a first chunk is missing for another reason: the records of one payload have changed their order.
        """
        start, reach = partition.start or 0, _LOOK_BACK * (chunk.position + 64)
        if partition.begins == "sought" or offset >= start + reach:
            return "awaited"
        if partition.low is None:
            partition.low = self._low_of(partition)
            if partition.low is None:
                return "awaited"
            partition.searched = start
            if partition.begins == "committed" and self._look_back(partition, max(partition.low, start - reach)):
                return "reading"
        return "removed" if partition.searched <= partition.low and partition.low > 0 else "awaited"

    def starts_late(self, partition: Partition) -> bool:
        """Whether reading began in the middle of the partition because the user chose that."""
        if partition.begins != "reset":
            return partition.begins == "sought"
        low = self._low_of(partition) if partition.low is None else partition.low
        return low is not None and (partition.start or 0) > low

    def was_overtaken(self, partition: Partition, offset: int) -> bool:
        """Whether the client has to go back once more, since retention removed records before it could read them.

        Then it started over where ``auto.offset.reset`` says, which may be the end.

        Args:
            partition: The client was told to go back in it.
            offset: Of the first record that came then.
        """
        if partition.read is None or offset <= partition.read:
            return False
        low = self._low_of(partition)
        if low is None or low <= partition.read:  # a gap, of a transaction or of compaction
            return False
        partition.current_reread = None  # it may begin below the low watermark now
        if offset <= low:
            return False
        self._seek(partition, low)
        partition.read = low
        return True

    # Within ----------------------------------------------------------------------------------------------------

    def _begin(self, at: Any, begins: Begins) -> None:
        source = at.topic, at.partition
        self._records.forget(source)
        partition = self.known[source] = Partition(source, begins, start=at.offset if at.offset >= 0 else None)
        partition.restore(Mark.decode(at.metadata))

    def _start(self, assigned: Any, committed: Any) -> Start:
        if committed is None:
            return Start(assigned, assigned, "sought" if assigned.offset >= 0 else "reset")
        if committed.offset < 0:
            return Start(assigned, committed, "reset")
        low = self._low(committed) if Mark.decode(committed.metadata) is not None else None
        if low is None or low <= committed.offset:
            return Start(assigned, committed, "committed")
        moved = vendor().TopicPartition(committed.topic, committed.partition, low, committed.metadata)
        return Start(moved, moved, "committed", is_moved=True)

    def _committed(self, asked: list[Any]) -> list[Any]:
        """Return the group's committed offsets; without an answer payloads may be delivered twice."""
        try:
            return list(self._native.committed(asked, timeout=_ASK_SECONDS))
        except (vendor().KafkaException, RuntimeError) as error:
            _log.warning("failed to read committed offsets; delivered payloads may be delivered again: %s", error)
            return asked

    def _low_of(self, partition: Partition) -> int | None:
        topic, number = partition.source
        return self._low(vendor().TopicPartition(topic, number))

    def _low(self, place: Any) -> int | None:
        """Return the low watermark; ``None`` where the broker does not answer; it is not asked again for a while."""
        if self._clock() < self._ask_again_at:
            return None
        try:
            low, _ = self._native.get_watermark_offsets(place, timeout=_ASK_SECONDS)
        except vendor().KafkaException as error:
            self._ask_again_at = self._clock() + _ASK_SECONDS
            _log.warning("%s[%d]: failed to read the low watermark: %s", place.topic, place.partition, error)
            return None
        return int(low)

    def _is_time_to_reread(self, partition: Partition) -> bool:
        if not partition.rereads:
            return False
        current = partition.rereads.get(partition.current_reread) if partition.current_reread else None
        if current is not None:  # it completes or expires, unless its first record did not come
            longest = 2 * self._wait_seconds + _STUCK_SECONDS if self._wait_seconds else math.inf
            return self._clock() - current.since > longest
        if not self._records.resolver.pending_payloads and not partition.is_rereading:
            return True
        return self._clock() - min(each.since for each in partition.rereads.values()) > self._wait_seconds

    def _reread(self, partition: Partition) -> list[ReadyMessage]:
        low = self._low_of(partition)
        if low is None:
            return []
        gone = [payload for payload, each in partition.rereads.items() if each.first < low]
        if gone:
            return [self._records.removed(partition, payload, low) for payload in gone]
        payload, oldest = min(partition.rereads.items(), key=lambda item: item[1].first)
        partition.current_reread, oldest.since = payload, self._clock()
        if partition.read is None or partition.read > oldest.first:  # else it will be met
            self._go_back(partition, oldest.first)
        return []

    def _look_back(self, partition: Partition, target: int) -> bool:
        """Go back before the group's offset."""
        if target >= (partition.start or 0):
            return False
        partition.searched = target
        self._records.forget(partition.source)  # a duplicate that was met first must not complete what was delivered
        self._go_back(partition, target)
        return True

    def _go_back(self, partition: Partition, offset: int) -> None:
        """Read again from a lower offset; what was delivered is skipped."""
        self._seek(partition, offset)
        partition.go_back(offset)

    def _seek(self, partition: Partition, offset: int) -> None:
        topic, number = partition.source
        self._native.seek(vendor().TopicPartition(topic, number, offset))


class Rebalances:
    """Keeps what is raised within a rebalance, for the consumer's method that the user called.

    A `KafkaError` is not an exception class: only a bare ``except`` would catch it.

    Attributes:
        kept: The exception to raise, if there is one.
    """

    def __init__(self) -> None:
        self.kept: Exception | None = None

    def call(self, callback: Callable[[Any, list[Any]], None] | None, consumer: Any, partitions: list[Any]) -> None:
        """Call a callback of the user's, if there is one."""
        try:
            if callback is not None:
                callback(consumer, partitions)
        except Exception as error:
            self.kept = self.kept or error

    def assign(self, native: Any, places: list[Any]) -> None:
        """Assign partitions from given offsets, by the group's protocol."""
        try:
            try:
                native.incremental_assign(places)
            except vendor().KafkaException as error:
                if error.args[0].code() != vendor().KafkaError._STATE:
                    raise
                native.assign(places)  # an eager protocol
        except Exception as error:
            self.kept = self.kept or error

    def raise_kept(self) -> None:
        """Raise what was kept, once."""
        kept, self.kept = self.kept, None
        if kept is not None:
            raise kept
