"""Appends rows to topics of the embedded broker, each batch exactly once.

Tasks leave their rows in the broker's file, where nobody sees them; the commit makes messages of all of them at once.
A streaming query's batch that was committed before is not appended again. Where the job is ended, what was stored for
its rows is removed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from claimcheck import _hints as hints
from claimcheck._client import ClaimCheck
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._worker import claim_check, query_id
from claimcheck.spark.sources._local import staging as local_stages
from claimcheck.spark.sources._local.staging import StagedRow
from claimcheck.spark.sources._rows import Columns, Row
from claimcheck.transports.local import LocalBroker, LocalProducer, MessageId, MessageTooLargeError
from claimcheck.transports.local._messages import NewMessage

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LocalSink", "LocalStreamWriter", "LocalWriter", "Staged"]

_PAGE_BYTES = 8 << 20
_PAGE_ROWS = 1000

_log = logging.getLogger(__name__)


@dataclass
class Staged(WriterCommitMessage):
    """What a task has left behind.

    Attributes:
        stage: The name of its rows.
        query: Of the streaming query that it was a task of; the same after a restart from the same checkpoint.
    """

    stage: str
    query: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSink:
    """What a sink was told; a value that pickles.

    Attributes:
        path: Of the broker's file.
        columns: Of the rows.
        config: Offloads what is too large; without it rows go as they are.
        max_message_bytes: The largest message.
    """

    path: str
    columns: Columns
    config: Config | None
    max_message_bytes: int

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Staged:
        """Leave the rows of a task behind.

        Raises:
            TransportError: A row is too large, or its topic is not there; a note names it. Nothing is left.
            ClaimCheckError: A row could not be offloaded; nothing is left.
        """
        stage = uuid.uuid4().hex
        with LocalBroker(self.path, max_message_bytes=self.max_message_bytes) as broker:
            page = _Page(broker, stage)
            try:
                for row in self.columns.rows(batches):
                    self._send(page, row)
                page.flush()
            except BaseException:
                self._undo(broker, [stage], page.rows)
                raise
        return Staged(stage, query_id())

    def append(self, messages: Iterable[WriterCommitMessage | None], batch: int | None = None) -> None:
        """Make messages of everything that the tasks have left, or of nothing where that was done before."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        stages = [message.stage for message in staged]
        # Inside of foreachBatch a batch's tasks know of a query, too; there the number of the batch is not ours.
        place = None if batch is None or staged[0].query is None else (staged[0].query, batch)
        with LocalBroker(self.path) as broker:
            if not local_stages.append_stages(broker, stages, place):
                self._undo(broker, stages)

    def undo(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Forget what the tasks have left, and remove what was stored for it. What was committed is left alone."""
        with LocalBroker(self.path) as broker:
            self._undo(broker, [message.stage for message in messages if isinstance(message, Staged)])

    def _send(self, page: _Page, row: Row) -> None:
        try:
            if self.config is None:
                page.append(row.topic, row.value, key=row.key, headers=row.headers)
                return
            page.ours = not hints.is_ours(row.headers)
            # It is asked for no more than a page has.
            LocalProducer(cast(LocalBroker, page), claim_check(self.config)).send_all(
                row.topic, row.value, key=row.key, headers=row.headers
            )
        except ClaimCheckError as error:
            error.add_note(f"This is {row.source}, for {row.topic}.")
            raise

    def _undo(self, broker: LocalBroker, stages: list[str], rows: Iterable[StagedRow] = ()) -> None:
        """Also rows that are not in the file yet. Whatever fails must not hide the first error, and expires."""
        try:
            waiting = [row.value for _, row, stored in rows if stored]
            if self.config is not None:
                _roll_back(claim_check(self.config), [*local_stages.pointers_in(broker, stages), *waiting])
            local_stages.drop_stages(broker, stages)
        except Exception:
            _log.exception("could not undo what was stored for rows that are not sent")


class _Page:
    """Stands in for the broker towards its producer: takes messages, and lets them wait."""

    def __init__(self, broker: LocalBroker, stage: str) -> None:
        self._broker, self._stage = broker, stage
        self.max_message_bytes = broker.max_message_bytes
        self.ours = False
        self.rows: list[StagedRow] = []
        self._written = self._held = 0
        self._topics: set[str] = set()

    def append(self, topic: str, value: Any, *, key: Any, headers: Any, partition: int | None = None) -> MessageId:
        """Take a message, or refuse it as the broker would."""
        if topic not in self._topics:
            self._broker.partitions(topic)
            self._topics.add(topic)
        message = NewMessage.checked(topic, value, key, headers)
        if message.size > self.max_message_bytes:
            text = (
                f"a message of {message.size} bytes for {topic} is over maxMessageBytes, {self.max_message_bytes}; "
                "with the option config it would be offloaded"
            )
            raise MessageTooLargeError(text, destination=topic, size=message.size, limit=self.max_message_bytes)
        stored = self.ours and hints.get(headers, hints.TYPE) == "pointer"
        self.rows.append((topic, message, stored))
        self._held += message.size
        if len(self.rows) >= _PAGE_ROWS or self._held >= _PAGE_BYTES:
            self.flush()
        return MessageId(topic, -1, -1)

    def partition_for(self, topic: str, key: Any) -> None:
        """Leave it to the commit: chunks share a key, and so a partition."""

    def flush(self) -> None:
        """Write what was taken."""
        local_stages.add_rows(self._broker, self._stage, self._written, self.rows)
        self._written += len(self.rows)
        self.rows, self._held = [], 0


class LocalWriter(DataSourceArrowWriter):
    """Appends a batch."""

    def __init__(self, sink: LocalSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Leave the rows of one task behind."""
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append all of them at once."""
        self._sink.append(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget them, and remove what was stored for them."""
        self._sink.undo(messages)


class LocalStreamWriter(DataSourceStreamArrowWriter):
    """Appends the batches of a stream, each of them once."""

    def __init__(self, sink: LocalSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Leave the rows of one task behind."""
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append all of them at once, unless that was done before a crash."""
        self._sink.append(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Forget them, and remove what was stored for them."""
        self._sink.undo(messages)


def _roll_back(cc: ClaimCheck, messages: Iterable[Any]) -> None:
    for message in messages:
        pointer = cc.pointer(message)
        if pointer is not None and pointer.store is not None:
            with suppress(ClaimCheckError):  # it expires
                cc.store(pointer.store).rollback(pointer)
