"""Sends rows to Pulsar, at least once: unchanged, or offloaded with a configuration.

A task is done when the broker has all of its messages. Messages cannot be withdrawn: if Spark retries a task, or ends
the job, rows that the first attempt sent are sent twice, or stay. The stored payload of a row whose send definitely
failed is deleted at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._worker import claim_check
from claimcheck.spark.sources._pulsar.client import ask_limit, client_errors, client_for
from claimcheck.spark.sources._pulsar.connection import Connection
from claimcheck.spark.sources._rows import Columns, Row, as_text
from claimcheck.transports.pulsar._deadlines import BoundedProducer
from claimcheck.transports.pulsar._errors import error_of, vendor
from claimcheck.transports.pulsar._producer import PulsarProducer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "open_producer",
    "PulsarSink",
    "PulsarStreamWriter",
    "PulsarWriter",
    "Sent",
]

_log = logging.getLogger(__name__)


@dataclass
class Sent(WriterCommitMessage):
    """The result of a task.

    Attributes:
        rows: How many rows it sent.
    """

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSink:
    """The options of a sink. Can be pickled.

    Attributes:
        connection: The broker.
        columns: The columns of the rows.
        config: For payloads that are too large; without it rows are sent unchanged.
        max_message_bytes: The broker's limit of one message.
        timeout_seconds: For the answer to one message; longer than any outage that the query should survive.
    """

    connection: Connection
    columns: Columns
    config: Config | None
    max_message_bytes: int
    timeout_seconds: float

    def send(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Send the rows of a task and wait until the broker has all of them.

        Raises:
            RowSendError: The broker refused a row, or did not answer.
            ClaimCheckError: A row could not be offloaded; a note names it.
        """
        sending = _Sending(self)
        try:
            rows = sum(map(sending.send, self.columns.rows(batches)))
            sending.finish()
        finally:
            sending.close()
        return Sent(rows)


class _Sending:
    """The producers of one task, one for each topic, and its rows in flight."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink
        self._client = client_for(sink.connection)
        self._producers: dict[str, BoundedProducer | PulsarProducer] = {}
        self._changed = threading.Condition()
        self._waiting = 0
        self._failed: list[tuple[Row, Any]] = []
        self._ok = vendor().Result.Ok

    def send(self, row: Row) -> int:
        """Send one row; returns 1, for a sum."""
        if self._failed:
            self._raise()
        properties = {name: as_text(row, f"header {name!r}", value) or "" for name, value in row.headers}
        key = as_text(row, "the key", row.key)
        with self._of(row):
            producer = self._producers.get(row.topic) or self._open(row.topic)
            self._count(1)
            try:
                producer.send_async(row.value, partial(self._heard, row), properties or None, key)
            except BaseException:
                self._count(-1)
                raise
        return 1

    def finish(self) -> None:
        """Wait until every row has its answer."""
        try:
            for producer in self._producers.values():
                producer.flush()
        except Exception:
            if not self._failed:  # else those tell more
                raise
        with self._changed:
            self._changed.wait_for(lambda: self._failed or not self._waiting)
        if self._failed:
            self._raise()

    def close(self) -> None:
        """Close the producers. Failed sends are rolled back by then."""
        for topic, producer in self._producers.items():
            try:
                producer.close()
            except Exception as error:
                _log.warning("%s: closing a producer failed: %s", topic, type(error).__name__)

    def _heard(self, row: Row, result: Any, message_id: Any) -> None:
        """Record a result, in the client's thread."""
        if result != self._ok:
            self._failed.append((row, result))
        self._count(-1)

    def _count(self, more: int) -> None:
        with self._changed:
            self._waiting += more
            self._changed.notify()

    def _raise(self) -> NoReturn:
        row, result = self._failed[0]
        raise row.error(self._why(row, result.name)) from error_of(result)

    @contextlib.contextmanager
    def _of(self, row: Row) -> Iterator[None]:
        """Add the row to errors."""
        try:
            yield
        except ClaimCheckError as error:
            error.add_note(f"This is {row.source}, for {row.topic}.")
            raise
        except vendor().exceptions.PulsarException as error:
            raise row.error(self._why(row, type(error).__name__)) from error

    def _why(self, row: Row, name: str) -> str:
        if name != "MessageTooBig":
            return name
        size, offloads = len(row.value or b""), self._sink.config is not None
        more = "" if offloads else "; with the option config what is larger would be offloaded"
        return (
            f"{name}: a message of {size} bytes, or the batch that it went in, is more than the broker takes. Tell its "
            f"limit with maxMessageBytes, or have it asked with adminUrl{more}"
        )

    def _open(self, topic: str) -> BoundedProducer | PulsarProducer:
        sink = self._sink
        self._producers[topic] = open_producer(
            self._client,
            topic,
            connection=sink.connection,
            config=sink.config,
            max_message_bytes=sink.max_message_bytes,
            timeout_seconds=sink.timeout_seconds,
        )
        return self._producers[topic]


class PulsarWriter(DataSourceArrowWriter):
    """Sends a batch."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return self._sink.send(iterator)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many rows stay in the topics."""
        _say(messages)


class PulsarStreamWriter(DataSourceStreamArrowWriter):
    """Sends the batches of a stream."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return self._sink.send(iterator)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log how many rows stay in the topics."""
        _say(messages)


def _say(messages: Iterable[WriterCommitMessage | None]) -> None:
    sent = sum(message.rows for message in messages if isinstance(message, Sent))
    _log.warning("the job was aborted; %d rows of completed tasks stay in their topics", sent)


_BATCH_BYTES = 128 << 10  # the client's own default
_BATCH_MESSAGES = 1000
_GRACE_SECONDS = 30.0


def open_producer(
    client: Any,
    topic: str,
    *,
    connection: Connection,
    config: Config | None,
    max_message_bytes: int,
    timeout_seconds: float,
) -> BoundedProducer | PulsarProducer:
    """Open a producer, which batches.

    Args:
        client: A native client.
        topic: The topic.
        connection: Its web service, if any, is asked for the limit of one message.
        config: For payloads that are too large; without it rows are sent unchanged.
        max_message_bytes: The limit, without a web service.
        timeout_seconds: For the answer to one message.
    """
    limit = max_message_bytes if connection.admin_url is None else ask_limit(connection, topic)
    with client_errors(connection, topic, "opening a producer"):
        native = client.create_producer(
            topic,
            send_timeout_millis=max(1, round(timeout_seconds * 1000)),
            block_if_queue_full=True,
            batching_enabled=True,
            # The broker's limit applies to a whole batch. The client counts payloads only: three quarters of the limit
            # are left for keys and properties, 768 bytes for each message.
            batching_max_allowed_size_in_bytes=max(1, min(_BATCH_BYTES, limit // 4)),
            batching_max_messages=max(2, min(_BATCH_MESSAGES, limit // 1024)),
        )
    deadline = timeout_seconds + _GRACE_SECONDS
    if config is None:
        return BoundedProducer(native, deadline)
    return PulsarProducer(native, claim_check(config), max_message_bytes=limit, deadline_seconds=deadline)
