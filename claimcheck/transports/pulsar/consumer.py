"""Receives payloads of any size from a consumer of the Pulsar client, whatever their writers made of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from claimcheck.errors import ConfigError
from claimcheck.resolver import Dropped, Outcome
from claimcheck.transports.needs import Resolves
from claimcheck.transports.prefetch import Prefetch
from claimcheck.transports.pulsar.dead_letters import put_aside
from claimcheck.transports.pulsar.errors import vendor
from claimcheck.transports.pulsar.ids import WholeMessageId, natives, nowhere
from claimcheck.transports.pulsar.inbox import Inbox
from claimcheck.transports.pulsar.message import PulsarMessage
from claimcheck.transports.pulsar.receiving import Receiving
from claimcheck.transports.pulsar.shared import shared_refusal

__all__ = ["PulsarConsumer"]

_log = logging.getLogger(__name__)


class PulsarConsumer(Receiving):
    """Has the methods of a `pulsar.Consumer`; a message that it gives is a whole payload.

    A chunk is acknowledged with its payload and never before; given back, all of them come again. Chunks that never
    become a payload are given back, too, unless the configuration says otherwise (``chunking.on_expire``,
    ``on_evict``), after the consumer's ``negative_ack_redelivery_delay_ms``.

    Chunks need a subscription on which one consumer gets all of them: Exclusive, Failover or Key_Shared. Do not set the
    consumer's own ``dead_letter_policy``, which would tear payloads apart; give ``dead_letter_producer`` here.

    Args:
        consumer: A `pulsar.Consumer`, without a message listener.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        consumer_type: As it was subscribed. Where it is not given, chunks are refused on a subscription that could be
            Shared, which the client does not tell from Key_Shared.
        start_message_id_inclusive: As it was subscribed; decides where `seek` goes.
        dead_letter_producer: A native producer, to which payloads go that came too often. It stays open. With it,
            chunks are in memory twice until they are settled.
        max_redeliveries: How often a payload comes again after it was given back, from 0.
        prefetch_bytes: Stored payloads of the next messages that are read meanwhile, in order; 0 for none.
        prefetch_threads: How many at once.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: ``max_redeliveries`` without a producer for the dead letters, or less than 0.
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
        if max_redeliveries is not None and (max_redeliveries < 0 or dead_letter_producer is None):
            raise ConfigError("max_redeliveries is a number from 0, and needs a dead_letter_producer")
        if not hasattr(consumer, "_consumer"):
            raise TypeError(f"a consumer of pulsar-client is wanted, not {type(consumer).__name__}")
        self._native = consumer
        self._inclusive = start_message_id_inclusive
        self._dead_letters = dead_letter_producer
        self._max_redeliveries = max_redeliveries
        self._prefetch = Prefetch(prefetch_bytes, threads=prefetch_threads)
        refusal = shared_refusal(consumer_type, lambda topic: consumer.acknowledge_cumulative(nowhere(topic)))
        keep = dead_letter_producer is not None
        self._looks_ahead = prefetch_bytes > 0
        inbox = Inbox(cc, consumer._schema, refusal=refusal, sizes=self._looks_ahead, keep=keep, clock=clock)
        super().__init__(consumer.receive, inbox, clock)

    # Receiving -------------------------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> PulsarMessage:
        """Wait for the next payload; a bad one is handed out, too, and says so when its data is asked for.

        Args:
            timeout_millis: By default for ever.

        Raises:
            pulsar.Timeout: No payload came in time.
            Exception: The client's own.
        """
        if not self._looks_ahead and not self._ready and not self._inbox.pending_payloads:
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
        self.tick()
        return list(iter(self.take_ready, None))

    # Settling --------------------------------------------------------------------------------------------------

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a payload with all its messages.

        Args:
            message: A `PulsarMessage`, its id, or a native message or id; an id may come from another process.

        Raises:
            Exception: The client's own; some of a payload's messages may be acknowledged by then.
        """
        if isinstance(message, PulsarMessage) and message.outcome is None:
            self._native.acknowledge(message.native)
            return
        for native in natives(_id_of(message)):
            self._native.acknowledge(native)
        self._inbox.settle(self._outcome_of(message), acked=True)

    def acknowledge_cumulative(self, message: Any) -> None:
        """Acknowledge everything up to a payload, but never beyond the beginning of one that is not settled.

        What lies between that and this payload is acknowledged by a later call, when the older one is settled.

        Args:
            message: As `acknowledge` takes it.

        Raises:
            Exception: The client's own, for example on a Shared subscription.
        """
        message_id = _id_of(message)
        topic = message.topic_name() if hasattr(message, "topic_name") else getattr(message_id, "topic", None)
        up_to = self._inbox.settle_up_to(message_id, topic)
        if up_to is not None:
            self._native.acknowledge_cumulative(up_to)

    def negative_acknowledge(self, message: Any) -> None:
        """Give a payload back with all its messages; they come again after the consumer's delay.

        One that came ``max_redeliveries`` times again goes to the dead letters instead. Raises as `acknowledge`.
        """
        count = message.redelivery_count() if isinstance(message, PulsarMessage) else 0
        if self._max_redeliveries is not None and count >= self._max_redeliveries:
            reason = f"given back after {count} redeliveries"
            if self._put_aside(message.natives, reason):
                self.acknowledge(message)
                return
        self._give_back(natives(_id_of(message)), self._outcome_of(message))

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
        """Give a payload that is there; ``None`` where none is."""
        message = super().take_ready()
        if message is not None:
            self._prefetch.remove(message)
        return message

    def forget(self) -> None:
        """Forget everything that is held; what was not acknowledged comes again."""
        super().forget()
        self._prefetch.forget()

    # Within ----------------------------------------------------------------------------------------------------

    def _take_one_that_is_there(self) -> bool:
        try:
            self.take(self._native.receive(0))
        except vendor().Timeout:
            return False
        return True

    def _keep(self, message: PulsarMessage) -> None:
        self._prefetch.add(message)
        super()._keep(message)

    def _let_go(self, dropped: Dropped) -> None:
        """Do with messages that became no payload what the configuration says; in doubt they come again."""
        ids = tuple(handle.facts.message_id for handle in dropped.handles)
        if dropped.action == "redeliver" and not self._came_too_often(dropped):
            self._give_back(ids, dropped)
        elif dropped.action == "ack" or self._put_aside(
            tuple(handle.native for handle in dropped.handles), f"{dropped.reason}: {dropped.error}"
        ):
            for message_id in ids:
                self._native.acknowledge(message_id)
            self._inbox.settle(dropped, acked=True)
        else:
            self._give_back(ids, dropped)

    def _came_too_often(self, dropped: Dropped) -> bool:
        count = max(handle.facts.redelivery_count for handle in dropped.handles)
        return self._max_redeliveries is not None and count >= self._max_redeliveries

    def _give_back(self, ids: Iterable[Any], outcome: Outcome | None) -> None:
        for message_id in ids:
            self._native.negative_acknowledge(message_id)
        self._inbox.settle(outcome, acked=False)

    def _put_aside(self, messages: tuple[Any, ...], reason: str) -> bool:
        """Whether they are in the dead-letter topic now."""
        if self._dead_letters is None:
            _log.warning("%s: messages come again, for there is no dead_letter_producer: %s", self.topic(), reason)
            return False
        try:
            put_aside(self._dead_letters, messages, reason=reason)
        except Exception as error:
            _log.warning("%s: messages come again, for they could not be put aside: %s", self.topic(), error)
            return False
        return True

    def _outcome_of(self, message: Any) -> Outcome | None:
        return message.outcome if isinstance(message, PulsarMessage) else self._inbox.find(message)


def _id_of(message: Any) -> Any:
    """The id of a message, or the id itself."""
    return message.message_id() if callable(getattr(message, "message_id", None)) else message
