"""``format("claimcheck_pulsar")``: messages of Pulsar topics as rows, and rows as messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from claimcheck._validation import fail
from claimcheck.spark._worker import as_config
from claimcheck.spark.sources._admission_control import Budget, Scale
from claimcheck.spark.sources._options import (
    COUNT,
    SECONDS,
    TEXT,
    TRUTH,
    arrow_schema,
    as_ddl,
    check_columns,
    choice,
    parse,
    refuse_overwrite,
    require,
    sink_config,
)
from claimcheck.spark.sources._pulsar.client import check_topic, client_errors, client_for
from claimcheck.spark.sources._pulsar.connection import CONNECTION_OPTIONS, Connection, connection_of
from claimcheck.spark.sources._pulsar.reader import (
    COLUMNS,
    NOTHING,
    Position,
    ReadSettings,
    Stretch,
    split_name,
    unfiltered,
)
from claimcheck.spark.sources._pulsar.stream import PulsarStreamReader, StreamPlan
from claimcheck.spark.sources._pulsar.writer import PulsarSink, PulsarStreamWriter, PulsarWriter
from claimcheck.spark.sources._rows import Columns
from claimcheck.transports.pulsar._admin import MAX_MESSAGE_BYTES, full_name
from claimcheck.transports.pulsar._errors import vendor

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["ClusterPulsarSource", "PulsarSource"]

_TOPIC = re.compile(r"persistent://[\w=:.-]+/[\w=:.-]+/[^/\s]+")
_READ_OPTIONS = CONNECTION_OPTIONS | {
    "topic": TEXT,
    "subscription": TEXT,
    "startingPosition": choice("earliest", "latest"),
    "maxRowsPerTrigger": COUNT,
    "maxPayloadBytesPerTrigger": COUNT,
    "failOnDataLoss": TRUTH,
    "readTimeoutSeconds": SECONDS,
    "receiverQueueSize": COUNT,
    "config": TEXT,
}
_WRITE_OPTIONS = CONNECTION_OPTIONS | {
    "topic": TEXT,
    "config": TEXT,
    "maxMessageBytes": COUNT,
    "sendTimeoutSeconds": SECONDS,
}


class PulsarSource(DataSource):
    """Spark creates it wherever it needs one; it opens no connection."""

    relative_paths: ClassVar[bool] = True

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "claimcheck_pulsar"

    def schema(self) -> str:
        """All columns; a query whose schema has fewer of them is faster."""
        _read_values(self.options)  # raises errors at `load`, not when the query runs
        return as_ddl(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of batch queries, which reads topics from their beginning to their end."""
        values = _read_values(self.options)
        for name in ("maxRowsPerTrigger", "maxPayloadBytesPerTrigger", "subscription"):
            if name in values:
                fail(name, found="a batch query", expected="a streaming query: a batch reads everything")
        if values.get("startingPosition") == "latest":
            fail("startingPosition", found="'latest' in a batch query", expected="'earliest': a batch ends at the end")
        return PulsarReader(_topics(values), _reading(values), check_columns(schema, COLUMNS))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of streaming queries."""
        values = _read_values(self.options)
        expected = "a name that is this query's own, and the same after every restart: Pulsar keeps data under it"
        config = values.get("config")
        plan = StreamPlan(
            topics=_topics(values),
            subscription=require(values, "subscription", expected),
            at_end=values.get("startingPosition") == "latest",
            budget=Budget(values.get("maxRowsPerTrigger"), values.get("maxPayloadBytesPerTrigger")),
            reading=_reading(values),
            scale=Scale.of(None if config is None else as_config(config)),
        )
        return PulsarStreamReader(plan, check_columns(schema, COLUMNS))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        refuse_overwrite(overwrite)
        return PulsarWriter(self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream."""
        return PulsarStreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> PulsarSink:
        values = parse(self.options, _WRITE_OPTIONS)
        timeout = values.get("sendTimeoutSeconds", 60.0)
        connection: Connection = connection_of({"operationTimeoutSeconds": timeout, **values})
        topic = values.get("topic")
        return PulsarSink(
            connection=connection,
            columns=Columns.of(schema, topic=topic),
            config=sink_config(values.get("config"), full_name(topic or ""), relative_paths=self.relative_paths),
            max_message_bytes=values.get("maxMessageBytes", MAX_MESSAGE_BYTES),
            timeout_seconds=timeout,
        )


class ClusterPulsarSource(PulsarSource):
    """The same source on a cluster, where relative paths are refused."""

    relative_paths = False


class PulsarReader(DataSourceReader):
    """Reads what the topics hold when the query is planned."""

    def __init__(self, topics: tuple[str, ...], reading: ReadSettings, schema: StructType) -> None:
        self._topics, self._reading, self._schema = topics, reading, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a task for each partition that is not empty. No subscription is created."""
        client = client_for(self._reading.connection)
        stretches = []
        for topic in self._topics:
            check_topic(self._reading.connection, topic)
            with client_errors(self._reading.connection, topic, "asking for its partitions"):
                names = client.get_topic_partitions(topic)
            ends = {name: _end(client, name, self._reading) for name in names}
            stretches += [Stretch(name, NOTHING, end) for name, end in ends.items() if end != NOTHING]
        return stretches

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, on an executor; nothing if all topics are empty."""
        if isinstance(partition, Stretch):
            return self._reading.batches(partition, arrow_schema(self._schema))
        return iter(())


def _end(client: Any, partition: str, reading: ReadSettings) -> Position:
    pulsar = vendor()
    with client_errors(reading.connection, partition, "asking for its last message"):
        reader = client.create_reader(
            partition, pulsar.MessageId.latest, start_message_id_inclusive=True, receiver_queue_size=1, **unfiltered()
        )
        try:
            if not reader.has_message_available():
                return NOTHING
            found = reader.read_next(round(reading.timeout_seconds * 1000)).message_id()
            return found.ledger_id(), found.entry_id()
        finally:
            reader.close()


def _read_values(options: Mapping[str, str]) -> dict[str, Any]:
    values = parse(options, _READ_OPTIONS)
    connection_of(values)
    _topics(values)
    return values


def _topics(values: Mapping[str, Any]) -> tuple[str, ...]:
    given = require(values, "topic", "the name of a topic, or several with commas between them").split(",")
    names = [full_name(topic.strip()) for topic in given if topic.strip()]
    if len(set(names)) != len(given):
        fail("topic", found=repr(values["topic"]), expected="names of topics, each of them once, and none empty")
    for name in names:
        if not _TOPIC.fullmatch(name):
            fail("topic", found=repr(name), expected="persistent://tenant/namespace/topic, or the last part of it")
        if split_name(name)[0] != name and split_name(name)[0] in names:
            fail("topic", found=f"{name!r}, a partition of a topic that is named, too", expected="each message once")
    return tuple(names)


def _reading(values: dict[str, Any]) -> ReadSettings:
    timeout = values.get("readTimeoutSeconds", 60.0)
    connection = connection_of({"operationTimeoutSeconds": timeout, **values})
    return ReadSettings(
        connection=connection,
        timeout_seconds=timeout,
        queue=values.get("receiverQueueSize", 1000),
        fail_on_loss=values.get("failOnDataLoss", True),
    )
