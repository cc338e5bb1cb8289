"""``format("claimcheck_local")``: reads and writes topics of the embedded broker, without a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from claimcheck._validation import fail
from claimcheck.spark._worker import as_config, check_absolute
from claimcheck.spark.sources._admission_control import Budget, Scale
from claimcheck.spark.sources._local.reader import COLUMNS, LocalLog, LocalReader, LocalStreamReader
from claimcheck.spark.sources._local.writer import LocalSink, LocalStreamWriter, LocalWriter
from claimcheck.spark.sources._options import (
    COUNT,
    TEXT,
    as_ddl,
    check_columns,
    choice,
    parse,
    refuse_overwrite,
    require,
    sink_config,
)
from claimcheck.spark.sources._rows import Columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["ClusterLocalSource", "LocalSource"]

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
    """Created by Spark on the driver and in workers; opens nothing."""

    relative_paths: ClassVar[bool] = True

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "claimcheck_local"

    def schema(self) -> str:
        """All columns; a query may use a schema with fewer of them."""
        self._log(parse(self.options, _READ_OPTIONS))  # errors are raised by `load`, not when the query runs
        return as_ddl(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch, from the beginning of a topic to its end."""
        values = parse(self.options, _READ_OPTIONS)
        for name in ("maxRowsPerTrigger", "maxPayloadBytesPerTrigger"):
            if name in values:
                fail(name, found="a batch query", expected="a streaming query: a batch reads everything")
        if values.get("startingPosition") == "latest":
            fail("startingPosition", found="'latest' in a batch query", expected="'earliest': a batch ends at the end")
        return LocalReader(self._log(values), check_columns(schema, COLUMNS))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream."""
        return LocalStreamReader(self._log(parse(self.options, _READ_OPTIONS)), check_columns(schema, COLUMNS))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        refuse_overwrite(overwrite)
        return LocalWriter(self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream."""
        return LocalStreamWriter(self._sink(schema))

    def _log(self, values: Mapping[str, Any]) -> LocalLog:
        config = values.get("config")
        return LocalLog(
            path=self._path(values),
            topic=require(values, "topic", "the name of a topic"),
            at_end=values.get("startingPosition") == "latest",
            budget=Budget(values.get("maxRowsPerTrigger"), values.get("maxPayloadBytesPerTrigger")),
            scale=Scale.of(None if config is None else as_config(config)),
        )

    def _sink(self, schema: StructType) -> LocalSink:
        values = parse(self.options, _WRITE_OPTIONS)
        return LocalSink(
            path=self._path(values),
            columns=Columns.of(schema, topic=values.get("topic")),
            config=sink_config(values.get("config"), values.get("topic", ""), relative_paths=self.relative_paths),
            max_message_bytes=values.get("maxMessageBytes", 1 << 20),
        )

    def _path(self, values: Mapping[str, Any]) -> str:
        path: str = require(values, "path", _FILE)
        if not self.relative_paths:
            check_absolute("path", path)
        whole = os.path.abspath(path)
        if not os.path.isfile(whole):  # a broker would create it
            fail("path", found=f"{whole!r}, which is no file", expected="the file of an embedded broker")
        return whole


class ClusterLocalSource(LocalSource):
    """The same on a cluster, where relative paths are refused."""

    relative_paths = False
