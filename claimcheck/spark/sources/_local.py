"""``format("claimcheck_local")``: reads a topic of the embedded broker, one task for each partition."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from claimcheck._validation import fail
from claimcheck.spark._columns import HEADERS_TYPE
from claimcheck.spark.sources._options import TEXT, DataLossError, Values, require
from claimcheck.spark.sources._source import Checkpoint, OffsetRange, TopicSource, TopicStreamReader
from claimcheck.transports.local._broker import LocalBroker, LocalMessage, local_cluster

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_PAGE_BYTES, _PAGE_ROWS, _FIRST_PAGE_ROWS = 8 << 20, 1000, 16

_Ends = dict[str, int]  # from a partition's number, as text, to the offset of the next message


class LocalSource(TopicSource):
    """The source. It has the columns of Spark's source for Kafka, with headers."""

    columns = {  # noqa: RUF012
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "headers": HEADERS_TYPE,
    }
    read_options = TopicSource.read_options | {"path": TEXT}

    @classmethod
    def name(cls) -> str:
        return "claimcheck_local"

    def _log_of(self, values: Values) -> _LocalLog:
        expected = "the file of an embedded broker, on a disk that driver and executors share"
        path = os.path.abspath(require(values, "path", expected))
        if not os.path.isfile(path):  # a broker would create it
            fail("path", found=f"{path!r}, which is not a file", expected=expected)
        return _LocalLog(
            path=path,
            topic=require(values, "topic", "the name of a topic"),
            at_end=values.get("startingPosition") == "latest",
            max_rows=values.get("maxRowsPerTrigger"),
        )

    def _stream_reader(self, values: Values, schema: StructType) -> _LocalStreamReader:
        return _LocalStreamReader(self._log_of(values), schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        fail("format", found="a write to 'claimcheck_local'", expected="a read: write with LocalBroker.append")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalLog:
    path: str
    topic: str
    at_end: bool
    max_rows: int | None

    @property
    def limit(self) -> ReadLimit:
        return ReadAllAvailable() if self.max_rows is None else ReadMaxRows(self.max_rows)

    def ranges(self) -> list[InputPartition]:
        return [OffsetRange(name, 0, end) for name, end in self.ends().items() if end]

    def ends(self) -> _Ends:
        with LocalBroker(self.path) as broker:
            count = broker.partitions(self.topic)
            return {str(partition): broker.end_offset(self.topic, partition) for partition in range(count)}

    def cluster(self) -> str:
        with LocalBroker(self.path) as broker:
            return local_cluster(broker.database)

    def batches(self, offsets: OffsetRange[int], schema: pa.Schema, /) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        start, limit = offsets.start, _FIRST_PAGE_ROWS
        with LocalBroker(self.path) as broker:
            while start < offsets.end:
                page = broker.fetch(self.topic, int(offsets.partition), start, min(limit, offsets.end - start))
                if not page:  # the file was changed by other means
                    return
                yield pa.RecordBatch.from_pylist([_row(message) for message in page], schema)
                start = page[-1].offset + 1
                size = sum(len(message.value or b"") for message in page)
                limit = max(1, min(_PAGE_ROWS, _PAGE_BYTES * len(page) // max(1, size)))


class _LocalStreamReader(TopicStreamReader[_LocalLog]):
    """Reads a topic continuously. The broker keeps every message, so a commit has nothing to release."""

    _target: _Ends | None = None

    def initialOffset(self) -> Checkpoint:  # noqa: N802
        ends = self._log.ends()
        return self._checkpoint(ends if self._log.at_end else dict.fromkeys(ends, 0))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._log.ends()

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:  # noqa: N802
        last = self._log.ends() if self._target is None else self._target
        begun = self._checked(start, last)
        behind = [name for name, end in last.items() if end > begun[name]]
        if isinstance(limit, ReadMaxRows) and behind:
            share = max(1, limit.max_rows // len(behind))
            last = begun | {name: min(last[name], begun[name] + share) for name in behind}
        return self._checkpoint(last)

    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        current = self._log.ends()
        begun, ends = self._checked(start, current), self._checked(end, current)
        return [OffsetRange(name, begun[name], stop) for name, stop in ends.items() if stop > begun[name]]

    def _checkpoint(self, ends: _Ends) -> Checkpoint:
        return {"broker": self._log.cluster(), "ends": ends}

    def _checked(self, checkpoint: Checkpoint, current: _Ends) -> _Ends:
        """Return the offsets of a checkpoint; raises `DataLossError` if they are those of another file."""
        ends: _Ends = checkpoint["ends"]
        if checkpoint["broker"] != self._log.cluster() or any(end > current[name] for name, end in ends.items()):
            text = (
                f"{self._log.topic}: {self._log.path} is not the file that this query has read. Use a new checkpoint, "
                "or restore the file"
            )
            raise DataLossError(text, destination=self._log.topic)
        return ends


def _row(message: LocalMessage) -> dict[str, object]:
    headers = [{"key": key, "value": value} for key, value in message.headers]
    row = {field.name: getattr(message, field.name) for field in fields(message)}
    return row | {"headers": headers, "timestamp": round(message.timestamp * 1_000_000)}
