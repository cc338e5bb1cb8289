"""One partition of a consumer: its offsets, its messages, and incomplete payloads that are read again or reported."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard

from claimcheck._receive.record import Identity, Slot
from claimcheck._receive.resolver import Dropped, Failed, Outcome, Resolved, Resolver
from claimcheck._wire.envelope import Abort, Chunk
from claimcheck.errors import IncompletePayloadError
from claimcheck.transports._common.received import StoredPayload
from claimcheck.transports.kafka._client import vendor
from claimcheck.transports.kafka._message import message_of, of_chunks, stored_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

    from claimcheck.transports.kafka._client import Record

_log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
_STUCK_SECONDS = 30.0  # after this time, a record for which the client was sent back will not come any more
_LOOK_BACK = 16  # records for each missing chunk, because so many payloads may have been sent at once
_MAX_REPORTED = 10_000
_METADATA = "claimcheck:1"
_MAX_CHARACTERS = 4000  # the broker's offset.metadata.max.bytes is 4,096 by default, and counts characters
MAX_SPANS = 10_000

Source = tuple[str, int]

StartReason = Literal["committed", "sought", "reset"]
"""Reading began at the group's offset, at an offset that the user chose, or where ``auto.offset.reset`` says."""


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """Committed with an offset: all payloads below ``upto`` were delivered, except for those at ``owed``."""

    upto: int
    owed: frozenset[int] = frozenset()

    def encode(self) -> str:
        """Return the text to commit, or an empty one if it would be too long; then payloads are delivered again."""
        text = f"{_METADATA};{self.upto};{','.join(map(str, sorted(self.owed)))}"
        return text if len(text) <= _MAX_CHARACTERS else ""

    @classmethod
    def decode(cls, text: str | None) -> Self | None:
        """Parse commit metadata; returns ``None`` if it is not ours."""
        name, _, rest = (text or "").rstrip("\0").partition(";")  # other clients see librdkafka's NUL
        upto, _, owed = rest.partition(";")
        if name != _METADATA or not upto.isdecimal():
            return None
        return cls(int(upto), frozenset(int(offset) for offset in owed.split(",") if offset.isdecimal()))


@dataclass(slots=True, eq=False)
class Offsets:
    """The offsets of a partition while it is assigned."""

    start: int | None = None
    read: int | None = None  # the next one that the client returns
    went_back: bool = False  # the client was sent there, and has not returned a record since
    taken: int = 0  # after the last record that became a message
    position: int | None = None  # after everything that was delivered
    changed: bool = False  # since offsets were stored
    stored: TopicPartition | None = None
    skip_below: int = 0  # delivered, except for what begins at one of `undelivered`
    undelivered: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)  # first ones of payloads in chunks that are to be returned
    spans: list[tuple[int, int]] = field(default_factory=list)  # last and first offset of delivered messages
    _done_before: int = 0

    def restore(self, metadata: CommitMetadata | None) -> None:
        """Continue where an earlier owner stopped; an incomplete payload held back its commit."""
        if metadata is not None:
            self.skip_below = self._done_before = metadata.upto
            self.undelivered = set(metadata.owed)
            self.read, self.went_back = self.start, True

    def go_back(self, offset: int) -> None:
        """Record that the client was sent back to an offset; delivered payloads will be skipped."""
        self.skip_below = max(self.skip_below, self.taken, self.start or 0)
        self.read, self.went_back = offset, True

    @property
    def is_rereading(self) -> bool:
        return self.read is not None and self.read < self.skip_below

    def delivered_plain(self, offset: int) -> None:
        """Record that a record was delivered as soon as the client returned it."""
        self.read = self.taken = self.position = offset + 1
        self.changed = True

    def delivered(self, first: int, last: int) -> None:
        self.changed = True
        self.undelivered.discard(first)
        self.waiting.discard(first)
        self.position = max(last + 1, self.position or 0, self._done_before)
        if first < last:
            self.spans.append((last, first))
            if len(self.spans) > MAX_SPANS:  # nothing is committed: deliver twice rather than grow without bound
                (late, early), (later, earlier), *rest = self.spans
                self.spans = [(max(late, later), min(early, earlier)), *rest]

    def skipped(self, offset: int) -> None:
        """Record that a record became no message; the position moves past it if everything before was delivered."""
        if self.position is not None and self.taken <= self.position <= offset and not self.is_rereading:
            self.taken = self.position = offset + 1
            self.changed = True

    def safe(self, upto: int, unsettled: int | None) -> int:
        """Return the highest offset that may be committed."""
        bounds = [upto, *self.waiting, *(first for last, first in self.spans if last >= upto)]
        if unsettled is not None:
            bounds.append(unsettled)
        at = self.start if self.read is None else self.read
        if at is not None and at < self.skip_below:  # reading again: chunks further on are not in memory yet
            bounds.append(at)
        return min(bounds)

    def metadata(self, upto: int, waiting: Iterable[int] = ()) -> CommitMetadata:
        """Return the metadata to commit with an offset below ``upto``, when payloads wait to be read again."""
        return CommitMetadata(upto, frozenset(first for first in self.undelivered.union(waiting) if first < upto))

    def forget_below(self, upto: int) -> None:
        self.spans = [span for span in self.spans if span[0] >= upto]


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
        return len(self.message)

    @property
    def stored(self) -> StoredPayload | None:
        return stored_of(self.message)


