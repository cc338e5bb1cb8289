"""The streaming reader of Pulsar: `Control` on the driver, a `Stretch` of each partition on the executors."""

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
from claimcheck.spark.sources._pulsar.admin import check_topic
from claimcheck.spark.sources._pulsar.client import again, in_our_words, open_client
from claimcheck.spark.sources._pulsar.connection import Connection
from claimcheck.spark.sources._pulsar.offsets import NOTHING, Offsets, Position, from_json, split_name, to_json
from claimcheck.spark.sources._pulsar.reader import Reading, Stretch, as_it_is, read_messages
from claimcheck.transports.pulsar._errors import vendor

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "beyond",
    "Control",
    "limited",
    "newer",
    "PulsarStreamReader",
    "StreamPlan",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What a streaming query was told.

    Attributes:
        topics: Their full names.
        subscription: Of this query alone.
        at_end: Whether a query with no checkpoint begins at the topics' end.
        budget: Of a trigger.
        reading: How to read.
        scale: Weighs messages.
    """

    topics: tuple[str, ...]
    subscription: str
    at_end: bool
    budget: Budget
    reading: Reading
    scale: Scale


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark makes several of these: one plans the query and stays, others only carry `read` to the executors."""

    def __init__(self, plan: StreamPlan, schema: StructType) -> None:
        self._plan, self._schema = plan, schema
        self._opened: Control | None = None
        self._target: Offsets | None = None
        self._last: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Say where a query with no checkpoint begins, and have the broker keep everything from there on."""
        return to_json(self._control.begin(at_end=self._plan.at_end))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tell Spark what we limit; both limits hold, though it has a word for only one of them."""
        return default_limit(self._plan.budget)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the topics end now: this run goes no further."""
        self._target = self._control.last()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Say where the next trigger ends; partitions that were added since begin at their beginning."""
        begun = from_json(start)
        self._last = last = newer(begun, self._control.last() if self._target is None else self._target)
        self._check(begun, last)
        budget = Budget() if isinstance(limit, ReadAllAvailable) else self._plan.budget
        ends = limited(self._control.client, begun, last, budget, self._plan.reading, self._plan.scale)
        return to_json(begun | ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Tell what there is to read, for the query's progress."""
        return None if self._last is None else to_json(self._last)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Make a task for each partition that has anything new."""
        begun = from_json(start)
        ends = newer(begun, from_json(end))
        self._check(begun, ends)
        return [Stretch(name, begun.get(name, NOTHING), ends[name]) for name in ends]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one stretch, on an executor."""
        assert isinstance(partition, Stretch)
        return self._plan.reading.batches(partition, arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Let the broker forget what Spark has committed."""
        self._control.release(from_json(end))

    def stop(self) -> None:
        """Leave the broker."""
        if self._opened is not None:
            self._opened.close()

    def _check(self, begun: Offsets, ends: Offsets) -> None:
        """Notice what was lost where nothing was read yet; elsewhere the last entry that was read tells."""
        for name in ends:
            if name not in begun and self._control.was_moved(name):
                what = "nothing of it was read yet, but the subscription is not at its beginning any more"
                self._plan.reading.lost(name, what)

    @property
    def _control(self) -> Control:
        if self._opened is None:
            self._opened = Control(self._plan.reading.connection, self._plan.topics, self._plan.subscription)
        return self._opened


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


_SAMPLE_ROWS = 1000
_UNKNOWN = 1 << 62  # how many entries there are in ledgers that are not counted


def newer(start: Offsets, last: Offsets) -> Offsets:
    """Give the ends of partitions with anything new; a topic that forgot everything says less than we know."""
    return {name: end for name, end in last.items() if end > start.get(name, NOTHING)}


def limited(client: Any, start: Offsets, last: Offsets, budget: Budget, reading: Reading, scale: Scale) -> Offsets:
    """Find the end of a trigger within a budget.

    Rows are counted one by one up to a thousand in a partition. From there on, as long as the partition's last entry
    is in the same ledger, entries are, each for as many rows as those had on average; that costs nothing.

    Args:
        client: To read with.
        start: Where the trigger before ended.
        last: The last entries, of partitions with anything new.
        budget: For all partitions.
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
    end, spent = stretch.end, Spent()  # where nothing is left of it, the stretch is behind us
    for number, (end, spent) in enumerate(take(entries, budget), 1):
        if budget.size is None and budget.rows and spent.rows >= _SAMPLE_ROWS and end[0] == stretch.end[0]:
            return beyond(end, stretch.end, spent, number, budget.rows)
    return end, spent


def beyond(end: Position, last: Position, spent: Spent, entries: int, rows: int) -> tuple[Position, Spent]:
    """Go on within a ledger without looking, as if all entries were like those that were looked at.

    Args:
        end: The last entry that was looked at.
        last: The last one there is, in the same ledger.
        spent: Rows up to ``end``.
        entries: In how many entries they were.
        rows: The limit.
    """
    more = min((rows - spent.rows) * entries // spent.rows, last[1] - end[1])
    return (end[0], end[1] + more), spent.plus(more * spent.rows // entries, 0)


def _distance(start: Position, end: Position) -> int:
    return end[1] - start[1] if start[0] == end[0] else _UNKNOWN


def _entries(client: Any, stretch: Stretch, reading: Reading, scale: Scale | None) -> Generator[Entry]:
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
