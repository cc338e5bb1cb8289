"""``format("claimcheck_local")``: topics of the embedded broker as a source and a sink, without a server.

Readers read messages by offset, one task for each partition. The sink appends each batch exactly once: tasks write
their rows to a table of the broker's file; the commit appends all of them to their topics in one transaction, which
also records the batch of a streaming query. When a job fails, the payloads stored for its rows are deleted.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit

from claimcheck import _hints as hints
from claimcheck._envelope import Buffer, Envelope
from claimcheck._validation import fail
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import HEADERS_TYPE
from claimcheck.spark._worker import as_config, check_absolute, claim_check, query_id
from claimcheck.spark.sources._admission_control import Budget, Entry, Scale, Spent, share, take
from claimcheck.spark.sources._errors import DataLossError
from claimcheck.spark.sources._options import TEXT, Values, require, sink_config
from claimcheck.spark.sources._rows import Columns, SinkRow
from claimcheck.spark.sources._source import Checkpoint, OffsetRange, TaskResults, TopicSource, TopicStreamReader
from claimcheck.transports.local import LocalBroker, LocalMessage, MessageTooLargeError
from claimcheck.transports.local._broker import StoredMessage, encode_message, insert_message
from claimcheck.transports.local._producer import outbound, wire_limit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_COLUMNS = {  # of Spark's source for Kafka, with headers
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": HEADERS_TYPE,
}
_FILE = "the file of an embedded broker, on a disk that driver and executors share"
_PAGE_BYTES = 8 << 20
_PAGE_ROWS = 1000
_FIRST_PAGE_ROWS = 16
_ABANDONED_SECONDS = 7 * 86_400  # tasks that were killed leave rows that are never committed

_log = logging.getLogger(__name__)

_Ends = dict[str, int]  # from a partition's number, as text, to the offset of the next message


class LocalSource(TopicSource):
    """The source and the sink."""

    columns = _COLUMNS
    read_options = TopicSource.read_options | {"path": TEXT}
    write_options = TopicSource.write_options | {"path": TEXT}

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "claimcheck_local"

    def _log_of(self, values: Values) -> _LocalLog:
        config = values.get("config")
        return _LocalLog(
            path=self._path(values),
            topic=require(values, "topic", "the name of a topic"),
            at_end=values.get("startingPosition") == "latest",
            budget=Budget(values.get("maxRowsPerTrigger"), values.get("maxPayloadBytesPerTrigger")),
            scale=Scale.of(None if config is None else as_config(config)),
        )

    def _stream_reader(self, values: Values, schema: StructType) -> _LocalStreamReader:
        return _LocalStreamReader(self._log_of(values), schema)

    def _sink_of(self, values: Values, schema: StructType) -> _LocalSink:
        return _LocalSink(
            path=self._path(values),
            columns=Columns.of(schema, topic=values.get("topic")),
            config=sink_config(values.get("config"), values.get("topic", ""), relative_paths=self.relative_paths),
            max_message_bytes=values.get("maxMessageBytes", 1 << 20),
        )

    def _path(self, values: Values) -> str:
        path = require(values, "path", _FILE)
        if not self.relative_paths:
            check_absolute("path", path)
        whole = os.path.abspath(path)
        if not os.path.isfile(whole):  # a broker would create it
            fail("path", found=f"{whole!r}, which is not a file", expected="the file of an embedded broker")
        return whole


class ClusterLocalSource(LocalSource):
    """The same on a cluster. Spark sends the class to workers by its name, so it has to be one of its own."""

    relative_paths: ClassVar[bool] = False


# Reading ------------------------------------------------------------------------------------------------------------

_FIRST = """SELECT p.partition, m.timestamp FROM partitions p CROSS JOIN messages m
    ON m.topic = p.topic AND m.partition = p.partition AND m.offset = 0 WHERE p.topic = ?"""
_HEADS = """SELECT offset, length(value), substr(value, 1, ?) FROM messages
    WHERE topic = ? AND partition = ? AND offset >= ? AND offset < ? ORDER BY offset LIMIT ?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalLog:
    """The options of a query that reads one topic."""

    path: str
    topic: str
    at_end: bool
    budget: Budget
    scale: Scale

    def ranges(self) -> list[InputPartition]:
        return [OffsetRange(name, 0, end) for name, end in self.ends().items() if end]

    def ends(self) -> _Ends:
        """Return the current end of every partition; raises `UnknownTopicError`."""
        with LocalBroker(self.path) as broker:
            count = broker.partitions(self.topic)
            return {str(partition): broker.end_offset(self.topic, partition) for partition in range(count)}

    def first_timestamps(self) -> dict[str, int]:
        """Return the time of each partition's first message, in microseconds since 1970: it identifies the file."""
        with LocalBroker(self.path) as broker, broker.database.read() as db:
            rows = db.execute(_FIRST, (self.topic,)).fetchall()
        return {str(partition): _microseconds(timestamp) for partition, timestamp in rows}

    def limited(self, start: _Ends, last: _Ends, budget: Budget) -> _Ends:
        """Return the ends of a trigger within a budget. Rows and bytes are exact, but at least one row is read."""
        if budget.unlimited:
            return last
        with LocalBroker(self.path) as broker:

            def end_of(name: str, begin: int, part: Budget) -> tuple[int, Spent]:
                if part.size is None:
                    count = min(last[name] - begin, part.rows or 1)
                    return begin + count, Spent(count)
                entries = self._entries(broker, OffsetRange(name, begin, last[name]))
                return [(begin, Spent()), *take(entries, part, least=begin == begun[name])][-1]

            begun = {name: start.get(name, 0) for name in last}
            return share(begun, {name: end for name, end in last.items() if end > begun[name]}, budget, end_of)

    def batches(self, offsets: OffsetRange[int], schema: pa.Schema, /) -> Iterator[pa.RecordBatch]:
        """Read a range in this process, in pages of some megabytes."""
        start, limit = offsets.start, _FIRST_PAGE_ROWS
        with LocalBroker(self.path) as broker:
            while start < offsets.end:
                page = broker.fetch(self.topic, int(offsets.partition), start, min(limit, offsets.end - start))
                if not page:
                    return
                yield _batch(page, schema)
                start = page[-1].offset + 1
                size = sum(len(message.value or b"") for message in page)
                limit = max(1, min(_PAGE_ROWS, _PAGE_BYTES * len(page) // max(1, size)))

    def _entries(self, broker: LocalBroker, offsets: OffsetRange[int]) -> Iterator[Entry[int]]:
        """Return the sizes of messages in order, and read only their beginnings."""
        start, more = offsets.start, True
        while start < offsets.end and more:
            where = (self.scale.head_bytes, self.topic, int(offsets.partition), start, offsets.end, _PAGE_ROWS)
            with broker.database.read() as db:
                rows = db.execute(_HEADS, where).fetchall()
            for offset, size, head in rows:
                yield Entry(offset + 1, 1, self.scale.weigh(head, size or 0))
                start = offset + 1
            more = bool(rows)


class _LocalStreamReader(TopicStreamReader[_LocalLog]):
    """Reads a topic continuously. The broker keeps every message, so a commit has nothing to release."""

    _target: _Ends | None = None

    def initialOffset(self) -> Checkpoint:  # noqa: N802
        """Return where a query without a checkpoint begins."""
        ends = self._log.ends()
        return self._checkpoint(ends if self._log.at_end else dict.fromkeys(ends, 0))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the current end of the topic."""
        self._target = self._log.ends()

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:  # noqa: N802
        """Return where the next trigger ends."""
        last = self._log.ends() if self._target is None else self._target
        begun = self._checked(start, last)
        return self._checkpoint(begun | self._log.limited(begun, last, self._budget(limit)))

    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        """Return a task for each partition with new messages."""
        current = self._log.ends()
        begun, ends = self._checked(start, current), self._checked(end, current)
        return [OffsetRange(name, begun.get(name, 0), stop) for name, stop in ends.items() if stop > begun.get(name, 0)]

    def _checkpoint(self, ends: _Ends) -> Checkpoint:
        firsts = self._log.first_timestamps()
        return {name: [end, firsts.get(name) if end else None] for name, end in ends.items()}

    def _checked(self, checkpoint: Checkpoint, current: _Ends) -> _Ends:
        """Return the offsets of a checkpoint; raises `DataLossError` if they are those of another file."""
        firsts, ends = self._log.first_timestamps(), _Ends()
        for name, entry in checkpoint.items():
            end, first = entry if isinstance(entry, list) else (entry, None)  # of an earlier version
            if end > current.get(name, 0) or (first is not None and first != firsts.get(name)):
                text = (
                    f"{self._log.topic}: {self._log.path} is not the file that this query has read: partition {name} "
                    f"has {current.get(name, 0)} other messages, but the checkpoint is at offset {end}. Use "
                    "a new checkpoint, or restore the file"
                )
                raise DataLossError(text, destination=self._log.topic)
            ends[name] = end
        return ends


def _microseconds(timestamp: float) -> int:
    return round(timestamp * 1_000_000)


def _batch(page: Sequence[LocalMessage], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [pa.array([_value(message, field.name) for message in page], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _value(message: LocalMessage, name: str) -> object:
    if name == "headers":
        return [{"key": key, "value": value} for key, value in message.headers]
    if name == "timestamp":
        return _microseconds(message.timestamp)
    return getattr(message, name)


# Writing ------------------------------------------------------------------------------------------------------------

_TABLES = (
    """CREATE TABLE IF NOT EXISTS spark_rows (
        stage TEXT NOT NULL, number INTEGER NOT NULL, created REAL NOT NULL, topic TEXT NOT NULL, key BLOB,
        headers BLOB NOT NULL, value BLOB, size INTEGER NOT NULL, stored INTEGER NOT NULL, PRIMARY KEY (stage, number)
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS spark_batches (query TEXT PRIMARY KEY, batch INTEGER NOT NULL) WITHOUT ROWID",
)
_ADD = """INSERT INTO spark_rows (stage, number, created, topic, key, headers, value, size, stored)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_STAGED = "SELECT topic, key, headers, value, size FROM spark_rows WHERE stage = ? ORDER BY number"


@dataclass
class _Staged(WriterCommitMessage):
    """The result of a task: the name of its rows, and the streaming query, which has the same id after a restart."""

    stage: str
    query: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalSink:
    """The options of a sink."""

    path: str
    columns: Columns
    config: Config | None
    max_message_bytes: int

    def write(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task to the file."""
        with LocalBroker(self.path, max_message_bytes=self.max_message_bytes) as broker:
            rows = _StagedRows(broker)
            try:
                for row in self.columns.rows(batches):
                    self._add(rows, row)
                rows.flush()
            except BaseException:
                self._undo(broker, [rows.stage], rows.pointers)
                raise
        return _Staged(rows.stage, query_id())

    def commit(self, results: TaskResults, batch: int | None) -> None:
        """Append the rows of all tasks to their topics in one transaction, unless this batch was appended before."""
        staged = [result for result in results if isinstance(result, _Staged)]
        if not staged:
            return
        stages, query = [result.stage for result in staged], staged[0].query
        with LocalBroker(self.path) as broker:
            with _staging(broker) as db:
                # Inside foreachBatch a batch's tasks have a query, too; there the batch has no number.
                is_new = batch is None or query is None or _record_batch(db, query, batch)
                if is_new:
                    for stage in stages:
                        _append_stage(db, stage, broker.clock())
                    _delete(db, stages)
                    db.execute("DELETE FROM spark_rows WHERE created < ?", (time.time() - _ABANDONED_SECONDS,))
            if not is_new:
                self._undo(broker, stages)

    def abort(self, results: TaskResults) -> None:
        """Delete the rows of tasks, and the payloads stored for them; committed rows are kept."""
        with LocalBroker(self.path) as broker:
            self._undo(broker, [result.stage for result in results if isinstance(result, _Staged)])

    def _add(self, rows: _StagedRows, row: SinkRow) -> None:
        try:
            if self.config is None:
                rows.append(row.topic, row.value, row.key, row.headers)
            else:
                self._add_offloaded(rows, row, self.config)
        except ClaimCheckError as error:
            error.add_note(f"This is {row.source}, for {row.topic}.")
            raise

    def _add_offloaded(self, rows: _StagedRows, row: SinkRow, config: Config) -> None:
        was_envelope, limit = hints.is_ours(row.headers), wire_limit(self.max_message_bytes)

        def append(envelope: Envelope) -> None:  # chunks share a key, and so a partition
            stored = not was_envelope and hints.get(envelope.headers, hints.TYPE) == "pointer"
            rows.append(row.topic, envelope.data, envelope.key, envelope.headers, stored=stored)

        with outbound(claim_check(config), row.topic, row.value, key=row.key, headers=row.headers, limit=limit) as out:
            out.send(append)

    def _undo(self, broker: LocalBroker, stages: Sequence[str], pointers: Iterable[Buffer | None] = ()) -> None:
        """Delete rows, and the payloads of their pointers and of ``pointers``. Never hides the first error."""
        try:
            with _staging(broker) as db:
                query = "SELECT value FROM spark_rows WHERE stage = ? AND stored ORDER BY number"
                stored = [value for stage in stages for (value,) in db.execute(query, (stage,))]
            if self.config is not None:
                _roll_back(self.config, [*stored, *pointers])
            with _staging(broker) as db:
                _delete(db, stages)
        except Exception:
            _log.exception("could not delete the payloads stored for rows that were not sent; they expire")


class _StagedRows:
    """The rows of one task, written to the file in pages."""

    def __init__(self, broker: LocalBroker) -> None:
        self.stage = uuid.uuid4().hex
        self._broker = broker
        self._page: list[tuple[str, StoredMessage, bool]] = []
        self._page_bytes = self._written = 0
        self._topics: set[str] = set()

    def append(self, topic: str, value: object, key: object, headers: object, *, stored: bool = False) -> None:
        """Add a message; ``stored`` marks pointers of the sink. Raises the errors of `LocalBroker.append`."""
        message = encode_message(topic, value, key, headers)
        if topic not in self._topics:
            self._broker.partitions(topic)  # raises where there is no such topic
            self._topics.add(topic)
        limit = self._broker.max_message_bytes
        if message.size > limit:
            text = (
                f"a message of {message.size} bytes for {topic} is over maxMessageBytes, {limit}; "
                "set the option config to offload it"
            )
            raise MessageTooLargeError(text, destination=topic, size=message.size, limit=limit)
        self._page.append((topic, message, stored))
        self._page_bytes += message.size
        if len(self._page) >= _PAGE_ROWS or self._page_bytes >= _PAGE_BYTES:
            self.flush()

    @property
    def pointers(self) -> list[Buffer | None]:
        """The pointers of the sink that are not in the file yet."""
        return [message.value for _, message, stored in self._page if stored]

    def flush(self) -> None:
        """Write the page."""
        now = time.time()
        with _staging(self._broker) as db:
            rows = enumerate(self._page, self._written)
            db.executemany(
                _ADD, ((self.stage, n, now, topic, *message, stored) for n, (topic, message, stored) in rows)
            )
        self._written += len(self._page)
        self._page, self._page_bytes = [], 0


@contextmanager
def _staging(broker: LocalBroker) -> Iterator[sqlite3.Connection]:
    """A transaction in which the sink's tables exist."""
    with broker.database.write() as db:
        for statement in _TABLES:
            db.execute(statement)
        yield db


def _record_batch(db: sqlite3.Connection, query: str, batch: int) -> bool:
    """Record that a batch is appended; return ``False`` if it was appended before."""
    row = db.execute("SELECT batch FROM spark_batches WHERE query = ?", (query,)).fetchone()
    if row is not None and row[0] >= batch:
        return False
    db.execute("INSERT OR REPLACE INTO spark_batches (query, batch) VALUES (?, ?)", (query, batch))
    return True


def _append_stage(db: sqlite3.Connection, stage: str, now: float) -> None:
    with closing(db.execute(_STAGED, (stage,))) as rows:
        for topic, *parts in rows:
            insert_message(db, topic, StoredMessage(*parts), now)


def _delete(db: sqlite3.Connection, stages: Sequence[str]) -> None:
    db.executemany("DELETE FROM spark_rows WHERE stage = ?", ((stage,) for stage in stages))


def _roll_back(config: Config, messages: Iterable[Buffer | None]) -> None:
    cc = claim_check(config, uses_keys=False)
    for message in messages:
        pointer = None if message is None else cc._messages.pointer_from_anywhere(message)
        if pointer is not None and pointer.store is not None:
            with suppress(ClaimCheckError):  # it expires
                cc.store(pointer.store).rollback(pointer)
