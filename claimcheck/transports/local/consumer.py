"""Receives payloads of any size from the embedded broker, whatever their writers made of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from claimcheck.errors import ClaimCheckError, TransportError
from claimcheck.resolver import Dropped, Outcome, Resolver
from claimcheck.transports.local.broker import LocalBroker
from claimcheck.transports.local.dead_letters import put_aside
from claimcheck.transports.local.errors import StaleDeliveryError
from claimcheck.transports.local.groups import Delivery, GroupMember
from claimcheck.transports.local.received import ReceivedMessage, received

__all__ = ["LocalConsumer"]

_log = logging.getLogger(__name__)
_TICK_SECONDS = 1.0  # how long chunks that wait too long may go unnoticed while nothing comes
_BUSY_SECONDS = 1.0  # how long to read on beyond the timeout while chunks come, but no payload


class _Resolves(Protocol):
    """What is needed of a `claimcheck.ClaimCheck`, which stands above the transports and is never imported here."""

    def resolver(self, *, clock: Callable[[], float]) -> Resolver: ...


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
        redelivery_delay_seconds: How long messages stay away that were given back, from 0.

    Raises:
        BrokerArgumentError: The group's name, the topics or the lease cannot be used.
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
    ) -> None:
        self._broker = broker
        self._member = GroupMember(broker, group, topics, lease_seconds=lease_seconds)
        self._resolver = cc.resolver(clock=broker.clock)
        self._delay = redelivery_delay_seconds
        self._ready: deque[ReceivedMessage] = deque()
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
        """Give a payload back with all its chunks: it comes again, whole, to whoever holds the partition then.

        Args:
            message: As it was received.
            delay_seconds: How long it stays away, from 0; by default ``redelivery_delay_seconds``.

        Raises:
            BrokerClosedError: The consumer or the broker was closed; it comes again anyhow.
        """
        self._give_back(message.outcome, self._delay if delay_seconds is None else delay_seconds)

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
        """Take one message, or wait for one; returns whether anything came."""
        polled = self._member.poll(timeout=max(pause, 0.0))
        for source in polled.lost:
            self._forget(source)
        for delivery in polled.deliveries:
            self._act(self._feed(delivery))
        if not polled.deliveries:
            self._act(self._resolver.tick())
        return bool(polled.deliveries or polled.lost)

    def _feed(self, delivery: Delivery) -> list[Outcome]:
        message = delivery.message
        source = (message.topic, message.partition)
        # The value stays out of the handle: until the acknowledgement it would be in memory twice.
        handle = replace(delivery, message=replace(message, value=None))
        return self._resolver.feed(
            source, message.offset, message.value, headers=message.headers, key=message.key, handle=handle
        )

    def _act(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Dropped):
                self._let_go(outcome)
            else:
                self._ready.append(received(outcome))

    def _let_go(self, dropped: Dropped) -> None:
        """Do with messages that became no payload what the configuration says; in doubt they come again."""
        try:
            if dropped.action == "redeliver":
                self._give_back(dropped, self._delay)
                return
            if dropped.action == "dead_letter":
                put_aside(self._broker, dropped.handles, reason=_reason(dropped.reason, dropped.error))
            self._member.ack(dropped.handles)
            self._resolver.settle(dropped, acked=True)
        except StaleDeliveryError:  # lost meanwhile; the next poll says so
            _log.debug("%s was lost before its chunks were acknowledged", dropped.source)
        except TransportError as error:
            _log.warning("chunks of %s come again, for they could not be put aside: %s", dropped.source, error)
            self._give_back(dropped, self._delay)

    def _give_back(self, outcome: Outcome, delay_seconds: float) -> None:
        self._member.nack(outcome.handles, delay_seconds=delay_seconds)
        self._resolver.settle(outcome, acked=False)

    def _forget(self, source: Hashable) -> None:
        self._resolver.clear(source)
        self._ready = deque(message for message in self._ready if message.outcome.source != source)


def _reason(word: str, error: ClaimCheckError | None) -> str:
    return f"{word}: {type(error).__name__}: {error}" if error is not None else word
