"""Any message, whatever its writer's strategy, to the payload that it stands for.

`Resolver.feed` never raises for a bad message: each outcome is one of three values, for one payload, with the handles
of all messages that belong to it. The transport acknowledges, gives back or dead-letters those, and says so with
`Resolver.settle`; `Resolver.safe_position` then tells how far a cumulative acknowledgement or a commit may go.
"""

from __future__ import annotations

import heapq
import io
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from claimcheck import hints
from claimcheck.assembler import Assembler
from claimcheck.chunks import Assembled, Broken, Event, Slot
from claimcheck.chunks import Dropped as DroppedChunks
from claimcheck.config import Action, ChunkingConfig
from claimcheck.envelope import HEADER, Abort, Buffer, Chunk, Kind, Literal, Plain, PointerData, decode
from claimcheck.errors import ClaimCheckError
from claimcheck.frames import let_go
from claimcheck.hooks import AssembledEvent, DropEvent, Hooks
from claimcheck.payload import as_view, crc32_of

__all__ = ["Dropped", "Failed", "Outcome", "Resolved", "Resolver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What all outcomes know.

    Attributes:
        source: Where the messages came from.
        slots: The messages, in the order of their arrival; late duplicates of an unsettled payload join them.
        uuid: The payload's identity, where it came as chunks.
        since: What `Resolver.clear` ends: an outcome from before it settles nothing that came after.
    """

    source: Hashable
    slots: list[Slot] = field(repr=False)
    uuid: str | None = None
    since: object = field(default=None, repr=False, compare=False)

    @property
    def positions(self) -> tuple[Any, ...]:
        """The positions of all messages, lowest first."""
        return tuple(sorted(slot.position for slot in self.slots))

    @property
    def handles(self) -> tuple[Any, ...]:
        """What the transport calls each of the messages."""
        return tuple(slot.handle for slot in self.slots)

    @property
    def headers(self) -> Any:
        """The headers as the sender gave them, in their shape; of chunks those of the first."""
        return hints.strip(self._first.headers, uuid=self.uuid)

    @property
    def key(self) -> Any:
        """The key as the sender gave it; ``None`` where the uuid had stood in for it."""
        key = self._first.key
        text = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
        return None if self.uuid is not None and text == self.uuid else key

    @property
    def _first(self) -> Slot:
        return min(self.slots, key=lambda slot: slot.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(_Outcome):
    """A payload, whole and verified.

    Attributes:
        payload: Its bytes; for a plain message the message itself, ``None`` for a tombstone.
        kind: What the message was; ``None`` for a plain one.
    """

    payload: Any = field(repr=False)
    kind: Kind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_Outcome):
    """A payload that could not be had; the error says why, and whether trying again may help (``error.retryable``)."""

    error: ClaimCheckError


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(_Outcome):
    """Messages that became no payload, and what is to be done with them.

    Attributes:
        reason: ``expired``, ``evicted``, ``aborted`` or ``duplicate``.
        action: ``redeliver``, ``dead_letter`` or ``ack``.
        error: Why, where there is more to say.
    """

    reason: str
    action: Action
    error: ClaimCheckError | None = None


Outcome = Resolved | Failed | Dropped


class Resolver:
    """Messages in, outcomes out; pure but for the reads of stored payloads. For one thread.

    Every outcome must be settled, or its positions count as unsettled for ever.

    Args:
        read: From pointer bytes to the payload.
        chunking: Bounds of the reassembly.
        header: What envelopes begin with.
        clock: Seconds, monotonic.
        hooks: Who hears of dropped chunks.
    """

    def __init__(
        self,
        read: Callable[[bytes], Any],
        *,
        chunking: ChunkingConfig | None = None,
        header: bytes = HEADER,
        clock: Callable[[], float] = time.monotonic,
        hooks: Hooks | None = None,
    ) -> None:
        self._read = read
        self._header = header
        self._hooks = hooks or Hooks()
        self._assembler = Assembler(chunking or ChunkingConfig(), clock=clock)
        self._unsettled: dict[Hashable, _Unsettled] = {}

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._assembler.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._assembler.pending_bytes

    def feed(
        self,
        source: Hashable,
        position: Any,
        message: Buffer | None,
        *,
        headers: Any = None,
        key: Any = None,
        handle: Any = None,
    ) -> list[Outcome]:
        """Take one message and return what came of it: nothing yet, or one outcome and more.

        Args:
            source: Topic-partition, or whatever keeps positions apart; hashable.
            position: The message's place there; hashable, and ordered within a source.
            message: Its value as the broker gave it; ``bytes`` are not copied.
            headers: As the broker gave them.
            key: As the broker gave it.
            handle: What the transport needs to acknowledge it. It is kept until then: one that holds the message's
                value would have every chunk in memory twice.
        """
        unsettled = self._unsettled.setdefault(source, _Unsettled())
        unsettled.add(position)
        slot = Slot(position, handle, headers, key)
        try:
            if message is None:
                return [Resolved(source=source, slots=[slot], since=unsettled, payload=None)]
            envelope = decode(message, header=self._header)
            if isinstance(envelope, Chunk):
                return self._outcomes(self._assembler.feed(source, slot, envelope))
            if isinstance(envelope, Abort):
                return self._outcomes(self._assembler.abort(source, slot, envelope.uuid))
            payload, kind = self._whole(envelope, headers)
            return [Resolved(source=source, slots=[slot], since=unsettled, payload=payload, kind=kind)]
        except Exception as error:  # one bad message never stops the others, whatever is wrong with it
            return [Failed(source=source, slots=[slot], since=unsettled, error=_typed(error))]

    def tick(self) -> list[Outcome]:
        """Expire incomplete payloads whose time is over; call it when no messages come."""
        return self._outcomes(self._assembler.tick())

    def knows(self, source: Hashable, uuid: str) -> bool:
        """Whether a chunk of this payload came before, and is not forgotten."""
        return self._assembler.knows(source, uuid)

    def settle(self, outcome: Outcome, *, acked: bool) -> None:
        """Say what became of an outcome's messages; one from before a `clear` has nothing to settle any more.

        Args:
            outcome: As it was handed out.
            acked: Whether they are acknowledged; otherwise they were given back and will come again.
        """
        unsettled = self._unsettled.get(outcome.source)
        if unsettled is None or unsettled is not outcome.since:
            return
        if acked:
            for slot in outcome.slots:
                unsettled.remove(slot.position)
        if outcome.uuid is None or isinstance(outcome, Dropped):
            return
        if acked:
            self._assembler.acked(outcome.source, outcome.uuid)
        else:
            self._assembler.forget(outcome.source, outcome.uuid)

    def clear(self, source: Hashable | None = None) -> tuple[Any, ...]:
        """Forget what is held from one source (a seek, a revoked partition) or from all; returns the handles.

        Nothing is acknowledged. Chunks from before never complete with chunks from after.
        """
        held = self._assembler.clear(source)
        for known in list(self._unsettled) if source is None else [source]:
            self._unsettled.pop(known, None)
        return tuple(slot.handle for slot in held)

    def safe_position(self, source: Hashable) -> Any:
        """The lowest position that is not settled: everything before it may be acknowledged; ``None`` for no limit."""
        unsettled = self._unsettled.get(source)
        return unsettled.lowest() if unsettled else None

    def __repr__(self) -> str:
        return f"<Resolver {self.pending_payloads} payloads pending, {self.pending_bytes} bytes>"

    # Within ----------------------------------------------------------------------------------------------------

    def _whole(self, envelope: Plain | Literal | PointerData, headers: Any) -> tuple[Any, Kind | None]:
        if isinstance(envelope, Plain):
            as_view(envelope.payload)  # text, for example, is no message
            return envelope.payload, None
        if isinstance(envelope, Literal):
            return bytes(envelope.payload), Kind.LITERAL
        payload = self._read(envelope.data)
        hints.check(hints.declared(headers), size=len(payload), checksum=lambda: crc32_of(payload))
        return payload, Kind.POINTER

    def _outcomes(self, events: Sequence[Event]) -> list[Outcome]:
        return [self._outcome(event) for event in events]

    def _outcome(self, event: Event) -> Outcome:
        since = self._unsettled.get(event.source)
        common: dict[str, Any] = {"source": event.source, "slots": event.slots, "uuid": event.uuid, "since": since}
        if isinstance(event, Broken):
            return Failed(error=event.error, **common)
        if isinstance(event, DroppedChunks):
            self._tell(event)
            return Dropped(reason=event.reason, action=event.action, error=event.error, **common)
        try:
            payload = _joined(event)
        except Exception as error:
            return Failed(error=_typed(error), **common)
        if self._hooks:
            messages, size = len(event.slots), len(payload)
            self._hooks.emit(AssembledEvent(source=event.source, uuid=event.uuid, messages=messages, size=size))
        return Resolved(payload=payload, kind=Kind.CHUNK, **common)

    def _tell(self, event: DroppedChunks) -> None:
        if self._hooks:
            drop = DropEvent(
                source=event.source,
                uuid=event.uuid,
                reason=event.reason,
                action=event.action,
                messages=len(event.slots),
            )
            self._hooks.emit(drop)


class _Unsettled:
    """Positions of one source, with the lowest at hand: a heap, cleaned lazily."""

    def __init__(self) -> None:
        self._heap: list[Any] = []
        self._present: set[Any] = set()

    def add(self, position: Any) -> None:
        if position not in self._present:
            self._present.add(position)
            heapq.heappush(self._heap, position)

    def remove(self, position: Any) -> None:
        self._present.discard(position)
        while self._heap and self._heap[0] not in self._present:
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * len(self._present) + 64:  # the lowest is stuck, and others came and went behind it
            self._heap = sorted(self._present)

    def lowest(self) -> Any:
        return self._heap[0] if self._heap else None


def _joined(event: Assembled) -> bytes:
    payload = _join(event.pieces)
    hints.check(event.declared, size=len(payload), checksum=lambda: crc32_of(payload))
    return payload


def _join(pieces: list[memoryview]) -> bytes:
    """Join and let go of each piece in turn, so that little more than one payload is held at a time."""
    if len(pieces) == 1:
        return bytes(pieces[0])
    box = io.BytesIO(bytes(sum(len(piece) for piece in pieces)))
    with box.getbuffer() as out:
        done = 0
        for index, piece in enumerate(pieces):
            out[done : done + len(piece)] = piece
            done += len(piece)
            pieces[index] = memoryview(b"")
    return box.getvalue()


def _typed(error: Exception) -> ClaimCheckError:
    let_go(error)
    if isinstance(error, ClaimCheckError):
        return error
    typed = ClaimCheckError(f"the message could not be resolved: {type(error).__name__}: {str(error)[:200]}")
    typed.__cause__ = error
    return typed
