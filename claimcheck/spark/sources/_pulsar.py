"""``format("claimcheck_pulsar")``: messages of Pulsar topics as rows, and rows as messages.

A streaming query keeps its `Subscriptions` on the driver; the executors read ranges of partitions. Rows are sent at
least once: a task is done when the broker has all of its messages, which cannot be withdrawn. If Spark retries a task,
or ends the job, rows that the first attempt sent are sent twice, or stay.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from claimcheck._validation import Timeout, fail
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import HEADERS_TYPE, MAP_TYPE, check_store_paths, check_writing, row_source
from claimcheck.spark._reading import Row
from claimcheck.spark._worker import as_config, claim_check
from claimcheck.spark.sources._options import COUNT, TEXT, RowSendError, Values, parse, require
from claimcheck.spark.sources._pulsar_client import (
    CONNECTION_OPTIONS,
    Connection,
    Subscriptions,
    client_errors,
    client_for,
    in_parallel,
    ledger_sizes,
    web_service,
)
from claimcheck.spark.sources._pulsar_reader import COLUMNS, Offsets, PulsarLog, from_json, limited, split, to_json
from claimcheck.spark.sources._source import Checkpoint, OffsetRange, TopicSource, TopicStreamReader
from claimcheck.transports.pulsar._producer import PulsarProducer
from claimcheck.transports.pulsar._queries import MAX_MESSAGE_BYTES, NOTHING, full_name, split_partition, vendor
from claimcheck.transports.pulsar._send import BoundedProducer, error_of

if TYPE_CHECKING:
    import pulsar
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

_BATCH_BYTES = 128 << 10  # the client's own default
_BATCH_MESSAGES = 1000
_GRACE_SECONDS = 30.0

_KINDS = {
    "value": ("binary",),
    "key": ("binary", "string"),
    "topic": ("string",),
    "properties": (MAP_TYPE,),
    "headers": (HEADERS_TYPE,),
}
_TOPIC = re.compile(r"persistent://[\w=:.-]+/[\w=:.-]+/[^/\s]+")


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
        self._opened = self._opened or Subscriptions(self._log.connection, self._log.topics, self._log.subscription)
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


# Writing --------------------------------------------------------------------------------------------------------------


@dataclass
class _Sent(WriterCommitMessage):
    rows: int


@dataclass(frozen=True, kw_only=True)
class PulsarSink:
    """The options of a query that writes, and Spark's commit protocol."""

    connection: Connection
    columns: Columns
    config: Config | None
    max_message_bytes: int
    timeout_seconds: float

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task and wait until the broker has all of them."""
        sending = _Sending(self)
        try:
            rows = sum(map(sending.send, self.columns.rows(iterator)))
            sending.finish()
        finally:
            sending.close()
        return _Sent(rows)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """Do nothing: the broker has all messages."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        sent = sum(result.rows for result in messages if isinstance(result, _Sent))
        _log.warning("the job was aborted; %d rows of completed tasks stay in their topics", sent)

    def producer(self, client: pulsar.Client, topic: str) -> BoundedProducer | PulsarProducer:
        limit = self.max_message_bytes
        if self.connection.admin_url is not None:
            with web_service(self.connection) as admin:
                limit = admin.max_message_bytes(topic)
        with client_errors(self.connection, topic, "opening a producer"):
            native = client.create_producer(
                topic,
                send_timeout_millis=max(1, round(self.timeout_seconds * 1000)),
                block_if_queue_full=True,
                batching_enabled=True,
                # The broker's limit applies to a whole batch. The client counts payloads only: three quarters of the
                # limit are left for keys and properties, 768 bytes for each message.
                batching_max_allowed_size_in_bytes=max(1, min(_BATCH_BYTES, limit // 4)),
                batching_max_messages=max(2, min(_BATCH_MESSAGES, limit // 1024)),
            )
        deadline = self.timeout_seconds + _GRACE_SECONDS
        if self.config is None:
            return BoundedProducer(native, deadline)
        return PulsarProducer(native, claim_check(self.config), max_message_bytes=limit, deadline_seconds=deadline)


class BatchSink(PulsarSink, DataSourceArrowWriter):
    pass


class StreamSink(PulsarSink, DataSourceStreamArrowWriter):
    pass


class _Sending:
    """The producers of one task, one for each topic, and its rows in flight."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink
        self._client = client_for(sink.connection)
        self._producers: dict[str, BoundedProducer | PulsarProducer] = {}
        self._changed = threading.Condition()
        self._waiting = 0
        self._failed: list[tuple[_Row, pulsar.Result]] = []
        self._ok = vendor().Result.Ok

    def send(self, row: _Row) -> int:
        """Send one row; returns 1, for a sum."""
        if self._failed:
            self._raise()
        properties = {name: _as_text(row, f"header {name!r}", value) or "" for name, value in row.headers}
        key = _as_text(row, "the key", row.key)
        try:
            producer = self._producers.get(row.topic)
            if producer is None:
                producer = self._producers[row.topic] = self._sink.producer(self._client, row.topic)
            self._count(1)
            try:
                producer.send_async(row.value, partial(self._record, row), properties or None, key)
            except BaseException:
                self._count(-1)
                raise
        except ClaimCheckError as error:
            error.add_note(f"This is {row.source}, for {row.topic}.")
            raise
        except vendor().exceptions.PulsarException as error:
            raise row.error(type(error).__name__) from error
        return 1

    def finish(self) -> None:
        try:
            for producer in self._producers.values():
                producer.flush()
        except Exception:
            if not self._failed:  # the reasons of those are more precise
                raise
        with self._changed:
            self._changed.wait_for(lambda: self._failed or not self._waiting)
        if self._failed:
            self._raise()

    def close(self) -> None:
        """Close the producers. Failed sends are rolled back by then."""
        for topic, producer in self._producers.items():
            try:
                producer.close()
            except Exception as error:
                _log.warning("%s: closing a producer failed: %s", topic, type(error).__name__)

    def _record(self, row: _Row, result: pulsar.Result, message_id: object) -> None:
        """Record a result, in the client's thread."""
        if result != self._ok:
            self._failed.append((row, result))
        self._count(-1)

    def _count(self, more: int) -> None:
        with self._changed:
            self._waiting += more
            self._changed.notify()

    def _raise(self) -> NoReturn:
        row, result = self._failed[0]
        raise row.error(result.name) from error_of(result)


def _as_text(row: _Row, what: str, value: str | bytes | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise row.error(f"{what} is not UTF-8, which Pulsar requires") from error


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    topic: str
    value: bytes | None
    key: str | bytes | None
    headers: list[tuple[str, str | bytes]]
    place: Row

    @property
    def source(self) -> str:
        origin = row_source(self.place.values())
        return f"row {self.number} of this task" + (f" ({origin})" if origin else "")

    def error(self, why: str) -> RowSendError:
        text = f"{self.topic}: {self.source} was not sent: {why}"
        if why == "MessageTooBig":
            text += f" ({len(self.value or b'')} bytes, perhaps in a batch). See maxMessageBytes, adminUrl and config"
        return RowSendError(text, destination=self.topic, row=self.number)


@dataclass(frozen=True, slots=True)
class Columns:
    places: dict[str, int]
    topic: str | None

    @classmethod
    def of(cls, schema: StructType, *, topic: str | None) -> Columns:
        """Find the columns, on the driver; all others are ignored."""
        places: dict[str, int] = {}
        for place, field in enumerate(schema):
            name, kind = field.name.lower(), field.dataType.simpleString()
            if name not in _KINDS or (name == "topic" and topic is not None):
                continue
            if kind not in _KINDS[name] or name in places:
                found = f"{field.name!r} twice" if name in places else f"{field.name!r} of type {kind}"
                fail(f"column {name}", found=found, expected=f"one column of type {' or '.join(_KINDS[name])}")
            places[name] = place
        if "value" not in places:
            fail("column value", found="nothing", expected="a column of type binary: the messages to send")
        if topic is None and "topic" not in places:
            fail("topic", found="nothing", expected="the name of a topic, or a column of that name")
        return cls(places, topic)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
        """Return the rows of a task; raises `RowSendError` at a row without a topic."""
        numbers = count()
        for batch in batches:
            names, columns = tuple(batch.schema.names), {name: batch.column(at) for name, at in self.places.items()}
            for index in range(batch.num_rows):
                parts = {name: column[index].as_py() for name, column in columns.items()}
                topic, place = self.topic or parts.get("topic") or "", Row(batch, index, names)
                row = _Row(next(numbers), topic, parts["value"], parts.get("key"), _headers(parts), place)
                if not row.topic:
                    raise row.error("its column topic is null, and there is no option topic")
                yield row


def _headers(parts: dict[str, Any]) -> list[tuple[str, str | bytes]]:
    pairs: list[tuple[str | None, str | bytes | None]] = [*(parts.get("properties") or ())]
    pairs += [(each["key"], each["value"]) for each in parts.get("headers") or () if each is not None]
    return [(name, b"" if value is None else value) for name, value in pairs if name is not None]
