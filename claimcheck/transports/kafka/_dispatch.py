"""Turns native records into messages of whole payloads, and keeps account of chunks. Calls nothing of the consumer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from typing import Literal as OneOf

from claimcheck._assembler import Identity, Slot
from claimcheck._envelope import Abort, Chunk
from claimcheck._resolver import Dropped, Failed, Outcome, Resolved, Resolver
from claimcheck.errors import IncompletePayloadError
from claimcheck.transports._common.dispatch import dispatch
from claimcheck.transports.kafka._message import KafkaMessage, message_of, of_chunks
from claimcheck.transports.kafka._partition import Partition

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["Arrival", "FirstChunk", "Inbox"]

_log = logging.getLogger(__name__)

FirstChunk = OneOf["awaited", "reading", "removed"]
"""Of the first chunk of a payload: it may still come, it is searched for further back, or retention removed it."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A message that waits for its receiver.

    Attributes:
        partition: Where it came from; ``None`` for an event of the client.
        message: The message, or the native one.
        first: The lowest offset of its records.
        last: The highest.
        outcome: Of chunks.
    """

    partition: Partition | None
    message: Any
    first: int = 0
    last: int = 0
    outcome: Outcome | None = None

    @property
    def payload(self) -> Identity | None:
        """Which payload it is, if it came as chunks."""
        return self.outcome.identity if self.outcome is not None else None

    @property
    def held_bytes(self) -> int:
        """Bytes of its payload, in memory now or once it is read."""
        return len(self.message)

    @property
    def stored_bytes(self) -> int:
        """How many of them are still to be read from a store."""
        return self.message.stored_bytes if isinstance(self.message, KafkaMessage) else 0

    def fetch(self, executor: Executor) -> None:
        """Start reading the payload."""
        self.message.fetch(executor)


class Inbox:
    """Takes native records, and keeps account of chunks. For one thread.

    Args:
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        max_redeliveries: How often an incomplete payload is read again; ``None`` for ``chunking.max_redeliveries``.
        find_first: Looks for the first chunk of a payload, given a later one and its offset.
        starts_late: Whether reading a partition began in the middle because the user asked for that.
        clock: Seconds, monotonic.

    Attributes:
        busy: Whether chunks are held, or are to be read again.
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
        self._partitions: dict[tuple[str, int], Partition] = {}
        self.header = cc.config.header
        self.resolver: Resolver = cc.resolver(clock=clock, max_redeliveries=max_redeliveries)
        self.busy = False

    def take(self, partition: Partition, native: Any) -> list[Arrival]:
        """Take a record that begins with the header; returns the messages that are complete now, if any."""
        content = dispatch(self._cc, native.value(), native.headers)
        if isinstance(content, Chunk | Abort):
            return self._chunk(partition, native, content)
        if not partition.wants(offset := native.offset(), offset, None):
            return []
        return [Arrival(partition, message_of(native, content), offset, offset)]

    def tick(self) -> list[Arrival]:
        """Expire incomplete payloads; returns those that are reported."""
        arrivals = self._arrivals(self.resolver.tick())
        self.busy = bool(self.resolver.pending_payloads) or any(each.rereads for each in self._partitions.values())
        return arrivals

    def settle(self, partition: Partition, outcome: Outcome) -> None:
        """Mark all records of a payload as done: the user has it, or does not get it."""
        unread = partition.end(outcome.identity) if outcome.identity is not None else []
        self.resolver.settle(replace(outcome, slots=[*unread, *outcome.slots]), acked=True)

    def removed(self, partition: Partition, payload: Identity, low: int) -> Arrival:
        """Report a payload that was to be read again, and begins below the low watermark by now."""
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

    # Within ----------------------------------------------------------------------------------------------------

    def _chunk(self, partition: Partition, native: Any, envelope: Chunk | Abort) -> list[Arrival]:
        self._partitions[partition.source] = partition
        self.busy = True
        offset, headers, key = native.offset(), native.headers(), native.key()
        payload = self.resolver.identity(partition.source, envelope.uuid, key=key)
        if partition.waits(payload):
            return []
        if partition.was_reported(payload):
            partition.passed_over(offset)
            return []
        native.set_value(None)  # the resolver holds all three, of the headers and keys those of the first chunk only
        native.set_headers(None)
        native.set_key(None)
        if isinstance(envelope, Chunk) and self._lacks_first(partition, payload, envelope):
            where = self._find_first(partition, envelope, offset)
            if where == "reading":
                return []
            if where == "removed":
                error = _first_removed(payload, partition.low or 0, seen=1, total=envelope.count)
                return self._begun_below(partition, payload, Slot(offset, native, headers, key), error)
        return self._arrivals(
            self.resolver.feed(
                partition.source, offset, None, headers=headers, key=key, handle=native, envelope=envelope
            )
        )

    def _lacks_first(self, partition: Partition, payload: Identity, chunk: Chunk) -> bool:
        if chunk.position == 0:
            partition.missing_first.discard(payload)
        elif payload not in partition.rereads and not self.resolver.knows(payload):
            partition.missing_first.add(payload)
        return payload in partition.missing_first

    def _begun_below(
        self, partition: Partition, payload: Identity, slot: Slot, error: IncompletePayloadError
    ) -> list[Arrival]:
        """Report a payload whose first chunk was removed before it was read."""
        if slot.position < (partition.start or 0):  # below the group's offset: whoever read it knows what became of it
            return []
        return [self._report(partition, Failed(source=partition.source, slots=[slot], identity=payload, error=error))]

    def _arrivals(self, outcomes: Iterable[Outcome]) -> list[Arrival]:
        arrivals = (self._arrival(self._partitions[outcome.source], outcome) for outcome in outcomes)  # type: ignore[index]
        return [arrival for arrival in arrivals if arrival is not None]

    def _arrival(self, partition: Partition, outcome: Outcome) -> Arrival | None:
        first, last = outcome.positions[0], outcome.positions[-1]
        if self._is_skipped(partition, outcome):
            self.settle(partition, outcome)
            partition.passed_over(last)
            return None
        if isinstance(outcome, Dropped):
            return self._dropped(partition, outcome)
        if isinstance(outcome, Failed) and _is_incomplete(outcome):
            return self._report(partition, outcome)
        message = of_chunks(outcome)
        kept = replace(outcome, payload=None) if isinstance(outcome, Resolved) else outcome
        return Arrival(partition, message, first, last, kept)

    def _is_skipped(self, partition: Partition, outcome: Outcome) -> bool:
        """Whether the user does not get to know of an outcome."""
        payload = outcome.identity
        if isinstance(outcome, Dropped) and outcome.action == "ack":
            return True
        if payload is None or not (isinstance(outcome, Dropped) or _is_incomplete(outcome)):
            return not partition.wants(outcome.positions[0], outcome.positions[-1], payload)
        return partition.was_reported(payload) or self._begins_before(partition, payload, outcome)

    def _begins_before(self, partition: Partition, payload: Identity, outcome: Outcome) -> bool:
        """Whether a payload stayed incomplete because it begins before what the user asked for."""
        is_evicted = isinstance(outcome, Dropped) and outcome.reason != "expired"
        if is_evicted or payload not in partition.missing_first or not self._starts_late(partition):
            return False
        _log.info("%s[%d]: skipped a payload that begins before the start offset", *partition.source)
        return True

    def _dropped(self, partition: Partition, dropped: Dropped) -> Arrival | None:
        """Have chunks read again, or return the message that reports them."""
        payload = dropped.identity
        assert payload is not None
        has_lost_first = dropped.reason == "expired" and payload in partition.missing_first
        if dropped.action == "dead_letter" or has_lost_first:  # to read it again would not help
            return self._report(partition, dropped.as_failed())
        partition.read_again(payload, dropped, self._clock())
        self.resolver.settle(dropped, acked=False)
        return None

    def _report(self, partition: Partition, failure: Failed) -> Arrival:
        """Hand out an incomplete payload with all records seen of it."""
        payload = failure.identity
        assert payload is not None
        slots = {slot.position: slot for slot in (*partition.end(payload), *failure.slots)}
        failure = replace(failure, slots=list(slots.values()))
        first, last = failure.positions[0], failure.positions[-1]
        partition.report(payload, first)
        return Arrival(partition, of_chunks(failure), first, last, failure)


def _is_incomplete(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, IncompletePayloadError)


def _first_removed(payload: Identity, low: int, *, seen: int | None, total: int | None) -> IncompletePayloadError:
    text = f"retention removed the first records of {payload.uuid}: its partition begins at offset {low} now"
    return IncompletePayloadError(text, uuid=payload.uuid, seen=seen, total=total)
