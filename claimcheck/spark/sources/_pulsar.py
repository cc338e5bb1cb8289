"""``format("claimcheck_pulsar")``: messages of Pulsar topics as rows, and rows as messages.

A streaming query keeps its `Subscriptions` on the driver; the executors read ranges of partitions.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from claimcheck._validation import Timeout, fail
from claimcheck.config import Config
from claimcheck.spark._columns import check_store_paths, check_writing
from claimcheck.spark._worker import as_config
from claimcheck.spark.sources._options import COUNT, TEXT, SubscriptionBusyError, Values, parse, require
from claimcheck.spark.sources._pulsar_client import (
    CONNECTION_OPTIONS,
    Connection,
    check_topic,
    client_errors,
    in_parallel,
    ledger_sizes,
    list_partitions,
    open_client,
    retry,
)
from claimcheck.spark.sources._pulsar_reader import (
    COLUMNS,
    Offsets,
    Position,
    PulsarLog,
    from_json,
    limited,
    message_id_at,
    open_reader,
    position_of,
    split,
    to_json,
    unfiltered,
)
from claimcheck.spark.sources._pulsar_sink import BatchSink, Columns, StreamSink
from claimcheck.spark.sources._source import Checkpoint, OffsetRange, TopicSource, TopicStreamReader
from claimcheck.transports.pulsar._queries import MAX_MESSAGE_BYTES, NOTHING, full_name, split_partition, vendor

if TYPE_CHECKING:
    import pulsar
    from pyspark.sql.types import StructType

T = TypeVar("T")

_TOPIC = re.compile(r"persistent://[\w=:.-]+/[\w=:.-]+/[^/\s]+")
_BUSY_SECONDS = 10.0  # the broker notices within a second or two that a process was killed

_log = logging.getLogger(__name__)


class PulsarSource(TopicSource):
    columns = COLUMNS
    read_options = (
        TopicSource.read_options
        | CONNECTION_OPTIONS
        | {"subscription": TEXT, "failOnDataLoss": bool, "readTimeoutSeconds": Timeout, "receiverQueueSize": COUNT}
        | {"minPartitions": COUNT}
    )
    write_options: ClassVar[dict[str, object]] = CONNECTION_OPTIONS | {
        "topic": TEXT,
        "config": TEXT,
        "maxMessageBytes": COUNT,
        "sendTimeoutSeconds": Timeout,
    }

    @classmethod
    def name(cls) -> str:
        return "claimcheck_pulsar"

    def _log_of(self, values: Values) -> PulsarLog:
        timeout = values.get("readTimeoutSeconds", 60.0)
        return PulsarLog(
            connection=Connection.of(values, timeout_seconds=timeout),
            topics=_topics(values),
            timeout_seconds=timeout,
            queue=values.get("receiverQueueSize", 1000),
            fail_on_loss=values.get("failOnDataLoss", True),
            subscription=values.get("subscription", ""),
            at_end=values.get("startingPosition") == "latest",
            min_partitions=values.get("minPartitions", 1),
            max_rows=values.get("maxRowsPerTrigger"),
        )

    def _stream_reader(self, values: Values, schema: StructType) -> _PulsarStreamReader:
        require(values, "subscription", "a name that only this query uses, before and after restarts")
        return _PulsarStreamReader(self._log_of(values), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        if overwrite:
            fail("mode", found="'overwrite'", expected="'append': topics are append-only")
        return BatchSink(**self._sink_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        return StreamSink(**self._sink_options(schema))

    def _sink_options(self, schema: StructType) -> dict[str, Any]:
        values = parse(self.options, self.write_options)
        timeout, topic, config = values.get("sendTimeoutSeconds", 60.0), values.get("topic"), values.get("config")
        return {
            "connection": Connection.of(values, timeout_seconds=timeout),
            "columns": Columns.of(schema, topic=topic),
            "config": None if config is None else self._sink_config(config, full_name(topic or "")),
            "max_message_bytes": values.get("maxMessageBytes", MAX_MESSAGE_BYTES),
            "timeout_seconds": timeout,
        }

    def _sink_config(self, config: str, topic: str) -> Config:
        loaded = as_config(config)
        check_writing(own := loaded.for_destination(topic))
        check_store_paths(own)
        return loaded


def _topics(values: Values) -> tuple[str, ...]:
    given = require(values, "topic", "the name of a topic, or several with commas between them").split(",")
    names = [full_name(topic.strip()) for topic in given if topic.strip()]
    if len(set(names)) != len(given):
        fail("topic", found=repr(values["topic"]), expected="names of topics, each of them once, and none empty")
    for name in names:
        if not _TOPIC.fullmatch(name):
            fail("topic", found=repr(name), expected="persistent://tenant/namespace/topic, or the last part of it")
        if split_partition(name)[0] != name and split_partition(name)[0] in names:
            fail("topic", found=f"{name!r}, a partition of a topic that is named, too", expected="each message once")
    return tuple(names)


class _PulsarStreamReader(TopicStreamReader[PulsarLog]):
    _opened: Subscriptions | None = None
    _target: Offsets | None = None
    _last: Offsets | None = None

    def initialOffset(self) -> Checkpoint:  # noqa: N802
        """Return where a query without a checkpoint begins. From now on the broker keeps all messages after that."""
        return to_json(self._subscriptions.begin(at_end=self._log.at_end))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the current end of the topics: this run reads no further."""
        self._target = self._subscriptions.last()

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:  # noqa: N802
        """Return where the next trigger ends; partitions that were added since begin at their first entry."""
        begun = from_json(start)
        self._last = last = _newer(begun, self._subscriptions.last() if self._target is None else self._target)
        self._check(begun, last)
        if isinstance(limit, ReadMaxRows):
            last = limited(self._subscriptions.client, begun, last, self._log, limit.max_rows)
        return to_json(begun | last)

    def reportLatestOffset(self) -> Checkpoint | None:  # noqa: N802
        return None if self._last is None else to_json(self._last)

    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        """Return a task for each partition with new messages; with ``minPartitions``, several for large ones."""
        begun = from_json(start)
        ends = _newer(begun, from_json(end))
        self._check(begun, ends)
        ranges = [OffsetRange(name, begun.get(name, NOTHING), ends[name]) for name in ends]
        return split(ranges, self._log.min_partitions, partial(ledger_sizes, self._log.connection))

    def commit(self, end: Checkpoint) -> None:
        self._subscriptions.release(from_json(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _subscriptions(self) -> Subscriptions:
        self._opened = self._opened or Subscriptions(self._log)
        return self._opened

    def _check(self, begun: Offsets, ends: Offsets) -> None:
        """Report losses in partitions that were not read yet; in others the last entry that was read shows them."""
        unread = [name for name in ends if name not in begun]
        for name, moved in zip(unread, in_parallel(self._subscriptions.was_moved, unread), strict=True):
            if moved:
                self._log.lost(name, "the subscription is not at its beginning, though nothing of it was read yet")


def _newer(start: Offsets, last: Offsets) -> Offsets:
    """Return the ends of partitions with new messages; the end of an emptied topic is before what was read."""
    return {name: end for name, end in last.items() if end > start.get(name, NOTHING)}


# Subscriptions ------------------------------------------------------------------------------------------------------


class Subscriptions:
    """The subscriptions of one query, on the driver."""

    def __init__(self, log: PulsarLog) -> None:
        self._connection, self._topics, self._subscription = log.connection, log.topics, log.subscription
        in_parallel(partial(check_topic, self._connection), self._topics)
        self.client = open_client(self._connection)
        self._consumers: dict[str, pulsar.Consumer] = {}
        self._committed: Offsets = {}
        self._known: set[str] = set()  # partitions whose subscription is where it was left

    def last(self) -> Offsets:
        names = list_partitions(self.client, self._connection, self._topics)
        return dict(zip(names, in_parallel(self._last, names), strict=True))

    def begin(self, *, at_end: bool) -> Offsets:
        """Move the subscription to the topics' beginning or end, and return that position."""
        ends = {name: end for name, end in self.last().items() if end != NOTHING}
        in_parallel(lambda name: self._seek(name, ends[name] if at_end else NOTHING), ends)
        return ends if at_end else {}

    def was_moved(self, name: str) -> bool:
        """Whether the subscription was moved in a partition of which this query has read nothing."""
        if name in self._known:
            return False
        millis = round(self._connection.timeout_seconds * 1000)
        with client_errors(self._connection, name, "reading its first message"):
            with contextlib.closing(open_reader(self.client, name, NOTHING, queue=1)) as reader:
                first = position_of(reader.read_next(millis))
            try:
                moved = position_of(self._consumer(name).receive(millis)) != first
            except vendor().exceptions.Timeout:
                self._consumer(name).get_last_message_id()  # raises if no broker answers
                moved = True  # it has no message, but the partition has
        self._known.add(name)
        return moved

    def release(self, offsets: Offsets) -> None:
        """Acknowledge what is committed, except the last entry: while it exists, nothing after it was deleted."""
        read = {
            name: position for name, position in offsets.items() if {name, split_partition(name)[0]} & set(self._topics)
        }
        new = read.items() - self._committed.items()
        self._committed.update(read)
        # -1, before the first entry of a ledger, acknowledges all ledgers before it.
        in_parallel(lambda each: self._acknowledge(each[0], (each[1][0], each[1][1] - 1)), new)

    def close(self) -> None:
        with contextlib.suppress(vendor().exceptions.PulsarException):
            self.client.close()

    def _seek(self, name: str, position: Position) -> None:
        # The last entry is kept, too: it will prove that nothing after it was deleted.
        place = message_id_at(name, position)
        with client_errors(self._connection, name, "moving the subscription"):
            self._consumer(name).seek(place)
        self._known.add(name)

    def _last(self, name: str) -> Position:
        consumer = self._consumer(name)
        with client_errors(self._connection, name, "reading its last message id"):
            last = _retry_while_created(consumer.get_last_message_id)
        ledger, entry = last.ledger_id(), last.entry_id()
        return (ledger, entry) if ledger >= 0 and entry >= 0 else NOTHING

    def _consumer(self, name: str) -> pulsar.Consumer:
        if name not in self._consumers:
            self._consumers[name] = retry(
                lambda: self._subscribe(name),
                transient=lambda error: isinstance(error, SubscriptionBusyError),
                seconds=_BUSY_SECONDS,
            )
        return self._consumers[name]

    def _subscribe(self, name: str) -> pulsar.Consumer:
        library = vendor()
        with client_errors(self._connection, name, "subscribing"):
            try:
                return self.client.subscribe(
                    name,
                    self._subscription,
                    consumer_type=library.ConsumerType.Exclusive,
                    initial_position=library.InitialPosition.Earliest,
                    receiver_queue_size=1,  # `was_moved` needs one message
                    start_message_id_inclusive=True,
                    **unfiltered(),
                )
            except library.exceptions.ConsumerBusy as error:
                text = (
                    f"{name}: another query, or another run of this one, holds the subscription {self._subscription!r}."
                    " Each query needs a subscription of its own, and one run at a time"
                )
                raise SubscriptionBusyError(text, destination=name) from error

    def _acknowledge(self, name: str, position: Position) -> None:
        try:
            self._consumer(name).acknowledge_cumulative(message_id_at(name, position))
        except Exception as error:
            _log.warning("%s: could not acknowledge what was read: %s", name, type(error).__name__)


def _retry_while_created(call: Callable[[], T]) -> T:
    pending = vendor().exceptions.BrokerMetadataError
    return retry(call, transient=lambda error: isinstance(error, pending), seconds=_BUSY_SECONDS)
