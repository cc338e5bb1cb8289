"""Reads topics of the embedded broker: batch and streaming, one task for each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from claimcheck.spark.columns import HEADERS_TYPE
from claimcheck.spark.sources import local_log
from claimcheck.spark.sources.arrow import arrow_schema, default_limit
from claimcheck.spark.sources.errors import DataLossError
from claimcheck.spark.sources.shares import Budget, Spent, share, take
from claimcheck.spark.sources.weights import Scale
from claimcheck.transports.local import LocalBroker, LocalMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "LocalLog", "LocalReader", "LocalStreamReader"]

COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": HEADERS_TYPE,
}
"""As Spark's source for Kafka has it, with headers."""

Ends = dict[str, int]
"""From a partition's number, as text, to the offset of the next message."""


class Stretch(InputPartition):
    """What one task reads: of one partition from offset ``start`` to before ``end``."""

    def __init__(self, partition: int, start: int, end: int) -> None:
        super().__init__(None)
        self.partition, self.start, self.end = partition, start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLog:
    """A topic to be read.

    Attributes:
        path: Of the broker's file.
        topic: Its name.
        at_end: Whether a query with no checkpoint begins at the end.
        budget: Of a trigger.
        scale: Weighs messages.
    """

    path: str
    topic: str
    at_end: bool
    budget: Budget
    scale: Scale

    def ends(self) -> Ends:
        """Ask where the partitions end now."""
        with LocalBroker(self.path) as broker:
            return {str(partition): end for partition, end in local_log.ends(broker, self.topic).items()}

    def limited(self, start: Ends, last: Ends, budget: Budget) -> Ends:
        """Find the end of a trigger within a budget; rows and bytes are exact, but one row always goes."""
        if budget.unlimited:
            return last
        with LocalBroker(self.path) as broker:

            def end_of(name: str, part: Budget) -> tuple[int, Spent]:
                begun, end = start.get(name, 0), last[name]
                if part.size is None:
                    count = min(end - begun, part.rows or 1)
                    return begun + count, Spent(count)
                found = local_log.weights(broker, self.topic, int(name), begun, end, self.scale)
                return list(take(found, part))[-1]

            new = {name: end - start.get(name, 0) for name, end in last.items() if end > start.get(name, 0)}
            return share(new, budget, end_of)

    def batches(self, stretch: Stretch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read a stretch in this process."""
        with LocalBroker(self.path) as broker:
            found = local_log.messages(broker, self.topic, stretch.partition, stretch.start, stretch.end)
            yield from (_batch(page, schema) for page in found)


class LocalReader(DataSourceReader):
    """Reads what a topic holds when the query is planned."""

    def __init__(self, log: LocalLog, schema: StructType) -> None:
        self._log, self._schema = log, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Make a task for each partition that is not empty."""
        return [Stretch(int(name), 0, end) for name, end in self._log.ends().items() if end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one stretch, on an executor; nothing where all partitions are empty."""
        if isinstance(partition, Stretch):
            return self._log.batches(partition, arrow_schema(self._schema))
        return iter(())


class LocalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic on and on. The broker keeps every message, so that there is nothing to hold and to let go."""

    def __init__(self, log: LocalLog, schema: StructType) -> None:
        self._log, self._schema = log, schema
        self._target: Ends | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Say where a query with no checkpoint begins."""
        ends = self._log.ends()
        return ends if self._log.at_end else dict.fromkeys(ends, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tell Spark what we limit."""
        return default_limit(self._log.budget)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the topic ends now."""
        self._target = self._log.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Say where the next trigger ends."""
        last = self._log.ends() if self._target is None else self._target
        self._check(start, last)
        budget = Budget() if isinstance(limit, ReadAllAvailable) else self._log.budget
        return start | self._log.limited(start, last, budget)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Make a task for each partition that has anything new."""
        self._check(end, self._log.ends())
        ranges = [(name, start.get(name, 0), end[name]) for name in end]
        return [Stretch(int(name), first, beyond) for name, first, beyond in ranges if beyond > first]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one stretch, on an executor."""
        assert isinstance(partition, Stretch)
        return self._log.batches(partition, arrow_schema(self._schema))

    def _check(self, known: Mapping[str, int], there: Mapping[str, int]) -> None:
        for name, offset in known.items():
            if offset > there.get(name, 0):
                raise DataLossError(
                    f"{self._log.topic}: partition {name} ends at offset {there.get(name, 0)}, but this query has read "
                    f"up to {offset}: is {self._log.path} another file than before? Start with a new checkpoint",
                    destination=self._log.topic,
                )


def _batch(page: Sequence[LocalMessage], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [pa.array([_value(message, field.name) for message in page], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _value(message: LocalMessage, name: str) -> Any:
    if name == "headers":
        return [{"key": key, "value": value} for key, value in message.headers]
    if name == "timestamp":
        return round(message.timestamp * 1_000_000)
    return getattr(message, name)
