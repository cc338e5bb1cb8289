"""What both sources share: options to readers, and Spark's callbacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from claimcheck._validation import fail
from claimcheck.spark.sources._options import COUNT, TEXT, Values, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

P = TypeVar("P")
L = TypeVar("L", bound="Log")

Checkpoint = dict[str, Any]
"""Offsets as Spark keeps them, as JSON."""


class OffsetRange(InputPartition, Generic[P]):
    """The part of one partition that one task reads; the source defines the meaning of ``start`` and ``end``."""

    def __init__(self, partition: str, start: P, end: P) -> None:
        self.partition, self.start, self.end = partition, start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The options of a query that reads: what a trigger reads at most, all that is there now, and one range of it."""

    max_rows_per_trigger: int | None = None

    @property
    def limit(self) -> ReadLimit:
        return ReadAllAvailable() if self.max_rows_per_trigger is None else ReadMaxRows(self.max_rows_per_trigger)

    def ranges(self) -> Sequence[InputPartition]:
        raise NotImplementedError

    def batches(self, offsets: Any, schema: pa.Schema, /) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


class TopicSource(DataSource):
    """Created by Spark on the driver and in workers; opens nothing."""

    columns: ClassVar[str]
    read_options: ClassVar[dict[str, object]] = {
        "topic": TEXT,
        "startingOffsets": Literal["earliest", "latest"],
        "maxRowsPerTrigger": COUNT,
    }

    def schema(self) -> str:
        """Return all columns; a query whose schema has fewer of them is faster."""
        self._log_of(parse(self.options, self.read_options))  # raises errors at `load`, not when the query runs
        return self.columns

    def reader(self, schema: StructType) -> DataSourceReader:
        values = parse(self.options, self.read_options)
        if unfit := {"maxRowsPerTrigger", "subscription"} & values.keys():
            fail(unfit.pop(), found="a batch query", expected="a streaming query: a batch reads everything")
        if values.get("startingOffsets") == "latest":
            fail("startingOffsets", found="'latest' in a batch query", expected="'earliest': a batch ends at the end")
        return _BatchReader(self._log_of(values), _checked(schema, self.columns))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return self._stream_reader(parse(self.options, self.read_options), _checked(schema, self.columns))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        fail("format", found=f"a write to {self.name()!r}", expected="a read: send with a producer of the transport")

    def _log_of(self, values: Values) -> Log:
        raise NotImplementedError

    def _stream_reader(self, values: Values, schema: StructType) -> DataSourceStreamReader:
        raise NotImplementedError


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[L]):
    """Spark creates several of these: one plans the query and stays, others only run `read` on the executors."""

    def __init__(self, log: L, schema: StructType) -> None:
        self._log, self._schema = log, schema

    _target: Any = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the current end of the topics: this run reads no further."""
        self._target = self._ends()

    def _last(self) -> Any:
        return self._ends() if self._target is None else self._target

    def _ends(self) -> Any:
        raise NotImplementedError

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self._log.limit

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._log.batches(partition, _arrow_schema(self._schema))


class _BatchReader(DataSourceReader):
    def __init__(self, log: Log, schema: StructType) -> None:
        self._log, self._schema = log, schema

    def partitions(self) -> Sequence[InputPartition]:
        return self._log.ranges()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, OffsetRange):
            return self._log.batches(partition, _arrow_schema(self._schema))
        return iter(())  # all partitions are empty


def _arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")  # exactly the types that Spark compares batches with


def _checked(schema: StructType, columns: str) -> StructType:
    """Check that a user's schema has some of the columns, each once."""
    given = [f"{field.name} {field.dataType.simpleString()}" for field in schema.fields]
    if not given or len(set(given)) < len(given) or not set(given) <= set(columns.split(", ")):
        expected = f"some of these columns, each once: {columns}"
        fail("schema", found=", ".join(given) or "no columns", expected=expected)
    return schema
