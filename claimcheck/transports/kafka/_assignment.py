"""The assigned partitions of a consumer: their records become messages, their offsets are tracked for commits."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from claimcheck._receive.record import Identity, Slot
from claimcheck._receive.resolver import Dropped, Failed, Outcome, Resolved
from claimcheck._threads import IoThreads
from claimcheck._wire.envelope import Abort, Chunk
from claimcheck.errors import IncompletePayloadError
from claimcheck.transports._common.dispatch import dispatch, resolver_of
from claimcheck.transports.kafka._client import vendor
from claimcheck.transports.kafka._message import KafkaMessage, message_of, of_chunks
from claimcheck.transports.kafka._partition import CommitMetadata, Partition, StartReason

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

    from claimcheck._client import ClaimCheck
    from claimcheck.transports.kafka._client import Record

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 10.0
_STUCK_SECONDS = 30.0  # after this time, a record for which the client was sent back will not come any more
_LOOK_BACK = 16  # records for each missing chunk, because so many payloads may have been sent at once


FirstChunk = Literal["awaited", "reading", "removed"]
"""State of a payload's first chunk: it may still arrive, the client was sent back for it, or retention removed it."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a partition starts."""

    at: TopicPartition
    committed: TopicPartition
    reason: StartReason
    is_moved: bool = False


