"""Sends rows to Pulsar, at least once: unchanged, or offloaded with a configuration.

A task is done when the broker has all of its messages. Messages cannot be withdrawn: if Spark retries a task, or ends
the job, rows that the first attempt sent are sent twice, or stay. The stored payload of a row whose send definitely
failed is deleted at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from claimcheck._validation import fail
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import HEADERS_TYPE, MAP_TYPE, row_source
from claimcheck.spark._reading import Row
from claimcheck.spark._worker import claim_check
from claimcheck.spark.sources._options import RowSendError
from claimcheck.spark.sources._pulsar_client import Connection, client_errors, client_for, web_service
from claimcheck.transports.pulsar._producer import PulsarProducer
from claimcheck.transports.pulsar._queries import vendor
from claimcheck.transports.pulsar._send import BoundedProducer, error_of

if TYPE_CHECKING:
    import pulsar
    import pyarrow as pa
    from pyspark.sql.types import StructType

_BATCH_BYTES = 128 << 10  # the client's own default
_BATCH_MESSAGES = 1000
_GRACE_SECONDS = 30.0

_KINDS = {
    "value": ("binary",),
    "key": ("binary", "string"),
    "topic": ("string",),
    "properties": (MAP_TYPE,),
    "headers": (HEADERS_TYPE,),
}

_log = logging.getLogger(__name__)


@dataclass
class _Sent(WriterCommitMessage):
    rows: int


@dataclass(frozen=True, kw_only=True)
class PulsarSink:
    """The options of a query that writes, and Spark's commit protocol."""

    connection: Connection
    columns: Columns
    config: Config | None
    max_message_bytes: int
    timeout_seconds: float

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task and wait until the broker has all of them."""
        sending = _Sending(self)
        try:
            rows = sum(map(sending.send, self.columns.rows(iterator)))
            sending.finish()
        finally:
            sending.close()
        return _Sent(rows)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """Do nothing: the broker has all messages."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        sent = sum(result.rows for result in messages if isinstance(result, _Sent))
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


class BatchSink(PulsarSink, DataSourceArrowWriter):
    pass


class StreamSink(PulsarSink, DataSourceStreamArrowWriter):
    pass


class _Sending:
    """The producers of one task, one for each topic, and its rows in flight."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink
        self._client = client_for(sink.connection)
        self._producers: dict[str, BoundedProducer | PulsarProducer] = {}
        self._changed = threading.Condition()
        self._waiting = 0
        self._failed: list[tuple[_Row, pulsar.Result]] = []
        self._ok = vendor().Result.Ok

    def send(self, row: _Row) -> int:
        """Send one row; returns 1, for a sum."""
        if self._failed:
            self._raise()
        properties = {name: _as_text(row, f"header {name!r}", value) or "" for name, value in row.headers}
        key = _as_text(row, "the key", row.key)
        try:
            producer = self._producers.get(row.topic)
            if producer is None:
                producer = self._producers[row.topic] = self._sink.producer(self._client, row.topic)
            self._count(1)
            try:
                producer.send_async(row.value, partial(self._record, row), properties or None, key)
            except BaseException:
                self._count(-1)
                raise
        except ClaimCheckError as error:
            error.add_note(f"This is {row.source}, for {row.topic}.")
            raise
        except vendor().exceptions.PulsarException as error:
            raise row.error(type(error).__name__) from error
        return 1

    def finish(self) -> None:
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

    def _record(self, row: _Row, result: pulsar.Result, message_id: object) -> None:
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
        raise row.error(result.name) from error_of(result)


def _as_text(row: _Row, what: str, value: str | bytes | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise row.error(f"{what} is not UTF-8, which Pulsar requires") from error


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    topic: str
    value: bytes | None
    key: str | bytes | None
    headers: list[tuple[str, str | bytes]]
    place: Row

    @property
    def source(self) -> str:
        origin = row_source(self.place.values())
        return f"row {self.number} of this task" + (f" ({origin})" if origin else "")

    def error(self, why: str) -> RowSendError:
        text = f"{self.topic}: {self.source} was not sent: {why}"
        if why == "MessageTooBig":
            text += f" ({len(self.value or b'')} bytes, perhaps in a batch). See maxMessageBytes, adminUrl and config"
        return RowSendError(text, destination=self.topic, row=self.number)


@dataclass(frozen=True, slots=True)
class Columns:
    places: dict[str, int]
    topic: str | None

    @classmethod
    def of(cls, schema: StructType, *, topic: str | None) -> Columns:
        """Find the columns, on the driver; all others are ignored."""
        places: dict[str, int] = {}
        for place, field in enumerate(schema):
            name, kind = field.name.lower(), field.dataType.simpleString()
            if name not in _KINDS or (name == "topic" and topic is not None):
                continue
            if kind not in _KINDS[name] or name in places:
                found = f"{field.name!r} twice" if name in places else f"{field.name!r} of type {kind}"
                fail(f"column {name}", found=found, expected=f"one column of type {' or '.join(_KINDS[name])}")
            places[name] = place
        if "value" not in places:
            fail("column value", found="nothing", expected="a column of type binary: the messages to send")
        if topic is None and "topic" not in places:
            fail("topic", found="nothing", expected="the name of a topic, or a column of that name")
        return cls(places, topic)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
        """Return the rows of a task; raises `RowSendError` at a row without a topic."""
        numbers = count()
        for batch in batches:
            names, columns = tuple(batch.schema.names), {name: batch.column(at) for name, at in self.places.items()}
            for index in range(batch.num_rows):
                parts = {name: column[index].as_py() for name, column in columns.items()}
                topic, place = self.topic or parts.get("topic") or "", Row(batch, index, names)
                row = _Row(next(numbers), topic, parts["value"], parts.get("key"), _headers(parts), place)
                if not row.topic:
                    raise row.error("its column topic is null, and there is no option topic")
                yield row


def _headers(parts: dict[str, Any]) -> list[tuple[str, str | bytes]]:
    pairs: list[tuple[str | None, str | bytes | None]] = [*(parts.get("properties") or ())]
    pairs += [(each["key"], each["value"]) for each in parts.get("headers") or () if each is not None]
    return [(name, b"" if value is None else value) for name, value in pairs if name is not None]
