"""Receives payloads of any size from the embedded broker, whatever their writers made of them."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeGuard

from claimcheck import _hints as hints
from claimcheck._payload import crc32_of
from claimcheck._resolver import Dropped, Failed, Outcome, Resolved, Resolver
from claimcheck._validation import check_int, check_seconds
from claimcheck.errors import ClaimCheckError, IncompletePayloadError, TransportError
from claimcheck.transports.local._broker import LocalBroker
from claimcheck.transports.local._errors import (
    MessageTooLargeError,
    StaleDeliveryError,
    TopicExistsError,
    checking_arguments,
)
from claimcheck.transports.local._groups import Delivery, GroupMember
from claimcheck.transports.local._messages import LocalMessage
from claimcheck.transports.local._received_message import ReceivedMessage, received

__all__ = [
    "dead_letter_topic",
    "LocalConsumer",
    "put_aside",
]

_log = logging.getLogger(__name__)
_TICK_SECONDS = 1.0  # how long chunks that wait too long may go unnoticed while nothing comes
_BUSY_SECONDS = 1.0  # how long to read on beyond the timeout while chunks come, but no payload


class _Resolves(Protocol):
    """What is needed of a `claimcheck.ClaimCheck`, which stands above the transports and is never imported here."""

    def resolver(self, *, clock: Callable[[], float]) -> Resolver: ...

    def resolve(self, message: bytes) -> Any: ...


class LocalConsumer:
    """A member of a consumer group that hands out payloads. For one thread at a time.

    Delivery is at least once: what is not acknowledged when a partition changes hands comes again. A consumer that does
    not receive for ``lease_seconds`` loses its partitions to members that do.

    Args:
        broker: The broker; it stays open when the consumer closes.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores; it stays open, too.
        topics: Topics that were created, at least one.
        group: 1 to 249 of ``A-Z a-z 0-9 . _ / : -``.
        lease_seconds: How long the group waits for a member that is silent, more than 0.
        redelivery_delay_seconds: How long after a negative acknowledgement messages are redelivered, from 0.
        max_redeliveries: How often a payload is redelivered, from 0; the next negative acknowledgement sends it to the
            dead-letter topic, see `dead_letter`, and so does a payload that stays incomplete. By default payloads are
            redelivered for as long as the application negatively acknowledges them, and a payload that stays
            incomplete is received as a message with an `IncompletePayloadError`, after
            ``chunking.max_redeliveries``.

    Raises:
        BrokerArgumentError: The group's name, the topics or one of the numbers is invalid; a `ConfigError`.
        UnknownTopicError: Nobody has created one of the topics.
    """

    def __init__(
        self,
        broker: LocalBroker,
        cc: _Resolves,
        *,
        topics: Iterable[str],
        group: str,
        lease_seconds: float = 30.0,
        redelivery_delay_seconds: float = 1.0,
        max_redeliveries: int | None = None,
    ) -> None:
        with checking_arguments():
            check_int("max_redeliveries", 0 if max_redeliveries is None else max_redeliveries, minimum=0)
            check_seconds("redelivery_delay_seconds", redelivery_delay_seconds, allow_zero=True)
        self._broker = broker
        self._member = GroupMember(broker, group, topics, lease_seconds=lease_seconds)
        self._cc = cc
        self._resolver = cc.resolver(clock=broker.clock)
        self._delay = redelivery_delay_seconds
        self._max_redeliveries = max_redeliveries
        self._ready: deque[ReceivedMessage] = deque()
        self._undelivered: deque[Dropped | Failed] = deque()
        self._closed = False

    def receive(self, *, timeout: float = 1.0) -> ReceivedMessage | None:
        """Wait for the next payload. A bad message is handed out with its ``error``, never raised.

        Args:
            timeout: Seconds to wait while nothing comes, 0 to take only what is there. Chunks that are there are read
                to the end of their payload, for a second more if need be.

        Returns:
            ``None`` when no payload came.

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
        """Acknowledge a payload with all its chunks: the group never gets it again.

        Raises:
            StaleDeliveryError: Its partition was lost or sought meanwhile: it comes again. Nothing was acknowledged.
            BrokerClosedError: The consumer or the broker was closed; nothing was acknowledged.
        """
        self._member.ack(message.outcome.handles)
        self._resolver.settle(message.outcome, acked=True)

    def nack(self, message: ReceivedMessage, *, delay_seconds: float | None = None) -> None:
        """Negatively acknowledge a payload with all its chunks: it is redelivered as a whole.

        After ``max_redeliveries`` it goes to the dead-letter topic instead, see `dead_letter`; if that fails, or the
        partition was lost meanwhile, it is redelivered all the same.

        Args:
            message: As it was received.
            delay_seconds: How long until it is redelivered, from 0; by default ``redelivery_delay_seconds``.

        Raises:
            BrokerArgumentError: The delay is not a number of seconds from 0.
            BrokerClosedError: The consumer or the broker was closed; the payload is redelivered anyhow.
        """
        delay = self._delay if delay_seconds is None else delay_seconds
        with checking_arguments():
            check_seconds("delay_seconds", delay, allow_zero=True)
        count = self._spent(message.outcome)
        if count is None or not self._put_aside(message.outcome, _redelivered("rejected", count)):
            self._give_back(message.outcome, delay)

    def dead_letter(self, message: ReceivedMessage, *, reason: str | None = None) -> None:
        """Put the original messages aside, into the topic ``<topic>.dead_letter``, and acknowledge them.

        Args:
            message: As it was received.
            reason: Goes into the header ``dead-letter-reason``; by default the message's error.

        Raises:
            StaleDeliveryError: They were put aside, but not acknowledged: they come again.
            TransportError: The broker refused; they were not acknowledged.
        """
        put_aside(self._broker, message.outcome.handles, reason=reason or _reason("rejected", message.error))
        self.ack(message)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Make the whole group begin again at an offset, whoever holds the partition.

        What was received from there before is stale. Chunks from before the seek never complete with chunks from after
        it; a payload into whose middle this leads is not delivered: its chunks expire as configured.

        Args:
            topic: One of the consumer's topics.
            partition: From 0.
            offset: From 0 to the partition's end.

        Raises:
            TransportError: There is no such place; nothing was changed.
        """
        self._member.seek(topic, partition, offset)
        self._forget((topic, partition))

    def close(self) -> None:
        """Leave the group; what was not acknowledged comes again, to others. Closing twice is harmless."""
        self._closed = True
        self._ready.clear()
        self._undelivered.clear()
        self._resolver.clear()
        self._member.close()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Receive for ever; ends when the consumer is closed."""
        while not self._closed:
            message = self.receive()
            if message is not None:
                yield message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalConsumer {self._member!r}, {self._resolver.pending_payloads} payloads incomplete>"

    # Within ----------------------------------------------------------------------------------------------------

    def _step(self, pause: float) -> bool:
        """Take one message, or wait for one; returns whether anything arrived."""
        self._end_undelivered()  # those for which this failed before
        polled = self._member.poll(timeout=max(pause, 0.0))
        for source in polled.lost:
            self._forget(source)
        self._feed_all(polled.deliveries)
        if not polled.deliveries:
            self._act(self._resolver.tick())
        return bool(polled.deliveries or polled.lost)

    def _feed_all(self, deliveries: Sequence[Delivery]) -> None:
        """Feed deliveries one by one; whatever interrupts this, the rest of them comes again."""
        for done, delivery in enumerate(deliveries):
            try:
                outcomes = self._feed(delivery)
            except BaseException:
                self._member.nack(deliveries[done:], delay_seconds=self._delay)
                raise
            self._act(outcomes)

    def _feed(self, delivery: Delivery) -> list[Outcome]:
        message = delivery.message
        source = (message.topic, message.partition)
        # The value stays out of the handle: until the acknowledgement it would be in memory twice.
        handle = replace(delivery, message=replace(message, value=None))
        return self._resolver.feed(
            source, message.offset, message.value, headers=message.headers, key=message.key, handle=handle
        )

    def _read(self, message: LocalMessage) -> bytes:
        """Read a stored payload again; the message is without its value, see `_feed`."""
        (original,) = self._broker.fetch(message.topic, message.partition, message.offset, 1)
        payload: bytes = self._cc.resolve(original.value or b"")
        hints.check(hints.declared(original.headers), size=len(payload), checksum=lambda: crc32_of(payload))
        return payload

    def _act(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Dropped) or (self._max_redeliveries is not None and _is_incomplete(outcome)):
                self._undelivered.append(outcome)
            else:
                self._ready.append(received(outcome, self._read))
        self._end_undelivered()

    def _end_undelivered(self) -> None:
        """Redeliver, dead-letter or acknowledge messages that became no payload; those for which it fails stay."""
        while self._undelivered:
            self._end(self._undelivered[0])
            self._undelivered.popleft()

    def _end(self, outcome: Dropped | Failed) -> None:
        action = outcome.action if isinstance(outcome, Dropped) else "dead_letter"
        word = outcome.reason if isinstance(outcome, Dropped) else "incomplete"
        count = self._spent(outcome) if action == "redeliver" else None
        if action == "ack":
            self._finish(outcome)
        elif action == "redeliver" and count is None:
            self._give_back(outcome, self._delay)
        elif self._put_aside(outcome, _redelivered(word, count)):
            return
        elif isinstance(outcome, Failed):  # it was redelivered often enough
            self._ready.append(received(outcome, self._read))
        else:
            self._give_back(outcome, self._delay)

    def _spent(self, outcome: Outcome) -> int | None:
        """How often messages were redelivered, if that was the last time."""
        count = max(delivery.redelivery_count for delivery in outcome.handles)
        return count if self._max_redeliveries is not None and count >= self._max_redeliveries else None

    def _put_aside(self, outcome: Outcome, why: str) -> bool:
        """Send messages to the dead-letter topic and acknowledge them; returns whether that worked."""
        try:
            put_aside(self._broker, outcome.handles, reason=_reason(why, _error(outcome)))
            self._finish(outcome)
        except TransportError as error:
            _log.warning("messages of %s could not be put aside: %s", outcome.source, error)
            return False
        _log.warning("messages of %s are put aside: %s", outcome.source, why)
        return True

    def _finish(self, outcome: Outcome) -> None:
        """Acknowledge messages that the application does not receive; if their partition was lost they come again."""
        try:
            self._member.ack(outcome.handles)
            self._resolver.settle(outcome, acked=True)
        except StaleDeliveryError:  # the next poll returns the partition as lost
            _log.debug("messages of %s were lost before they were acknowledged", outcome.source)

    def _give_back(self, outcome: Outcome, delay_seconds: float) -> None:
        self._member.nack(outcome.handles, delay_seconds=delay_seconds)
        self._resolver.settle(outcome, acked=False)

    def _forget(self, source: Hashable) -> None:
        self._resolver.clear(source)
        self._ready = deque(message for message in self._ready if message.outcome.source != source)
        self._undelivered = deque(outcome for outcome in self._undelivered if outcome.source != source)


