"""Turns records of the client into messages of whole payloads, and tracks chunks. Makes no calls to the client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from typing import Literal as OneOf

from claimcheck._assembler import Identity, Slot
from claimcheck._envelope import Abort, Chunk
from claimcheck._resolver import Dropped, Failed, Outcome, Resolved, Resolver
from claimcheck.errors import IncompletePayloadError
from claimcheck.transports._common.dispatch import dispatch
from claimcheck.transports.kafka._message import KafkaMessage, message_of, of_chunks
from claimcheck.transports.kafka._partition import Partition

if TYPE_CHECKING:
    from confluent_kafka import Message

    from claimcheck._client import ClaimCheck
    from claimcheck.transports.kafka._client import Record

__all__ = ["FirstChunk", "ReadyMessage", "RecordReader"]

_log = logging.getLogger(__name__)

FirstChunk = OneOf["awaited", "reading", "removed"]
"""State of a payload's first chunk: it may still arrive, the client was sent back for it, or retention removed it."""


@dataclass(slots=True, eq=False)
class ReadyMessage:
    """A message that is ready for the caller.

    Attributes:
        partition: Its partition; ``None`` for an event of the client.
        message: The message, or the client's own.
        first: The lowest offset of its records.
        last: The highest offset of its records.
        outcome: The resolver's outcome, if it came as chunks.
    """

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

    def fetch(self, executor: Executor) -> None:
        """Start reading the payload."""
        if isinstance(self.message, KafkaMessage):
            self.message.fetch(executor)


class RecordReader:
    """Turns records into messages, and tracks chunks. For one thread.

    Args:
        cc: A `claimcheck.ClaimCheck` with the writers' stores.
        max_redeliveries: How often an incomplete payload is read again; ``None`` for ``chunking.max_redeliveries``.
        find_first: Looks for the first chunk of a payload; takes a later one and its offset.
        starts_late: Whether the user chose to start in the middle of the partition.
        clock: Seconds, monotonic.

    Attributes:
        resolver: Holds the chunks.
        busy: Whether chunks are in memory or will be read again.
    """

    def __init__(
        self,
        cc: ClaimCheck,
        *,
        max_redeliveries: int | None,
        find_first: Callable[[Partition, Chunk, int], FirstChunk],
        starts_late: Callable[[Partition], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cc = cc
        self._find_first = find_first
        self._starts_late = starts_late
        self._clock = clock
        self._partitions: dict[object, Partition] = {}
        self.resolver: Resolver = cc.resolver(clock=clock, max_redeliveries=max_redeliveries)
        self.busy = False

    def take(self, partition: Partition, native: Record) -> list[ReadyMessage]:
        """Take a record that begins with the header; returns the messages that it completes, if any."""
        content = dispatch(self._cc, native.value() or b"", native.headers)
        if isinstance(content, Chunk | Abort):
            return self._chunk(partition, native, content)
        if not partition.wants(offset := native.offset(), offset, None):
            return []
        return [ReadyMessage(partition, message_of(native, content), offset, offset)]

    def tick(self) -> list[ReadyMessage]:
        """Expire incomplete payloads; returns messages for those that are reported."""
        messages = self._ready_messages(self.resolver.tick())
        self.busy = bool(self.resolver.pending_payloads) or any(each.rereads for each in self._partitions.values())
        return messages

    def settle(self, partition: Partition, outcome: Outcome) -> None:
        """Mark all records of a payload as done: it was delivered or skipped."""
        unread = partition.end(outcome.identity) if outcome.identity is not None else []
        self.resolver.settle(replace(outcome, slots=[*unread, *outcome.slots]), acked=True)

    def removed(self, partition: Partition, payload: Identity, low: int) -> ReadyMessage:
        """Report a payload that was to be read again, but now begins below the low watermark."""
        failure = partition.rereads[payload].dropped.as_failed()
        seen, total = (getattr(failure.error, name, None) for name in ("seen", "total"))
        return self._report(partition, replace(failure, error=_first_removed(payload, low, seen=seen, total=total)))

    def forget(self, source: tuple[str, int] | None = None) -> None:
        """Forget the chunks of one partition, or of all."""
        self.resolver.clear(source)
        if source is None:
            self._partitions.clear()
        else:
            self._partitions.pop(source, None)

    def _chunk(self, partition: Partition, native: Record, envelope: Chunk | Abort) -> list[ReadyMessage]:
        self._partitions[partition.source] = partition
        self.busy = True
        offset, headers, key = native.offset(), native.headers(), native.key()
        payload = self.resolver.identity(partition.source, envelope.uuid, key=key)
        if partition.waits(payload):
            return []
        if partition.was_reported(payload):
            partition.skipped(offset)
            return []
        native.set_value(None)  # the resolver holds the chunk, and the headers and the key of the first one
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
            partition.source, offset, None, headers=headers, key=key, handle=native, envelope=envelope
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
        return [self._report(partition, Failed(source=partition.source, slots=[slot], identity=payload, error=error))]

    def _ready_messages(self, outcomes: Iterable[Outcome]) -> list[ReadyMessage]:
        messages = (self._ready_message(self._partitions[outcome.source], outcome) for outcome in outcomes)
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


def _is_incomplete(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, IncompletePayloadError)


def _first_removed(payload: Identity, low: int, *, seen: int | None, total: int | None) -> IncompletePayloadError:
    text = f"retention removed the first records of {payload.uuid}: its partition begins at offset {low} now"
    return IncompletePayloadError(text, uuid=payload.uuid, seen=seen, total=total)
