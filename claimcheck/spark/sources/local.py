"""``format("claimcheck_local")``: the embedded broker's messages as rows, and rows as messages, with no server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from claimcheck.spark.sources.arrow import as_ddl, check_columns
from claimcheck.spark.sources.local_log import existing
from claimcheck.spark.sources.local_reader import COLUMNS, LocalLog, LocalReader, LocalStreamReader
from claimcheck.spark.sources.local_writer import LocalSink, LocalStreamWriter, LocalWriter
from claimcheck.spark.sources.options import COUNT, TEXT, choice, parse, refuse_overwrite, require
from claimcheck.spark.sources.rows import Columns
from claimcheck.spark.sources.shares import Budget
from claimcheck.spark.sources.weights import Scale
from claimcheck.spark.worker import as_config, check_writing
from claimcheck.validation import fail

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["LocalSource"]

_FILE = "the file of an embedded broker, on a disk that driver and executors share"
_READ_OPTIONS = {
    "path": TEXT,
    "topic": TEXT,
    "startingPosition": choice("earliest", "latest"),
    "maxRowsPerTrigger": COUNT,
    "maxPayloadBytesPerTrigger": COUNT,
    "config": TEXT,
}
_WRITE_OPTIONS = {"path": TEXT, "topic": TEXT, "config": TEXT, "maxMessageBytes": COUNT}


class LocalSource(DataSource):
    """Made by Spark wherever it needs one; opens nothing."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "claimcheck_local"

    def schema(self) -> str:
        """All columns; a query may give a schema with fewer of them."""
        _log(parse(self.options, _READ_OPTIONS))  # what is wrong is said at `load`, not when the query runs
        return as_ddl(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make what reads a topic once, from its beginning to its end."""
        values = parse(self.options, _READ_OPTIONS)
        for name in ("maxRowsPerTrigger", "maxPayloadBytesPerTrigger"):
            if name in values:
                fail(name, found="a batch query", expected="a streaming query: a batch reads everything")
        if values.get("startingPosition") == "latest":
            fail("startingPosition", found="'latest' in a batch query", expected="'earliest': a batch ends at the end")
        return LocalReader(_log(values), check_columns(schema, COLUMNS))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make what reads a topic on and on."""
        return LocalStreamReader(_log(parse(self.options, _READ_OPTIONS)), check_columns(schema, COLUMNS))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make what appends a batch."""
        refuse_overwrite(overwrite)
        return LocalWriter(_sink(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Make what appends the batches of a stream."""
        return LocalStreamWriter(_sink(self.options, schema))


def _log(values: Mapping[str, Any]) -> LocalLog:
    config = values.get("config")
    return LocalLog(
        path=existing(require(values, "path", _FILE)),
        topic=require(values, "topic", "the name of a topic"),
        at_end=values.get("startingPosition") == "latest",
        budget=Budget(values.get("maxRowsPerTrigger"), values.get("maxPayloadBytesPerTrigger")),
        scale=Scale.of(None if config is None else as_config(config)),
    )


def _sink(options: Mapping[str, str], schema: StructType) -> LocalSink:
    values = parse(options, _WRITE_OPTIONS)
    config = None if "config" not in values else as_config(values["config"])
    if config is not None:
        check_writing(config.for_destination(values.get("topic", "")))
    return LocalSink(
        path=existing(require(values, "path", _FILE)),
        columns=Columns.of(schema, topic=values.get("topic")),
        config=config,
        max_message_bytes=values.get("maxMessageBytes", 1 << 20),
    )
