"""Receives payloads of any size from a consumer of the Pulsar client, whatever their writers made of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from claimcheck._resolver import Dropped, Outcome
from claimcheck._validation import check_cc, check_int, check_type
from claimcheck.errors import ClaimCheckError, ConfigError
from claimcheck.transports._common.claimcheck_types import Resolves
from claimcheck.transports._common.prefetch import Prefetch
from claimcheck.transports.pulsar._dispatch import Inbox
from claimcheck.transports.pulsar._errors import SharedSubscriptionError, vendor
from claimcheck.transports.pulsar._message import PulsarMessage
from claimcheck.transports.pulsar._message_ids import Place, WholeMessageId, id_of, natives, nowhere, position_of
from claimcheck.transports.pulsar._receiver import Receiving
from claimcheck.transports.pulsar._redelivery_tracker import (
    Redeliveries,
    check_dead_letters,
    place_of,
    put_aside,
    tried_to_put_aside,
)

__all__ = [
    "PulsarConsumer",
    "shared_refusal",
]

_log = logging.getLogger(__name__)
_SHARED = (
    "chunks cannot be put together on a Shared subscription, where each may go to another consumer: subscribe "
    "Key_Shared, Failover or Exclusive, or send pointers (strategy external, for example to a store of type "
    "pulsar-topic)"
)
_MAY_BE_SHARED = (
    "chunks on a subscription that may be Shared, where each may go to another consumer: say "
    "consumer_type=pulsar.ConsumerType.KeyShared if it is that, or send pointers (strategy external)"
)


def shared_refusal(consumer_type: Any, probe: Callable[[str], Any]) -> Callable[[str], ClaimCheckError | None]:
    """Make the answer to the question whether chunks can be put together on a subscription.

    Args:
        consumer_type: As its user says; ``None`` for an unknown one.
        probe: Acknowledges nothing in a topic, in a way that subscriptions of several consumers refuse.
    """
    known: list[ClaimCheckError | None] = []

    def refusal(topic: str) -> ClaimCheckError | None:
        if not known:
            known.append(_refusal(consumer_type, lambda: probe(topic)))
        return known[0]

    return refusal


def _refusal(consumer_type: Any, probe: Callable[[], Any]) -> ClaimCheckError | None:
    pulsar = vendor()
    if consumer_type == pulsar.ConsumerType.Shared:
        return SharedSubscriptionError(_SHARED)
    if consumer_type is None:
        try:
            probe()
        except pulsar.exceptions.CumulativeAcknowledgementNotAllowedError:
            return SharedSubscriptionError(_MAY_BE_SHARED)
        except pulsar.exceptions.PulsarException as error:
            _log.debug("cannot tell the type of the subscription: %s", error)
    return None


class PulsarConsumer(Receiving):
    """Has the methods of a `pulsar.Consumer`; each message that it returns is a whole payload.

    A chunk is acknowledged with its payload and never before; a negative acknowledgement redelivers all of its chunks.

    Every incomplete payload ends. When it expires or is evicted it is negatively acknowledged, and redelivered after
    the consumer's ``negative_ack_redelivery_delay_ms``, unless ``chunking.on_expire`` or ``on_evict`` says otherwise.
    After ``chunking.max_redeliveries`` redeliveries, or ``max_redeliveries`` if that is less, its messages go to the
    dead letters if there is a ``dead_letter_producer``. Otherwise, or if that fails, they are returned as one message
    whose data raises `IncompletePayloadError`: acknowledge it to be rid of them.

    Chunks need a subscription on which one consumer receives all of them: Exclusive, Failover or Key_Shared. Do not set
    the consumer's own ``dead_letter_policy``, which would split payloads; pass ``dead_letter_producer`` here.

    Args:
        consumer: A `pulsar.Consumer`, without a message listener. For chunks, and to look ahead, it needs a
            ``receiver_queue_size`` of 1 or more, without which the client fails with `pulsar.InvalidConfiguration`.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        consumer_type: As it was subscribed. Without it, chunks are refused on a subscription that could be Shared,
            which the client does not tell from Key_Shared.
        start_message_id_inclusive: As it was subscribed; decides where `seek` goes.
        dead_letter_producer: A `pulsar.Producer` for payloads that were redelivered too often. It is not closed. With
            it, chunks are in memory twice until they are settled.
        max_redeliveries: How often a payload is redelivered, from 0; by default a negatively acknowledged payload is
            redelivered without end. Every redelivery counts, of an incomplete payload too. On Exclusive and Failover
            subscriptions, where the broker does not count, this object does, for the last 10,000 payloads.
        prefetch_bytes: Bytes of stored payloads to read ahead, in order; 0 for none.
        prefetch_threads: Payloads that are read ahead at once.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: An argument is of the wrong type or out of its range, or there is ``max_redeliveries`` and no
            ``dead_letter_producer``.
    """

    def __init__(
        self,
        consumer: Any,
        cc: Resolves,
        *,
        consumer_type: Any = None,
        start_message_id_inclusive: bool = False,
        dead_letter_producer: Any = None,
        max_redeliveries: int | None = None,
        prefetch_bytes: int = 0,
        prefetch_threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_type("consumer", consumer, valid=hasattr(consumer, "_consumer"), expected="a pulsar.Consumer")
        check_cc(cc)
        check_int("max_redeliveries", 0 if max_redeliveries is None else max_redeliveries, minimum=0)
        check_int("prefetch_bytes", prefetch_bytes, minimum=0)
        check_int("prefetch_threads", prefetch_threads, minimum=1)
        check_dead_letters(dead_letter_producer, max_redeliveries)
        self._native = consumer
        self._inclusive = start_message_id_inclusive
        self._dead_letters = dead_letter_producer
        self._redeliveries = Redeliveries(max_redeliveries)
        self._prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)
        refusal = shared_refusal(consumer_type, lambda topic: consumer.acknowledge_cumulative(nowhere(topic)))
        keep = dead_letter_producer is not None
        self._looks_ahead = prefetch_bytes > 0
        inbox = Inbox(cc, consumer._schema, refusal=refusal, sizes=self._looks_ahead, keep=keep, clock=clock)
        super().__init__(consumer.receive, inbox, clock)

    # Receiving -------------------------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> PulsarMessage:
        """Wait for the next payload. One that cannot be delivered is a message whose data raises the error.

        Args:
            timeout_millis: By default without end.

        Raises:
            pulsar.Timeout: No payload came in time.
            Exception: The client's own.
        """
        if not self._looks_ahead and not self._ready and not self._inbox.has_unsettled_chunks:
            native = self._native.receive(timeout_millis)
            if (plain := self._inbox.plain(native)) is not None:
                return plain
            self.take(native)
        message = self._wait(timeout_millis)
        while self._prefetch.room and self._take_one_that_is_there():
            pass
        return message

    def batch_receive(self) -> list[PulsarMessage]:
        """Receive payloads as the consumer's batch policy says; it counts messages, of which a payload may be many."""
        for native in self._native.batch_receive():
            self.take(native)
        return list(iter(self.take_ready, None))

    # Settling --------------------------------------------------------------------------------------------------

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a payload with all its messages.

        Args:
            message: A `PulsarMessage`, its id, or a native message or id; an id may come from another process.

        Raises:
            Exception: The client's own; some of a payload's messages may be acknowledged by then.
        """
        if self._redeliveries or self._inbox.has_unsettled_chunks:
            place = self._place_of(message)
            self._redeliveries.forget(place)
            self._inbox.settle_own(place)
        if isinstance(message, PulsarMessage) and message.outcome is None:
            self._native.acknowledge(message.native)
            return
        for native in natives(id_of(message)):
            self._native.acknowledge(native)
        self._inbox.settle(self._outcome_of(message), acked=True)
        self.tick()  # duplicates may have ended with it

    def acknowledge_cumulative(self, message: Any) -> None:
        """Acknowledge everything up to a payload, but no message of one that is incomplete or not settled.

        What lies behind the beginning of such a payload is acknowledged message by message.

        Args:
            message: As `acknowledge` takes it.

        Raises:
            Exception: The client's own, for example on a Shared subscription.
        """
        message_id = id_of(message)
        topic = message.topic_name() if message is not message_id else getattr(message_id, "topic", None)
        acks = self._inbox.settle_up_to(message_id, topic, self._outcome_of(message))
        if acks.cumulatively is not None:
            self._native.acknowledge_cumulative(acks.cumulatively)
            self._redeliveries.forget_up_to(topic or self.topic(), position_of(acks.cumulatively))
        for native in acks.individually:
            self._native.acknowledge(native)
            self._redeliveries.forget((topic or self.topic(), position_of(native)))
        self.tick()

    def negative_acknowledge(self, message: Any) -> None:
        """Give a payload back with all its messages; they are redelivered after the consumer's delay.

        One that was redelivered ``max_redeliveries`` times goes to the dead letters instead. Raises as `acknowledge`.
        """
        place = self._place_of(message)
        if isinstance(message, PulsarMessage):
            count = self._redeliveries.too_many(place, message.redelivery_count())
            if count is not None and self._put_aside(message.natives, f"given back after {count} redeliveries"):
                self.acknowledge(message)
                return
        self._inbox.settle_own(place)
        self._give_back(natives(id_of(message)), self._outcome_of(message), place)

    def dead_letter(self, message: PulsarMessage, *, reason: str = "rejected") -> None:
        """Put a payload's messages aside, as they came, and acknowledge them.

        Raises:
            ConfigError: There is no producer for dead letters.
            Exception: The client's own; nothing was acknowledged.
        """
        if self._dead_letters is None:
            raise ConfigError("there is no dead_letter_producer")
        put_aside(self._dead_letters, message.natives, reason=reason)
        self.acknowledge(message)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything come again that is not acknowledged."""
        self.forget()
        self._native.redeliver_unacknowledged_messages()

    # The rest of the client's consumer -------------------------------------------------------------------------

    def seek(self, messageid: Any) -> None:
        """Go to a payload, or to a time in milliseconds; chunks from before never complete with chunks from after.

        To a `WholeMessageId` it goes as the consumer was subscribed: so that this payload is the next, or the one
        behind its last message.
        """
        if isinstance(messageid, PulsarMessage):
            messageid = messageid.message_id()
        if isinstance(messageid, WholeMessageId):
            messageid = messageid.first if self._inclusive else messageid.last
        self.forget()
        self._native.seek(messageid)
        self.forget()
        self._redeliveries.clear()

    def pause_message_listener(self) -> None:
        """As the client has it."""
        self._native.pause_message_listener()

    def resume_message_listener(self) -> None:
        """As the client has it."""
        self._native.resume_message_listener()

    def get_last_message_id(self) -> Any:
        """The native id of the last message in the topic, which may be a chunk."""
        return self._native.get_last_message_id()

    def unsubscribe(self) -> None:
        """End the subscription; what is held is forgotten."""
        self._native.unsubscribe()
        self.forget()

    def close(self) -> None:
        """Close the consumer; what was not acknowledged comes again, to others."""
        self.forget()
        self._native.close()

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    def subscription_name(self) -> Any:
        """As it was subscribed."""
        return self._native.subscription_name()

    def consumer_name(self) -> Any:
        """Given by its user or by the client."""
        return self._native.consumer_name()

    def is_connected(self) -> Any:
        """Whether it is connected just now."""
        return self._native.is_connected()

    def __repr__(self) -> str:
        return f"<PulsarConsumer {self.subscription_name()!r} of {self.topic()}, {self.pending_payloads} incomplete>"

    # Looking ahead ---------------------------------------------------------------------------------------------

    def take_ready(self) -> PulsarMessage | None:
        """Return the next payload that is complete; ``None`` without one."""
        message = super().take_ready()
        if message is not None and self._looks_ahead:
            self._prefetch.remove(message)
        return message

    def forget(self) -> None:
        """Forget everything that is held; what was not acknowledged comes again."""
        super().forget()
        self._prefetch.forget()

    # Within ----------------------------------------------------------------------------------------------------

    def _take_one_that_is_there(self) -> bool:
        try:
            self.take(self._receive_within(0))
        except vendor().Timeout:
            return False
        return True

    def _keep(self, message: PulsarMessage) -> None:
        if message.is_incomplete and self._put_aside(message.natives, f"incomplete: {message.error}"):
            self.acknowledge(message)
            return
        if self._looks_ahead:
            self._prefetch.add(message)
        super()._keep(message)

    def _drop(self, dropped: Dropped) -> None:
        """Take the configured action; what cannot be dead-lettered is reported to the application."""
        ids = tuple(handle.facts.message_id for handle in dropped.handles)
        place: Place = (dropped.source, dropped.positions[0])
        count = max(handle.facts.redelivery_count for handle in dropped.handles)
        if dropped.action == "ack":
            for message_id in ids:
                self._native.acknowledge(message_id)
            self._inbox.settle(dropped, acked=True)
            self._redeliveries.forget(place)
        elif dropped.action == "redeliver" and self._redeliveries.too_many(place, count) is None:
            self._give_back(ids, dropped, place)
        else:
            self._keep(self._inbox.report(dropped))

    def _give_back(self, ids: Iterable[Any], outcome: Outcome | None, place: Place) -> None:
        for message_id in ids:
            self._native.negative_acknowledge(message_id)
        self._inbox.settle(outcome, acked=False)
        self._redeliveries.add(place)

    def _put_aside(self, messages: tuple[Any, ...], reason: str) -> bool:
        return tried_to_put_aside(self._dead_letters, messages, reason=reason, topic=self.topic())

    def _outcome_of(self, message: Any) -> Outcome | None:
        return message.outcome if isinstance(message, PulsarMessage) else self._inbox.find(message)

    def _place_of(self, message: Any) -> Place:
        return place_of(message, self.topic())
