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
from typing import Literal

from claimcheck import hints
from claimcheck.chunks import Assembled, Broken, Dropped, Event, Record, Slot
from claimcheck.config import Action, ChunkingConfig
from claimcheck.envelope import Chunk
from claimcheck.errors import ChunkConflictError, ClaimCheckError, IncompletePayloadError, PayloadTooLargeError

__all__ = ["Assembler"]

_REMEMBERED = 10_000  # finished payloads, and
_REMEMBERED_POSITIONS = 1_000_000  # the places of their messages


class Assembler:
    """Chunks in, events out. For one thread.

    Args:
        config: Bounds, expiry and actions.
        clock: Seconds, monotonic.
    """

    def __init__(self, config: ChunkingConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._open: OrderedDict[tuple[Hashable, str], Record] = OrderedDict()  # oldest first
        self._closed: OrderedDict[tuple[Hashable, str], Record] = OrderedDict()
        self.pending_bytes = 0
        self._held = 0  # messages of payloads in the making
        self._remembered_positions = 0

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return len(self._open)

    def __repr__(self) -> str:
        return f"<Assembler {self.pending_payloads} pending, {self.pending_bytes} bytes>"

    def feed(self, source: Hashable, slot: Slot, chunk: Chunk) -> list[Event]:
        """File one chunk and return what came of it, expired payloads included.

        Raises:
            PayloadTypeError: The message's headers are none; nothing was filed.
        """
        slot.claims = hints.declared(slot.headers)
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
        record = self._open.get((source, uuid)) or Record(source, uuid, 0, self._clock())
        self._hold(record, slot)
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

    def knows(self, source: Hashable, uuid: str) -> bool:
        """Whether a message of this payload came before, and is not forgotten."""
        return (source, uuid) in self._open or (source, uuid) in self._closed

    def acked(self, source: Hashable, uuid: str) -> None:
        """The payload was acknowledged: later duplicates may be, too, as may what is held of it for another attempt."""
        again = self._open.get((source, uuid))
        if again is not None:
            again.error = None
            self._close(again, "delivered")
        record = self._closed.get((source, uuid))
        if record is not None and record.state != "dropped":
            self._remembered_positions -= len(record.by_position)
            record.acked, record.slots, record.by_position, record.first = True, [], {}, None

    def forget(self, source: Hashable, uuid: str) -> None:
        """The payload was given back: when its chunks come again they are a new attempt."""
        record = self._closed.pop((source, uuid), None)
        if record is not None:
            self._remembered_positions -= len(record.by_position)

    def clear(self, source: Hashable | None = None) -> list[Slot]:
        """Forget everything from one source, or from all; returns the messages that were held, not acknowledged."""
        held: list[Slot] = []
        for records in (self._open, self._closed):
            for key in [key for key in records if source is None or key[0] == source]:
                if records is self._closed:
                    self.forget(*key)
                    continue
                record = records.pop(key)
                self._release(record)
                self._held -= len(record.slots)
                held.extend(record.slots)
        return held

    # Filing ----------------------------------------------------------------------------------------------------

    def _file(self, source: Hashable, slot: Slot, chunk: Chunk) -> list[Event]:
        key = (source, chunk.uuid)
        record, events = self._open.get(key), list[Event]()
        if record is None:
            record = self._open[key] = Record(source, chunk.uuid, chunk.count, self._clock())
        self._hold(record, slot)
        events += self._make_room(record, 0)
        self._check(record, chunk)
        if record.state == "pending":
            events += self._store(record, chunk)
        record.numbers.add(chunk.position)
        return events + self._finish_if_complete(record)

    def _hold(self, record: Record, slot: Slot) -> None:
        if not record.hold(slot) and (record.source, record.uuid) in self._open:
            self._held += 1

    def _check(self, record: Record, chunk: Chunk) -> None:
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
        elif len(record.slots) > self._max_messages:
            self._doom(record, _too_large(record, len(record.slots), self._max_messages, "messages, the limit"))

    def _store(self, record: Record, chunk: Chunk) -> list[Event]:
        if chunk.position in record.pieces:
            return []
        events = self._make_room(record, len(chunk.piece))
        record.pieces[chunk.position] = _owned(chunk.piece)
        record.size += len(chunk.piece)
        self.pending_bytes += len(chunk.piece)
        return events

    def _make_room(self, record: Record, size: int) -> list[Event]:
        limits, events = self._config, list[Event]()
        while victim := self._victim(record, size):
            events.append(
                self._give_up(victim, "evicted", limits.on_evict, "it had to make room (chunking.max_pending_*)")
            )
        return events

    @property
    def _max_messages(self) -> int:
        """Held at once, duplicates and all; a message costs memory even if its piece is empty."""
        return 2 * self._config.max_chunks

    def _victim(self, record: Record, size: int) -> Record | None:
        """The oldest payload, but this one, whose going makes room of the kind that is wanted."""
        others = (other for other in self._open.values() if other is not record)
        if len(self._open) > self._config.max_pending_payloads or self._held > self._max_messages:
            return next(others, None)
        if size and self.pending_bytes + size > self._config.max_pending_bytes:
            return next((other for other in others if other.size), None)
        return None

    def _finish_if_complete(self, record: Record) -> list[Event]:
        if record.state == "doomed":
            whole = len(record.numbers) >= min(record.count, self._config.max_chunks)
            whole = whole or len(record.slots) > self._max_messages
            return [self._break(record)] if whole else []
        if len(record.numbers) < record.count:
            return []
        pieces = [record.pieces[n] for n in range(record.count)]
        self._close(record, "delivered")
        return [Assembled(record.source, record.uuid, pieces, record.slots, record.declared)]

    # What comes after the end ----------------------------------------------------------------------------------

    def _late(self, record: Record, slot: Slot) -> list[Event] | None:
        """A chunk of a payload that is finished; ``None`` when it begins a new attempt."""
        if record.state != "dropped":
            return self._late_for_settlement(record, slot)
        if slot.position in record.by_position and record.reason != "aborted":  # handed back before, and here again
            self.forget(record.source, record.uuid)
            return None
        if slot.position not in record.by_position:
            record.by_position[slot.position] = None
            self._remembered_positions += 1
            self._forget_oldest()
        return [Dropped(record.source, record.uuid, record.reason, record.action, [slot], record.error)]

    def _late_for_settlement(self, record: Record, slot: Slot) -> list[Event]:
        """Until the payload is settled its late messages join it; what breaks after that is said again, never acked."""
        if not record.acked:
            before = len(record.slots)
            record.hold(slot)
            self._remembered_positions += len(record.slots) - before
            return []
        if record.error is not None:
            return [Broken(record.source, record.uuid, record.error, [slot])]
        return [Dropped(record.source, record.uuid, "duplicate", "ack", [slot])]

    # Endings ---------------------------------------------------------------------------------------------------

    def _expire(self, record: Record) -> Event:
        waited = f"chunking.expire_after_seconds ({self._config.expire_after_seconds:g}) passed"
        return self._give_up(record, "expired", self._config.on_expire, waited)

    def _give_up(self, record: Record, reason: str, action: Action, why: str) -> Event:
        if record.state == "doomed":
            return self._break(record)
        return self._drop(record, reason, action, _incomplete(record, why))

    def _drop(self, record: Record, reason: str, action: Action, error: ClaimCheckError) -> Dropped:
        record.reason, record.action, record.error = reason, action, error
        slots = record.slots
        self._close(record, "dropped")
        record.let_go()
        return Dropped(record.source, record.uuid, reason, action, slots, error)

    def _doom(self, record: Record, error: ClaimCheckError) -> None:
        if record.state == "pending":
            self._release(record)
            record.state, record.error = "doomed", error

    def _break(self, record: Record) -> Broken:
        assert record.error is not None
        self._close(record, "broken")
        return Broken(record.source, record.uuid, record.error, record.slots)

    def _close(self, record: Record, state: Literal["delivered", "broken", "dropped"]) -> None:
        if self._open.pop((record.source, record.uuid), None) is not None:
            self._held -= len(record.slots)
        self._release(record)
        self.forget(record.source, record.uuid)  # an abort may replace what is remembered of a payload
        record.state, record.numbers = state, set()
        self._closed[record.source, record.uuid] = record
        self._remembered_positions += len(record.by_position)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._closed) > _REMEMBERED or (
            self._remembered_positions > _REMEMBERED_POSITIONS and len(self._closed) > 1
        ):
            self.forget(*next(iter(self._closed)))

    def _release(self, record: Record) -> None:
        self.pending_bytes -= record.size
        record.size, record.pieces = 0, {}


def _owned(piece: memoryview) -> memoryview:
    """A piece that nobody changes: of ``bytes`` a view, of anything else a copy."""
    return piece if isinstance(piece.obj, bytes) else memoryview(bytes(piece))


def _conflict(chunk: Chunk, why: str, record: Record) -> ChunkConflictError:
    return ChunkConflictError(
        f"chunk {chunk.position} of {chunk.uuid} {why}: two writers, or damage",
        uuid=chunk.uuid,
        position=chunk.position,
        seen=len(record.numbers),
        total=record.count,
    )


def _too_large(record: Record, size: int, limit: int, what: str) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the payload {record.uuid} has {size} {what} is {limit}", size=size, limit=limit)


def _incomplete(record: Record, why: str) -> IncompletePayloadError:
    seen = len(record.numbers)
    text = f"only {seen} of {record.count} chunks of {record.uuid} came: {why}"
    return IncompletePayloadError(text, uuid=record.uuid, seen=seen, total=record.count)