@dataclass(eq=False)
class Assignment:
    """The partitions of a consumer, and what they share. For one thread."""

    native: Consumer
    resolver: Resolver
    decode: Callable[..., Any]
    clock: Callable[[], float]
    keeps_chunks: bool
    wait_seconds: float
    partitions: dict[Source, Partition] = field(default_factory=dict)
    busy: bool = False
    _no_request_before: float = -math.inf

    def of(self, native: Record) -> Partition:
        """Return the partition of a record; one that was not assigned through this consumer starts here."""
        source = native.topic(), native.partition()
        partition = self.partitions.get(source)
        if partition is None:
            partition = self.partitions[source] = Partition(self, source)
        if partition.offsets.start is None:
            partition.offsets.start = native.offset()
        return partition

    def find(self, at: TopicPartition) -> Partition | None:
        return self.partitions.get((at.topic, at.partition))

    def begin(self, at: TopicPartition, reason: StartReason) -> None:
        """Begin to track a partition; forget everything about it that is from before."""
        source = at.topic, at.partition
        self.resolver.clear(source)
        partition = self.partitions[source] = Partition(self, source, reason)
        partition.offsets.start = at.offset if at.offset >= 0 else None
        partition.offsets.restore(CommitMetadata.decode(at.metadata))

    def end(self, revoked: Iterable[Source]) -> None:
        for source in revoked:
            self.resolver.clear(source)
            self.partitions.pop(source, None)

    def low(self, source: Source) -> int | None:
        """Return the low watermark, or ``None`` if the broker does not answer; then wait before the next request."""
        if self.clock() < self._no_request_before:
            return None
        try:
            low, _ = self.native.get_watermark_offsets(place(source), timeout=TIMEOUT_SECONDS)
        except vendor().KafkaException as error:
            self._no_request_before = self.clock() + TIMEOUT_SECONDS
            _log.warning("%s[%d]: failed to read the low watermark: %s", *source, error)
            return None
        return int(low)

    def messages(self, outcomes: Iterable[Outcome]) -> list[ReadyMessage]:
        found = (self.partitions[outcome.source].message_for(outcome) for outcome in outcomes)  # type: ignore[index]
        return [ready for ready in found if ready is not None]

    def tick(self, paused: set[Source]) -> list[ReadyMessage]:
        """Expire incomplete payloads, and go back for those that are to be read again, except in paused partitions."""
        messages = self.messages(self.resolver.tick())
        self.busy = bool(self.resolver.pending_payloads) or any(each.rereads for each in self.partitions.values())
        for partition in self.partitions.values():
            if partition.rereads and partition.source not in paused:
                messages += partition.reread()
        return messages


@dataclass(slots=True)
class Reread:
    """A payload whose chunks were dropped and will be read again."""

    first: int
    skip_below: int
    since: float
    dropped: Dropped
    slots: dict[int, Slot] = field(default_factory=dict)


