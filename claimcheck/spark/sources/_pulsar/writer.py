"""Sends rows to Pulsar: as they are, or offloaded where a configuration says so. At least once.

A task is done when the broker has all of its messages. What was sent cannot be called back: when Spark tries a task
again, or ends the job, rows that the first attempt has sent are sent twice, or stay. What was stored for a row whose
send definitely failed is removed at once.
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
from claimcheck.spark.sources._pulsar.admin import ask_limit
from claimcheck.spark.sources._pulsar.client import client_for, in_our_words
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
    """What a task has sent.

    Attributes:
        rows: How many.
    """

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSink:
    """What a sink was told; a value that pickles.

    Attributes:
        connection: Where.
        columns: Of the rows.
        config: Offloads what is too large; without it rows go as they are.
        max_message_bytes: What the broker takes in one message.
        timeout_seconds: For the answer to one message; an outage that is shorter is waited for.
    """

    connection: Connection
    columns: Columns
    config: Config | None
    max_message_bytes: int
    timeout_seconds: float

    def send(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Send the rows of a task and wait until the broker has all of them.

        Raises:
            RowSendError: A row was refused, or had no answer.
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
    """The producers of one task, one for each topic, and the rows that have no answer yet."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink
        self._client = client_for(sink.connection)
        self._producers: dict[str, BoundedProducer | PulsarProducer] = {}
        self._changed = threading.Condition()
        self._waiting = 0
        self._failed: list[tuple[Row, Any]] = []
        self._ok = vendor().Result.Ok

    def send(self, row: Row) -> int:
        """Give one row to the client; gives 1, to be counted."""
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
        """Leave the topics; what failed is undone by then."""
        for topic, producer in self._producers.items():
            try:
                producer.close()
            except Exception as error:
                _log.warning("%s: closing a producer failed: %s", topic, type(error).__name__)

    def _heard(self, row: Row, result: Any, message_id: Any) -> None:
        """In the client's own thread."""
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
        """Say of an error which row it is about."""
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
        """Say in the log what is in the topic all the same."""
        _say(messages)


class PulsarStreamWriter(DataSourceStreamArrowWriter):
    """Sends the batches of a stream."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return self._sink.send(iterator)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say in the log what is in the topic all the same."""
        _say(messages)


def _say(messages: Iterable[WriterCommitMessage | None]) -> None:
    sent = sum(message.rows for message in messages if isinstance(message, Sent))
    _log.warning("the job was ended; %d rows of tasks that were done stay in their topics", sent)


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
        client: To open it with.
        topic: Where to.
        connection: Knows whom to ask for the limit, if anybody.
        config: Offloads; without it everything goes as it is.
        max_message_bytes: What the broker takes in one message, where nobody is asked.
        timeout_seconds: For the answer to one message.
    """
    limit = max_message_bytes if connection.admin_url is None else ask_limit(connection, topic)
    with in_our_words(connection, topic, "opening a producer"):
        native = client.create_producer(
            topic,
            send_timeout_millis=max(1, round(timeout_seconds * 1000)),
            block_if_queue_full=True,
            batching_enabled=True,
            # A batch is one message to the broker, and may not be over the limit that each of its messages obeys. The
            # client counts payloads only: three quarters are left for keys and properties, 768 bytes for each.
            batching_max_allowed_size_in_bytes=max(1, min(_BATCH_BYTES, limit // 4)),
            batching_max_messages=max(2, min(_BATCH_MESSAGES, limit // 1024)),
        )
    deadline = timeout_seconds + _GRACE_SECONDS
    if config is None:
        return BoundedProducer(native, deadline)
    return PulsarProducer(native, claim_check(config), max_message_bytes=limit, deadline_seconds=deadline)
