"""Reads a stretch of one partition, as messages and as Arrow batches. Nothing here changes anything in the broker."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import InputPartition

from claimcheck.errors import TransportError
from claimcheck.spark.sources.pulsar_client import Connection, client_for, in_our_words
from claimcheck.spark.sources.pulsar_offsets import NOTHING, Position, split_name
from claimcheck.transports.pulsar.errors import vendor

if TYPE_CHECKING:
    import pyarrow as pa

from claimcheck.spark.sources.errors import DataLossError

__all__ = ["COLUMNS", "Reading", "Stretch", "read_messages"]

COLUMNS = {
    "key": "string",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "message_id": "binary",
    "ledger_id": "bigint",
    "entry_id": "bigint",
    "batch_index": "int",
    "publish_time": "timestamp",
    "event_time": "timestamp",
    "producer_name": "string",
    "properties": "map<string,string>",
}
"""One row per message."""

_BATCH_ROWS = 8192
_BATCH_BYTES = 8 << 20  # and one message more: Spark takes 16 MiB well
_PER_MESSAGE_BYTES = 100

_log = logging.getLogger(__name__)

Found = tuple[Position, Any, Any]
"""Where a message was found, its id, and the message, as the client's own core gives them."""


class Stretch(InputPartition):
    """What one task reads: of one partition what comes after ``start``, up to and with ``end``.

    Args:
        partition: The partition's full name.
        start: The last entry that was read before, which has to be there still; `NOTHING` to begin with what there is.
        end: The last entry to read.
    """

    def __init__(self, partition: str, start: Position, end: Position) -> None:
        super().__init__(None)
        self.partition, self.start, self.end = partition, start, end

    def __repr__(self) -> str:
        return f"<Stretch of {self.partition} after {self.start} to {self.end}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read.

    Attributes:
        connection: Where.
        timeout_seconds: For the next message; longer than any outage of the broker that is to be lived through.
        queue: Messages that the client fetches ahead.
        fail_on_loss: Whether what is gone from under a checkpoint is an error, or just a line in the log.
    """

    connection: Connection
    timeout_seconds: float = 60.0
    queue: int = 1000
    fail_on_loss: bool = True

    def batches(self, stretch: Stretch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read a stretch in this process.

        Raises:
            DataLossError: What it begins with is gone.
            TransportError: The broker did not answer in time.
        """
        topic = split_name(stretch.partition)
        found: list[Found] = []
        held = 0
        for each in read_messages(client_for(self.connection), stretch, self):
            found.append(each)
            held += each[2].length() + _PER_MESSAGE_BYTES
            if len(found) >= _BATCH_ROWS or held >= _BATCH_BYTES:
                yield _batch(found, topic, schema)
                found, held = [], 0
        if found:
            yield _batch(found, topic, schema)


def read_messages(client: Any, stretch: Stretch, reading: Reading) -> Iterator[Found]:
    """Go through the messages of a stretch in order, every entry as a whole. Raises as `Reading.batches` does."""
    with _opened(client, stretch, reading) as reader:
        if stretch.start != NOTHING and not _witnessed(reader, stretch, reading):
            return
        yield from _until_end(reader, stretch, reading)


@contextlib.contextmanager
def _opened(client: Any, stretch: Stretch, reading: Reading) -> Iterator[Any]:
    ledger, entry = stretch.start
    begin = vendor().MessageId.earliest
    if stretch.start != NOTHING:
        begin = vendor().MessageId(split_name(stretch.partition)[1], ledger, entry, -1)
    with in_our_words(stretch.partition, "opening a reader"):
        # Inclusive: what was read last comes again, and proves by it that nothing behind it was removed.
        reader = client.create_reader(
            stretch.partition, begin, start_message_id_inclusive=True, receiver_queue_size=reading.queue
        )
    try:
        yield reader
    finally:
        with contextlib.suppress(vendor().exceptions.PulsarException):
            reader.close()


def _until_end(reader: Any, stretch: Stretch, reading: Reading) -> Iterator[Found]:
    start, end, millis = stretch.start, stretch.end, _millis(reading)
    read, more = reader._reader.read_next, reader._reader.has_message_available
    proven = start == NOTHING
    while True:
        try:
            message = read(millis)
        except Exception as error:
            _silent(stretch, reading, error)
        message_id = message.message_id()
        position = message_id.ledger_id(), message_id.entry_id()
        if not proven:
            proven = _prove(position, stretch, reading)
        if position > end:
            return
        if position > start:
            yield position, message_id, message
        # The end may be the topic's, where no next message tells that its batch is over; most have no batch.
        if position == end and (message_id.batch_index() < 0 or not _ask(more, stretch)):
            return