class Partition:
    """The state of one partition while it is assigned.

    It *reads*; it *looks back* for the first chunk of a payload that begins before the group's offset; or it *rereads*
    a payload whose chunks were dropped, for which other dropped payloads *wait*.
    """

    def __init__(self, shared: Assignment, source: Source, reason: StartReason = "reset") -> None:
        self.source = source
        self.offsets = Offsets()
        self._shared = shared
        self._reason = reason
        self._low: int | None = None  # when it looked back, for the first time
        self._searched = 0  # everything from here on was read
        self._missing_first: set[Identity] = set()
        self.rereads: dict[Identity, Reread] = {}
        self._current: Identity | None = None  # of them, until it is dropped again
        self._reported: dict[Identity, None] = {}  # incomplete, oldest first

    def safe(self, upto: int) -> TopicPartition:
        """Return the offset, with our metadata, to commit when everything below ``upto`` was processed."""
        held = self._shared.resolver.safe_position(self.source)
        firsts = [each.first for each in self.rereads.values()]  # the resolver forgets them when it looks back
        offset = self.offsets.safe(upto, min(firsts if held is None else [held, *firsts], default=None))
        self.offsets.forget_below(upto)
        if offset == upto:
            return place(self.source, offset)
        return place(self.source, offset, self.offsets.metadata(upto, firsts).encode())

    def settle(self, outcome: Outcome) -> None:
        """Mark all records of a payload as done: it was delivered or skipped."""
        for each in (*self._end(outcome.identity), outcome):  # one of them may be from before it looked back
            self._shared.resolver.settle(each, acked=True)

    # From records to messages

    def take(self, native: Record, *, is_plain: bool) -> list[ReadyMessage]:
        offset = native.offset()
        if self.offsets.went_back and self._was_overtaken(offset):
            return []
        self.offsets.read, self.offsets.went_back = offset + 1, False
        if is_plain:
            return [ReadyMessage(self, native, offset, offset)] if offset >= self.offsets.skip_below else []
        content = self._shared.decode(native.value() or b"", native.headers, destination=self.source[0])
        if isinstance(content, Chunk | Abort):
            return self._take_chunk(native, content)
        return [ReadyMessage(self, message_of(native, content), offset, offset)] if self._wants(offset, offset) else []

    def _take_chunk(self, native: Record, envelope: Chunk | Abort) -> list[ReadyMessage]:
        shared, offset, headers, key = self._shared, native.offset(), native.headers(), native.key()
        shared.busy = True
        payload = shared.resolver.identity(self.source, envelope.uuid, key=key)
        if self._waits(payload):
            return []
        if payload in self._reported:
            self.offsets.skipped(offset)
            return []
        if not shared.keeps_chunks:  # the resolver holds the chunk, and the headers and the key of the first one
            native.set_value(None)
            native.set_headers(None)  # type: ignore[arg-type]
            native.set_key(None)
        if isinstance(envelope, Chunk) and self._lacks_first(payload, envelope):
            state = self._find_first(envelope, offset)
            if state == "reading":
                return []
            if state == "removed":
                return self._begun_below(payload, Slot(offset, native, headers, key), envelope.count)
        outcomes = shared.resolver.feed(
            self.source, offset, None, headers=headers, key=key, handle=native, envelope=envelope,
            destination=self.source[0],
        )  # fmt: skip
        return shared.messages(outcomes)

    def message_for(self, outcome: Outcome) -> ReadyMessage | None:
        """Return the message for what became of a payload in chunks; ``None`` if the user does not see it."""
        first, last = outcome.positions[0], outcome.positions[-1]
        if self._is_skipped(outcome):
            self.settle(outcome)
            self.offsets.skipped(last)
            return None
        if isinstance(outcome, Dropped):
            return self._drop(outcome)
        if _is_incomplete(outcome):
            return self._report(outcome)
        kept = replace(outcome, payload=None) if isinstance(outcome, Resolved) else outcome
        return ReadyMessage(self, of_chunks(outcome), first, last, kept)

    def _wants(self, first: int, last: int, payload: Identity | None = None) -> bool:
        reread = self.rereads.get(payload) if payload is not None else None
        skip_below = reread.skip_below if reread else self.offsets.skip_below
        return last >= skip_below or first in self.offsets.undelivered

    def _is_skipped(self, outcome: Outcome) -> bool:
        payload = outcome.identity
        if isinstance(outcome, Dropped) and outcome.action == "ack":
            return True
        if payload is None or not (isinstance(outcome, Dropped) or _is_incomplete(outcome)):
            return not self._wants(outcome.positions[0], outcome.positions[-1], payload)
        return payload in self._reported or self._begins_before(payload, outcome)

    def _begins_before(self, payload: Identity, outcome: Outcome) -> bool:
        """Whether a payload stayed incomplete because it begins before the offset that the user chose."""
        is_evicted = isinstance(outcome, Dropped) and outcome.reason != "expired"
        if is_evicted or payload not in self._missing_first or not self._starts_late():
            return False
        _log.info("%s[%d]: skipped a payload that begins before the start offset", *self.source)
        return True

    def _report(self, failure: Failed) -> ReadyMessage:
        """Return the message for an incomplete payload, with all of its records that were seen; it skips later ones."""
        payload = failure.identity
        assert payload is not None
        slots = {slot.position: slot for each in (*self._end(payload), failure) for slot in each.slots}
        failure = replace(failure, slots=list(slots.values()))
        first, last = failure.positions[0], failure.positions[-1]
        self.offsets.undelivered.add(first)
        self._mark_reported(payload)
        return ReadyMessage(self, of_chunks(failure), first, last, failure)

    def _mark_reported(self, payload: Identity) -> None:
        self._reported[payload] = None
        if len(self._reported) > _MAX_REPORTED:
            del self._reported[next(iter(self._reported))]

    def _end(self, payload: Identity | None) -> list[Dropped]:
        """Forget a payload that has ended; returns what is unsettled because it was to be read again."""
        self._missing_first.discard(payload)
        reread = self.rereads.pop(payload, None)  # type: ignore[arg-type]
        return [replace(reread.dropped, slots=list(reread.slots.values()))] if reread else []

    # Looking back

    def _lacks_first(self, payload: Identity, chunk: Chunk) -> bool:
        if chunk.position == 0:
            self._missing_first.discard(payload)
        elif payload not in self.rereads and not self._shared.resolver.knows(payload):
            self._missing_first.add(payload)
        return payload in self._missing_first

    def _find_first(self, chunk: Chunk, offset: int) -> Literal["awaited", "reading", "removed"]:
        """Look for a payload's first chunk, once before the group's offset, unless retention removed it."""
        start, reach = self.offsets.start or 0, _LOOK_BACK * (chunk.position + 64)
        if self._reason == "sought" or offset >= start + reach:
            return "awaited"
        if self._low is None:
            self._low, self._searched = self._shared.low(self.source), start
            if self._low is None:
                return "awaited"
            target = max(self._low, start - reach)
            if self._reason == "committed" and target < start:
                self._searched = target
                self._shared.resolver.clear(self.source)  # a duplicate seen first must not complete a delivered payload
                self._go_back(target)
                return "reading"
        return "removed" if self._searched <= self._low and self._low > 0 else "awaited"

    def _starts_late(self) -> bool:
        """Whether the user chose to start in the middle of the partition."""
        if self._reason != "reset":
            return self._reason == "sought"
        low = self._shared.low(self.source) if self._low is None else self._low
        return low is not None and (self.offsets.start or 0) > low

    def _begun_below(self, payload: Identity, slot: Slot, count: int) -> list[ReadyMessage]:
        """Report a payload whose first chunk was removed before it was read."""
        if slot.position < (self.offsets.start or 0):  # below the group's offset: an earlier owner has reported it
            self._end(payload)  # it is not read again
            self._mark_reported(payload)
            return []
        reread = self.rereads.get(payload)
        since = reread.dropped.since if reread else None  # with it, the chunks that were dropped before are settled
        error = _first_removed(payload, self._low or 0, 1, count)
        return [self._report(Failed(source=self.source, slots=[slot], identity=payload, since=since, error=error))]

    # Rereading

    def _waits(self, payload: Identity) -> bool:
        """Whether a payload will be read again after another one."""
        if payload not in self.rereads or self._current in (None, payload):
            return False
        current = self.rereads.get(self._current)
        return any(each is not None and each.dropped.reason != "expired" for each in (current, self.rereads[payload]))

    def _drop(self, dropped: Dropped) -> ReadyMessage | None:
        """Schedule dropped chunks to be read again, or return the message that reports them."""
        payload, now = dropped.identity, self._shared.clock()
        assert payload is not None
        lost_first = dropped.reason == "expired" and payload in self._missing_first
        if dropped.action == "dead_letter" or lost_first:  # reading them again would not help
            return self._report(dropped.as_failed())
        first = dropped.positions[0]
        reread = self.rereads.get(payload)
        if reread is None:
            reread = self.rereads[payload] = Reread(first, self.offsets.skip_below, now, dropped)
        else:  # dropped once more
            reread.first, reread.since, reread.dropped = min(reread.first, first), now, dropped
            if self._current == payload:
                self._current = None
        reread.slots.update((slot.position, slot) for slot in dropped.slots)
        self._shared.resolver.settle(dropped, acked=False)
        return None

    def reread(self) -> list[ReadyMessage]:
        """Seek back for a dropped payload, or report the payloads whose first records retention has removed."""
        if not self._reread_is_due() or (low := self._shared.low(self.source)) is None:
            return []
        if removed := [payload for payload, each in self.rereads.items() if each.first < low]:
            return [self._removed(payload, low) for payload in removed]
        payload, oldest = min(self.rereads.items(), key=lambda item: item[1].first)
        self._current, oldest.since = payload, self._shared.clock()
        if self.offsets.read is None or self.offsets.read > oldest.first:  # otherwise reading gets there anyway
            self._go_back(oldest.first)
        return []

    def _reread_is_due(self) -> bool:
        shared, now = self._shared, self._shared.clock()
        current = self.rereads.get(self._current) if self._current else None
        if current is not None:  # it completes or expires, unless its first record never arrived
            longest = 2 * shared.wait_seconds + _STUCK_SECONDS if shared.wait_seconds else math.inf
            return now - current.since > longest
        if not shared.resolver.pending_payloads and not self.offsets.is_rereading:
            return True
        return now - min(each.since for each in self.rereads.values()) > shared.wait_seconds

    def _removed(self, payload: Identity, low: int) -> ReadyMessage:
        """Report a payload that was to be read again, but now begins below the low watermark."""
        failure = self.rereads[payload].dropped.as_failed()
        seen, total = (getattr(failure.error, name, None) for name in ("seen", "total"))
        return self._report(replace(failure, error=_first_removed(payload, low, seen, total)))

    def _was_overtaken(self, offset: int) -> bool:
        """Whether retention removed records before the client, which was sent back, could read them."""
        read = self.offsets.read
        if read is None or offset <= read:
            return False
        low = self._shared.low(self.source)
        if low is None or low <= read:  # a gap left by a transaction or by compaction
            return False
        self._current = None  # it may begin below the low watermark now
        if offset <= low:
            return False
        self._seek(low)
        self.offsets.read = low
        return True

    def _go_back(self, offset: int) -> None:
        self._seek(offset)
        self.offsets.go_back(offset)

    def _seek(self, offset: int) -> None:
        self._shared.native.seek(place(self.source, offset))


def place(source: Source, offset: int = -1001, metadata: str | None = None) -> TopicPartition:
    made: TopicPartition = vendor().TopicPartition(*source, offset, *([] if metadata is None else [metadata]))
    return made


def _is_incomplete(outcome: Outcome) -> TypeGuard[Failed]:
    return isinstance(outcome, Failed) and isinstance(outcome.error, IncompletePayloadError)


def _first_removed(payload: Identity, low: int, seen: int | None, total: int | None) -> IncompletePayloadError:
    text = f"retention removed the first records of {payload.uuid}: its partition begins at offset {low} now"
    return IncompletePayloadError(text, uuid=payload.uuid, seen=seen, total=total)
