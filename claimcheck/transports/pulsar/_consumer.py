"""Receives payloads of any size from a consumer of the Pulsar client, with redelivery limits and dead letters."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypedDict

from claimcheck._receive.resolver import Dropped, Outcome
from claimcheck._validation import check_cc, check_int, check_type
from claimcheck.errors import ClaimCheckError, ConfigError, TransportError
from claimcheck.transports._common.dead_letters import REASON
from claimcheck.transports._common.received import DEFAULT_THREADS, Prefetch
from claimcheck.transports.pulsar._message import Place, PulsarMessage, id_of, natives, nowhere, position_of
from claimcheck.transports.pulsar._queries import vendor
from claimcheck.transports.pulsar._receiver import Receiver
from claimcheck.transports.pulsar._send import without_schema

if TYPE_CHECKING:
    import pulsar

    from claimcheck._client import ClaimCheck
    from claimcheck.transports.pulsar._message import AnyMessage

_log = logging.getLogger(__name__)
_REMEMBERED = 10_000  # payloads whose redeliveries are counted
_ORIGIN_ID, _ORIGIN_TOPIC = "ORIGIN_MESSAGE_ID", "REAL_TOPIC"  # the names that Pulsar's own clients use
_REASON_CHARACTERS = 300
_SHARED = (
    "cannot assemble chunks on a subscription that may be Shared, where each may go to another consumer: send pointers "
    "(strategy external), or subscribe Key_Shared and pass consumer_type=pulsar.ConsumerType.KeyShared"
)


class SharedSubscriptionError(TransportError):
    """A chunk on a Shared subscription, where other chunks of its payload may go to other consumers."""


class ConsumerOptions(TypedDict, total=False):
    """See `PulsarConsumer`."""

    consumer_type: pulsar.ConsumerType | None
    start_message_id_inclusive: bool
    dead_letter_producer: pulsar.Producer | None
    max_redeliveries: int | None
    prefetch_bytes: int | None
    prefetch_threads: int
    clock: Callable[[], float]


class PulsarConsumer(Receiver):
    """Wraps a `pulsar.Consumer` and has its methods; each message that it returns is a whole payload.

    A chunk is acknowledged with its payload and never before; a negative acknowledgement redelivers all of its chunks.

    Every incomplete payload ends. When it expires or is evicted it is redelivered after the consumer's
    ``negative_ack_redelivery_delay_ms``, unless ``chunking.on_expire`` or ``on_evict`` is different. After
    ``chunking.max_redeliveries`` redeliveries, or ``max_redeliveries`` if that is less, its messages go to the
    ``dead_letter_producer``. Without one, or if that fails, they are returned as one message whose data raises
    `IncompletePayloadError`; acknowledge it to end the redeliveries.

    Chunks need a subscription on which one consumer receives all of them: Exclusive, Failover or Key_Shared. Do not set
    the consumer's own ``dead_letter_policy``, which would split payloads.

    Args:
        consumer: A `pulsar.Consumer`, without a message listener. To receive chunks or read ahead, it needs a
            ``receiver_queue_size`` of at least 1.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        consumer_type: The type that it was subscribed with; required for chunks on a Key_Shared subscription, which the
            client cannot distinguish from a Shared one.
        start_message_id_inclusive: The value that it was subscribed with; determines where `seek` goes.
        dead_letter_producer: A `pulsar.Producer` for payloads that were redelivered too often. It is not closed. With
            it, chunks are in memory twice until they are settled.
        max_redeliveries: How often a payload is redelivered, from 0; by default a negatively acknowledged payload is
            redelivered without limit. On Exclusive and Failover subscriptions, where the broker does not count, this
            object does, for the last 10,000 payloads.
        prefetch_bytes: Bytes of stored payloads to read ahead, in order; 0 for none. By default up to 64 MiB
            of up to 64 messages, and only while the application reads the payloads that it receives.
        prefetch_threads: How many payloads are read ahead concurrently.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: An argument is of the wrong type or out of range, or ``max_redeliveries`` is set without a
            ``dead_letter_producer``.
    """

    delegated = Receiver.delegated | {"consumer_name", "get_last_message_id", "subscription_name"}

    def __init__(
        self,
        consumer: pulsar.Consumer,
        cc: ClaimCheck,
        *,
        consumer_type: pulsar.ConsumerType | None = None,
        start_message_id_inclusive: bool = False,
        dead_letter_producer: pulsar.Producer | None = None,
        max_redeliveries: int | None = None,
        prefetch_bytes: int | None = None,
        prefetch_threads: int = DEFAULT_THREADS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_type("consumer", consumer, valid=hasattr(consumer, "_consumer"), expected="a pulsar.Consumer")
        check_cc(cc)
        check_int("max_redeliveries", 0 if max_redeliveries is None else max_redeliveries, minimum=0)
        self._prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)
        if dead_letter_producer is None and max_redeliveries is not None:
            raise ConfigError("max_redeliveries needs a dead_letter_producer", path="max_redeliveries")
        if (dead_letters := dead_letter_producer) is not None:
            native = isinstance(dead_letters, vendor().Producer)
            check_type("dead_letter_producer", dead_letters, valid=native, expected="an unwrapped pulsar.Producer")
            dead_letters = without_schema(dead_letters)
        self._dead_letters = dead_letters
        self._redeliveries = RedeliveryTracker(max_redeliveries)
        self._consumer_type = consumer_type
        self._refuses_chunks: bool | None = None  # not known yet
        super().__init__(consumer, consumer.receive, cc, clock, inclusive=start_message_id_inclusive)
        self.keeps_natives = self._dead_letters is not None

    # Receiving -------------------------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> PulsarMessage:
        """Wait for the next payload. If it cannot be delivered, the message's `data` raises the error.

        Raises:
            pulsar.Timeout: No payload was received in ``timeout_millis``; by default there is no limit.
            Exception: The client's own error.
        """
        self._prefetch.begin_receive()
        if not self._prefetch.always and not self._ready and not self._behind:
            native = self._native.receive(timeout_millis)
            if (plain := self._plain(native)) is not None:
                return plain
            self.take(native)
        message = self._wait(timeout_millis)
        while self._prefetch.room and self._take_available():
            pass
        return message

    def batch_receive(self) -> list[PulsarMessage]:
        """Receive by the consumer's batch policy. It counts messages, of which a payload may have many."""
        self._prefetch.begin_receive()
        self.take(*self._native.batch_receive())
        return list(iter(self.take_ready, None))

    # Settling --------------------------------------------------------------------------------------------------

    def acknowledge(self, message: AnyMessage) -> None:
        """Acknowledge a payload with all its messages.

        Args:
            message: A `PulsarMessage`, its id, or a native message or id; an id may come from another process.

        Raises:
            Exception: The client's own error; some of a payload's messages may be acknowledged by then.
        """
        if self._redeliveries or self._behind:
            place = self._place_of(message)
            self._redeliveries.forget(place)
            self._settle_own(place)
        if isinstance(message, PulsarMessage) and message.outcome is None:
            self._native.acknowledge(message.native)
            return
        for native in self._settle(self._outcome_of(message), acked=True) or natives(id_of(message)):
            self._native.acknowledge(native)
        self.tick()  # duplicates may have ended with it

    def acknowledge_cumulative(self, message: AnyMessage) -> None:
        """Acknowledge everything up to a payload, but no message of a payload that is incomplete or not settled.

        Messages after the beginning of such a payload are acknowledged individually. Raises as `acknowledge`.
        """
        outcome = self._outcome_of(message)
        self._redeliveries.forget(self._place_of(message))
        cumulatively, individually = self._settle_up_to(id_of(message), _topic_of(message), outcome)
        if cumulatively is not None:
            self._native.acknowledge_cumulative(cumulatively)
        for native in individually:
            self._native.acknowledge(native)
        self.tick()

    def negative_acknowledge(self, message: AnyMessage) -> None:
        """Request the redelivery of a payload after the consumer's delay; after ``max_redeliveries`` dead-letter it."""
        place = self._place_of(message)
        if isinstance(message, PulsarMessage):
            count = self._redeliveries.too_many(place, message.redelivery_count())
            reason = f"negatively acknowledged after {count} redeliveries"
            if count is not None and self._try_dead_letter(message, reason):
                return
        self._settle_own(place)
        self._redeliver(natives(id_of(message)), self._outcome_of(message), place)

    def dead_letter(self, message: PulsarMessage, *, reason: str = "rejected") -> None:
        """Send a payload's messages to the dead-letter topic, and acknowledge them.

        Raises:
            ConfigError: There is no ``dead_letter_producer``.
            Exception: The client's own error; nothing was acknowledged. Some messages may be in the dead-letter topic.
        """
        if self._dead_letters is None:
            raise ConfigError("there is no dead_letter_producer")
        self._send_dead_letters(self._dead_letters, message.natives, reason)
        self.acknowledge(message)

    def redeliver_unacknowledged_messages(self) -> None:
        """Request the redelivery of all unacknowledged messages."""
        self.forget()
        self._native.redeliver_unacknowledged_messages()

    def unsubscribe(self) -> None:
        """Delete the subscription, and forget all messages that are held."""
        self._native.unsubscribe()
        self.forget()

    def __repr__(self) -> str:
        return f"<PulsarConsumer {self.subscription_name()!r} of {self.topic()}, {self.pending_payloads} incomplete>"

    # Reading ahead ---------------------------------------------------------------------------------------------

    def take_ready(self) -> PulsarMessage | None:
        """Return the next payload that is complete, or ``None``."""
        message = super().take_ready()
        if message is not None:
            self._prefetch.deliver(message)
        return message

    def forget(self) -> None:
        """Forget all messages that are held; those that were not acknowledged are redelivered."""
        super().forget()
        self._prefetch.forget()

    def _take_available(self) -> bool:
        try:
            self.take(self._native.receive(0))
        except (vendor().Timeout, vendor().InvalidConfiguration):  # nothing is there, or receiver_queue_size=0
            return False
        return True

    # Internals -------------------------------------------------------------------------------------------------

    def _forget_history(self) -> None:
        self._redeliveries.clear()

    def _keep(self, message: PulsarMessage) -> None:
        if message.is_incomplete and self._try_dead_letter(message, f"incomplete: {message.error}"):
            return
        self._prefetch.add(message)
        super()._keep(message)

    def _drop(self, dropped: Dropped) -> None:
        """Take the configured action. A payload with too many redeliveries goes to `_keep`, to be dead-lettered."""
        place: Place = (dropped.source, dropped.positions[0])
        count = max(handle.redelivery_count() for handle in dropped.handles)
        if dropped.action == "ack":
            for message_id in self._settle(dropped, acked=True):
                self._native.acknowledge(message_id)
            self._redeliveries.forget(place)
        elif dropped.action == "redeliver" and self._redeliveries.too_many(place, count) is None:
            self._redeliver((), dropped, place)
        else:
            self._keep(self._report(dropped))

    def _redeliver(self, ids: Iterable[pulsar.MessageId], outcome: Outcome | None, place: Place) -> None:
        for message_id in self._settle(outcome, acked=False) or ids:
            self._native.negative_acknowledge(message_id)
        self._redeliveries.add(place)

    def _try_dead_letter(self, message: PulsarMessage, reason: str) -> bool:
        if self._dead_letters is None:
            return False
        try:
            self._send_dead_letters(self._dead_letters, message.natives, reason)
        except Exception as error:
            count = len(message.natives)
            _log.warning("%s: failed to send %d messages to the dead-letter topic: %s", self.topic(), count, error)
            return False
        self.acknowledge(message)
        return True

    def _send_dead_letters(self, producer: pulsar.Producer, messages: tuple[pulsar.Message, ...], reason: str) -> None:
        """Send messages to a dead-letter topic, whose readers get the same payloads, and wait for the broker."""
        for message in messages:
            about = {_ORIGIN_ID: str(message.message_id()), _ORIGIN_TOPIC: message.topic_name()}
            producer.send(
                None if message.has_null_value() else message.data(),
                properties={**message.properties(), **about, REASON: reason[:_REASON_CHARACTERS]},
                partition_key=message.partition_key() or None,
                ordering_key=message.ordering_key() or None,
                event_timestamp=message.event_timestamp() or None,
            )

    def _outcome_of(self, message: AnyMessage) -> Outcome | None:
        if isinstance(message, PulsarMessage):
            return message.outcome
        delivery = self._delivery_of(message)
        return None if delivery is None else delivery.outcome

    def _place_of(self, message: AnyMessage) -> Place:
        """Return where a payload begins, for a message or its id; a native id may lack the topic."""
        return _topic_of(message) or self.topic(), position_of(natives(id_of(message))[0])

    def _refusal_of_chunks(self, topic: str) -> ClaimCheckError | None:
        if self._refuses_chunks is None:
            self._refuses_chunks = self._is_shared(topic)
        return SharedSubscriptionError(_SHARED) if self._refuses_chunks else None

    def _is_shared(self, topic: str) -> bool:
        """Test the subscription: those of several consumers refuse cumulative acknowledgements, here of nothing."""
        pulsar = vendor()
        if self._consumer_type is None:
            try:
                self._native.acknowledge_cumulative(nowhere(topic))
            except pulsar.exceptions.CumulativeAcknowledgementNotAllowedError:
                return True
            except pulsar.exceptions.PulsarException as error:
                _log.debug("cannot determine the type of the subscription: %s", error)
        return bool(self._consumer_type == pulsar.ConsumerType.Shared)


def _topic_of(message: AnyMessage) -> str | None:
    """Return the topic of a message or its id; ``None`` for a native id, which may lack it."""
    topic = getattr(message, "topic_name" if hasattr(message, "message_id") else "topic", None)
    return topic() if callable(topic) else topic


# Redeliveries and dead letters ---------------------------------------------------------------------------------------


class RedeliveryTracker(OrderedDict[Place, int]):
    """Counts redeliveries where the broker does not: on Exclusive and Failover subscriptions."""

    def __init__(self, maximum: int | None) -> None:
        super().__init__()
        self._maximum = maximum

    def too_many(self, place: Place, broker_count: int) -> int | None:
        """Return the larger of the own and the broker's count of redeliveries if it reaches the maximum."""
        count = max(self.get(place, 0), broker_count)
        return count if self._maximum is not None and count >= self._maximum else None

    def add(self, place: Place) -> None:
        if self._maximum is not None:
            self[place] = self.pop(place, 0) + 1
            if len(self) > _REMEMBERED:
                self.popitem(last=False)

    def forget(self, place: Place) -> None:
        self.pop(place, None)
