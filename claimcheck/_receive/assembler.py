"""Reassembly of chunks, without I/O, threads or a clock of its own.

Chunks are filed by payload, ``(source, uuid, writer)``, and message position, so order, duplicates and interleaving do
not matter. Payloads, messages and bytes in memory are bounded; the oldest payload is evicted to make room. Nothing is
dropped silently: messages that do not become a payload are returned as `Discarded` or `Broken` events, with their
handles, and the transport acts on them. Every incomplete payload ends: it completes, or it is redelivered
``max_redeliveries`` times and then reported.

Every payload has one record while it is incomplete, which is kept for a while afterwards: a late duplicate is
acknowledged with its payload, and late chunks of an evicted payload get the same action as the earlier ones.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from claimcheck._receive.chunk_rules import conflict, error_of, fault_of, incomplete, too_large
from claimcheck._receive.record import Identity, Pieces, Position, Record, Slot
from claimcheck._wire import headers as hints
from claimcheck._wire.checksum import crc32
from claimcheck._wire.digest import Crc32
from claimcheck._wire.envelope import Chunk
from claimcheck.config import Action, ChunkingConfig
from claimcheck.errors import ClaimCheckError, IncompletePayloadError

_REMEMBERED = 10_000  # finished payloads, and payloads that were redelivered
_REMEMBERED_POSITIONS = 1_000_000  # of the messages of finished payloads
_EXPIRED = "chunking.expire_after_seconds ({:g}) passed"


class Assembler:
    """Takes chunks and returns events. Not thread-safe."""

    def __init__(self, config: ChunkingConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._max_bytes, self._max_bytes_option = min(
            (config.max_payload_bytes, "max_payload_bytes"), (config.max_pending_bytes, "max_pending_bytes")
        )
        self._open: OrderedDict[Identity, Record] = OrderedDict()  # oldest first
        self._closed: OrderedDict[Identity, Record] = OrderedDict()
        self._waiting = list[AssemblyEvent]()  # for the next `tick`
        self._redelivered: OrderedDict[Identity, int] = OrderedDict()  # count by payload; survives `clear`
        self.due: float | None = None
        self.pending_bytes = 0
        self._largest_delivered = 0  # bytes
        self._held = 0  # messages of incomplete payloads
        self._remembered_positions = 0

    @property
    def pending_payloads(self) -> int:
        return len(self._open)

    def __repr__(self) -> str:
        return f"<Assembler {self.pending_payloads} pending, {self.pending_bytes} bytes>"

    def feed(self, source: Hashable, slot: Slot, chunk: Chunk) -> list[AssemblyEvent]:
        """Add one chunk and return the resulting events. Nothing expires here: see `tick`."""
        claims = hints.declared(slot.headers)
        identity = Identity(source, chunk.uuid, slot.writer)
        known = self._closed.get(identity)
        late = None if known is None else self._late(known, slot, chunk)
        return self._file(identity, slot, chunk, claims) if late is None else late

    def abort(self, source: Hashable, slot: Slot, uuid: str) -> Discarded:
        """Discard the chunks of this writer's payload, now and later, to be acknowledged."""
        identity = Identity(source, uuid, slot.writer)
        known = self._closed.get(identity)
        if known is not None and known.state != "dropped":  # it was complete before
            return Discarded(known, [slot], "aborted", "ack")
        record = self._open.get(identity) or Record(identity, 0, self._clock())
        self._hold(record, slot)
        seen = len(record.numbers)
        error = IncompletePayloadError(f"the writer of {uuid} aborted it after {seen} chunks", uuid=uuid, seen=seen)
        return self._drop(record, "aborted", "ack", error)

    def tick(self) -> list[AssemblyEvent]:
        """Expire payloads that have been incomplete for too long. Returns at once before `due`."""
        if self.due is None or (now := self._clock()) < self.due:
            return []
        events, self._waiting, self.due = self._waiting, [], None
        limit = self._config.expire_after_seconds
        while limit and self._open:
            record = next(iter(self._open.values()))
            if now < record.first_seen + limit:
                self.due = record.first_seen + limit
                break
            events.append(self._give_up(record, "expired", self._config.on_expire, _EXPIRED.format(limit)))
        return events

    def knows(self, identity: Identity) -> bool:
        """Whether a message of this payload arrived before and is still remembered."""
        return identity in self._open or identity in self._closed

    def acked(self, attempt: Record, settled: Iterable[Slot] = ()) -> None:
        """Record that a payload was acknowledged. Duplicates of its messages are acknowledged, too."""
        self._redelivered.pop(attempt.identity, None)
        again = self._open.get(attempt.identity)
        if again is not None:
            self._end(again, attempt, {slot.position for slot in settled})
        record = self._closed.get(attempt.identity)
        if record is None:  # negatively acknowledged before
            record = attempt
            self._remember(record)
        if record.state == "dropped":
            return
        if isinstance(record.error, IncompletePayloadError):  # late chunks are reported together, as a new attempt
            self.forget(record.identity)
            return
        before = record.weight
        record.acked, record.slots, record.by_position, record.first = True, [], {}, None
        self._remembered_positions += record.weight - before

    def _end(self, again: Record, attempt: Record, settled: set[Position]) -> None:
        """End an attempt because an earlier one was acknowledged: its other messages are duplicates or conflicts."""
        rest, error = [slot for slot in again.slots if slot.position not in settled], again.error
        chunks = (Chunk(again.identity.uuid, n, again.count, piece) for n, piece in again.pieces)
        errors = (_contradiction(attempt, chunk) for chunk in chunks if attempt.state == "delivered")
        error = error or next((each for each in errors if each is not None), None)
        self._discard(again)
        if rest:
            late = Broken(attempt, rest, error, late=True) if error is not None else None
            self._waiting.append(late or Discarded(attempt, rest, "duplicate", "ack"))
            self.due = -math.inf

    def nacked(self, attempt: Record) -> None:
        """Record that a payload was negatively acknowledged: its redelivered chunks are a new attempt."""
        record = self._closed.get(attempt.identity)
        if record is not None and not record.acked:
            self.forget(record.identity)

    def forget(self, identity: Identity) -> None:
        record = self._closed.pop(identity, None)
        if record is not None:
            self._remembered_positions -= record.weight

    def clear(self, source: Hashable | None = None) -> list[Slot]:
        """Forget all messages from one source, or from all; returns those in memory, none of them acknowledged."""
        held: list[Slot] = []
        self._waiting = [event for event in self._waiting if source is not None and event.identity.source != source]
        for records in (self._open, self._closed):
            for identity in [identity for identity in records if source is None or identity.source == source]:
                if records is self._closed:
                    self.forget(identity)
                    continue
                held.extend(records[identity].slots)
                self._discard(records[identity])
        return held

    # Adding chunks -------------------------------------------------------------------------------------------

    def _file(
        self, identity: Identity, slot: Slot, chunk: Chunk, claims: frozenset[tuple[str, str]]
    ) -> list[AssemblyEvent]:
        record = self._open.get(identity) or self._opened(identity, slot, chunk)
        self._hold(record, slot, claims)
        events = self._make_room(record, 0)
        self._check(record, chunk)
        if record.state == "pending" and chunk.position not in record.pieces:
            events += self._make_room(record, len(chunk.piece))
            record.pieces.add(chunk.position, chunk.piece)
            self.pending_bytes += len(chunk.piece)
        record.numbers.add(chunk.position)
        return events + self._finish_if_complete(record)

    def _opened(self, identity: Identity, slot: Slot, chunk: Chunk) -> Record:
        trusted = 0 if self._open else self._largest_delivered  # for one payload at a time
        pieces = Pieces(hints.total_bytes(slot.headers), trusted=trusted)
        record = self._open[identity] = Record(identity, chunk.count, self._clock(), pieces=pieces)
        limit = self._config.expire_after_seconds
        if limit and self.due is None:
            self.due = record.first_seen + limit
        return record

    def _hold(self, record: Record, slot: Slot, claims: frozenset[tuple[str, str]] = frozenset()) -> None:
        if not record.hold(slot, claims) and record.identity in self._open:
            self._held += 1

    def _check(self, record: Record, chunk: Chunk) -> None:
        """Fail a payload that contradicts itself or alone exceeds a bound; its other chunks are only counted."""
        pieces, messages = record.pieces, self._config.max_pending_messages
        known = chunk.position in pieces
        fault = fault_of(
            chunk.uuid,
            chunk.position,
            chunk.count,
            total=record.count,
            seen=len(record.numbers),
            size=pieces.size + (0 if known else len(chunk.piece)),
            same=pieces[chunk.position] == chunk.piece if known else None,
            max_chunks=self._config.max_chunks,
            max_bytes=self._max_bytes,
            option=self._max_bytes_option,
        )
        if fault is None and len(record.slots) > messages:
            fault = too_large(chunk.uuid, len(record.slots), messages, "messages (chunking.max_pending_messages)")
        if fault is not None:
            self._fail(record, error_of(fault))

    def _make_room(self, record: Record, size: int) -> list[AssemblyEvent]:
        events = list[AssemblyEvent]()
        while (bound := self._exceeded(size)) and (victim := self._victim(record, holding_bytes=size > 0)):
            why = f"it was evicted to make room (chunking.{bound} is {getattr(self._config, bound)})"
            events.append(self._give_up(victim, "evicted", self._config.on_evict, why))
        return events

    def _exceeded(self, size: int) -> str | None:
        """Return the bound that is exceeded, if any: that of bytes with ``size`` more, or one of the others."""
        limits = self._config
        if size:
            return "max_pending_bytes" if self.pending_bytes + size > limits.max_pending_bytes else None
        if len(self._open) > limits.max_pending_payloads:
            return "max_pending_payloads"
        # A message takes memory even if its piece is empty or a duplicate.
        return "max_pending_messages" if self._held > limits.max_pending_messages else None

    def _victim(self, record: Record, *, holding_bytes: bool) -> Record | None:
        """Return the oldest other payload, or the oldest other one with bytes in memory."""
        others = (other for other in self._open.values() if other is not record)
        return next((other for other in others if other.pieces.size or not holding_bytes), None)

    def _finish_if_complete(self, record: Record) -> list[AssemblyEvent]:
        limits = self._config
        if record.state == "failed":
            complete = len(record.numbers) >= min(record.count, limits.max_chunks)
            return [self._break(record)] if complete or len(record.slots) > limits.max_pending_messages else []
        if len(record.numbers) < record.count:
            return []
        content, declared = record.pieces.content(), record.declared
        self._largest_delivered = max(self._largest_delivered, len(content))
        record.crc32s = record.pieces.crc32s
        self._close(record, "delivered")
        self._redelivered.pop(record.identity, None)
        return [Assembled(record, record.slots, [content], declared)]

    # Late messages -------------------------------------------------------------------------------------------

    def _late(self, record: Record, slot: Slot, chunk: Chunk) -> list[AssemblyEvent] | None:
        """Handle a chunk of a payload that has ended; ``None`` if it begins a new attempt."""
        if record.state == "dropped":
            return self._late_for_drop(record, slot)
        if record.state == "delivered" and (error := _contradiction(record, chunk)) is not None:
            return [Broken(record, [slot], error, late=True)]
        if not record.acked:  # settled together with the payload
            before = record.weight
            record.hold(slot)
            self._remembered_positions += record.weight - before
            return []
        if record.error is not None:
            return [Broken(record, [slot], record.error, late=True)]
        return [Discarded(record, [slot], "duplicate", "ack")]

    def _late_for_drop(self, record: Record, slot: Slot) -> list[AssemblyEvent] | None:
        if slot.position in record.by_position and record.reason != "aborted":  # redelivered: a new attempt
            self.forget(record.identity)
            return None
        if slot.position not in record.by_position:
            before = record.weight
            record.by_position[slot.position] = None
            self._remembered_positions += record.weight - before
            self._forget_oldest()
        return [Discarded(record, [slot], record.reason, record.action, record.error)]

    # Endings -------------------------------------------------------------------------------------------------

    def _give_up(self, record: Record, reason: str, action: Action, why: str) -> AssemblyEvent:
        if record.state == "failed":
            return self._break(record)
        if action == "redeliver" and (refused := self._refuses_redelivery(record.identity)):
            record.error = _incomplete(record, f"{why}, {refused}")
            return self._break(record, reason)
        return self._drop(record, reason, action, _incomplete(record, why))

    def _refuses_redelivery(self, identity: Identity) -> str | None:
        """Count one more redelivery; returns the reason if there must be none."""
        limit, times = self._config.max_redeliveries, self._redelivered.get(identity)
        if (times or 0) >= limit:
            return f"after {limit} redeliveries (chunking.max_redeliveries)"
        if times is None and len(self._redelivered) >= _REMEMBERED:
            self._redelivered.popitem(last=False)
            return f"and {_REMEMBERED} incomplete payloads are being redelivered already"
        self._redelivered[identity] = (times or 0) + 1
        self._redelivered.move_to_end(identity)
        return None

    def _drop(self, record: Record, reason: str, action: Action, error: ClaimCheckError) -> Discarded:
        record.reason, record.action, record.error = reason, action, error
        slots = record.slots
        self._close(record, "dropped")
        record.release()
        return Discarded(record, slots, reason, action, error)

    def _fail(self, record: Record, error: ClaimCheckError) -> None:
        if record.state == "pending":
            self._release(record)
            record.state, record.error = "failed", error

    def _break(self, record: Record, reason: str = "") -> Broken:
        assert record.error is not None
        self._close(record, "broken")
        return Broken(record, record.slots, record.error, reason)

    def _close(self, record: Record, state: Literal["delivered", "broken", "dropped"]) -> None:
        self._discard(record)
        self.forget(record.identity)  # an abort may replace an earlier record
        record.state, record.numbers, record.declared = state, _NO_NUMBERS, _NO_CLAIMS
        self._remember(record)

    def _discard(self, record: Record) -> None:
        if self._open.pop(record.identity, None) is not None:
            self._held -= len(record.slots)
        self._release(record)

    def _remember(self, record: Record) -> None:
        self._closed[record.identity] = record
        self._remembered_positions += record.weight
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._closed) > _REMEMBERED or (
            self._remembered_positions > _REMEMBERED_POSITIONS and len(self._closed) > 1
        ):
            self.forget(next(iter(self._closed)))

    def _release(self, record: Record) -> None:
        self.pending_bytes -= record.pieces.size
        record.pieces = _NO_PIECES


