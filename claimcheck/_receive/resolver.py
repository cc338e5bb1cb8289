"""`Resolver`: turns messages of any kind into payloads, whatever their writer's strategy.

`Resolver.feed` never raises for a bad message. It returns outcomes, one for each payload, with the handles of all its
messages. The transport acknowledges, redelivers or dead-letters them and reports that to `Resolver.settle`. Then
`Resolver.safe_position` is the limit for a cumulative acknowledgement or a commit.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

from claimcheck._content.coder import Unpacker
from claimcheck._receive.assembler import Assembled, Assembler, AssemblyEvent, Broken, Discarded
from claimcheck._receive.record import Handle, Identity, Position, Record, Slot
from claimcheck._wire import headers as hints
from claimcheck._wire.buffers import Buffer, as_view
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import Abort, Chunk, Decoded, Encoded, Kind, Literal, Plain, PointerData, decode
from claimcheck._wire.signing import Seal
from claimcheck.config import HEADER, Action, ChunkingConfig
from claimcheck.errors import ClaimCheckError, IncompletePayloadError, clear_frames
from claimcheck.hooks import AssembledEvent, DropEvent, Hooks

_log = logging.getLogger(__name__)
_WARNING_SECONDS = 60.0
_LONGEST_WRITER = 64  # longer names are kept as a hash: records outlive their messages


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """The fields of all outcomes.

    Attributes:
        source: Where the messages came from.
        slots: The messages, in order of arrival; late duplicates of an unsettled payload join them.
        identity: The payload's identity, if it came as chunks.
        since: Replaced by `Resolver.clear`: an outcome from before settles nothing afterwards.
    """

    source: Hashable
    slots: list[Slot] = field(repr=False)
    identity: Identity | None = None
    since: object = field(default=None, repr=False, compare=False)

    @property
    def uuid(self) -> str | None:
        """The uuid of a payload that came as chunks."""
        return self.identity.uuid if self.identity is not None else None

    @property
    def positions(self) -> tuple[Position, ...]:
        """The positions of all messages, lowest first."""
        return tuple(sorted(slot.position for slot in self.slots))

    @property
    def handles(self) -> tuple[Handle, ...]:
        """The transport's handles of the messages."""
        return tuple(slot.handle for slot in self.slots)

    @property
    def headers(self) -> Any:
        """The headers as they were sent, in the same shape; for chunks those of the first."""
        return hints.strip(self._first.headers, uuid=self.uuid)

    @property
    def key(self) -> Any:
        """The key as it was sent; ``None`` if the uuid replaced a null key."""
        key = self._first.key
        text = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
        return None if self.uuid is not None and text == self.uuid else key

    @property
    def _first(self) -> Slot:
        return min(self.slots, key=lambda slot: slot.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(_Outcome):
    """A payload, complete and verified.

    Attributes:
        payload: Its bytes; for a plain message the message itself, ``None`` for a tombstone.
        kind: The envelope's type; ``None`` for a plain message.
        attempt: The resolver's record of a payload in chunks; opaque.
    """

    payload: Any = field(repr=False)
    kind: Kind | None = None
    attempt: Record | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_Outcome):
    """A payload that cannot be delivered.

    Attributes:
        error: The reason; ``error.retryable`` is true if another attempt may succeed.
        late: Whether the messages arrived after their payload had ended: settling them does not settle it.
        attempt: The resolver's record of a payload in chunks; opaque.
    """

    error: ClaimCheckError
    late: bool = False
    attempt: Record | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(_Outcome):
    """Messages that did not become a payload, and the action to take on them.

    Attributes:
        reason: ``expired``, ``evicted``, ``aborted`` or ``duplicate``.
        action: ``redeliver``, ``dead_letter`` or ``ack``.
        error: Details, if there are any.
    """

    reason: str
    action: Action
    error: ClaimCheckError | None = None

    def as_failed(self) -> Failed:
        """Return the same messages as a failure, for a transport that reports them to the application."""
        text = f"the chunks of {self.uuid} were dropped: {self.reason}"
        error = self.error or IncompletePayloadError(text, uuid=self.uuid)
        return Failed(source=self.source, slots=self.slots, identity=self.identity, since=self.since, error=error)