@dataclass(slots=True, eq=False)
class ReadyMessage:
    """A message that is ready for the caller."""

    partition: Partition | None
    message: Message
    first: int = 0
    last: int = 0
    outcome: Outcome | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of its payload, in memory now or once it is read."""
        return len(self.message)

    @property
    def stored_bytes(self) -> int:
        """Bytes that are still to be read from a store."""
        return self.message.stored_bytes if isinstance(self.message, KafkaMessage) else 0

    def fetch(self, threads: IoThreads) -> None:
        """Start reading the payload."""
        if isinstance(self.message, KafkaMessage):
            self.message.fetch(threads)

    def watch(self, on_get: Callable[[bool], None]) -> None:
        """Call a function once the payload is requested."""
        if isinstance(self.message, KafkaMessage):
            self.message.watch(on_get)


class Assignment:
    """Turns records into messages and tracks the partitions that they come from. For one thread."""

    def __init__(
        self,
        native: Consumer,
        cc: ClaimCheck,
        *,
        max_redeliveries: int | None,
        keep: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep = keep
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.resolver = resolver_of(cc, clock=clock, max_redeliveries=max_redeliveries)
        self.busy = False
        self._native = native
        self._cc = cc
        self._wait_seconds = cc.config.chunking.expire_after_seconds
        self._clock = clock
        self._no_request_before = float("-inf")

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
        """Return where partitions start: at the given offset, or else at the group's committed offset."""
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

    def end(self, revoked: Iterable[TopicPartition]) -> None:
        """Forget partitions."""
        for each in revoked:
            self._end((each.topic, each.partition))

    def end_all(self) -> None:
        """Forget all partitions."""
        for source in list(self.partitions):
            self._end(source)
        self.resolver.clear()

    def safe(self, partition: Partition, upto: int) -> TopicPartition:
        """Return the offset, with our metadata, to commit when everything below ``upto`` was processed."""
        unsettled = self.resolver.safe_position(partition.source)
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

    # Partitions

    def _end(self, source: tuple[str, int]) -> None:
        self.resolver.clear(source)
        self.partitions.pop(source, None)

    def _find_first(self, partition: Partition, chunk: Chunk, offset: int) -> FirstChunk:
        """Look for the first chunk of a payload, once before the group's offset."""
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

    def _starts_late(self, partition: Partition) -> bool:
        """Whether the user chose to start in the middle of the partition."""
        if partition.start_reason != "reset":
            return partition.start_reason == "sought"
        low = self._low_of(partition) if partition.low is None else partition.low
        return low is not None and (partition.start or 0) > low

    def was_overtaken(self, partition: Partition, offset: int) -> bool:
        """Whether retention removed records before the client, which was sent back, could read them."""
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
        self.resolver.clear(source)
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
        current = partition.rereads.get(partition.current_reread) if partition.current_reread else None
        if current is not None:  # it completes or expires, unless its first record never arrived
            longest = 2 * self._wait_seconds + _STUCK_SECONDS if self._wait_seconds else math.inf
            return self._clock() - current.since > longest
        if not self.resolver.pending_payloads and not partition.is_rereading:
            return True
        return self._clock() - min(each.since for each in partition.rereads.values()) > self._wait_seconds

    def _reread(self, partition: Partition) -> list[ReadyMessage]:
        """Seek back for a dropped payload, or report the payloads whose first records retention has removed."""
        low = self._low_of(partition)
        if low is None:
            return []
        removed = [payload for payload, each in partition.rereads.items() if each.first < low]
        if removed:
            return [self._removed(partition, payload, low) for payload in removed]
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
        self.resolver.clear(partition.source)  # a duplicate chunk seen first must not complete a delivered payload
        self._go_back(partition, target)
        return True

    def _go_back(self, partition: Partition, offset: int) -> None:
        self._seek(partition, offset)
        partition.go_back(offset)

    def _seek(self, partition: Partition, offset: int) -> None:
        self._native.seek(_place(*partition.source, offset))

    # From records to messages

    def take(self, partition: Partition, native: Record) -> list[ReadyMessage]:
        """Take a record that begins with the header; returns the messages that it completes, if any."""
        content = dispatch(self._cc, native.value() or b"", native.headers, destination=partition.source[0])
        if isinstance(content, Chunk | Abort):
            return self._chunk(partition, native, content)
        if not partition.wants(offset := native.offset(), offset, None):
            return []
        return [ReadyMessage(partition, message_of(native, content), offset, offset)]

    def tick(self, paused: Container[tuple[str, int]]) -> list[ReadyMessage]:
        """Expire incomplete payloads, and go back for those that are to be read again, except in paused partitions."""
        messages = self._ready_messages(self.resolver.tick())
        self.busy = bool(self.resolver.pending_payloads) or any(each.rereads for each in self.partitions.values())
        for partition in self.partitions.values():
            if partition.rereads and partition.source not in paused and self._reread_is_due(partition):
                messages += self._reread(partition)
        return messages

    def settle(self, partition: Partition, outcome: Outcome) -> None:
        """Mark all records of a payload as done: it was delivered or skipped."""
        unread = partition.end(outcome.identity) if outcome.identity is not None else []
        self.resolver.settle(replace(outcome, slots=[*unread, *outcome.slots]), acked=True)

    def _removed(self, partition: Partition, payload: Identity, low: int) -> ReadyMessage:
        """Report a payload that was to be read again, but now begins below the low watermark."""
        failure = partition.rereads[payload].dropped.as_failed()
        seen, total = (getattr(failure.error, name, None) for name in ("seen", "total"))
        return self._report(partition, replace(failure, error=_first_removed(payload, low, seen=seen, total=total)))

    def _chunk(self, partition: Partition, native: Record, envelope: Chunk | Abort) -> list[ReadyMessage]:
        self.busy = True
        offset, headers, key = native.offset(), native.headers(), native.key()
        payload = self.resolver.identity(partition.source, envelope.uuid, key=key)
        if partition.waits(payload):
            return []
        if partition.was_reported(payload):
            partition.skipped(offset)
            return []
        if not self._keep:  # the resolver holds the chunk, and the headers and the key of the first one
            native.set_value(None)
            native.set_headers(None)  # type: ignore[arg-type]
            native.set_key(None)
        if isinstance(envelope, Chunk) and self._lacks_first(partition, payload, envelope):
            state = self._find_first(partition, envelope, offset)
            if state == "reading":
                return []
            if state == "removed":
                error = _first_removed(payload, partition.low or 0, seen=1, total=envelope.count)
                return self._begun_below(partition, payload, Slot(offset, native, headers, key), error)
        outcomes = self.resolver.feed(
            partition.source,
            offset,
            None,
            headers=headers,
            key=key,
            handle=native,
            envelope=envelope,
            destination=partition.source[0],
        )
        return self._ready_messages(outcomes)

    def _lacks_first(self, partition: Partition, payload: Identity, chunk: Chunk) -> bool:
        if chunk.position == 0:
            partition.missing_first.discard(payload)
        elif payload not in partition.rereads and not self.resolver.knows(payload):
            partition.missing_first.add(payload)
        return payload in partition.missing_first

    def _begun_below(
        self, partition: Partition, payload: Identity, slot: Slot, error: IncompletePayloadError
    ) -> list[ReadyMessage]:
        """Report a payload whose first chunk was removed before it was read."""
        if slot.position < (partition.start or 0):  # below the group's offset: an earlier owner has handled it
            return []
        reread = partition.rereads.get(payload)
        since = reread.dropped.since if reread else None  # with it, the chunks that were dropped before are settled
        failure = Failed(source=partition.source, slots=[slot], identity=payload, since=since, error=error)
        return [self._report(partition, failure)]

    def _ready_messages(self, outcomes: Iterable[Outcome]) -> list[ReadyMessage]:
        messages = (self._ready_message(self.partitions[outcome.source], outcome) for outcome in outcomes)  # type: ignore[index]
        return [ready for ready in messages if ready is not None]

    def _ready_message(self, partition: Partition, outcome: Outcome) -> ReadyMessage | None:
        first, last = outcome.positions[0], outcome.positions[-1]
        if self._is_skipped(partition, outcome):
            self.settle(partition, outcome)
            partition.skipped(last)
            return None
        if isinstance(outcome, Dropped):
            return self._dropped(partition, outcome)
        if isinstance(outcome, Failed) and _is_incomplete(outcome):
            return self._report(partition, outcome)
        message = of_chunks(outcome)
        kept = replace(outcome, payload=None) if isinstance(outcome, Resolved) else outcome
        return ReadyMessage(partition, message, first, last, kept)

    def _is_skipped(self, partition: Partition, outcome: Outcome) -> bool:
        """Whether an outcome is not visible to the user."""
        payload = outcome.identity
        if isinstance(outcome, Dropped) and outcome.action == "ack":
            return True
        if payload is None or not (isinstance(outcome, Dropped) or _is_incomplete(outcome)):
            return not partition.wants(outcome.positions[0], outcome.positions[-1], payload)
        return partition.was_reported(payload) or self._begins_before(partition, payload, outcome)

    def _begins_before(self, partition: Partition, payload: Identity, outcome: Outcome) -> bool:
        """Whether a payload stayed incomplete because it begins before the offset that the user chose."""
        is_evicted = isinstance(outcome, Dropped) and outcome.reason != "expired"
        if is_evicted or payload not in partition.missing_first or not self._starts_late(partition):
            return False
        _log.info("%s[%d]: skipped a payload that begins before the start offset", *partition.source)
        return True

    def _dropped(self, partition: Partition, dropped: Dropped) -> ReadyMessage | None:
        """Schedule dropped chunks to be read again, or return the message that reports them."""
        payload = dropped.identity
        assert payload is not None
        lost_first = dropped.reason == "expired" and payload in partition.missing_first
        if dropped.action == "dead_letter" or lost_first:  # reading them again would not help
            return self._report(partition, dropped.as_failed())
        partition.read_again(payload, dropped, self._clock())
        self.resolver.settle(dropped, acked=False)
        return None

    def _report(self, partition: Partition, failure: Failed) -> ReadyMessage:
        """Return the message for an incomplete payload, with all of its records that were seen."""
        payload = failure.identity
        assert payload is not None
        slots = {slot.position: slot for slot in (*partition.end(payload), *failure.slots)}
        failure = replace(failure, slots=list(slots.values()))
        first, last = failure.positions[0], failure.positions[-1]
        partition.report(payload, first)
        return ReadyMessage(partition, of_chunks(failure), first, last, failure)


def _place(topic: str, number: int, offset: int = -1001, metadata: str | None = None) -> TopicPartition:
    place: TopicPartition = vendor().TopicPartition(topic, number, offset, *([] if metadata is None else [metadata]))
    return place


def _is_incomplete(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, IncompletePayloadError)


def _first_removed(payload: Identity, low: int, *, seen: int | None, total: int | None) -> IncompletePayloadError:
    text = f"retention removed the first records of {payload.uuid}: its partition begins at offset {low} now"
    return IncompletePayloadError(text, uuid=payload.uuid, seen=seen, total=total)
