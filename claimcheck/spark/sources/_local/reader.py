"""Reads topics of the embedded broker: batch and streaming, one task for each partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from claimcheck.spark._columns import HEADERS_TYPE
from claimcheck.spark.sources._admission_control import Budget, Scale, Spent, share, take
from claimcheck.spark.sources._errors import DataLossError
from claimcheck.spark.sources._local import log as local_log
from claimcheck.spark.sources._options import arrow_schema, default_limit
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

    def firsts(self, partitions: Iterable[str]) -> dict[str, int]:
        """Ask when the first message of each partition came, in microseconds since 1970; of empty ones nothing."""
        with LocalBroker(self.path) as broker:
            found = local_log.firsts(broker, self.topic, map(int, partitions))
        return {str(partition): moment for partition, moment in found.items()}

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
    """Reads a topic on and on. The broker keeps every message, so that there is nothing to hold and to let go.

    A checkpoint holds, for each partition, the offset to go on with, and when the first message came.
    """

    def __init__(self, log: LocalLog, schema: StructType) -> None:
        self._log, self._schema = log, schema
        self._target: Ends | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Say where a query with no checkpoint begins."""
        ends = self._log.ends()
        return self._noted(ends if self._log.at_end else dict.fromkeys(ends, 0))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tell Spark what we limit."""
        return default_limit(self._log.budget)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the topic ends now."""
        self._target = self._log.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Say where the next trigger ends."""
        last = self._log.ends() if self._target is None else self._target
        begun = self._checked(start, last)
        budget = Budget() if isinstance(limit, ReadAllAvailable) else self._log.budget
        return self._noted(begun | self._log.limited(begun, last, budget))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Make a task for each partition that has anything new."""
        there = self._log.ends()
        begun, ends = self._checked(start, there), self._checked(end, there)
        ranges = [(name, begun.get(name, 0), ends[name]) for name in ends]
        return [Stretch(int(name), first, beyond) for name, first, beyond in ranges if beyond > first]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one stretch, on an executor."""
        assert isinstance(partition, Stretch)
        return self._log.batches(partition, arrow_schema(self._schema))

    def _noted(self, ends: Ends) -> dict[str, Any]:
        """Offsets as a checkpoint holds them."""
        firsts = self._log.firsts(ends)
        return {name: [end, firsts.get(name) if end else None] for name, end in ends.items()}

    def _checked(self, noted: Mapping[str, Any], there: Ends) -> Ends:
        """Offsets out of a checkpoint, if it is of this file."""
        known = {name: each if isinstance(each, list) else (each, None) for name, each in noted.items()}  # older ones
        ends, firsts = {name: end for name, (end, _) in known.items()}, self._log.firsts(noted)
        for name, (end, first) in known.items():
            if end > there.get(name, 0) or (first is not None and first != firsts.get(name)):
                raise DataLossError(
                    f"{self._log.topic}: partition {name} holds {there.get(name, 0)} messages, and not those of which "
                    f"this query has read {end}: {self._log.path} is another file than before. Give the query a new "
                    "checkpoint, or back its file",
                    destination=self._log.topic,
                )
        return ends


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
