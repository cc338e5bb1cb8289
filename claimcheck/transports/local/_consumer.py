"""Receives payloads of any size from the embedded broker, in whatever form they were sent."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from claimcheck._resolver import Dropped, Failed, Outcome, Resolved
from claimcheck._validation import check_cc, check_int, check_seconds, check_type
from claimcheck.errors import ClaimCheckError, IncompletePayloadError, StoreError, TransportError
from claimcheck.transports._common.dead_letters import kept_longer, origin
from claimcheck.transports._common.delegation import Closing
from claimcheck.transports._common.dispatch import dispatch
from claimcheck.transports._common.stored_payload import StoredPayload
from claimcheck.transports.local._broker import LocalBroker, LocalMessage
from claimcheck.transports.local._errors import MessageTooLargeError, StaleDeliveryError, TopicExistsError
from claimcheck.transports.local._groups import Delivery, GroupMember

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_log = logging.getLogger(__name__)
_TICK_SECONDS = 1.0  # the longest time between two checks for expired chunks while no messages arrive
_BUSY_SECONDS = 1.0  # how long to read on beyond the timeout while chunks arrive, but no payload


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedMessage:
    """One payload, or the error in its place. A chunked payload is one message.

    Attributes:
        topic: The topic.
        partition: The partition, from 0.
        offset: The offset of the message, or of the first chunk.
        key: As it was sent; ``None`` if there was none, also for chunks.
        headers: As they were sent, in order, without hints of claimcheck.
        timestamp: Seconds since 1970 when the message, or its first chunk, was appended.
        redelivery_count: How often it was negatively acknowledged before, from 0.
        error: Why there was no payload when the message was received; ``None`` if there was one.
        outcome: The `claimcheck.Resolved` or `claimcheck.Failed` behind the message.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None = field(repr=False)
    headers: list[tuple[str, bytes]] = field(repr=False)
    timestamp: float
    redelivery_count: int
    error: ClaimCheckError | None
    outcome: Resolved | Failed = field(repr=False)
    _retry: StoredPayload | None = field(default=None, repr=False)

    @property
    def value(self) -> Any:
        """The payload, complete and verified; ``None`` for a tombstone.

        Raises:
            ClaimCheckError: The payload could not be read. If the error is ``retryable``, this call has just tried
                again, and so does the next one.
        """
        if isinstance(self.outcome, Resolved):
            return self.outcome.payload
        if self._retry is not None:
            return self._retry.get()
        raise self.outcome.error

    @property
    def positions(self) -> tuple[int, ...]:
        """The offsets of all messages of the payload, lowest first."""
        return self.outcome.positions