def _contradiction(record: Record, chunk: Chunk) -> ClaimCheckError | None:
    """Return the error for a chunk that contradicts a delivered payload, if it does."""
    known = record.crc32s
    if chunk.count != record.count:
        why = f"declares {chunk.count} chunks, but the delivered payload has {record.count}"
    elif known and crc32(chunk.piece, known[chunk.position - 1] if chunk.position else 0) != known[chunk.position]:
        why = "differs from that of the delivered payload"
    else:
        return None
    return error_of(conflict(chunk.uuid, chunk.position, why, record.count, record.count))


def _incomplete(record: Record, why: str) -> ClaimCheckError:
    return error_of(incomplete(record.identity.uuid, record.numbers, record.count, why))


_NO_PIECES, _NO_NUMBERS, _NO_CLAIMS = Pieces(), set[int](), frozenset[tuple[str, str]]()  # of payloads that have ended


@dataclass(frozen=True, slots=True)
class _AssemblyEvent:
    """Base of all events: the payload and its messages; late duplicates join the list until it is settled."""

    attempt: Record
    slots: list[Slot]

    @property
    def identity(self) -> Identity:
        return self.attempt.identity


@dataclass(frozen=True, slots=True)
class Assembled(_AssemblyEvent):
    content: list[bytes] = field(repr=False)
    declared: frozenset[tuple[str, str]]

    @property
    def crc32(self) -> str:
        """The CRC-32 of the whole payload, as headers carry it."""
        return Crc32(self.attempt.crc32s[-1]).text()


@dataclass(frozen=True, slots=True)
class Broken(_AssemblyEvent):
    """A payload that cannot be delivered, or a late message that contradicts one (``late``)."""

    error: ClaimCheckError
    reason: str = ""
    late: bool = False


@dataclass(frozen=True, slots=True)
class Discarded(_AssemblyEvent):
    """Messages that do not become a payload, and the action for the transport."""

    reason: str
    action: Action
    error: ClaimCheckError | None = None


AssemblyEvent = Assembled | Broken | Discarded
