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
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import WriterCommitMessage

from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._worker import claim_check
from claimcheck.spark.sources._pulsar_client import Connection, client_errors, client_for, web_service
from claimcheck.spark.sources._rows import Columns, SinkRow
from claimcheck.spark.sources._source import TaskResults
from claimcheck.transports.pulsar._producer import PulsarProducer
from claimcheck.transports.pulsar._queries import vendor
from claimcheck.transports.pulsar._send import BoundedProducer, error_of

if TYPE_CHECKING:
    import pulsar
    import pyarrow as pa

_BATCH_BYTES = 128 << 10  # the client's own default
_BATCH_MESSAGES = 1000
_GRACE_SECONDS = 30.0

_log = logging.getLogger(__name__)


@dataclass
class _Sent(WriterCommitMessage):
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSink:
    connection: Connection
    columns: Columns
    config: Config | None
    max_message_bytes: int
    timeout_seconds: float

    def write(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task and wait until the broker has all of them."""
        sending = _Sending(self)
        try:
            rows = sum(map(sending.send, self.columns.rows(batches)))
            sending.finish()
        finally:
            sending.close()
        return _Sent(rows)

    def commit(self, results: TaskResults, batch: int | None) -> None:
        """Do nothing: the broker has all messages."""

    def abort(self, results: TaskResults) -> None:
        sent = sum(result.rows for result in results if isinstance(result, _Sent))
        _log.warning("the job was aborted; %d rows of completed tasks stay in their topics", sent)

    def producer(self, client: pulsar.Client, topic: str) -> BoundedProducer | PulsarProducer:
        limit = self.max_message_bytes
        if self.connection.admin_url is not None:
            with web_service(self.connection) as admin:
                limit = admin.max_message_bytes(topic)
        with client_errors(self.connection, topic, "opening a producer"):
            native = client.create_producer(
                topic,
                send_timeout_millis=max(1, round(self.timeout_seconds * 1000)),
                block_if_queue_full=True,
                batching_enabled=True,
                # The broker's limit applies to a whole batch. The client counts payloads only: three quarters of the
                # limit are left for keys and properties, 768 bytes for each message.
                batching_max_allowed_size_in_bytes=max(1, min(_BATCH_BYTES, limit // 4)),
                batching_max_messages=max(2, min(_BATCH_MESSAGES, limit // 1024)),
            )
        deadline = self.timeout_seconds + _GRACE_SECONDS
        if self.config is None:
            return BoundedProducer(native, deadline)
        return PulsarProducer(native, claim_check(self.config), max_message_bytes=limit, deadline_seconds=deadline)


class _Sending:
    """The producers of one task, one for each topic, and its rows in flight."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink
        self._client = client_for(sink.connection)
        self._producers: dict[str, BoundedProducer | PulsarProducer] = {}
        self._changed = threading.Condition()
        self._waiting = 0
        self._failed: list[tuple[SinkRow, pulsar.Result]] = []
        self._ok = vendor().Result.Ok

    def send(self, row: SinkRow) -> int:
        """Send one row; returns 1, for a sum."""
        if self._failed:
            self._raise()
        properties = {name: _as_text(row, f"header {name!r}", value) or "" for name, value in row.headers}
        key = _as_text(row, "the key", row.key)
        with self._errors_of(row):
            producer = self._producers.get(row.topic)
            if producer is None:
                producer = self._producers[row.topic] = self._sink.producer(self._client, row.topic)
            self._count(1)
            try:
                producer.send_async(row.value, partial(self._record, row), properties or None, key)
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
            if not self._failed:  # the reasons of those are more precise
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

    def _record(self, row: SinkRow, result: pulsar.Result, message_id: object) -> None:
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
    def _errors_of(self, row: SinkRow) -> Iterator[None]:
        """Add the row to errors."""
        try:
            yield
        except ClaimCheckError as error:
            error.add_note(f"This is {row.source}, for {row.topic}.")
            raise
        except vendor().exceptions.PulsarException as error:
            raise row.error(self._why(row, type(error).__name__)) from error

    def _why(self, row: SinkRow, name: str) -> str:
        if name != "MessageTooBig":
            return name
        size, offloads = len(row.value or b""), self._sink.config is not None
        more = "" if offloads else "; set the option config to offload larger payloads"
        return (
            f"{name}: a message of {size} bytes, or the batch that contains it, is larger than the broker accepts. Set "
            f"the limit with maxMessageBytes, or set adminUrl to read it from the broker{more}"
        )


def _as_text(row: SinkRow, what: str, value: str | bytes | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise row.error(f"{what} is not UTF-8, which Pulsar requires") from error