class LocalConsumer(Closing):
    """A member of a consumer group that returns payloads. For one thread at a time.

    Delivery is at least once: messages that are not acknowledged when a partition moves to another member are
    redelivered. A consumer that does not receive for ``lease_seconds`` loses its partitions to members that do.

    Args:
        broker: The broker; it stays open when the consumer closes.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores; it stays open, too.
        topics: Existing topics, at least one.
        group: The group's name: 1 to 249 of ``A-Z a-z 0-9 . _ / : -``.
        lease_seconds: How long the group waits for a member that does not receive, more than 0.
        redelivery_delay_seconds: The time between a negative acknowledgement and the redelivery, from 0.
        max_redeliveries: How often a payload is redelivered, from 0; the next negative acknowledgement sends it to the
            dead-letter topic, see `dead_letter`, and so does a payload that stays incomplete. By default payloads are
            redelivered for as long as the application negatively acknowledges them, and a payload that stays
            incomplete is received as a message with an `IncompletePayloadError`, after
            ``chunking.max_redeliveries``.

    Raises:
        ConfigError: The group's name, the topics or one of the numbers is invalid.
        ArgumentTypeError: ``broker`` or ``cc`` has another type; a `ConfigError` that is also a `TypeError`.
        UnknownTopicError: One of the topics does not exist.
    """

    def __init__(
        self,
        broker: LocalBroker,
        cc: ClaimCheck,
        *,
        topics: Iterable[str],
        group: str,
        lease_seconds: float = 30.0,
        redelivery_delay_seconds: float = 1.0,
        max_redeliveries: int | None = None,
    ) -> None:
        check_type("broker", broker, valid=isinstance(broker, LocalBroker), expected="a LocalBroker")
        check_cc(cc)
        check_int("max_redeliveries", 0 if max_redeliveries is None else max_redeliveries, minimum=0)
        check_seconds("redelivery_delay_seconds", redelivery_delay_seconds, allow_zero=True)
        self._broker = broker
        self._cc = cc
        self._member = GroupMember(broker, group, topics, lease_seconds=lease_seconds)
        self._resolver = cc.resolver(clock=broker.clock)
        self._delay = redelivery_delay_seconds
        self._max_redeliveries = max_redeliveries
        self._ready: deque[ReceivedMessage] = deque()
        self._undelivered: deque[Dropped | Failed] = deque()
        self._closed = False

    def receive(self, *, timeout: float = 1.0) -> ReceivedMessage | None:
        """Wait for the next payload. A bad message is returned with its ``error``, never raised.

        Args:
            timeout: Seconds to wait while no messages arrive; 0 returns only what has arrived. Chunks that have arrived
                are read to the end of their payload, for a second more if necessary.

        Returns:
            ``None`` if no payload arrived.

        Raises:
            BrokerClosedError: The consumer or the broker was closed.
            BrokerStorageError: The broker's file cannot be used.
        """
        begin, waited = self._broker.clock(), 0.0
        while not self._ready:
            pause = min(timeout - waited, _TICK_SECONDS)
            if not self._step(pause):
                waited += pause
                if waited >= timeout:
                    break
            elif self._broker.clock() - begin > max(timeout, _BUSY_SECONDS):
                break
        return self._ready.popleft() if self._ready else None

    def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a payload with all its chunks: it is never delivered to the group again.

        Raises:
            StaleDeliveryError: The partition was lost, or a seek moved its position. Nothing was acknowledged; the
                payload is redelivered.
            BrokerClosedError: The consumer or the broker was closed; nothing was acknowledged.
        """
        self._ack(message.outcome)

    def nack(self, message: ReceivedMessage, *, delay_seconds: float | None = None) -> None:
        """Negatively acknowledge a payload with all its chunks: it is redelivered as a whole.

        After ``max_redeliveries`` it goes to the dead-letter topic instead, see `dead_letter`; if that fails, or the
        partition was lost meanwhile, it is redelivered nevertheless.

        Args:
            message: As it was received.
            delay_seconds: The time until it is redelivered, from 0; by default ``redelivery_delay_seconds``.

        Raises:
            ConfigError: The delay is not a number of seconds from 0.
            BrokerClosedError: The consumer or the broker was closed; the payload is redelivered anyway.
        """
        delay = self._delay if delay_seconds is None else delay_seconds
        check_seconds("delay_seconds", delay, allow_zero=True)
        count = _redelivery_count(message.outcome)
        if not self._is_last(count) or not self._try_dead_letter(
            message.outcome, f"rejected after {count} redeliveries"
        ):
            self._nack(message.outcome, delay)

    def dead_letter(self, message: ReceivedMessage, *, reason: str | None = None) -> None:
        """Append the original messages to the topic ``<topic>.dead_letter``, and acknowledge them.

        The topic is created, with one partition, if it does not exist; all messages go to one partition. Each gets the
        headers ``dead-letter-topic``, ``-partition``, ``-offset`` and ``-reason``, or only the first or none of them if
        it is so close to the broker's limit that they do not fit. With ``dead_letter_ttl_seconds`` the lifetime of a
        stored payload is extended first.

        Args:
            message: As it was received.
            reason: For the header ``dead-letter-reason``; by default the message's error.

        Raises:
            StaleDeliveryError: They are in the dead-letter topic, but were not acknowledged: they are redelivered.
            StoreUnavailableError: The lifetime of the payload could not be extended now; nothing was sent.
            TransportError: The broker refused them; they were not acknowledged.
        """
        self._append_dead_letters(message.outcome, reason or _reason("rejected", message.error))
        self.ack(message)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Move the position of the whole group, whichever member holds the partition.

        Messages received from the partition before are stale. Chunks from before the seek never complete with chunks
        from after it; if the offset is in the middle of a payload, that payload is not delivered: its chunks expire as
        configured.

        Args:
            topic: One of the consumer's topics.
            partition: From 0.
            offset: From 0 to the partition's end.

        Raises:
            ConfigError: The topic is not one of the consumer's; nothing was changed.
            TransportError: There is no such position; nothing was changed.
        """
        self._member.seek(topic, partition, offset)
        self._clear((topic, partition))

    def close(self) -> None:
        """Leave the group; unacknowledged messages are redelivered to other members. Closing twice is harmless."""
        self._closed = True
        self._ready.clear()
        self._undelivered.clear()
        self._resolver.clear()
        self._member.close()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Receive until the consumer is closed."""
        while not self._closed:
            message = self.receive()
            if message is not None:
                yield message

    def __repr__(self) -> str:
        return f"<LocalConsumer {self._member!r}, {self._resolver.pending_payloads} payloads incomplete>"

    # From deliveries to outcomes -------------------------------------------------------------------------------

    def _step(self, pause: float) -> bool:
        """Take one message, or wait for one; return whether anything arrived."""
        self._end_undelivered()  # those for which this failed before
        polled = self._member.poll(timeout=max(pause, 0.0))
        for source in polled.lost:
            self._clear(source)
        for delivery in polled.deliveries:
            self._process(self._feed(delivery))
        if not polled.deliveries:
            self._process(self._resolver.tick())
        return bool(polled.deliveries or polled.lost)

    def _feed(self, delivery: Delivery) -> list[Outcome]:
        """Feed a delivery to the resolver; if this is interrupted, the message is redelivered."""
        message = delivery.message
        # Without the value: until the acknowledgement it would be in memory twice.
        handle = delivery._replace(message=replace(message, value=None))
        source = (message.topic, message.partition)
        try:
            return self._resolver.feed(
                source,
                message.offset,
                message.value,
                headers=message.headers,
                key=message.key,
                handle=handle,
                destination=message.topic,
            )
        except BaseException:
            self._member.nack([delivery], delay_seconds=self._delay)
            raise

    def _process(self, outcomes: Iterable[Outcome]) -> None:
        limited = self._max_redeliveries is not None
        for outcome in outcomes:
            if isinstance(outcome, Resolved):
                self._ready.append(self._received(outcome))
            elif isinstance(outcome, Dropped) or (limited and isinstance(outcome.error, IncompletePayloadError)):
                self._undelivered.append(outcome)
            else:
                self._ready.append(self._received(outcome))
        self._end_undelivered()

    def _received(self, outcome: Resolved | Failed) -> ReceivedMessage:
        deliveries: tuple[Delivery, ...] = outcome.handles
        error = outcome.error if isinstance(outcome, Failed) else None
        first = min(deliveries, key=lambda delivery: delivery.message.offset).message
        return ReceivedMessage(
            topic=first.topic,
            partition=first.partition,
            offset=first.offset,
            key=outcome.key,
            headers=outcome.headers,
            timestamp=first.timestamp,
            redelivery_count=_redelivery_count(outcome),
            error=error,
            outcome=outcome,
            _retry=self._stored_payload(first) if error is not None and error.retryable else None,
        )

    def _stored_payload(self, message: LocalMessage) -> StoredPayload | None:
        value = self._original(message).value or b""
        content = dispatch(self._cc, value, lambda: message.headers, destination=message.topic)
        return content if isinstance(content, StoredPayload) else None

    def _original(self, message: LocalMessage) -> LocalMessage:
        """Return the message with its value, which handles do not hold."""
        return self._broker.fetch(message.topic, message.partition, message.offset, 1)[0]

    def _clear(self, source: Hashable) -> None:
        self._resolver.clear(source)
        self._ready = deque(message for message in self._ready if message.outcome.source != source)
        self._undelivered = deque(outcome for outcome in self._undelivered if outcome.source != source)

    # The end of messages that the application does not receive --------------------------------------------------

    def _end_undelivered(self) -> None:
        """Redeliver, dead-letter or acknowledge messages that became no payload; on failure they stay queued."""
        while self._undelivered:
            self._end(self._undelivered[0])
            self._undelivered.popleft()

    def _end(self, outcome: Dropped | Failed) -> None:
        action, reason = "dead_letter", "incomplete"
        if isinstance(outcome, Dropped):
            action, reason = outcome.action, outcome.reason
        count = _redelivery_count(outcome)
        if action == "ack":
            self._ack_unless_stale(outcome)
        elif action == "redeliver" and not self._is_last(count):
            self._nack(outcome, self._delay)
        else:
            if action == "redeliver":
                reason = f"{reason} after {count} redeliveries"
            if not self._try_dead_letter(outcome, reason):  # the application decides: it would be redelivered forever
                failed = outcome if isinstance(outcome, Failed) else outcome.as_failed()
                self._ready.append(self._received(failed))

    def _is_last(self, redeliveries: int) -> bool:
        return self._max_redeliveries is not None and redeliveries >= self._max_redeliveries

    def _ack(self, outcome: Outcome) -> None:
        self._member.ack(outcome.handles)
        self._resolver.settle(outcome, acked=True)

    def _ack_unless_stale(self, outcome: Outcome) -> None:
        try:
            self._ack(outcome)
        except StaleDeliveryError:  # redelivered: the next poll returns the partition as lost
            _log.debug("messages of %s became stale before they were acknowledged", outcome.source)

    def _nack(self, outcome: Outcome, delay_seconds: float) -> None:
        self._member.nack(outcome.handles, delay_seconds=delay_seconds)
        self._resolver.settle(outcome, acked=False)

    def _try_dead_letter(self, outcome: Outcome, reason: str) -> bool:
        """Send messages to the dead-letter topic and acknowledge them; return whether that succeeded."""
        try:
            self._append_dead_letters(outcome, _reason(reason, getattr(outcome, "error", None)))
            self._ack_unless_stale(outcome)
        except (TransportError, StoreError) as error:
            _log.warning("messages of %s could not be sent to the dead-letter topic: %s", outcome.source, error)
            return False
        _log.warning("messages of %s were sent to the dead-letter topic: %s", outcome.source, reason)
        return True

    def _append_dead_letters(self, outcome: Outcome, reason: str) -> None:
        originals = sorted((self._original(each.message) for each in outcome.handles), key=lambda each: each.offset)
        topic = f"{originals[0].topic}.dead_letter"
        with contextlib.suppress(TopicExistsError):  # with more partitions
            self._broker.create_topic(topic)
        partition = self._broker.partition_for(topic, outcome.handles[0].message.key)
        for message in originals:
            value = kept_longer(self._cc, message.value, topic=message.topic, dead_letter_topic=topic)
            labels = tuple(origin(message.topic, message.partition, message.offset, reason))
            append = partial(self._broker.append, topic, value, key=message.key, partition=partition)
            for fewer in (labels, labels[:1]):
                with contextlib.suppress(MessageTooLargeError):  # because of the labels
                    append(headers=[*message.headers, *fewer])
                    break
            else:
                append(headers=message.headers)


def _redelivery_count(outcome: Outcome) -> int:
    deliveries: tuple[Delivery, ...] = outcome.handles
    return max(delivery.redelivery_count for delivery in deliveries)


def _reason(word: str, error: ClaimCheckError | None) -> str:
    return f"{word}: {type(error).__name__}: {error}" if error is not None else word
