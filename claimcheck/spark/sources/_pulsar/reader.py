"""Reads a range of one partition, as messages and as Arrow batches. Nothing here changes anything in the broker."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import InputPartition

from claimcheck.spark._columns import MAP_TYPE
from claimcheck.spark.sources._errors import AccessError, DataLossError, ForeignMessageError
from claimcheck.spark.sources._pulsar.client import client_errors, client_for, retry, transport_error
from claimcheck.spark.sources._pulsar.connection import Connection
from claimcheck.transports.pulsar._errors import vendor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "COLUMNS",
    "NOTHING",
    "Found",
    "Offsets",
    "Position",
    "ReadSettings",
    "Stretch",
    "batch_of",
    "check_readable",
    "from_json",
    "read_messages",
    "split_name",
    "to_json",
    "unfiltered",
]

_BATCH_ROWS = 8192
_BATCH_BYTES = 8 << 20  # and one message more: Spark takes 16 MiB well
_PER_MESSAGE_BYTES = 100

_log = logging.getLogger(__name__)

Position = tuple[int, int]
"""Ledger and entry, both from 0. A batch is one entry: it is read as a whole."""

Offsets = dict[str, Position]
"""The last entry that was read, by the full name of a partition; partitions without one were not read yet."""

NOTHING: Position = (-1, -1)
"""Before all entries."""

_PARTITION = re.compile(r"(.+)-partition-(\d+)")


def from_json(value: Mapping[str, Any]) -> Offsets:
    """Return the offsets of a checkpoint."""
    return {name: (int(ledger), int(entry)) for name, (ledger, entry) in value.items()}


def to_json(offsets: Offsets) -> dict[str, list[int]]:
    """Return offsets for a checkpoint, always in the same order: Spark compares texts."""
    return {name: list(offsets[name]) for name in sorted(offsets)}


def split_name(partition: str) -> tuple[str, int]:
    """Split the name of a partition into the topic's name and the partition's number, -1 without one."""
    found = _PARTITION.fullmatch(partition)
    return (found[1], int(found[2])) if found else (partition, -1)


class Stretch(InputPartition):
    """What one task reads: the entries of one partition after ``start``, up to and including ``end``.

    Args:
        partition: The partition's full name.
        start: The last entry that was read before, which must still exist; `NOTHING` to begin with the first.
        end: The last entry to read.
    """

    def __init__(self, partition: str, start: Position, end: Position) -> None:
        super().__init__(None)
        self.partition, self.start, self.end = partition, start, end

    def __repr__(self) -> str:
        return f"<Stretch of {self.partition} after {self.start} to {self.end}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How to read.

    Attributes:
        connection: The broker.
        timeout_seconds: For the next message; longer than any outage of the broker that the query should survive.
        queue: Messages that the client fetches ahead.
        fail_on_loss: Whether messages that were deleted before they were read are an error, or only logged.
    """

    connection: Connection
    timeout_seconds: float = 60.0
    queue: int = 1000
    fail_on_loss: bool = True

    def lost(self, partition: str, what: str) -> None:
        """Report that messages were, or may have been, deleted before this query read them.

        Raises:
            DataLossError: Unless ``fail_on_loss`` is false.
        """
        text = (
            f"{partition}: {what}. Has another query the same subscription, was it removed, or did a time-to-live or a "
            "quota move it?"
        )
        if self.fail_on_loss:
            raise DataLossError(f"{text} With failOnDataLoss=false the query goes on there.", destination=partition)
        _log.warning("%s", text)

    def batches(self, stretch: Stretch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read a range in this process.

        Raises:
            DataLossError: Its first entries were deleted.
            TransportError: The broker did not answer in time.
        """
        topic = split_name(stretch.partition)
        found: list[Found] = []
        held = 0
        for each in read_messages(client_for(self.connection), stretch, self):
            found.append(each)
            held += each[2].length() + _PER_MESSAGE_BYTES
            if len(found) >= _BATCH_ROWS or held >= _BATCH_BYTES:
                yield batch_of(found, topic, schema)
                found, held = [], 0
        if found:
            yield batch_of(found, topic, schema)


def read_messages(client: Any, stretch: Stretch, reading: ReadSettings) -> Iterator[Found]:
    """Yield the messages of a range in order, every entry as a whole. Raises as `ReadSettings.batches` does."""
    with _opened(client, stretch, reading) as reader:
        if not _ask(reader._reader.has_message_available, stretch, reading):
            _lost(stretch, None, reading)  # no message would come from an empty topic
            return
        yield from _until_end(reader, stretch, reading)


@contextlib.contextmanager
def _opened(client: Any, stretch: Stretch, reading: ReadSettings) -> Iterator[Any]:
    ledger, entry = stretch.start
    begin = vendor().MessageId.earliest
    if stretch.start != NOTHING:
        begin = vendor().MessageId(split_name(stretch.partition)[1], ledger, entry, -1)
    reader = _patiently(lambda: _open_at(client, stretch, begin, reading), reading)
    try:
        yield reader
    finally:
        with contextlib.suppress(vendor().exceptions.PulsarException):
            reader.close()


def _open_at(client: Any, stretch: Stretch, begin: Any, reading: ReadSettings) -> Any:
    with client_errors(reading.connection, stretch.partition, "opening a reader"):
        # Inclusive: the entry that was read last comes again, which proves that nothing after it was deleted.
        return client.create_reader(
            stretch.partition,
            begin,
            start_message_id_inclusive=True,
            receiver_queue_size=reading.queue,
            **unfiltered(),
        )


def _patiently(opened: Callable[[], Any], reading: ReadSettings) -> Any:
    """The client raises at once when a connection is refused; wait for the end of an outage all the same."""

    def transient(error: Exception) -> bool:
        return isinstance(error.__cause__, vendor().exceptions.ConnectError) and not isinstance(error, AccessError)

    return retry(opened, transient=transient, seconds=reading.timeout_seconds)


def _until_end(reader: Any, stretch: Stretch, reading: ReadSettings) -> Iterator[Found]:
    start, end, millis = stretch.start, stretch.end, _millis(reading)
    read, more = reader._reader.read_next, reader._reader.has_message_available
    proven, before = False, start
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
            if before != end:  # which did not come: it may be a part of this message
                check_readable(message, message_id, stretch.partition)
            return
        if position > start:
            check_readable(message, message_id, stretch.partition)
            yield position, message_id, message
        before = position
        # At the topic's end no next message shows that the batch is complete; most messages have no batch.
        if position == end and (message_id.batch_index() < 0 or not _ask(more, stretch, reading)):
            return


def _prove(position: Position, stretch: Stretch, reading: ReadSettings) -> bool:
    """Check that the first message is the one that was read last, or, for a first read, not after the range."""
    if position > stretch.end if stretch.start == NOTHING else position != stretch.start:
        _lost(stretch, position, reading)
    return True


def _ask(more: Any, stretch: Stretch, reading: ReadSettings) -> bool:
    with client_errors(reading.connection, stretch.partition, "asking for more"):
        return bool(more())


def _lost(stretch: Stretch, found: Position | None, reading: ReadSettings) -> None:
    gone = (
        f"entry {stretch.start}, up to which this query has read, is gone, so that messages behind it may be gone, too"
    )
    if stretch.start == NOTHING:
        gone = f"everything up to {stretch.end}, which was to be read, is gone"
    reading.lost(stretch.partition, f"{gone}; the topic goes on with {found or 'nothing'}")


def _silent(stretch: Stretch, reading: ReadSettings, error: Exception) -> NoReturn:
    if not isinstance(error, vendor().exceptions.PulsarException):
        raise error
    what = (
        f"no message in {reading.timeout_seconds:g} s before {stretch.end}, which is to come, or is a part of a "
        "payload in chunks of the client's own (chunking_enabled), which this source does not read"
    )
    if not isinstance(error, vendor().exceptions.Timeout):
        what = "reading failed"
    wrapped = transport_error(reading.connection, stretch.partition, what, error)
    wrapped.retryable = not isinstance(wrapped, AccessError)
    raise wrapped from error


def _millis(reading: ReadSettings) -> int:
    return math.ceil(reading.timeout_seconds * 1000)


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
    "properties": MAP_TYPE,
}
"""The columns; one row per message."""

Found = tuple[Position, Any, Any]
"""The position, id and inner message of the client's C++ core."""

_LAST_MILLIS = 253_402_300_799_999  # of the year 9999, behind which neither Python nor Spark's texts have times


def batch_of(found: Sequence[Found], topic: tuple[str, int], schema: pa.Schema) -> pa.RecordBatch:
    """Convert messages into a batch of the schema's columns, column by column, which is fastest."""
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
            return [_moment(message.event_timestamp()) for _, _, message in found]
        case "producer_name":
            return [message.producer_name() for _, _, message in found]
        case _:
            raise AssertionError(name)


def _moment(millis: int) -> int | None:
    """Return an event time; ``None`` for what is none: 0, or nanoseconds by mistake."""
    return millis if 0 < millis <= _LAST_MILLIS else None


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


_FIRST_CHUNK = b"\x3a"  # field 7 of `MessageIdData` (Pulsar's protocol): where a payload in chunks begins


def unfiltered() -> dict[str, Any]:
    """Return arguments for a reader or consumer that returns what it cannot decrypt, instead of skipping it."""
    return {"crypto_failure_action": vendor().ConsumerCryptoFailureAction.CONSUME}


def check_readable(message: Any, message_id: Any, partition: str) -> None:
    """Raise for messages that this source does not read.

    Args:
        message: The inner message of the client's core, read with `unfiltered`.
        message_id: Its id.
        partition: Its partition.

    Raises:
        ForeignMessageError: It is encrypted, or was sent in chunks of the client's own.
    """
    if message.encryption_context() is not None:
        _refuse(message_id, partition, "is encrypted, and this source has no keys")
    in_batch = message_id.batch_index() >= 0  # which is never in chunks, and whose id tells of the batch
    if not in_batch and _FIRST_CHUNK in (told := message_id.serialize()) and told != _plain(message_id):
        why = "ends a payload in chunks of the client's own (chunking_enabled), of which a batch could hold a part"
        _refuse(message_id, partition, f"{why}; send it with claimcheck, as a pointer or in its chunks")


def _plain(message_id: Any) -> bytes:
    told: bytes = (
        vendor().MessageId(message_id.partition(), message_id.ledger_id(), message_id.entry_id(), -1).serialize()
    )
    return told


def _refuse(message_id: Any, partition: str, why: str) -> None:
    place = message_id.ledger_id(), message_id.entry_id()
    raise ForeignMessageError(
        f"{partition}: entry {place} {why}. The query stays before it: other clients can read the topic, and a new "
        "query with startingPosition=latest what comes after it, once something has",
        destination=partition,
    )
