"""Receives whole payloads: the base of consumers and readers, and the wrapper for readers."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from claimcheck._receive.resolver import Dropped, Failed, Outcome, Resolved
from claimcheck._validation import check_cc, check_type
from claimcheck._wire.envelope import Abort, Chunk, Literal, Plain
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.delegation import Closing, Delegated
from claimcheck.transports._common.dispatch import dispatch, passes_plain, resolver_of
from claimcheck.transports.pulsar._message import (
    AnyMessageId,
    CumulativeAcks,
    MessageMetadata,
    Place,
    Position,
    PulsarMessage,
    WholeMessageId,
    before,
    natives,
    position_of,
)
from claimcheck.transports.pulsar._queries import vendor

if TYPE_CHECKING:
    import pulsar

    from claimcheck._client import ClaimCheck

_log = logging.getLogger(__name__)

TICK_SECONDS = 1.0  # how late chunks may expire
_BUSY_SECONDS = 1.0  # how long to exceed the timeout while messages are received, but no payload
_SMALL_BYTES = 1 << 17  # copying them takes less time than calling a thread
_REMEMBERED = 10_000  # incomplete payloads that a reader reported

Arrival = PulsarMessage | Dropped
"""A payload for the application, or messages that became no payload and the action to take on them."""


class _Delivery(NamedTuple):
    """A payload in chunks that was delivered and is not settled."""

    outcome: Outcome
    end: Position  # of the chunk that completed it; late duplicates come after it


class Receiver(Delegated, Closing, ABC):
    """Turns native messages into payloads. Thread-safe, except for waiting.

    A chunk is in the resolver until its payload is complete or dropped. A complete payload waits in the queue, and is
    *delivered* from the moment at which it was completed until it is settled.
    """

    delegated = frozenset({"topic", "is_connected"})

    def __init__(
        self,
        native: pulsar.Consumer | pulsar.Reader,
        receive: Callable[..., pulsar.Message],
        cc: ClaimCheck,
        clock: Callable[[], float],
        *,
        inclusive: bool = False,
    ) -> None:
        self._native = native
        self._receive = receive
        self._cc = cc
        self._schema = native._schema
        self._header, self._passes_plain = cc.config.header, passes_plain(cc)
        self._clock = clock
        self._inclusive = inclusive
        self.keeps_natives = False  # of chunks, for dead letters
        self._resolver = resolver_of(cc, clock=clock)
        self._ready: deque[PulsarMessage] = deque()
        self._ticked = clock()
        self._lock = threading.RLock()
        self._behind: dict[Hashable, CumulativeAcks] = {}  # by topic, while chunks from it are not settled
        self._delivered: dict[Place, _Delivery] = {}  # payloads in chunks, by each of their messages
        self._previous: pulsar.Message | None = None  # the last native message
        self._in_batch_before: dict[Place, pulsar.MessageId] = {}  # the id before a chunk in its batch

    @abstractmethod
    def _drop(self, dropped: Dropped) -> None:
        """Acknowledge, redeliver, dead-letter or report messages that became no payload."""

    @abstractmethod
    def _forget_history(self) -> None:
        """Forget the payloads that were redelivered or reported before a seek."""

    def _refusal_of_chunks(self, topic: str) -> ClaimCheckError | None:
        """Return why chunks cannot be assembled; ``None`` if they can."""
        return None

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._resolver.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._resolver.pending_bytes

    def close(self) -> None:
        """Close the wrapped object. Unacknowledged messages are redelivered, to other consumers."""
        self.forget()
        self._native.close()

    def seek(self, messageid: PulsarMessage | AnyMessageId | int) -> None:
        """Go to a payload, or to a time in milliseconds; chunks from before never complete with chunks from after.

        With ``start_message_id_inclusive`` a `WholeMessageId` makes its payload the next one, else the one after it.
        """
        target = messageid.message_id() if isinstance(messageid, PulsarMessage) else messageid
        if isinstance(target, WholeMessageId):
            target = target.first if self._inclusive else target.last
        self.forget()
        self._native.seek(target)
        self.forget()
        self._forget_history()

    # Taking messages -------------------------------------------------------------------------------------------

    def take(self, *natives: pulsar.Message) -> None:
        """Take native messages; `take_ready` returns the payloads that they completed, and those that have expired."""
        for native in natives:
            self._act(self._arrivals_of(native))
        if self.seconds_to_tick == 0:
            self.tick()

    def take_plain(self, native: pulsar.Message) -> bool:
        """Take a small native message that is its own payload, without I/O; the caller calls `tick` when it is due."""
        if (plain := self._plain(native)) is not None:
            self._keep(plain)
        return plain is not None

    def take_ready(self) -> PulsarMessage | None:
        """Return the next payload that is complete, or ``None``."""
        return self._ready.popleft() if self._ready else None

    def take_read(self) -> PulsarMessage | None:
        """Return the next payload that is complete if it is read; ``None`` if it is not, or there is none."""
        stored = self._ready[0].stored if self._ready else None
        return self.take_ready() if stored is None or stored.is_read else None

    def waiting(self) -> list[PulsarMessage]:
        return list(self._ready.copy())

    @property
    def seconds_to_tick(self) -> float | None:
        """Seconds until the expiry of the chunks that are held has to be checked; ``None`` without chunks."""
        return max(0.0, self._ticked + TICK_SECONDS - self._clock()) if self.pending_payloads else None

    def tick(self) -> None:
        self._ticked = self._clock()
        with self._lock:
            arrivals = self._arrivals(self._resolver.tick())
        self._act(arrivals)

    def forget(self) -> None:
        """Forget all messages that are held; those that were not acknowledged are redelivered."""
        with self._lock:
            self._resolver.clear()
            self._delivered.clear()
            self._behind.clear()
            self._in_batch_before.clear()
            self._previous = None
        self._ready.clear()

    # Waiting ---------------------------------------------------------------------------------------------------

    def _wait(self, timeout_millis: int | None) -> PulsarMessage:
        """Wait for a payload; while chunks keep coming, for up to a second longer than the timeout."""
        until = None if timeout_millis is None else self._clock() + timeout_millis / 1000
        while (message := self.take_ready()) is None:
            if until is not None and self._clock() > until + _BUSY_SECONDS:
                raise vendor().Timeout("messages were received, but no whole payload")
            self._step(until)
        return message

    def _step(self, until: float | None) -> None:
        """Take one message, or wait for one; while chunks are held, no longer than until the next tick."""
        left = None if until is None else until - self._clock()
        if left is None and not self.pending_payloads:
            self.take(self._receive())
            return
        pause = TICK_SECONDS if left is None else max(0.0, min(left, TICK_SECONDS))
        try:
            self.take(self._receive(int(pause * 1000)))
        except vendor().Timeout:
            self.tick()
            if until is not None and not self._ready and self._clock() >= until:
                raise

    def _act(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            if isinstance(arrival, Dropped):
                self._drop(arrival)
            else:
                self._keep(arrival)

    def _keep(self, message: PulsarMessage) -> None:
        self._ready.append(message)

    # From native messages to payloads --------------------------------------------------------------------------

    def _plain(self, native: pulsar.Message) -> PulsarMessage | None:
        """Return a small message that is its own payload; ``None`` for any other."""
        if native._message.length() > _SMALL_BYTES:  # not copied twice if it is a chunk, nor on an event loop
            return None
        data = native.data()
        if data.startswith(self._header) or not self._is_accepted(native):
            return None
        self._note(native)
        return PulsarMessage(native, self._schema, data)

    def _arrivals_of(self, native: pulsar.Message) -> Sequence[Arrival]:
        """Return the payloads that a message completed; most chunks complete none."""
        data = native.data()
        if not data.startswith(self._header) and self._is_accepted(native):
            self._note(native)
            return (PulsarMessage(native, self._schema, data),)
        content = dispatch(self._cc, data, native.properties, destination=native.topic_name())
        if isinstance(content, Chunk | Abort):
            if (refusal := self._refusal_of_chunks(native.topic_name())) is None:
                return self._chunk(native, content)
            content = refusal
        self._note(native)
        payload = bytes(content.payload) if isinstance(content, Plain | Literal) else content
        return (PulsarMessage(native, self._schema, payload),)

    def _is_accepted(self, native: pulsar.Message) -> bool:
        """Whether a plain message is delivered; a tombstone always is."""
        return self._passes_plain or native.has_null_value()

    def _note(self, native: pulsar.Message) -> None:
        """Remember a message that is its own payload while an older payload is not settled."""
        self._previous = native
        if self._behind:
            message_id = native.message_id()
            with self._lock:
                if (behind := self._behind.get(native.topic_name())) is not None:
                    behind.received(position_of(message_id), message_id)

    def _chunk(self, native: pulsar.Message, envelope: Chunk | Abort) -> Sequence[Arrival]:
        handle = MessageMetadata(native, keep=self.keeps_natives)
        topic, message_id = native.topic_name(), native.message_id()
        place = topic, position_of(message_id)
        with self._lock:
            self._behind.setdefault(topic, CumulativeAcks())
            self._note_batch(place, message_id)
            # The broker may redeliver chunks that were delivered and not acknowledged: that is another attempt.
            self._settle(self._outcome_at(place), acked=False)
            self._previous = native
            outcomes = self._resolver.feed(
                *place, None, headers=native.properties(), key=native.partition_key(), handle=handle,
                writer=native.producer_name(), envelope=envelope, destination=topic,
            )  # fmt: skip
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
        # The payload belongs to the caller, who may free it before it is settled.
        kept = replace(outcome, payload=None) if isinstance(outcome, Resolved) else outcome
        delivery = _Delivery(kept, kept.positions[-1])
        self._delivered.update({(kept.source, slot.position): delivery for slot in kept.slots})
        first = min(outcome.slots, key=lambda slot: slot.position).handle
        content = outcome.error if isinstance(outcome, Failed) else outcome.payload
        return PulsarMessage(first, self._schema, content, kept)

    def _report(self, dropped: Dropped) -> PulsarMessage:
        """Return a message for the application whose data raises the error, for messages that became no payload."""
        with self._lock:
            return self._deliver(dropped.as_failed())

    # Settling --------------------------------------------------------------------------------------------------

    def _settle(self, outcome: Outcome | None, *, acked: bool) -> tuple[pulsar.MessageId, ...]:
        """Mark the messages of a chunked payload as acknowledged or negatively acknowledged; ``None`` is ignored.

        Returns their ids, for the client: no duplicate joins them from now on.
        """
        if outcome is None:
            return ()
        with self._lock:
            self._resolver.settle(outcome, acked=acked)
            for place in [(outcome.source, slot.position) for slot in outcome.slots]:
                if self._outcome_at(place) is outcome:  # and no later delivery of the same
                    del self._delivered[place]
                if acked:
                    self._in_batch_before.pop(place, None)
            if self._resolver.safe_position(outcome.source) is None:
                self._behind.pop(outcome.source, None)
            return tuple(handle.message_id() for handle in outcome.handles)

    def _settle_own(self, place: Place) -> None:
        """Forget a message that is its own payload and was acknowledged or negatively acknowledged."""
        with self._lock:
            if (behind := self._behind.get(place[0])) is not None:
                behind.pop(place[1], None)

    def _delivery_of(self, message_id: object) -> _Delivery | None:
        """Return the chunked payload of this id, if it was delivered and is not settled."""
        if not isinstance(message_id, WholeMessageId):
            return None
        return self._delivered.get((message_id.topic, position_of(message_id.first)))

    def _outcome_at(self, place: Place) -> Outcome | None:
        delivery = self._delivered.get(place)
        return None if delivery is None else delivery.outcome

    def _settle_up_to(
        self, message_id: AnyMessageId, topic: str | None, outcome: Outcome | None
    ) -> tuple[pulsar.MessageId | None, tuple[pulsar.MessageId, ...]]:
        """Mark all up to a payload as acknowledged, except what waits; returns the native ids to acknowledge."""
        with self._lock:
            waiting = [ready.outcome for ready in self._ready.copy()]
            source = str(next(iter(self._behind), "")) if topic is None else topic
            target, target_id = self._target(message_id, outcome)
            settled = [] if outcome is None else self._settled(outcome)
            for place, delivery in list(self._delivered.items()):
                is_settled = self._delivered.get(place) is not delivery  # with another of its messages
                is_waiting = any(delivery.outcome is each for each in waiting)
                if place[0] == source and delivery.end <= target and not is_settled and not is_waiting:
                    settled += self._settled(delivery.outcome)
            behind = self._behind.get(source) or CumulativeAcks()
            hole = self._resolver.safe_position(source)
            plan = behind.up_to(target, hole=hole, settled=settled)
            if plan.before is not None:
                known = self._in_batch_before.get((source, plan.before))
                target_id = known or before(plan.before, message_id.partition(), source)
        return target_id, plan.individually

    def _target(self, message_id: AnyMessageId, outcome: Outcome | None) -> tuple[Position, pulsar.MessageId]:
        """Return how far to acknowledge cumulatively: to the chunk that completed the payload, not to duplicates."""
        delivery = self._delivery_of(message_id)
        if delivery is None or delivery.outcome is not outcome:
            end = natives(message_id)[-1 if outcome is None else 0]  # redelivered since: what is after it may wait
            return position_of(end), end
        ids = (slot.handle.message_id() for slot in delivery.outcome.slots if slot.position == delivery.end)
        return delivery.end, next(ids)

    def _settled(self, outcome: Outcome) -> list[tuple[Position, pulsar.MessageId]]:
        self._settle(outcome, acked=True)
        return [(slot.position, slot.handle.message_id()) for slot in outcome.slots]


class ReaderOptions(TypedDict, total=False):
    """See `PulsarReader`."""

    start_message_id_inclusive: bool
    clock: Callable[[], float]


class PulsarReader(Receiver):
    """Wraps a `pulsar.Reader` and has its methods; each message that it returns is a whole payload.

    A payload that is still incomplete after ``chunking.expire_after_seconds``, or is evicted, is returned once, as a
    message whose data raises `IncompletePayloadError`, unless ``on_expire`` or ``on_evict`` is ``ack``. One in the
    middle of whose chunks the reader starts is not returned.

    Args:
        reader: A `pulsar.Reader`, without a listener.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        start_message_id_inclusive: The value that the reader was created with; determines where `seek` goes.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: An argument is of the wrong type.
    """

    def __init__(
        self,
        reader: pulsar.Reader,
        cc: ClaimCheck,
        *,
        start_message_id_inclusive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_type("reader", reader, valid=hasattr(reader, "_reader"), expected="a pulsar.Reader")
        check_cc(cc)
        self._reported: dict[object, None] = {}
        super().__init__(reader, reader.read_next, cc, clock, inclusive=start_message_id_inclusive)

    def read_next(self, timeout_millis: int | None = None) -> PulsarMessage:
        """Wait for the next payload. If it cannot be delivered, the message's `data` raises the error.

        Raises:
            pulsar.Timeout: No payload was received in ``timeout_millis``; by default there is no limit.
        """
        return self._wait(timeout_millis)

    def has_message_available(self) -> bool:
        """Whether a whole payload is available; reads the chunks in the topic."""
        while not self._ready and self._native.has_message_available():
            self.take(self._native.read_next())
        return bool(self._ready)

    def __repr__(self) -> str:
        return f"<PulsarReader of {self.topic()}, {self.pending_payloads} payloads incomplete>"

    def _forget_history(self) -> None:
        self._reported.clear()

    def _drop(self, dropped: Dropped) -> None:
        if dropped.action != "ack":
            self._keep(self._report(dropped))
            return
        level = logging.WARNING if dropped.reason in ("expired", "evicted") else logging.INFO
        _log.log(level, "%s: dropped %d chunks without a payload: %s", self.topic(), len(dropped.slots), dropped.reason)
        self._settle(dropped, acked=True)

    def _keep(self, message: PulsarMessage) -> None:
        self._settle(message.outcome, acked=True)
        if not message.is_incomplete or message.outcome is None or self._is_first_report(message.outcome):
            super()._keep(message)

    def _is_first_report(self, outcome: Outcome) -> bool:
        """Return whether this incomplete payload was not reported before; its late chunks are not reported again."""
        known = outcome.identity in self._reported
        self._reported[outcome.identity] = None
        if len(self._reported) > _REMEMBERED:
            del self._reported[next(iter(self._reported))]
        return not known


def blocking(kind: str, native: Any) -> Any:
    """Wrap the inner object of an asyncio object into the blocking client's class ``kind``."""
    blocking = getattr(vendor(), kind)()
    inner = f"_{kind.lower()}"
    setattr(blocking, inner, getattr(native, inner))
    blocking._schema = native._schema
    blocking._client = SimpleNamespace(_consumers=SimpleNamespace(remove=lambda _: None))
    return blocking
