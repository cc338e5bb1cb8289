"""The streaming reader: `Subscriptions` on the driver, a `Stretch` of each partition on the executors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from claimcheck.spark.sources._admission_control import Budget, Entry, Scale, Spent, share, take
from claimcheck.spark.sources._errors import ForeignMessageError, SubscriptionBusyError
from claimcheck.spark.sources._options import arrow_schema, default_limit
from claimcheck.spark.sources._pulsar.client import check_topic, client_errors, open_client, retry
from claimcheck.spark.sources._pulsar.connection import Connection
from claimcheck.spark.sources._pulsar.reader import (
    NOTHING,
    Offsets,
    Position,
    ReadSettings,
    Stretch,
    from_json,
    read_messages,
    split_name,
    to_json,
    unfiltered,
)
from claimcheck.transports.pulsar._errors import vendor

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "beyond",
    "Subscriptions",
    "limited",
    "newer",
    "PulsarStreamReader",
    "StreamPlan",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """The options of a streaming query.

    Attributes:
        topics: Full names of the topics.
        subscription: The name of the query's own subscription.
        at_end: Whether a query without a checkpoint begins at the topics' end.
        budget: The limits of a trigger.
        reading: How to read.
        scale: Weighs messages.
    """

    topics: tuple[str, ...]
    subscription: str
    at_end: bool
    budget: Budget
    reading: ReadSettings
    scale: Scale


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark creates several of these: one plans the query and stays, others only run `read` on the executors."""

    def __init__(self, plan: StreamPlan, schema: StructType) -> None:
        self._plan, self._schema = plan, schema
        self._opened: Subscriptions | None = None
        self._target: Offsets | None = None
        self._last: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins, and have the broker keep everything from there on."""
        return to_json(self._subscriptions.begin(at_end=self._plan.at_end))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit for Spark's admission control; both limits apply, though Spark can express only one."""
        return default_limit(self._plan.budget)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store where the topics end now: this run reads no further."""
        self._target = self._subscriptions.last()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next trigger ends; partitions that were added since begin at their first entry."""
        begun = from_json(start)
        self._last = last = newer(begun, self._subscriptions.last() if self._target is None else self._target)
        self._check(begun, last)
        budget = Budget() if isinstance(limit, ReadAllAvailable) else self._plan.budget
        ends = limited(self._subscriptions.client, begun, last, budget, self._plan.reading, self._plan.scale)
        return to_json(begun | ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest known offsets, for the query's progress."""
        return None if self._last is None else to_json(self._last)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a task for each partition with new messages."""
        begun = from_json(start)
        ends = newer(begun, from_json(end))
        self._check(begun, ends)
        return [Stretch(name, begun.get(name, NOTHING), ends[name]) for name in ends]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, on an executor."""
        assert isinstance(partition, Stretch)
        return self._plan.reading.batches(partition, arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge what Spark has committed."""
        self._subscriptions.release(from_json(end))

    def stop(self) -> None:
        """Close the client; the subscriptions stay."""
        if self._opened is not None:
            self._opened.close()

    def _check(self, begun: Offsets, ends: Offsets) -> None:
        """Report losses in partitions that were not read yet; in others the last entry that was read shows them."""
        for name in ends:
            if name not in begun and self._subscriptions.was_moved(name):
                what = "nothing of it was read yet, but the subscription is not at its beginning any more"
                self._plan.reading.lost(name, what)

    @property
    def _subscriptions(self) -> Subscriptions:
        if self._opened is None:
            self._opened = Subscriptions(self._plan.reading.connection, self._plan.topics, self._plan.subscription)
        return self._opened


_BUSY_SECONDS = 10.0  # the broker notices within a second or two that a process was killed

_log = logging.getLogger(__name__)


class Subscriptions:
    """The subscriptions of one query; opened at first use.

    Args:
        connection: The broker.
        topics: Full names of the topics.
        subscription: The subscription's name, the same on all partitions.
    """

    def __init__(self, connection: Connection, topics: tuple[str, ...], subscription: str) -> None:
        self._connection, self._topics, self._subscription = connection, topics, subscription
        self._client: Any = None
        self._consumers: dict[str, Any] = {}
        self._committed: Offsets = {}
        self._known: set[str] = set()  # partitions whose subscription is where it was left

    @property
    def client(self) -> Any:
        """The client, which readers may use, too.

        Raises:
            ConfigError: The web service reports that a topic does not exist.
        """
        if self._client is None:
            for topic in self._topics:
                check_topic(self._connection, topic)
            self._client = open_client(self._connection)
        return self._client

    def last(self) -> Offsets:
        """Return the last entry of every current partition; `NOTHING` for empty ones.

        Raises:
            SubscriptionBusyError: Another consumer holds the subscription.
            TransportError: The broker did not answer.
        """
        return {name: self._last(name) for name in self._partitions()}

    def begin(self, *, at_end: bool) -> Offsets:
        """Move the subscription to the topics' beginning or end, so that the broker keeps everything from there on.

        Returns:
            Where to begin to read. Raises as `last`.
        """
        offsets = self.last() if at_end else dict.fromkeys(self._partitions(), NOTHING)
        for name, (ledger, entry) in offsets.items():
            place = vendor().MessageId.earliest
            if ledger >= 0:  # the last one is kept, too: it will prove that nothing after it was deleted
                place = vendor().MessageId(split_name(name)[1], ledger, entry, -1)
            with client_errors(self._connection, name, "moving the subscription"):
                self._consumer(name).seek(place)
            self._known.add(name)
        return {name: position for name, position in offsets.items() if position != NOTHING}

    def was_moved(self, name: str) -> bool:
        """Whether the subscription was moved in a partition of which this query has read nothing.

        No last entry can prove then that nothing was deleted. But the first message of an unmoved subscription is that
        of the partition. Checks once; later no other consumer can hold the subscription.

        Args:
            name: A partition that is not empty.
        """
        if name in self._known:
            return False
        millis = round(self._connection.timeout_seconds * 1000)
        with client_errors(self._connection, name, "asking for its first message"):
            reader = self.client.create_reader(name, vendor().MessageId.earliest, receiver_queue_size=1, **unfiltered())
            try:
                first = _position(reader.read_next(millis))
            finally:
                reader.close()
            try:
                moved = _position(self._consumer(name).receive(millis)) != first
            except vendor().exceptions.Timeout:
                self._consumer(name).get_last_message_id()  # raises if no broker answers
                moved = True  # it has nothing, and the partition has something
        self._known.add(name)
        return moved

    def release(self, offsets: Offsets) -> None:
        """Acknowledge what is committed, except the last entry: while it exists, nothing after it was deleted.

        A failure costs only space, until the next call. Topics that this query no longer reads are not touched: a
        subscription would create deleted ones anew.
        """
        read = {name: position for name, position in offsets.items() if {name, split_name(name)[0]} & set(self._topics)}
        for name, position in read.items():
            before, self._committed[name] = self._committed.get(name), position
            if before != position:  # -1, before the first entry of a ledger, acknowledges all ledgers before it
                self._acknowledge(name, (position[0], position[1] - 1))

    def close(self) -> None:
        """Close the client; the subscriptions keep their positions."""
        client, self._client = self._client, None
        self._consumers.clear()
        if client is not None:
            with contextlib.suppress(vendor().exceptions.PulsarException):
                client.close()

    # Within ----------------------------------------------------------------------------------------------------

    def _partitions(self) -> list[str]:
        names = []
        for topic in self._topics:
            with client_errors(self._connection, topic, "asking for its partitions"):
                names += self.client.get_topic_partitions(topic)
        return names

    def _last(self, name: str) -> Position:
        consumer = self._consumer(name)
        with client_errors(self._connection, name, "asking for its last message"):
            found = _settled(consumer.get_last_message_id)
        return (found.ledger_id(), found.entry_id()) if found.ledger_id() >= 0 and found.entry_id() >= 0 else NOTHING

    def _consumer(self, name: str) -> Any:
        if name not in self._consumers:
            self._consumers[name] = self._subscribe(name)
        return self._consumers[name]

    def _subscribe(self, name: str) -> Any:
        def once() -> Any:
            with client_errors(self._connection, name, "subscribing"):
                return self._subscribe_once(name)

        return retry(once, transient=lambda error: isinstance(error, SubscriptionBusyError), seconds=_BUSY_SECONDS)

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
                **unfiltered(),
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
            _log.warning("%s: could not acknowledge what was read: %s", name, type(error).__name__)


def _settled(call: Callable[[], Any]) -> Any:
    """Retry while the broker is still creating the partition."""
    making = vendor().exceptions.BrokerMetadataError
    return retry(call, transient=lambda error: isinstance(error, making), seconds=_BUSY_SECONDS)


def _position(message: Any) -> Position:
    found = message.message_id()
    return found.ledger_id(), found.entry_id()


_SAMPLE_ROWS = 1000
_UNKNOWN = 1 << 62  # the distance between entries of different ledgers


def newer(start: Offsets, last: Offsets) -> Offsets:
    """Return the ends of partitions with new messages; the end of an emptied topic is before what was read."""
    return {name: end for name, end in last.items() if end > start.get(name, NOTHING)}


def limited(client: Any, start: Offsets, last: Offsets, budget: Budget, reading: ReadSettings, scale: Scale) -> Offsets:
    """Return where a trigger ends within a budget.

    Up to a thousand rows of a partition are counted one by one. After that, within the partition's last ledger, entries
    are counted, with the average number of rows of those before, which needs no reads.

    Args:
        client: A native client.
        start: Where the previous trigger ended.
        last: The last entries of partitions with new messages.
        budget: For all partitions together.
        reading: How to read.
        scale: Weighs messages.
    """
    if budget.unlimited:
        return last

    def end_of(name: str, part: Budget) -> tuple[Position, Spent]:
        stretch = Stretch(name, start.get(name, NOTHING), last[name])
        rows = _SAMPLE_ROWS if part.rows is None else min(part.rows, _SAMPLE_ROWS)
        shallow = replace(reading, queue=max(1, min(reading.queue, rows)))
        with closing(_entries(client, stretch, shallow, None if part.size is None else scale)) as entries:
            return _end(entries, stretch, part)

    return share({name: _distance(start.get(name, NOTHING), last[name]) for name in last}, budget, end_of)


def _end(entries: Iterable[Entry], stretch: Stretch, budget: Budget) -> tuple[Position, Spent]:
    end, spent = stretch.end, Spent()  # without entries, the whole range was deleted
    for number, (end, spent) in enumerate(take(entries, budget), 1):
        if budget.size is None and budget.rows and spent.rows >= _SAMPLE_ROWS and end[0] == stretch.end[0]:
            return beyond(end, stretch.end, spent, number, budget.rows)
    return end, spent


def beyond(end: Position, last: Position, spent: Spent, entries: int, rows: int) -> tuple[Position, Spent]:
    """Extrapolate within a ledger, as if all entries were like those that were read.

    Args:
        end: The last entry that was read.
        last: The last entry of the partition, in the same ledger.
        spent: Rows up to ``end``.
        entries: How many entries they were in.
        rows: The limit.
    """
    more = min((rows - spent.rows) * entries // spent.rows, last[1] - end[1])
    return (end[0], end[1] + more), spent.plus(more * spent.rows // entries, 0)


def _distance(start: Position, end: Position) -> int:
    return end[1] - start[1] if start[0] == end[0] else _UNKNOWN


def _entries(client: Any, stretch: Stretch, reading: ReadSettings, scale: Scale | None) -> Generator[Entry]:
    current: Position | None = None
    rows = size = 0
    try:
        for position, _, message in read_messages(client, stretch, reading):
            if current is not None and position != current:
                yield Entry(current, rows, size)
                rows = size = 0
            current = position
            rows += 1
            if scale is not None:
                size += scale.weigh(message.data(), message.length())
    except ForeignMessageError:
        if current is None:  # else this trigger ends before it, and the next one fails
            raise
    if current is not None:
        yield Entry(current, rows, size)
