"""What a streaming query says to Pulsar from its driver: what is there, and what need not be kept any more.

One durable subscription of each partition, Exclusive, through which nothing is read. It knows the last entry, it keeps
what the query has not committed, and nobody else can have it at the same time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from claimcheck.spark.sources.errors import SubscriptionBusyError
from claimcheck.spark.sources.pulsar_admin import check_topic
from claimcheck.spark.sources.pulsar_client import again, in_our_words, open_client
from claimcheck.spark.sources.pulsar_connection import Connection
from claimcheck.spark.sources.pulsar_foreign import as_it_is
from claimcheck.spark.sources.pulsar_offsets import NOTHING, Offsets, Position, split_name
from claimcheck.transports.pulsar.errors import vendor

__all__ = ["Control"]

_BUSY_SECONDS = 10.0  # the broker lets go of a process that was killed within a second or two

_log = logging.getLogger(__name__)


class Control:
    """The subscriptions of one query; opened at first use.

    Args:
        connection: Where.
        topics: Their full names.
        subscription: Its name, the same on all partitions.
    """

    def __init__(self, connection: Connection, topics: tuple[str, ...], subscription: str) -> None:
        self._connection, self._topics, self._subscription = connection, topics, subscription
        self._client: Any = None
        self._consumers: dict[str, Any] = {}
        self._committed: Offsets = {}
        self._known: set[str] = set()  # partitions whose subscription is where it was left

    @property
    def client(self) -> Any:
        """The client, with which others may read, too.

        Raises:
            ConfigError: A topic is not there, where the web service may be asked.
        """
        if self._client is None:
            for topic in self._topics:
                check_topic(self._connection, topic)
            self._client = open_client(self._connection)
        return self._client

    def last(self) -> Offsets:
        """Ask for the last entry of every partition that there is by now; of empty ones `NOTHING`.

        Raises:
            SubscriptionBusyError: Somebody else has the subscription, and keeps it.
            TransportError: The broker did not answer.
        """
        return {name: self._last(name) for name in self._partitions()}

    def begin(self, *, at_end: bool) -> Offsets:
        """Keep everything from the topics' beginning or end on, whatever the subscription has kept before.

        Returns:
            Where to begin to read. Raises as `last`.
        """
        offsets = self.last() if at_end else dict.fromkeys(self._partitions(), NOTHING)
        for name, (ledger, entry) in offsets.items():
            place = vendor().MessageId.earliest
            if ledger >= 0:  # the last one is kept, too: it will prove that nothing behind it was removed
                place = vendor().MessageId(split_name(name)[1], ledger, entry, -1)
            with in_our_words(self._connection, name, "moving the subscription"):
                self._consumer(name).seek(place)
            self._known.add(name)
        return {name: position for name, position in offsets.items() if position != NOTHING}

    def was_moved(self, name: str) -> bool:
        """Whether somebody has read on under this subscription, in a partition of which this query has read nothing.

        There is no last entry then that could prove that nothing was removed. But a subscription that was left at the
        beginning begins with what the partition begins with. Looks once; later nobody else can have it.

        Args:
            name: Of a partition that is not empty.
        """
        if name in self._known:
            return False
        millis = round(self._connection.timeout_seconds * 1000)
        with in_our_words(self._connection, name, "asking for its first message"):
            reader = self.client.create_reader(name, vendor().MessageId.earliest, receiver_queue_size=1, **as_it_is())
            try:
                first = _position(reader.read_next(millis))
            finally:
                reader.close()
            try:
                moved = _position(self._consumer(name).receive(millis)) != first
            except vendor().exceptions.Timeout:
                self._consumer(name).get_last_message_id()  # raises where nobody is there to answer
                moved = True  # it has nothing, and the partition has something
        self._known.add(name)
        return moved

    def release(self, offsets: Offsets) -> None:
        """Let go of what is committed, but for the last entry: as long as it is there, nothing behind it was removed.

        Failing costs no more than space, and the next time makes up for it. Topics that this query reads no more stay
        as they are: to subscribe would make them anew.
        """
        read = {name: position for name, position in offsets.items() if {name, split_name(name)[0]} & set(self._topics)}
        for name, position in read.items():
            before, self._committed[name] = self._committed.get(name), position
            if before != position:  # before the first entry of a ledger is -1: that lets go of all ledgers before it
                self._acknowledge(name, (position[0], position[1] - 1))

    def close(self) -> None:
        """Leave the subscriptions, which stay where they are."""
        client, self._client = self._client, None
        self._consumers.clear()
        if client is not None:
            with contextlib.suppress(vendor().exceptions.PulsarException):
                client.close()

    # Within ----------------------------------------------------------------------------------------------------

    def _partitions(self) -> list[str]:
        names = []
        for topic in self._topics:
            with in_our_words(self._connection, topic, "asking for its partitions"):
                names += self.client.get_topic_partitions(topic)
        return names

    def _last(self, name: str) -> Position:
        consumer = self._consumer(name)
        with in_our_words(self._connection, name, "asking for its last message"):
            found = _settled(consumer.get_last_message_id)
        return (found.ledger_id(), found.entry_id()) if found.ledger_id() >= 0 and found.entry_id() >= 0 else NOTHING

    def _consumer(self, name: str) -> Any:
        if name not in self._consumers:
            self._consumers[name] = self._subscribe(name)
        return self._consumers[name]

    def _subscribe(self, name: str) -> Any:
        def once() -> Any:
            with in_our_words(self._connection, name, "subscribing"):
                return self._subscribe_once(name)

        return again(once, passing=lambda error: isinstance(error, SubscriptionBusyError), seconds=_BUSY_SECONDS)

    def _subscribe_once(self, name: str) -> Any:
        pulsar = vendor()
        try:
            return self.client.subscribe(
                name,
                self._subscription,
                consumer_type=pulsar.ConsumerType.Exclusive,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=1,  # no more than `was_moved` wants to see
                start_message_id_inclusive=True,
                **as_it_is(),
            )
        except pulsar.exceptions.ConsumerBusy as error:
            raise SubscriptionBusyError(
                f"{name}: somebody else has the subscription {self._subscription!r}: another query, or another run of "
                "this one. Each query needs a subscription of its own, and one run at a time",
                destination=name,
            ) from error

    def _acknowledge(self, name: str, position: Position) -> None:
        try:
            self._consumer(name).acknowledge_cumulative(vendor().MessageId(split_name(name)[1], *position, -1))
        except Exception as error:
            _log.warning("%s: could not let go of what was read: %s", name, type(error).__name__)


def _settled(asked: Callable[[], Any]) -> Any:
    """Ask again while the broker is still making the partition, which is no fault of anybody's."""
    making = vendor().exceptions.BrokerMetadataError
    return again(asked, passing=lambda error: isinstance(error, making), seconds=_BUSY_SECONDS)


def _position(message: Any) -> Position:
    found = message.message_id()
    return found.ledger_id(), found.entry_id()
