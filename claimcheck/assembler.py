"""The reassembly of chunks: a pure core without I/O, threads or a clock of its own.

Chunks are filed by slot, ``(source, uuid, position)``, so that any order, duplicates and interleaving are alike. What
is held is bounded in payloads and in bytes; the oldest payload makes room. Nothing is ever let go silently: what does
not become a payload comes back as `Dropped` or `Broken`, with the handles of its messages, and the transport acts.

Every payload in the making has one record, and so has every one that was finished lately: a late duplicate is
acknowledged with the payload that it belongs to, and the tail of an evicted payload shares its head's fate.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from claimcheck.config import ChunkingConfig
from claimcheck.envelope import Chunk
from claimcheck.errors import ChunkConflictError, ClaimCheckError, IncompletePayloadError, PayloadTooLargeError

__all__ = ["Action", "Assembled", "Assembler", "Broken", "Dropped", "Slot"]

Action = Literal["redeliver", "dead_letter", "ack"]

_REMEMBERED = 10_000


@dataclass(slots=True)
class Slot:
    """One message: where it is, and what the transport calls it."""

    position: Any
    handle: Any
    headers: Any = field(default=None, repr=False)
    key: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A payload, complete: its pieces in order, and all messages that brought it (late duplicates join the list)."""

    source: Hashable
    uuid: str
    pieces: list[memoryview] = field(repr=False)
    slots: list[Slot]


