"""Reads topics of the embedded broker: batch and streaming, one task for each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from claimcheck.spark._columns import HEADERS_TYPE
from claimcheck.spark.sources._admission_control import Budget, Entry, Scale, Spent, share, take
from claimcheck.spark.sources._errors import DataLossError
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
"""The columns of Spark's source for Kafka, with headers."""

Ends = dict[str, int]
"""From a partition's number, as text, to the offset of the next message."""

_PAGE_BYTES = 8 << 20
_PAGE_ROWS = 1000
_FIRST_PAGE_ROWS = 16
_FIRST = """SELECT p.partition, m.timestamp FROM partitions p CROSS JOIN messages m
    ON m.topic = p.topic AND m.partition = p.partition AND m.offset = 0 WHERE p.topic = ?"""
_HEADS = """SELECT offset, length(value), substr(value, 1, ?) FROM messages
    WHERE topic = ? AND partition = ? AND offset >= ? AND offset < ? ORDER BY offset LIMIT ?"""


class OffsetRange(InputPartition):
    """The messages of one task: of one partition from offset ``start`` to before ``end``."""

    def __init__(self, partition: int, start: int, end: int) -> None:
        super().__init__(None)
        self.partition, self.start, self.end = partition, start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLog:
    """The options of a query that reads one topic.

    Attributes:
        path: The broker's file.
        topic: The topic.
        at_end: Whether a query without a checkpoint begins at the end.
        budget: The limit of a trigger.
        scale: Returns the size that a message counts towards the limit.
    """

    path: str
    topic: str
    at_end: bool
    budget: Budget
    scale: Scale

    def ends(self) -> Ends:
        """Return the current end of every partition; raises `UnknownTopicError`."""
        with LocalBroker(self.path) as broker:
            count = broker.partitions(self.topic)
            return {str(partition): broker.end_offset(self.topic, partition) for partition in range(count)}

    def first_timestamps(self) -> dict[str, int]:
        """Return the time of each partition's first message, in microseconds since 1970: it identifies the file."""
        with LocalBroker(self.path) as broker, broker.database.read() as db:
            rows = db.execute(_FIRST, (self.topic,)).fetchall()
        return {str(partition): _microseconds(timestamp) for partition, timestamp in rows}

    def limited(self, start: Ends, last: Ends, budget: Budget) -> Ends:
        """Return the ends of a trigger within a budget. Rows and bytes are exact, but at least one row is read."""
        if budget.unlimited:
            return last
        with LocalBroker(self.path) as broker:

            def end_of(name: str, part: Budget) -> tuple[int, Spent]:
                begin, end = start.get(name, 0), last[name]
                if part.size is None:
                    count = min(end - begin, part.rows or 1)
                    return begin + count, Spent(count)
                return list(take(self._entries(broker, OffsetRange(int(name), begin, end)), part))[-1]

            new = {name: end - start.get(name, 0) for name, end in last.items() if end > start.get(name, 0)}
            return share(new, budget, end_of)

    def batches(self, offsets: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read a range in this process, in pages of some megabytes."""
        start, limit = offsets.start, _FIRST_PAGE_ROWS
        with LocalBroker(self.path) as broker:
            while start < offsets.end:
                page = broker.fetch(self.topic, offsets.partition, start, min(limit, offsets.end - start))
                if not page:
                    return
                yield _batch(page, schema)
                start = page[-1].offset + 1
                size = sum(len(message.value or b"") for message in page)
                limit = max(1, min(_PAGE_ROWS, _PAGE_BYTES * len(page) // max(1, size)))

    def _entries(self, broker: LocalBroker, offsets: OffsetRange) -> Iterator[Entry]:
        """Return the sizes of messages in order, and read only their beginnings."""
        start, more = offsets.start, True
        while start < offsets.end and more:
            where = (self.scale.head_bytes, self.topic, offsets.partition, start, offsets.end, _PAGE_ROWS)
            with broker.database.read() as db:
                rows = db.execute(_HEADS, where).fetchall()
            for offset, size, head in rows:
                yield Entry(offset + 1, 1, self.scale.weigh(head, size or 0))
                start = offset + 1
            more = bool(rows)


class LocalReader(DataSourceReader):
    """Reads the messages that are in a topic when the query is planned."""

    def __init__(self, log: LocalLog, schema: StructType) -> None:
        self._log, self._schema = log, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a task for each partition that is not empty."""
        return [OffsetRange(int(name), 0, end) for name, end in self._log.ends().items() if end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, on an executor; nothing where all partitions are empty."""
        if isinstance(partition, OffsetRange):
            return self._log.batches(partition, arrow_schema(self._schema))
        return iter(())


class LocalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic continuously. The broker keeps every message, so a commit has nothing to release.

    A checkpoint has the next offset of each partition, and the time of its first message.
    """

    def __init__(self, log: LocalLog, schema: StructType) -> None:
        self._log, self._schema = log, schema
        self._target: Ends | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins."""
        ends = self._log.ends()
        return self._checkpoint(ends if self._log.at_end else dict.fromkeys(ends, 0))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a trigger."""
        return default_limit(self._log.budget)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the current end of the topic."""
        self._target = self._log.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next trigger ends."""
        last = self._log.ends() if self._target is None else self._target
        begin = self._checked(start, last)
        budget = Budget() if isinstance(limit, ReadAllAvailable) else self._log.budget
        return self._checkpoint(begin | self._log.limited(begin, last, budget))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a task for each partition with new messages."""
        current = self._log.ends()
        starts, ends = self._checked(start, current), self._checked(end, current)
        ranges = [OffsetRange(int(name), starts.get(name, 0), ends[name]) for name in ends]
        return [each for each in ranges if each.end > each.start]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, on an executor."""
        assert isinstance(partition, OffsetRange)
        return self._log.batches(partition, arrow_schema(self._schema))

    def _checkpoint(self, ends: Ends) -> dict[str, Any]:
        firsts = self._log.first_timestamps()
        return {name: [end, firsts.get(name) if end else None] for name, end in ends.items()}

    def _checked(self, checkpoint: Mapping[str, Any], current: Ends) -> Ends:
        """Return the offsets of a checkpoint; raises `DataLossError` if they are those of another file."""
        firsts, ends = self._log.first_timestamps(), Ends()
        for name, entry in checkpoint.items():
            end, first = entry if isinstance(entry, list) else (entry, None)  # of an earlier version
            if end > current.get(name, 0) or (first is not None and first != firsts.get(name)):
                raise DataLossError(
                    f"{self._log.topic}: partition {name} has {current.get(name, 0)} messages, and not those of which "
                    f"this query has read {end}: {self._log.path} is another file than before. Use a new checkpoint, "
                    "or restore the file",
                    destination=self._log.topic,
                )
            ends[name] = end
        return ends


def _microseconds(timestamp: float) -> int:
    return round(timestamp * 1_000_000)


def _batch(page: Sequence[LocalMessage], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [pa.array([_value(message, field.name) for message in page], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _value(message: LocalMessage, name: str) -> Any:
    if name == "headers":
        return [{"key": key, "value": value} for key, value in message.headers]
    if name == "timestamp":
        return _microseconds(message.timestamp)
    return getattr(message, name)
