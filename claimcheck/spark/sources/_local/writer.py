"""Appends rows to topics of the embedded broker, each batch exactly once.

Tasks write their rows to a table of the broker's file; the commit appends all of them to their topics in one
transaction, which also records the batch of a streaming query, so that a batch is never appended twice. When a job
fails, what was stored for its rows is deleted.
"""

from __future__ import annotations

import logging
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from claimcheck import _hints as hints
from claimcheck._envelope import Envelope
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._worker import claim_check, query_id
from claimcheck.spark.sources._rows import Columns, Row
from claimcheck.transports.local import LocalBroker, MessageTooLargeError
from claimcheck.transports.local._broker import encode_message
from claimcheck.transports.local._database import StoredMessage, choose_partition, insert_message
from claimcheck.transports.local._producer import classify, wire_limit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LocalSink", "LocalStreamWriter", "LocalWriter", "Staged"]

_PAGE_BYTES = 8 << 20
_PAGE_ROWS = 1000
_ABANDONED_SECONDS = 7 * 86_400  # tasks that were killed leave rows that are never committed

_TABLES = (
    """CREATE TABLE IF NOT EXISTS spark_rows (
        stage TEXT NOT NULL, number INTEGER NOT NULL, created REAL NOT NULL, topic TEXT NOT NULL, key BLOB,
        headers BLOB NOT NULL, value BLOB, size INTEGER NOT NULL, stored INTEGER NOT NULL, PRIMARY KEY (stage, number)
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS spark_batches (query TEXT PRIMARY KEY, batch INTEGER NOT NULL) WITHOUT ROWID",
)
_ADD = """INSERT INTO spark_rows (stage, number, created, topic, key, headers, value, size, stored)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_log = logging.getLogger(__name__)


@dataclass
class Staged(WriterCommitMessage):
    """The rows of a task.

    Attributes:
        stage: The name of its rows.
        query: The streaming query; the same after a restart from the same checkpoint.
    """

    stage: str
    query: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSink:
    """The options of a sink; a value that pickles.

    Attributes:
        path: The broker's file.
        columns: The columns of the rows.
        config: Offloads what is too large; without it rows are sent as they are.
        max_message_bytes: The largest message.
    """

    path: str
    columns: Columns
    config: Config | None
    max_message_bytes: int

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Staged:
        """Write the rows of a task to the file.

        Raises:
            TransportError: A row is too large, or its topic does not exist; a note names it. Nothing is left.
            ClaimCheckError: A row could not be offloaded; nothing is left.
        """
        with LocalBroker(self.path, max_message_bytes=self.max_message_bytes) as broker:
            rows = _StagedRows(broker)
            try:
                for row in self.columns.rows(batches):
                    self._add(rows, row)
                rows.flush()
            except BaseException:
                self._undo(broker, [rows.stage], rows.pointers)
                raise
        return Staged(rows.stage, query_id())

    def append(self, messages: Iterable[WriterCommitMessage | None], batch: int | None = None) -> None:
        """Append the rows of all tasks to their topics, unless this batch was appended before."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        stages, query = [message.stage for message in staged], staged[0].query
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

    def undo(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Delete the rows of tasks, and what was stored for them; what was committed is kept."""
        with LocalBroker(self.path) as broker:
            self._undo(broker, [message.stage for message in messages if isinstance(message, Staged)])

    def _add(self, rows: _StagedRows, row: Row) -> None:
        try:
            if self.config is None:
                rows.append(row.topic, row.value, row.key, row.headers)
            else:
                self._add_offloaded(rows, row, self.config)
        except ClaimCheckError as error:
            error.add_note(f"This is {row.source}, for {row.topic}.")
            raise

    def _add_offloaded(self, rows: _StagedRows, row: Row, config: Config) -> None:
        encode_message(row.topic, None, row.key, row.headers)  # refused before anything is stored
        was_envelope = hints.is_ours(row.headers)
        block = claim_check(config).outbound(
            row.value,
            destination=row.topic,
            key=row.key,
            headers=row.headers,
            limit=wire_limit(self.max_message_bytes),
            text_key=False,
            classify=classify,
        )

        def append(envelope: Envelope) -> None:  # chunks share a key, and so a partition
            stored = not was_envelope and hints.get(envelope.headers, hints.TYPE) == "pointer"
            rows.append(row.topic, envelope.data, envelope.key, envelope.headers, stored=stored)

        with block as out:
            out.send(append)

    def _undo(self, broker: LocalBroker, stages: list[str], pointers: Iterable[Any] = ()) -> None:
        """Also for pointers that are not in the file yet. A failure must not hide the first error."""
        try:
            if self.config is not None:
                _roll_back(self.config, [*_stored_pointers(broker, stages), *pointers])
            with _staging(broker) as db:
                _delete(db, stages)
        except Exception:
            _log.exception("could not delete what was stored for rows that are not sent; it expires")


class _StagedRows:
    """The rows of one task, written to the file in pages."""

    def __init__(self, broker: LocalBroker) -> None:
        self.stage = uuid.uuid4().hex
        self._broker = broker
        self._page: list[tuple[str, StoredMessage, bool]] = []
        self._page_bytes = self._written = 0
        self._topics: set[str] = set()

    def append(self, topic: str, value: Any, key: Any, headers: Any, *, stored: bool = False) -> None:
        """Add a message; ``stored`` marks a pointer to what the sink has stored. Raises what the broker would raise."""
        message = encode_message(topic, value, key, headers)
        if topic not in self._topics:
            self._broker.partitions(topic)  # raises where there is no such topic
            self._topics.add(topic)
        limit = self._broker.max_message_bytes
        if message.size > limit:
            text = (
                f"a message of {message.size} bytes for {topic} is over maxMessageBytes, {limit}; "
                "with the option config it would be offloaded"
            )
            raise MessageTooLargeError(text, destination=topic, size=message.size, limit=limit)
        self._page.append((topic, message, stored))
        self._page_bytes += message.size
        if len(self._page) >= _PAGE_ROWS or self._page_bytes >= _PAGE_BYTES:
            self.flush()

    @property
    def pointers(self) -> list[Any]:
        """Pointers to what the sink has stored, as far as they are not in the file yet."""
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


class _Writer:
    """What the writers of batches and of streams share."""

    def __init__(self, sink: LocalSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task to the file."""
        return self._sink.stage(iterator)


class LocalWriter(_Writer, DataSourceArrowWriter):
    """Appends a batch."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append all rows in one transaction."""
        self._sink.append(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the rows, and what was stored for them."""
        self._sink.undo(messages)


class LocalStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Appends the batches of a stream, each of them once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append all rows in one transaction, unless that was done before a crash."""
        self._sink.append(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the rows, and what was stored for them."""
        self._sink.undo(messages)


@contextmanager
def _staging(broker: LocalBroker) -> Iterator[sqlite3.Connection]:
    """A transaction in which the sink's tables exist."""
    with broker.database.write() as db:
        for statement in _TABLES:
            db.execute(statement)
        yield db


def _record_batch(db: sqlite3.Connection, query: str, batch: int) -> bool:
    """Record that a batch is appended; return ``False`` where it was before."""
    row = db.execute("SELECT batch FROM spark_batches WHERE query = ?", (query,)).fetchone()
    if row is not None and row[0] >= batch:
        return False
    db.execute("INSERT OR REPLACE INTO spark_batches (query, batch) VALUES (?, ?)", (query, batch))
    return True


def _append_stage(db: sqlite3.Connection, stage: str, now: float) -> None:
    query = "SELECT topic, key, headers, value, size FROM spark_rows WHERE stage = ? ORDER BY number"
    with closing(db.execute(query, (stage,))) as rows:
        for topic, *parts in rows:
            message = StoredMessage(*parts)
            insert_message(db, topic, choose_partition(db, topic, message.key), message, now)


def _stored_pointers(broker: LocalBroker, stages: Iterable[str]) -> list[bytes]:
    query = "SELECT value FROM spark_rows WHERE stage = ? AND stored ORDER BY number"
    with _staging(broker) as db:
        return [value for stage in stages for (value,) in db.execute(query, (stage,))]


def _delete(db: sqlite3.Connection, stages: Sequence[str]) -> None:
    db.executemany("DELETE FROM spark_rows WHERE stage = ?", ((stage,) for stage in stages))


def _roll_back(config: Config, messages: Iterable[Any]) -> None:
    cc = claim_check(config)
    for message in messages:
        pointer = cc.pointer(message)
        if pointer is not None and pointer.store is not None:
            with suppress(ClaimCheckError):  # it expires
                cc.store(pointer.store).rollback(pointer)
