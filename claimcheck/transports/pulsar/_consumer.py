"""Receives payloads of any size from a consumer of the Pulsar client, whichever strategy their writers used."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from claimcheck._resolver import Dropped, Outcome
from claimcheck._validation import check_cc, check_int, check_type
from claimcheck.errors import ClaimCheckError, ConfigError
from claimcheck.transports._common.prefetch import Prefetch
from claimcheck.transports.pulsar._dead_letters import DeadLetters, RedeliveryTracker
from claimcheck.transports.pulsar._errors import SharedSubscriptionError, vendor
from claimcheck.transports.pulsar._inbox import Inbox
from claimcheck.transports.pulsar._message import PulsarMessage
from claimcheck.transports.pulsar._message_ids import Place, id_of, natives, nowhere, position_of
from claimcheck.transports.pulsar._receiver import Receiver

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["ConsumerOptions", "PulsarConsumer"]

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


class ConsumerOptions(TypedDict, total=False):
    """The options of a `PulsarConsumer`, which describes them."""

    consumer_type: Any
    start_message_id_inclusive: bool
    dead_letter_producer: Any
    max_redeliveries: int | None
    prefetch_bytes: int
    prefetch_threads: int
    clock: Callable[[], float]


class PulsarConsumer(Receiver):
    """Wraps a `pulsar.Consumer` and has its methods; each message that it returns is a whole payload.

    A chunk is acknowledged with its payload and never before; a negative acknowledgement redelivers all of its chunks.

    Every incomplete payload ends. When it expires or is evicted it is negatively acknowledged, and redelivered after
    the consumer's ``negative_ack_redelivery_delay_ms``, unless ``chunking.on_expire`` or ``on_evict`` says otherwise.
    After ``chunking.max_redeliveries`` redeliveries, or ``max_redeliveries`` if that is less, its messages go to the
    dead-letter topic if there is a ``dead_letter_producer``. Otherwise, or if that fails, they are returned as one
    message whose data raises `IncompletePayloadError`; acknowledge it to end the redeliveries.

    Chunks need a subscription on which one consumer receives all of them: Exclusive, Failover or Key_Shared. Do not set
    the consumer's own ``dead_letter_policy``, which would split payloads; pass ``dead_letter_producer`` here.

    Args:
        consumer: A `pulsar.Consumer`, without a message listener. For chunks, and to read ahead, it needs a
            ``receiver_queue_size`` of 1 or more, without which the client fails with `pulsar.InvalidConfiguration`.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        consumer_type: As it was subscribed. Without it, chunks are refused on a subscription that could be Shared,
            which the client cannot distinguish from Key_Shared.
        start_message_id_inclusive: As it was subscribed; decides where `seek` goes.
        dead_letter_producer: A `pulsar.Producer` for payloads that were redelivered too often. It is not closed. With
            it, chunks are in memory twice until they are settled.
        max_redeliveries: How often a payload is redelivered, from 0; by default a negatively acknowledged payload is
            redelivered without end. Every redelivery counts, also of an incomplete payload. On Exclusive and Failover
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
        cc: ClaimCheck,
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
        self._dead_letters = DeadLetters(dead_letter_producer, max_redeliveries)
        self._redeliveries = RedeliveryTracker(max_redeliveries)
        self._prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)
        self._looks_ahead = prefetch_bytes > 0
        self._consumer_type = consumer_type
        self._refusal: list[ClaimCheckError | None] = []  # of chunks, once it is known
        keep = bool(self._dead_letters)
        inbox = Inbox(cc, consumer._schema, refusal=self._refusal_of_chunks, keep=keep, clock=clock)
        super().__init__(consumer, consumer.receive, inbox, clock, inclusive=start_message_id_inclusive)

    # Receiving -------------------------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> PulsarMessage:
        """Wait for the next payload. The data of one that cannot be delivered raises the error.

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
        while self._prefetch.room and self._take_available():
            pass
        return message

    def batch_receive(self) -> list[PulsarMessage]:
        """Receive by the consumer's batch policy. It counts messages, of which a payload may have many."""
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

        Messages behind the beginning of such a payload are acknowledged individually.

        Args:
            message: See `acknowledge`.

        Raises:
            Exception: The client's own, for example on a Shared subscription.
        """
        message_id = id_of(message)
        source = message.topic_name() if message is not message_id else getattr(message_id, "topic", None)
        cumulatively, individually = self._inbox.settle_up_to(message_id, source, self._outcome_of(message))
        topic = source or self.topic()
        if cumulatively is not None:
            self._native.acknowledge_cumulative(cumulatively)
            self._redeliveries.forget_up_to(topic, position_of(cumulatively))
        for native in individually:
            self._native.acknowledge(native)
            self._redeliveries.forget((topic, position_of(native)))
        self.tick()

    def negative_acknowledge(self, message: Any) -> None:
        """Have a payload redelivered with all its messages, after the consumer's delay.

        One that was redelivered ``max_redeliveries`` times goes to the dead letters instead. Raises as `acknowledge`.
        """
        place = self._place_of(message)
        if isinstance(message, PulsarMessage):
            count = self._redeliveries.too_many(place, message.redelivery_count())
            if count is not None and self._try_dead_letter(message, f"given back after {count} redeliveries"):
                return
        self._inbox.settle_own(place)
        self._redeliver(natives(id_of(message)), self._outcome_of(message), place)

    def dead_letter(self, message: PulsarMessage, *, reason: str = "rejected") -> None:
        """Send a payload's messages to the dead-letter topic, as they came, and acknowledge them.

        Raises:
            ConfigError: There is no ``dead_letter_producer``.
            Exception: The client's own; nothing was acknowledged.
        """
        if not self._dead_letters:
            raise ConfigError("there is no dead_letter_producer")
        self._dead_letters.send(message.natives, reason=reason)
        self.acknowledge(message)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything redelivered that is not acknowledged."""
        self.forget()
        self._native.redeliver_unacknowledged_messages()

    # The other methods of the client's consumer ----------------------------------------------------------------

    def seek(self, messageid: Any) -> None:
        """Go to a payload, or to a time in milliseconds; chunks from before never complete with chunks from after.

        With ``start_message_id_inclusive`` a `WholeMessageId` makes its payload the next one, else the one behind it.
        """
        self.forget()
        self._native.seek(self._seek_target(messageid))
        self.forget()
        self._redeliveries.clear()

    def pause_message_listener(self) -> None:
        """See `pulsar.Consumer`."""
        self._native.pause_message_listener()

    def resume_message_listener(self) -> None:
        """See `pulsar.Consumer`."""
        self._native.resume_message_listener()

    def get_last_message_id(self) -> Any:
        """The native id of the last message in the topic, which may be a chunk."""
        return self._native.get_last_message_id()

    def unsubscribe(self) -> None:
        """Delete the subscription, and forget what is held."""
        self._native.unsubscribe()
        self.forget()

    def subscription_name(self) -> Any:
        """The subscription's name."""
        return self._native.subscription_name()

    def consumer_name(self) -> Any:
        """The consumer's name, chosen by the application or by the client."""
        return self._native.consumer_name()

    def __repr__(self) -> str:
        return f"<PulsarConsumer {self.subscription_name()!r} of {self.topic()}, {self.pending_payloads} incomplete>"

    # Reading ahead ---------------------------------------------------------------------------------------------

    def take_ready(self) -> PulsarMessage | None:
        """Return the next payload that is complete; ``None`` without one."""
        message = super().take_ready()
        if message is not None and self._looks_ahead:
            self._prefetch.remove(message)
        return message

    def forget(self) -> None:
        """Forget everything that is held; what was not acknowledged is redelivered."""
        super().forget()
        self._prefetch.forget()

    def _take_available(self) -> bool:
        try:
            self.take(self._receive_within(0))
        except vendor().Timeout:
            return False
        return True

    # Within ----------------------------------------------------------------------------------------------------

    def _keep(self, message: PulsarMessage) -> None:
        if message.is_incomplete and self._try_dead_letter(message, f"incomplete: {message.error}"):
            return
        if self._looks_ahead:
            self._prefetch.add(message)
        super()._keep(message)

    def _drop(self, dropped: Dropped) -> None:
        """Take the configured action; what cannot be dead-lettered is reported to the application."""
        ids = tuple(handle.message_id for handle in dropped.handles)
        place: Place = (dropped.source, dropped.positions[0])
        count = max(handle.redelivery_count for handle in dropped.handles)
        if dropped.action == "ack":
            for message_id in ids:
                self._native.acknowledge(message_id)
            self._inbox.settle(dropped, acked=True)
            self._redeliveries.forget(place)
        elif dropped.action == "redeliver" and self._redeliveries.too_many(place, count) is None:
            self._redeliver(ids, dropped, place)
        else:
            self._keep(self._inbox.report(dropped))

    def _redeliver(self, ids: Iterable[Any], outcome: Outcome | None, place: Place) -> None:
        for message_id in ids:
            self._native.negative_acknowledge(message_id)
        self._inbox.settle(outcome, acked=False)
        self._redeliveries.add(place)

    def _try_dead_letter(self, message: PulsarMessage, reason: str) -> bool:
        sent = self._dead_letters.try_send(message.natives, reason=reason, topic=self.topic())
        if sent:
            self.acknowledge(message)
        return sent

    def _outcome_of(self, message: Any) -> Outcome | None:
        return message.outcome if isinstance(message, PulsarMessage) else self._inbox.find(message)

    def _place_of(self, message: Any) -> Place:
        """Return where a payload begins, for a message or its id; a native id may lack the topic."""
        message_id = id_of(message)
        topic = message.topic_name() if message is not message_id else getattr(message_id, "topic", None)
        return topic or self.topic(), position_of(natives(message_id)[0])

    def _refusal_of_chunks(self, topic: str) -> ClaimCheckError | None:
        """Return why chunks cannot be put together on this subscription; ``None`` if they can."""
        if not self._refusal:
            self._refusal.append(self._shared_error(topic))
        return self._refusal[0]

    def _shared_error(self, topic: str) -> ClaimCheckError | None:
        """Subscriptions of several consumers refuse cumulative acknowledgements, here of nothing."""
        pulsar = vendor()
        if self._consumer_type == pulsar.ConsumerType.Shared:
            return SharedSubscriptionError(_SHARED)
        if self._consumer_type is None:
            try:
                self._native.acknowledge_cumulative(nowhere(topic))
            except pulsar.exceptions.CumulativeAcknowledgementNotAllowedError:
                return SharedSubscriptionError(_MAY_BE_SHARED)
            except pulsar.exceptions.PulsarException as error:
                _log.debug("cannot tell the type of the subscription: %s", error)
        return None