def _is_incomplete(outcome: Outcome) -> TypeGuard[Failed]:
    return isinstance(outcome, Failed) and isinstance(outcome.error, IncompletePayloadError)


def _redelivered(word: str, count: int | None) -> str:
    return word if count is None else f"{word} after {count} redeliveries"


def _error(outcome: Outcome) -> ClaimCheckError | None:
    return None if isinstance(outcome, Resolved) else outcome.error


def _reason(word: str, error: ClaimCheckError | None) -> str:
    return f"{word}: {type(error).__name__}: {error}" if error is not None else word


_LONGEST_REASON = 500


def dead_letter_topic(topic: str) -> str:
    """Name the topic that takes the dead letters of another one."""
    return f"{topic}.dead_letter"


def put_aside(broker: LocalBroker, deliveries: Iterable[Delivery], *, reason: str) -> None:
    """Append the original messages, envelopes as they came, to their topic's dead letters, all to one partition.

    Each one gets the headers ``dead-letter-topic``, ``-partition``, ``-offset`` and ``-reason``, unless it is so close
    to the broker's limit that they do not fit: the message matters more than its label.

    Args:
        broker: Where they came from. The topic is made, with one partition, when it is not there.
        deliveries: Messages of one partition; their values are read anew.
        reason: Why.

    Raises:
        TransportError: The broker refused; some of the messages may be among the dead letters already.
    """
    originals = [_original(broker, delivery) for delivery in deliveries]
    topic = dead_letter_topic(originals[0].topic)
    with contextlib.suppress(TopicExistsError):  # somebody made it with more partitions: as good
        broker.create_topic(topic)
    partition = broker.partition_for(topic, originals[0].key)
    for message in sorted(originals, key=lambda message: message.offset):
        _append(broker, topic, partition, message, reason)


def _original(broker: LocalBroker, delivery: Delivery) -> LocalMessage:
    """The message with its value, which deliveries that wait for their acknowledgement do not carry about."""
    known = delivery.message
    return broker.fetch(known.topic, known.partition, known.offset, 1)[0]


def _append(broker: LocalBroker, topic: str, partition: int, message: LocalMessage, reason: str) -> None:
    origin = {
        "dead-letter-topic": message.topic,
        "dead-letter-partition": str(message.partition),
        "dead-letter-offset": str(message.offset),
        "dead-letter-reason": reason[:_LONGEST_REASON],
    }
    try:
        headers = [*message.headers, *((name, text.encode()) for name, text in origin.items())]
        broker.append(topic, message.value, key=message.key, headers=headers, partition=partition)
    except MessageTooLargeError:
        broker.append(topic, message.value, key=message.key, headers=message.headers, partition=partition)
