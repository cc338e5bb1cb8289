"""``format("claimcheck_pulsar")`` and ``format("claimcheck_local")``: messages of topics as rows.

A streaming query of Pulsar keeps its `Subscriptions` on the driver; the executors read ranges of partitions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from claimcheck._validation import Range, Timeout, fail
from claimcheck.spark._columns import HEADERS_TYPE
from claimcheck.spark.sources._options import COUNT, TEXT, DataLossError, Values, by_field, require
from claimcheck.spark.sources._pulsar_client import CONNECTION_OPTIONS, Connection, Subscriptions, in_parallel
from claimcheck.spark.sources._pulsar_reader import COLUMNS, Offsets, PulsarLog, from_json, limited, place, to_json
from claimcheck.spark.sources._source import Checkpoint, Log, OffsetRange, TopicSource, TopicStreamReader
from claimcheck.transports.local._broker import LocalBroker, LocalMessage, local_cluster
from claimcheck.transports.pulsar._queries import NOTHING, full_name, split_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_TOPIC = re.compile(r"persistent://[\w=:.-]+/[\w=:.-]+/[^/\s]+")
MILLIS = Annotated[int, Range(0, 2**53)]
_PAGE_BYTES, _PAGE_ROWS, _FIRST_PAGE_ROWS = 8 << 20, 1000, 16

_Ends = dict[str, int]  # from a partition's number, as text, to the offset of the next message


class PulsarSource(TopicSource):
    columns = COLUMNS
    read_options = (
        TopicSource.read_options
        | CONNECTION_OPTIONS
        | {"subscription": TEXT, "failOnDataLoss": bool, "readTimeoutSeconds": Timeout, "receiverQueueSize": COUNT}
        | {"topicsPattern": TEXT, "startingOffsets": TEXT, "endingOffsets": TEXT}
        | {"startingTime": MILLIS, "endingTime": MILLIS}
    )

    @classmethod
    def name(cls) -> str:
        return "claimcheck_pulsar"

    def _log_of(self, values: Values) -> PulsarLog:
        if (pattern := values.get("topicsPattern")) is not None:
            if "topic" in values:
                fail("topicsPattern", found="topic, too", expected="one of both")
            require(values, "adminUrl", "the address of the web service, which lists topics")
        return PulsarLog(
            connection=Connection.of(values),
            topics=_topics(values) if pattern is None else (),
            pattern=None if pattern is None else re.compile(full_name(pattern)),
            start=place(values, "starting", "earliest"),
            stop=place(values, "ending", "latest"),
            **by_field(PulsarLog, values),
        )

    def _stream_reader(self, values: Values, schema: StructType) -> _PulsarStreamReader:
        require(values, "subscription", "a name that only this query uses, before and after restarts")
        if ends := {"endingOffsets", "endingTime"} & values.keys():
            fail(ends.pop(), found="a streaming query", expected="a batch query: a stream does not end")
        return _PulsarStreamReader(self._log_of(values), schema)


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
    _reported: Offsets | None = None

    def initialOffset(self) -> Checkpoint:  # noqa: N802
        """Return where a query without a checkpoint begins. From now on the broker keeps all messages after that."""
        return to_json(self._subscriptions.begin(self._log.start_of))

    def _ends(self) -> Offsets:
        return self._subscriptions.last()

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:  # noqa: N802
        """Return where the next trigger ends; partitions that were added since begin at their first entry."""
        begun = from_json(start)
        self._reported = last = _newer(begun, self._last())
        self._check(begun, last)
        if isinstance(limit, ReadMaxRows):
            last = limited(self._subscriptions.client, begun, last, self._log, limit.max_rows)
        return to_json(begun | last)

    def reportLatestOffset(self) -> Checkpoint | None:  # noqa: N802
        return None if self._reported is None else to_json(self._reported)

    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        """Return a task for each partition with new messages."""
        begun = from_json(start)
        ends = _newer(begun, from_json(end))
        self._check(begun, ends)
        return [OffsetRange(name, begun.get(name, NOTHING), ends[name]) for name in ends]

    def commit(self, end: Checkpoint) -> None:
        self._subscriptions.release(from_json(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _subscriptions(self) -> Subscriptions:
        if self._opened is None:
            self._opened = Subscriptions(self._log.connection, self._log.subscription, self._log.partitions)
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


# The embedded broker -------------------------------------------------------------------------------------------------


class LocalSource(TopicSource):
    """The source. It has the columns of Spark's source for Kafka, with headers."""

    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    columns += f", headers {HEADERS_TYPE}"
    read_options = TopicSource.read_options | {"path": TEXT}

    @classmethod
    def name(cls) -> str:
        return "claimcheck_local"

    def _log_of(self, values: Values) -> _LocalLog:
        expected = "the file of an embedded broker, on a disk that driver and executors share"
        path = os.path.abspath(require(values, "path", expected))
        if not os.path.isfile(path):  # a broker would create it
            fail("path", found=f"{path!r}, which is not a file", expected=expected)
        require(values, "topic", "the name of a topic")
        return _LocalLog(**by_field(_LocalLog, values) | {"path": path})

    def _stream_reader(self, values: Values, schema: StructType) -> _LocalStreamReader:
        return _LocalStreamReader(self._log_of(values), schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalLog(Log):
    path: str
    topic: str
    starting_offsets: str = "earliest"

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

    def initialOffset(self) -> Checkpoint:  # noqa: N802
        ends = self._log.ends()
        return self._checkpoint(ends if self._log.starting_offsets == "latest" else dict.fromkeys(ends, 0))

    def _ends(self) -> _Ends:
        return self._log.ends()

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:  # noqa: N802
        last: _Ends = self._last()
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
            text = f"{self._log.path} is not the file that this query has read. Use a new checkpoint, or restore it"
            raise DataLossError(f"{self._log.topic}: {text}", destination=self._log.topic)
        return ends


def _row(message: LocalMessage) -> dict[str, object]:
    headers = [{"key": key, "value": value} for key, value in message.headers]
    row = {field.name: getattr(message, field.name) for field in fields(message)}
    return row | {"headers": headers, "timestamp": round(message.timestamp * 1_000_000)}
