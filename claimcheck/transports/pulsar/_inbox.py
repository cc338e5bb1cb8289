"""Turns native messages into payloads, for consumers and readers, without calling the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from claimcheck._receive.resolver import Dropped, Failed, Outcome, Resolved
from claimcheck._wire.envelope import Abort, Chunk
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.acknowledgement import CumulativeAcks
from claimcheck.transports._common.received import StoredPayload, dispatch, passes_plain, resolver_of
from claimcheck.transports.pulsar._message import (
    AnyMessageId,
    MessageMetadata,
    Place,
    Position,
    PulsarMessage,
    WholeMessageId,
    before,
    natives,
    position_of,
)

if TYPE_CHECKING:
    import pulsar

    from claimcheck._client import ClaimCheck

_SMALL_BYTES = 1 << 17  # copying them takes less time than calling a thread

Arrival = PulsarMessage | Dropped
"""A payload for the application, or messages that became no payload and the action to take on them."""


@dataclass(frozen=True, slots=True)
class _Delivery:
    """A chunked payload that was delivered and is not settled. ``end``: the chunk that completed it."""

    outcome: Outcome
    end: Position


class Inbox:
    """Takes native messages, and keeps track of chunks until they are settled. Thread-safe."""

    def __init__(
        self,
        cc: ClaimCheck,
        schema: pulsar.schema.Schema,
        *,
        refusal: Callable[[str], ClaimCheckError | None] = lambda topic: None,
        keep: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cc = cc
        self._schema = schema
        self._header, self._passes_plain = cc.config.header, passes_plain(cc)
        self._refusal = refusal
        self._keep = keep
        self.resolver = resolver_of(cc, clock=clock)
        self._lock = threading.RLock()
        self._behind: dict[Hashable, CumulativeAcks] = {}  # by topic, while chunks from it are not settled
        self._delivered: dict[Place, _Delivery] = {}  # by the payload's first message
        self._by_chunk: dict[Place, Outcome] = {}  # the same payloads, by each of their messages
        self._previous: pulsar.Message | None = None  # the last native message
        self._in_batch_before: dict[Place, pulsar.MessageId] = {}  # the id before a chunk in its batch

    @property
    def has_unsettled_chunks(self) -> bool:
        """Whether any chunk is held, delivered and not settled, or to be redelivered."""
        return bool(self._behind)

    def plain(self, native: pulsar.Message) -> PulsarMessage | None:
        """Take a small message that is its own payload; ``None`` for any other, which is left to `take`."""
        if native._message.length() > _SMALL_BYTES:  # not copied twice if it is a chunk, nor on an event loop
            return None
        data = native.data()
        if data.startswith(self._header) or not self._is_accepted(native):
            return None
        self._note(native)
        return PulsarMessage(native, self._schema, data)

    def take(self, native: pulsar.Message) -> Sequence[Arrival]:
        """Take one message and return the payloads that it completed; most chunks complete none."""
        data = native.data()
        if not data.startswith(self._header) and self._is_accepted(native):
            self._note(native)
            return (PulsarMessage(native, self._schema, data),)
        content = dispatch(self._cc, data, native.properties, destination=native.topic_name())
        if isinstance(content, Chunk | Abort):
            if (refusal := self._refusal(native.topic_name())) is None:
                return self._chunk(native, content)
            content = refusal
        self._note(native)
        if isinstance(content, ClaimCheckError):
            return (PulsarMessage(native, self._schema, error=content),)
        if isinstance(content, StoredPayload):
            return (PulsarMessage(native, self._schema, stored=content),)
        return (PulsarMessage(native, self._schema, bytes(content.payload)),)

    def tick(self) -> Sequence[Arrival]:
        with self._lock:
            return self._arrivals(self.resolver.tick())

    def report(self, dropped: Dropped) -> PulsarMessage:
        """Return a message for the application whose data raises the error, for messages that became no payload."""
        with self._lock:
            return self._deliver(dropped.as_failed())

    def settle(self, outcome: Outcome | None, *, acked: bool) -> None:
        """Mark the messages of a chunked payload as acknowledged or negatively acknowledged; ``None`` is ignored."""
        if outcome is None:
            return
        with self._lock:
            self.resolver.settle(outcome, acked=acked)
            delivery = self._delivered.get(_place(outcome))
            if delivery is not None and delivery.outcome is outcome:  # and no later delivery of the same
                del self._delivered[_place(outcome)]
            for place in _places(outcome):
                if self._by_chunk.get(place) is outcome:
                    del self._by_chunk[place]
                if acked:
                    self._in_batch_before.pop(place, None)
            if self.resolver.safe_position(outcome.source) is None:
                self._behind.pop(outcome.source, None)

    def settle_own(self, place: Place) -> None:
        """Forget a message that is its own payload and was acknowledged or negatively acknowledged."""
        with self._lock:
            behind = self._behind.get(place[0])
            if behind is not None:
                behind.forget(place[1])

    def find(self, message_id: AnyMessageId) -> Outcome | None:
        """Return the chunked payload of this id, if it was delivered and is not settled."""
        with self._lock:
            delivery = self._delivery_of(message_id)
            return None if delivery is None else delivery.outcome

    def settle_up_to(
        self,
        message_id: AnyMessageId,
        topic: str | None,
        outcome: Outcome | None = None,
        waiting: Sequence[Outcome] = (),
    ) -> tuple[pulsar.MessageId | None, tuple[pulsar.MessageId, ...]]:
        """Mark all up to a payload as acknowledged, except ``waiting``; returns the native ids to acknowledge."""
        with self._lock:
            source = str(next(iter(self._behind), "")) if topic is None else topic
            target, target_id = self._target(message_id)
            settled = [] if outcome is None else self._settled(outcome)
            for (topic_name, _), delivery in list(self._delivered.items()):
                is_waiting = any(delivery.outcome is each for each in waiting)
                if topic_name == source and delivery.end <= target and not is_waiting:
                    settled += self._settled(delivery.outcome)
            behind = self._behind.get(source) or CumulativeAcks()
            hole = self.resolver.safe_position(source)
            plan = behind.up_to(target, hole=hole, settled=settled)
            if plan.before is not None:
                known = self._in_batch_before.get((source, plan.before))
                target_id = known or before(plan.before, message_id.partition(), source)
        return target_id, plan.individually

    def clear(self) -> None:
        """Forget all chunks; those that were not acknowledged are redelivered."""
        with self._lock:
            self.resolver.clear()
            self._delivered.clear()
            self._by_chunk.clear()
            self._behind.clear()
            self._in_batch_before.clear()
            self._previous = None

    # Internals -------------------------------------------------------------------------------------------------

    def _is_accepted(self, native: pulsar.Message) -> bool:
        """Whether a plain message is delivered; a tombstone always is."""
        return self._passes_plain or native.has_null_value()

    def _note(self, native: pulsar.Message) -> None:
        """Remember a message that is its own payload while an older payload is not settled."""
        self._previous = native
        if self._behind:
            message_id = native.message_id()
            with self._lock:
                behind = self._behind.get(native.topic_name())
                if behind is not None:
                    behind.received(position_of(message_id), message_id)

    def _target(self, message_id: AnyMessageId) -> tuple[Position, pulsar.MessageId]:
        """Return how far to acknowledge cumulatively: to the chunk that completed the payload, not to duplicates."""
        delivery = self._delivery_of(message_id)
        if delivery is None:
            return position_of(message_id), natives(message_id)[-1]
        ids = (slot.handle.message_id for slot in delivery.outcome.slots if slot.position == delivery.end)
        return delivery.end, next(ids)

    def _settled(self, outcome: Outcome) -> list[tuple[Position, pulsar.MessageId]]:
        self.settle(outcome, acked=True)
        return [(slot.position, slot.handle.message_id) for slot in outcome.slots]

    def _delivery_of(self, message_id: AnyMessageId) -> _Delivery | None:
        if not isinstance(message_id, WholeMessageId):
            return None
        return self._delivered.get((message_id.topic, position_of(message_id.first)))

    def _chunk(self, native: pulsar.Message, envelope: Chunk | Abort) -> Sequence[Arrival]:
        handle = MessageMetadata.of(native, keep=self._keep)
        place = handle.topic_name, position_of(handle.message_id)
        with self._lock:
            self._behind.setdefault(handle.topic_name, CumulativeAcks())
            self._note_batch(place, handle.message_id)
            # The broker may redeliver chunks that were delivered and not acknowledged: that is another attempt.
            self.settle(self._by_chunk.get(place), acked=False)
            self._previous = native
            outcomes = self.resolver.feed(
                *place,
                None,
                headers=native.properties(),
                key=native.partition_key(),
                handle=handle,
                writer=handle.producer_name,
                envelope=envelope,
                destination=handle.topic_name,
            )
            return self._arrivals(outcomes)

    def _note_batch(self, place: Place, message_id: pulsar.MessageId) -> None:
        """Remember the id before a chunk in its batch, with which the part of the batch before it is acknowledged."""
        self._in_batch_before.pop(place, None)
        if message_id.batch_index() < 1 or self._previous is None:
            return
        previous = self._previous.message_id()
        if position_of(previous)[:2] == place[1][:2] and previous.batch_index() < message_id.batch_index():
            self._in_batch_before[place] = previous

    def _arrivals(self, outcomes: Sequence[Outcome]) -> list[Arrival]:
        return [outcome if isinstance(outcome, Dropped) else self._deliver(outcome) for outcome in outcomes]

    def _deliver(self, outcome: Resolved | Failed) -> PulsarMessage:
        error = outcome.error if isinstance(outcome, Failed) else None
        payload = outcome.payload if isinstance(outcome, Resolved) else None
        # The payload belongs to the caller, who may free it before it is settled.
        kept = replace(outcome, payload=None) if isinstance(outcome, Resolved) else outcome
        self._delivered[_place(kept)] = _Delivery(kept, kept.positions[-1])
        self._by_chunk.update(dict.fromkeys(_places(kept), kept))
        if isinstance(payload, StoredPayload):
            return PulsarMessage(None, self._schema, outcome=kept, stored=payload)
        return PulsarMessage(None, self._schema, outcome=kept, payload=payload, error=error)


def _places(outcome: Outcome) -> list[Place]:
    return [(outcome.source, slot.position) for slot in outcome.slots]


def _place(outcome: Outcome) -> Place:
    return outcome.source, outcome.positions[0]
