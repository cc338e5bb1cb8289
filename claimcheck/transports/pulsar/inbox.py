"""From native messages to payloads: what consumers and readers do alike, without any call of the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from claimcheck import hints
from claimcheck.envelope import Literal, PointerData, decode
from claimcheck.errors import ClaimCheckError, EnvelopeError
from claimcheck.payload import crc32_of
from claimcheck.resolver import Dropped, Failed, Outcome, Resolved
from claimcheck.transports.needs import Resolves
from claimcheck.transports.pulsar.ids import Position, WholeMessageId, before, position_of
from claimcheck.transports.pulsar.message import Facts, Handle, PulsarMessage

__all__ = ["Arrival", "Inbox"]


Arrival = PulsarMessage | Dropped
"""A payload for the user, or messages that became none, with what is to be done with them."""


class Inbox:
    """Takes native messages, and keeps account of chunks until they are settled. Safe under threads.

    Plain messages and pointers stand for themselves; only chunks need a memory.

    Args:
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        schema: The consumer's.
        refusal: Says why chunks from a topic cannot be put together; asked at each chunk.
        sizes: Whether messages are to know the sizes of their stored payloads.
        keep: Whether native messages are kept until they are settled, to be sent on as dead letters.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        cc: Resolves,
        schema: Any,
        *,
        refusal: Callable[[str], ClaimCheckError | None] = lambda topic: None,
        sizes: bool = False,
        keep: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cc = cc
        self._schema = schema
        self._header = cc.config.header
        self._refusal = refusal
        self._sizes = sizes
        self._keep = keep
        self._resolver = cc.resolver(clock=clock)
        self._lock = threading.RLock()
        self._sources: set[str] = set()  # that chunks came from
        self._delivered: dict[tuple[str, Position], Outcome] = {}  # chunked payloads, not settled, by their beginning
        self._by_chunk: dict[tuple[str, Position], Outcome] = {}  # the same, by the place of each chunk

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._resolver.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._resolver.pending_bytes

    def plain(self, native: Any) -> PulsarMessage | None:
        """Take one message that is its own payload, as most are; ``None`` for any other, which is still to be taken."""
        data = native.data()
        return None if data.startswith(self._header) else PulsarMessage(native, self._schema, data)

    def take(self, native: Any) -> Sequence[Arrival]:
        """Take one message; gives what came of it: often the payload, of a chunk perhaps nothing yet."""
        data = native.data()
        if not data.startswith(self._header):
            return (PulsarMessage(native, self._schema, data),)
        try:
            envelope = decode(data, header=self._header)
        except EnvelopeError as error:
            return (PulsarMessage(native, self._schema, error=error),)
        if isinstance(envelope, PointerData):
            size = self._size(data) if self._sizes else 0
            return (PulsarMessage(native, self._schema, load=lambda: self._load(native, data), stored_bytes=size),)
        if isinstance(envelope, Literal):
            return (PulsarMessage(native, self._schema, payload=bytes(envelope.payload)),)
        if hasattr(envelope, "payload"):  # the header alone
            return (PulsarMessage(native, self._schema, payload=data),)
        refusal = self._refusal(native.topic_name())
        if refusal is not None:
            return (PulsarMessage(native, self._schema, error=refusal),)
        return self._chunk(native, data)

    def tick(self) -> Sequence[Arrival]:
        """Let go of chunks whose time is over."""
        with self._lock:
            return self._arrivals(self._resolver.tick())

    def settle(self, outcome: Outcome | None, *, acked: bool) -> None:
        """Say what became of a chunked payload's messages; of no outcome nothing was kept."""
        if outcome is None:
            return
        with self._lock:
            self._resolver.settle(outcome, acked=acked)
            if self._delivered.get(_place(outcome)) is outcome:  # and no later delivery of the same
                del self._delivered[_place(outcome)]
            for place in _places(outcome):
                if self._by_chunk.get(place) is outcome:
                    del self._by_chunk[place]

    def find(self, message_id: Any) -> Outcome | None:
        """The chunked payload of this id, where it was delivered and is not settled."""
        if not isinstance(message_id, WholeMessageId):
            return None
        with self._lock:
            return self._delivered.get((message_id.topic, position_of(message_id.first)))

    def settle_up_to(self, message_id: Any, topic: str | None) -> Any | None:
        """Count everything up to this id as acknowledged, and say how far the broker may be told so.

        Args:
            message_id: Of a payload.
            topic: Its topic; ``None`` for the only one.

        Returns:
            The id to acknowledge cumulatively: short of the oldest payload of which something comes behind; ``None``
            where nothing before that is known.
        """
        target = position_of(message_id)
        with self._lock:
            source = next(iter(self._sources), "") if topic is None else topic
            for (where, _), outcome in list(self._delivered.items()):
                if where == source and outcome.positions[-1] <= target:
                    self.settle(outcome, acked=True)
            bound = self._resolver.safe_position(source)
        if bound is None or bound > target:
            return message_id.last if isinstance(message_id, WholeMessageId) else message_id
        return before(_IdAt(bound, message_id.partition()), source)

    def clear(self) -> None:
        """Forget all chunks: what was not acknowledged comes again."""
        with self._lock:
            self._resolver.clear()
            self._delivered.clear()
            self._by_chunk.clear()
            self._sources.clear()

    # Within ----------------------------------------------------------------------------------------------------

    def _chunk(self, native: Any, data: bytes) -> Sequence[Arrival]:
        facts = Facts.of(native)
        self._sources.add(facts.topic_name)
        handle = Handle(facts, native if self._keep else None)
        position = position_of(facts.message_id)
        with self._lock:
            # The broker delivers again by itself what was delivered and not acknowledged: that is another attempt.
            self.settle(self._by_chunk.get((facts.topic_name, position)), acked=False)
            outcomes = self._resolver.feed(
                facts.topic_name,
                position,
                data,
                headers=facts.properties,
                key=facts.partition_key,
                handle=handle,
            )
            return self._arrivals(outcomes)

    def _arrivals(self, outcomes: Sequence[Outcome]) -> list[Arrival]:
        return [outcome if isinstance(outcome, Dropped) else self._delivery(outcome) for outcome in outcomes]

    def _delivery(self, outcome: Resolved | Failed) -> PulsarMessage:
        error = outcome.error if isinstance(outcome, Failed) else None
        payload = outcome.payload if isinstance(outcome, Resolved) else None
        kept = replace(outcome, payload=None) if isinstance(outcome, Resolved) else outcome
        self._delivered[_place(kept)] = kept  # the payload is the user's, to be let go of before it is settled
        self._by_chunk.update(dict.fromkeys(_places(kept), kept))
        return PulsarMessage(None, self._schema, outcome=kept, payload=payload, error=error)

    def _size(self, data: bytes) -> int:
        try:
            pointer = self._cc.pointer(data)
        except ClaimCheckError:  # `data` says so
            return 0
        return (pointer.size or 0) if pointer is not None else 0

    def _load(self, native: Any, data: bytes) -> bytes:
        payload: bytes = self._cc.resolve(data)
        hints.check(hints.declared(native.properties()), size=len(payload), checksum=lambda: crc32_of(payload))
        return payload


class _IdAt:
    """The place of a message, in the words of an id."""

    def __init__(self, position: Position, partition: int) -> None:
        self._position = position
        self._partition = partition

    def ledger_id(self) -> int:
        return self._position[0]

    def entry_id(self) -> int:
        return self._position[1]

    def partition(self) -> int:
        return self._partition


def _places(outcome: Outcome) -> list[tuple[Any, Position]]:
    return [(outcome.source, slot.position) for slot in outcome.slots]


def _place(outcome: Outcome) -> tuple[Any, Position]:
    return outcome.source, outcome.positions[0]