@dataclass(frozen=True, slots=True)
class Broken:
    """A payload that can never be delivered, with the messages seen of it."""

    source: Hashable
    uuid: str
    error: ClaimCheckError
    slots: list[Slot]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Messages that will not become a payload now, and what is to be done with them."""

    source: Hashable
    uuid: str
    reason: str
    action: Action
    slots: list[Slot]
    error: ClaimCheckError | None = None


Event = Assembled | Broken | Dropped


@dataclass(slots=True)
class _Record:
    """What is known of one uuid from one source."""

    source: Hashable
    uuid: str
    count: int
    first_seen: float
    state: Literal["pending", "doomed", "delivered", "acked", "dropped"] = "pending"
    action: Action = "ack"
    reason: str = ""
    error: ClaimCheckError | None = None
    pieces: dict[int, memoryview] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    slots: list[Slot] = field(default_factory=list)
    by_position: dict[Any, Slot] = field(default_factory=dict)
    size: int = 0

    def hold(self, slot: Slot) -> bool:
        """Add a message; returns whether it had come before, in which case only its handle is renewed."""
        known = self.by_position.get(slot.position)
        if known is not None:
            known.handle = slot.handle
            return True
        self.by_position[slot.position] = slot
        self.slots.append(slot)
        return False


class Assembler:
    """Chunks in, events out. For one thread.

    Args:
        config: Bounds, expiry and actions.
        clock: Seconds, monotonic.
    """

    def __init__(self, config: ChunkingConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._open: OrderedDict[tuple[Hashable, str], _Record] = OrderedDict()  # oldest first
        self._closed: OrderedDict[tuple[Hashable, str], _Record] = OrderedDict()
        self.pending_bytes = 0

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return len(self._open)

    def __repr__(self) -> str:
        return f"<Assembler {self.pending_payloads} pending, {self.pending_bytes} bytes>"

    def feed(self, source: Hashable, slot: Slot, chunk: Chunk) -> list[Event]:
        """File one chunk and return what came of it, expired payloads included."""
        events = self.tick()
        known = self._closed.get((source, chunk.uuid))
        if known is not None:
            late = self._late(known, slot)
            if late is not None:
                return events + late
        return events + self._file(source, slot, chunk)

    def abort(self, source: Hashable, slot: Slot, uuid: str) -> list[Event]:
        """The writer gave up: let go of what is held, and of what may still come, with an ``ack``."""
        known = self._closed.get((source, uuid))
        if known is not None and known.state != "dropped":  # it was complete after all
            return [Dropped(source, uuid, "aborted", "ack", [slot])]
        record = self._open.get((source, uuid)) or _Record(source, uuid, 0, self._clock())
        record.hold(slot)
        error = IncompletePayloadError(
            f"the writer of {uuid} gave up in the middle", uuid=uuid, seen=len(record.numbers)
        )
        return [self._drop(record, "aborted", "ack", error)]

    def tick(self) -> list[Event]:
        """Expire what has waited too long."""
        limit, events = self._config.expire_after_seconds, list[Event]()
        while limit and self._open:
            record = next(iter(self._open.values()))
            if self._clock() - record.first_seen < limit:
                break
            events.append(self._expire(record))
        return events

    def acked(self, source: Hashable, uuid: str) -> None:
        """The payload was acknowledged: later duplicates may be, too."""
        record = self._closed.get((source, uuid))
        if record is not None:
            record.state, record.slots, record.by_position = "acked", [], {}

    def forget(self, source: Hashable, uuid: str) -> None:
        """The payload was given back: when its chunks come again they are a new attempt."""
        self._closed.pop((source, uuid), None)

    def clear(self, source: Hashable | None = None) -> list[Slot]:
        """Forget everything from one source, or from all; returns the messages that were held, not acknowledged."""
        held: list[Slot] = []
        for records in (self._open, self._closed):
            for key in [key for key in records if source is None or key[0] == source]:
                record = records.pop(key)
                if records is self._open:
                    self._release(record)
                    held.extend(record.slots)
        return held

    # Filing ----------------------------------------------------------------------------------------------------

    def _file(self, source: Hashable, slot: Slot, chunk: Chunk) -> list[Event]:
        key = (source, chunk.uuid)
        record, events = self._open.get(key), list[Event]()
        if record is None:
            record = self._open[key] = _Record(source, chunk.uuid, chunk.count, self._clock())
            events += self._make_room(record, 0)
        record.hold(slot)
        self._check(record, chunk)
        if record.state == "pending":
            events += self._store(record, chunk)
        record.numbers.add(chunk.position)
        return events + self._finish_if_complete(record)

    def _check(self, record: _Record, chunk: Chunk) -> None:
        """Doom a payload that contradicts itself or alone exceeds a bound; its other chunks are only counted."""
        limits = self._config
        size = record.size + (0 if chunk.position in record.pieces else len(chunk.piece))
        bound = min(limits.max_payload_bytes, limits.max_pending_bytes)
        if chunk.count != record.count:
            self._doom(record, _conflict(chunk, f"says {chunk.count} chunks, an earlier one {record.count}", record))
        elif chunk.position in record.pieces and record.pieces[chunk.position] != chunk.piece:
            self._doom(record, _conflict(chunk, "came twice with different bytes", record))
        elif chunk.count > limits.max_chunks:
            self._doom(record, _too_large(record, chunk.count, limits.max_chunks, "chunks, chunking.max_chunks"))
        elif size > bound:
            self._doom(record, _too_large(record, size, bound, "bytes or more, the chunking limit"))

    def _store(self, record: _Record, chunk: Chunk) -> list[Event]:
        if chunk.position in record.pieces:
            return []
        events = self._make_room(record, len(chunk.piece))
        record.pieces[chunk.position] = _owned(chunk.piece)
        record.size += len(chunk.piece)
        self.pending_bytes += len(chunk.piece)
        return events

    def _make_room(self, record: _Record, size: int) -> list[Event]:
        limits, events = self._config, list[Event]()
        while len(self._open) > 1 and (
            len(self._open) > limits.max_pending_payloads or self.pending_bytes + size > limits.max_pending_bytes
        ):
            victim = next(other for other in self._open.values() if other is not record)
            events.append(
                self._give_up(victim, "evicted", limits.on_evict, "it had to make room (chunking.max_pending_*)")
            )
        return events

    def _finish_if_complete(self, record: _Record) -> list[Event]:
        if record.state == "doomed":
            whole = len(record.numbers) >= min(record.count, self._config.max_chunks)
            return [self._break(record)] if whole else []
        if len(record.numbers) < record.count:
            return []
        pieces = [record.pieces[n] for n in range(record.count)]
        self._close(record, "delivered")
        return [Assembled(record.source, record.uuid, pieces, record.slots)]

    # What comes after the end ----------------------------------------------------------------------------------

    def _late(self, record: _Record, slot: Slot) -> list[Event] | None:
        """A chunk of a payload that is finished; ``None`` when it begins a new attempt."""
        if record.state == "acked":
            return [Dropped(record.source, record.uuid, "duplicate", "ack", [slot])]
        again = record.hold(slot)
        if record.state == "delivered":
            return []
        if again:  # handed back before, and here again
            self.forget(record.source, record.uuid)
            return None
        return [Dropped(record.source, record.uuid, record.reason, record.action, [slot], record.error)]

    # Endings ---------------------------------------------------------------------------------------------------

    def _expire(self, record: _Record) -> Event:
        waited = f"chunking.expire_after_seconds ({self._config.expire_after_seconds:g}) passed"
        return self._give_up(record, "expired", self._config.on_expire, waited)

    def _give_up(self, record: _Record, reason: str, action: Action, why: str) -> Event:
        if record.state == "doomed":
            return self._break(record)
        return self._drop(record, reason, action, _incomplete(record, why))

    def _drop(self, record: _Record, reason: str, action: Action, error: ClaimCheckError) -> Dropped:
        record.reason, record.action, record.error = reason, action, error
        self._close(record, "dropped")
        return Dropped(record.source, record.uuid, reason, action, list(record.slots), error)

    def _doom(self, record: _Record, error: ClaimCheckError) -> None:
        if record.state == "pending":
            self._release(record)
            record.state, record.error = "doomed", error

    def _break(self, record: _Record) -> Broken:
        assert record.error is not None
        self._close(record, "delivered")
        return Broken(record.source, record.uuid, record.error, record.slots)

    def _close(self, record: _Record, state: Literal["delivered", "dropped"]) -> None:
        self._open.pop((record.source, record.uuid), None)
        self._release(record)
        record.state = state
        self._closed[record.source, record.uuid] = record
        while len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)

    def _release(self, record: _Record) -> None:
        self.pending_bytes -= record.size
        record.size, record.pieces = 0, {}


def _owned(piece: memoryview) -> memoryview:
    """A piece that nobody changes: of ``bytes`` a view, of anything else a copy."""
    return piece if isinstance(piece.obj, bytes) else memoryview(bytes(piece))


def _conflict(chunk: Chunk, why: str, record: _Record) -> ChunkConflictError:
    return ChunkConflictError(
        f"chunk {chunk.position} of {chunk.uuid} {why}: two writers, or damage",
        uuid=chunk.uuid,
        position=chunk.position,
        seen=len(record.numbers),
        total=record.count,
    )


def _too_large(record: _Record, size: int, limit: int, what: str) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the payload {record.uuid} has {size} {what} is {limit}", size=size, limit=limit)


def _incomplete(record: _Record, why: str) -> IncompletePayloadError:
    seen = len(record.numbers)
    text = f"only {seen} of {record.count} chunks of {record.uuid} came: {why}"
    return IncompletePayloadError(text, uuid=record.uuid, seen=seen, total=record.count)