def _witnessed(reader: Any, stretch: Stretch, reading: Reading) -> bool:
    """Whether there is anything to read at all: of a topic that was emptied nothing would ever come."""
    if _ask(reader._reader.has_message_available, stretch):
        return True
    _lost(stretch, None, reading)
    return False


def _prove(position: Position, stretch: Stretch, reading: Reading) -> bool:
    if position != stretch.start:
        _lost(stretch, position, reading)
    return True


def _ask(more: Any, stretch: Stretch) -> bool:
    with in_our_words(stretch.partition, "asking for more"):
        return bool(more())


def _lost(stretch: Stretch, found: Position | None, reading: Reading) -> None:
    text = (
        f"{stretch.partition}: entry {stretch.start}, up to which this query has read, is gone, so that messages "
        f"behind it may be gone, too; the topic goes on with {found or 'nothing'}. Was the subscription removed, "
        "or did a time-to-live or a quota move it?"
    )
    if reading.fail_on_loss:
        raise DataLossError(f"{text} With failOnDataLoss=false the query goes on there.", destination=stretch.partition)
    _log.warning("%s", text)


def _silent(stretch: Stretch, reading: Reading, error: Exception) -> NoReturn:
    if not isinstance(error, vendor().exceptions.PulsarException):
        raise error
    text = f"{stretch.partition}: no message in {reading.timeout_seconds:g} s before {stretch.end}, which is to come"
    if not isinstance(error, vendor().exceptions.Timeout):
        text = f"{stretch.partition}: reading failed: {type(error).__name__}"
    wrapped = TransportError(text, destination=stretch.partition)
    wrapped.retryable = True
    raise wrapped from error


def _millis(reading: Reading) -> int:
    return math.ceil(reading.timeout_seconds * 1000)


# Columns ---------------------------------------------------------------------------------------------------------


def _batch(found: Sequence[Found], topic: tuple[str, int], schema: pa.Schema) -> pa.RecordBatch:
    """Column by column, and only those that are asked for: the loops are the interpreter's own."""
    import pyarrow as pa

    arrays = [_column(field, found, topic) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(field: pa.Field, found: Sequence[Found], topic: tuple[str, int]) -> pa.Array:
    import pyarrow as pa

    if field.name == "topic":
        return pa.repeat(pa.scalar(topic[0], field.type), len(found))
    if field.name == "partition":
        return pa.repeat(pa.scalar(topic[1], field.type), len(found))
    if field.name == "properties":
        return _properties([message.properties() for _, _, message in found], field.type)
    values = _values(field.name, found)
    if field.name.endswith("_time"):
        return pa.array(values, pa.timestamp("ms", field.type.tz)).cast(field.type)
    return pa.array(values, field.type)


def _values(name: str, found: Sequence[Found]) -> list[Any]:
    match name:
        case "key":
            return [message.partition_key() or None for _, _, message in found]
        case "value":
            return [_value(message) for _, _, message in found]
        case "message_id":
            return [message_id.serialize() for _, message_id, _ in found]
        case "ledger_id":
            return [position[0] for position, _, _ in found]
        case "entry_id":
            return [position[1] for position, _, _ in found]
        case "batch_index":
            return [message_id.batch_index() for _, message_id, _ in found]
        case "publish_time":
            return [message.publish_timestamp() for _, _, message in found]
        case "event_time":
            return [message.event_timestamp() or None for _, _, message in found]
        case "producer_name":
            return [message.producer_name() for _, _, message in found]
        case _:
            raise AssertionError(name)


def _value(message: Any) -> bytes | None:
    data: bytes = message.data()
    return data if data or not message.has_null_value() else None


def _properties(each: list[dict[str, str]], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    offsets, end = [0], 0
    for properties in each:
        end += len(properties)
        offsets.append(end)
    names = pa.array(list(chain.from_iterable(each)), pa.string())
    values = pa.array(list(chain.from_iterable(map(dict.values, each))), pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values).cast(kind)