Outcome = Resolved | Failed | Dropped


class Resolver:
    """Takes messages and returns outcomes. Does no I/O except reading stored payloads. Not thread-safe.

    Every outcome must be settled; until then its positions count as unsettled.

    Args:
        read: Returns the payload for a pointer's bytes; the destination follows them if `feed` was given one.
        chunking: Bounds of the reassembly.
        unpacker: Decompresses and decrypts what travels in messages.
        header: The bytes that envelopes begin with.
        clock: Seconds, monotonic.
        hooks: Receives events about assembled and dropped payloads.
        seal: Checks the signatures of messages without a pointer; ``None`` accepts them all.

    Attributes:
        decode_later: Returns a placeholder for the payload of encoded chunks, given a function that decodes it and the
            most bytes that it has. By default it is decoded in `feed`.
    """

    def __init__(
        self,
        read: Callable[..., bytes],
        *,
        chunking: ChunkingConfig | None = None,
        unpacker: Unpacker | None = None,
        header: bytes = HEADER,
        clock: Callable[[], float] = time.monotonic,
        hooks: Hooks | None = None,
        seal: Seal | None = None,
    ) -> None:
        self._read = read
        self._unpacker = unpacker or Unpacker(header=header)
        self.decode_later: Callable[[Callable[[], bytes], int], Any] | None = None
        self._seal = seal
        self._header = header
        self._hooks = hooks or Hooks()
        self._clock = clock
        self._assembler = Assembler(chunking or ChunkingConfig(), clock=clock)
        self._unsettled: dict[Hashable, _Unsettled] = {}
        self._next_warning, self._silent = -math.inf, 0

    @property
    def pending_payloads(self) -> int:
        """Number of incomplete payloads."""
        return self._assembler.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks in memory."""
        return self._assembler.pending_bytes

    def feed(
        self,
        source: Hashable,
        position: Position,
        message: Buffer | None,
        *,
        headers: object = None,
        key: object = None,
        handle: Handle = None,
        writer: Hashable = None,
        envelope: Decoded | None = None,
        destination: str | None = None,
    ) -> list[Outcome]:
        """Take one message and return the outcomes that are known now: none, one or several.

        Incomplete payloads expire here, whatever the message is.

        Args:
            source: The topic-partition or the like, within which positions are ordered; hashable.
            position: The message's place in the source; hashable, and ordered within a source.
            message: Its value as received from the broker; ``bytes`` are not copied.
            headers: As received from the broker.
            key: As received from the broker.
            handle: What the transport needs to acknowledge it. It is kept until then, so it should not hold the
                message's value, which would double the memory of every chunk.
            writer: The message's sender if the broker reports it, for example the producer's name; hashable. By default
                the key. Chunks of one uuid from different writers are different payloads, and an abort envelope applies
                only to the chunks of its own writer.
            envelope: The decoded message, if the caller has decoded it already.
            destination: The topic that it was read from, as any client names it. Required where signing keys are
                configured, unless ``signing.bind_destination`` is false.
        """
        due = self._assembler.due
        expired = self.tick() if due is not None and self._clock() >= due else None
        unsettled = self._unsettled.get(source) or self._unsettled.setdefault(source, _Unsettled())
        unsettled.add(position)
        slot = Slot(position, handle, headers, key)
        try:
            if envelope is None and message is not None:
                envelope = decode(message, header=self._header)
            if isinstance(envelope, (Chunk, Abort)):
                outcomes = self._part(source, slot, envelope, _writer(writer, key), destination)
            else:
                payload, kind = self._whole(envelope, headers, destination)
                outcomes = [Resolved(source=source, slots=[slot], since=unsettled, payload=payload, kind=kind)]
        except Exception as error:  # one bad message never stops the others
            outcomes = [Failed(source=source, slots=[slot], since=unsettled, error=_typed(error))]
        return expired + outcomes if expired else outcomes

    def tick(self) -> list[Outcome]:
        """Expire incomplete payloads, for times when no messages are fed.

        Returns at once while nothing is due, so it may be called for every message.
        """
        due = self._assembler.due
        return self._outcomes(self._assembler.tick()) if due is not None and self._clock() >= due else []

    def identity(self, source: Hashable, uuid: str, *, key: object = None, writer: Hashable = None) -> Identity:
        """Return the identity of the payload whose chunks are fed with these arguments."""
        return Identity(source, uuid, _writer(writer, key))

    def knows(self, payload: Identity) -> bool:
        """Whether a chunk of this payload arrived before and is still remembered."""
        return self._assembler.knows(payload)

    def settle(self, outcome: Outcome, *, acked: bool) -> None:
        """Mark the messages of an outcome as acknowledged or negatively acknowledged.

        Outcomes from before `clear` are ignored.

        Args:
            outcome: The outcome as returned.
            acked: Whether the messages are acknowledged; otherwise they will be redelivered.
        """
        unsettled = self._unsettled.get(outcome.source)
        if unsettled is None or unsettled is not outcome.since:
            return
        if acked:
            for slot in outcome.slots:
                unsettled.remove(slot.position)
        if isinstance(outcome, Dropped) or outcome.attempt is None:
            return
        if acked:
            self._assembler.acked(outcome.attempt, outcome.slots)
        else:
            self._assembler.nacked(outcome.attempt)

    def clear(self, source: Hashable | None = None) -> tuple[Handle, ...]:
        """Forget the messages of one source (after a seek or a revoked partition) or of all; returns their handles.

        Nothing is acknowledged. Chunks from before never complete with chunks from after.
        """
        held = self._assembler.clear(source)
        for known in list(self._unsettled) if source is None else [source]:
            self._unsettled.pop(known, None)
        return tuple(slot.handle for slot in held)

    def safe_position(self, source: Hashable) -> Position:
        """Return the lowest unsettled position, before which everything may be acknowledged; ``None`` for no limit."""
        unsettled = self._unsettled.get(source)
        return unsettled.lowest() if unsettled else None

    def __repr__(self) -> str:
        return f"<Resolver {self.pending_payloads} payloads pending, {self.pending_bytes} bytes>"

    # Internals -----------------------------------------------------------------------------------------------

    def _part(
        self, source: Hashable, slot: Slot, part: Chunk | Abort, writer: Hashable, destination: str | None
    ) -> list[Outcome]:
        slot.writer = writer
        if isinstance(part, Chunk):
            return self._outcomes(self._assembler.feed(source, slot, part), destination)
        if self._seal is not None:
            self._seal.check_abort(hints.signature(slot.headers), uuid=part.uuid, destination=destination)
        return self._aborted(source, slot, part.uuid)

    def _aborted(self, source: Hashable, slot: Slot, uuid: str) -> list[Outcome]:
        position, dropped = slot.position, self._assembler.abort(source, slot, uuid)
        if (now := self._clock()) >= self._next_warning:  # anyone who may send can cause them
            text = "abort envelope at position %s of %s for payload %s; messages dropped: %d (%s); not logged: %d"
            _log.warning(text, position, source, uuid, len(dropped.slots), dropped.action, self._silent)
            self._next_warning, self._silent = now + _WARNING_SECONDS, 0
        else:
            self._silent += 1
        return self._outcomes([dropped])

    def _whole(
        self, envelope: Plain | Literal | PointerData | Encoded | None, headers: object, destination: str | None
    ) -> tuple[Buffer | None, Kind | None]:
        if envelope is None:
            return None, None
        if self._seal is not None:
            self._seal.check_whole(envelope, headers, destination)
        if isinstance(envelope, Plain):
            as_view(envelope.payload)  # raises for text, for example
            return envelope.payload, None
        if isinstance(envelope, Literal):
            return bytes(envelope.payload), Kind.LITERAL
        if isinstance(envelope, Encoded):
            return self._unpacker.content(envelope.content, destination=destination), Kind.ENCODED
        payload = self._read(envelope.data) if destination is None else self._read(envelope.data, destination)
        hints.check(
            hints.declared(headers), size=len(payload), checksum=lambda name: digest_of(payload, algorithm=name)
        )
        return payload, Kind.POINTER

    def _outcomes(self, events: Sequence[AssemblyEvent], destination: str | None = None) -> list[Outcome]:
        """Return the outcomes of events; ``destination`` is that of a payload that became complete."""
        return [self._outcome(event, destination) for event in events]

    def _outcome(self, event: AssemblyEvent, destination: str | None) -> Outcome:
        identity, slots = event.identity, event.slots
        source, since = identity.source, self._unsettled.get(identity.source)
        common: dict[str, Any] = {"source": source, "slots": slots, "identity": identity, "since": since}
        if isinstance(event, Broken):
            if event.reason:
                self._emit_drop(event, event.reason, "report")
            return Failed(error=event.error, late=event.late, attempt=None if event.late else event.attempt, **common)
        if isinstance(event, Discarded):
            self._emit_drop(event, event.reason, event.action)
            return Dropped(reason=event.reason, action=event.action, error=event.error, **common)
        try:
            payload, size = self._decoded(event, destination)
        except Exception as error:
            return Failed(error=_typed(error), attempt=event.attempt, **common)
        if self._hooks:
            self._hooks.emit(AssembledEvent(source=source, uuid=identity.uuid, messages=len(slots), size=size))
        return Resolved(payload=payload, kind=Kind.CHUNK, attempt=event.attempt, **common)

    def _decoded(self, event: Assembled, destination: str | None) -> tuple[Any, int]:
        """Return the payload of complete chunks, or its placeholder, and the size. Its signature is verified."""
        content, uuid = event.content.pop(), event.identity.uuid
        if self._seal is not None:
            found, count = hints.signatures(event.declared), event.attempt.count
            self._seal.check_chunks(found, uuid=uuid, count=count, pieces=[content], destination=destination)
        decode = partial(self._decode, content, event.declared, event.crc32, uuid, destination)
        size = self._unpacker.encoded_size(content)
        if self.decode_later is not None and size is not None:
            return self.decode_later(decode, size), size
        payload = decode()
        return payload, len(payload)

    def _decode(
        self, content: bytes, declared: frozenset[tuple[str, str]], crc32: str, uuid: str, destination: str | None
    ) -> bytes:
        payload = bytes(self._unpacker.pieces([content], uuid, destination=destination)[0])
        hints.check(
            declared,
            size=len(payload),
            checksum=lambda name: crc32 if name == "crc32" else digest_of(content, algorithm=name),
        )
        return payload

    def _emit_drop(self, event: Discarded | Broken, reason: str, action: str) -> None:
        if self._hooks:
            (source, uuid, _), messages = event.identity, len(event.slots)
            self._hooks.emit(DropEvent(source=source, uuid=uuid, reason=reason, action=action, messages=messages))


class _Unsettled:
    """The unsettled positions of one source, in a heap that is cleaned up lazily."""

    def __init__(self) -> None:
        self._heap: list[Position] = []
        self._present: set[Position] = set()

    def add(self, position: Position) -> None:
        if position not in self._present:
            self._present.add(position)
            heapq.heappush(self._heap, position)

    def remove(self, position: Position) -> None:
        self._present.discard(position)
        while self._heap and self._heap[0] not in self._present:
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * len(self._present) + 64:  # many higher ones were settled before the lowest
            self._heap = sorted(self._present)

    def lowest(self) -> Position | None:
        return self._heap[0] if self._heap else None


def _typed(error: Exception) -> ClaimCheckError:
    clear_frames(error)
    if isinstance(error, ClaimCheckError):
        return error
    typed = ClaimCheckError(f"the message could not be resolved: {type(error).__name__}: {str(error)[:200]}")
    typed.__cause__ = error
    return typed


def _writer(writer: Hashable, key: object) -> Hashable:
    """Return a short name for the sender of a message; the key serves if the sender is unknown."""
    name = key if writer is None else writer
    if isinstance(name, (bytearray, memoryview)):
        name = bytes(name)
    if isinstance(name, (str, bytes)) and len(name) > _LONGEST_WRITER:
        return blake2b(name.encode("utf-8", "replace") if isinstance(name, str) else name, digest_size=16).digest()
    return name
