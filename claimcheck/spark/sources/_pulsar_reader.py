"""Reads ranges of partitions, as messages and as Arrow batches, and divides them among tasks and triggers.

Nothing here changes anything in the broker.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from claimcheck._validation import fail
from claimcheck.spark._columns import MAP_TYPE
from claimcheck.spark.sources._options import AccessError, DataLossError, ForeignMessageError, Values
from claimcheck.spark.sources._pulsar_client import (
    IN_PARALLEL,
    Connection,
    NativeId,
    NativeMessage,
    Position,
    check_topic,
    client_errors,
    client_for,
    in_parallel,
    ledger_sizes,
    list_partitions,
    open_reader,
    position_of,
    retry,
    transport_error,
    web_service,
)
from claimcheck.spark.sources._source import Checkpoint, Log, OffsetRange
from claimcheck.transports.pulsar._queries import NOTHING, full_name, split_partition, topics_of, vendor

if TYPE_CHECKING:
    import pulsar
    import pyarrow as pa

COLUMNS = (
    "key string, value binary, topic string, partition int, message_id binary, ledger_id bigint, entry_id bigint, "
    f"batch_index int, publish_time timestamp, event_time timestamp, producer_name string, properties {MAP_TYPE}"
)
"""The columns; one row per message."""

_BATCH_ROWS = 8192
_BATCH_BYTES = 8 << 20  # and at most one message more; Spark copes with 16 MiB
_PER_MESSAGE_BYTES = 100

P = TypeVar("P")

_log = logging.getLogger(__name__)

Offsets = dict[str, Position]
"""The last entry that was read, by the full name of a partition; partitions without one were not read yet."""

Range = OffsetRange[Position]
"""The entries after ``start``, which must still exist, up to and including ``end``; `NOTHING` is before the first."""


Received = tuple[Position, NativeId, NativeMessage]


def from_json(value: Mapping[str, Sequence[int]]) -> Offsets:
    return {name: (int(ledger), int(entry)) for name, (ledger, entry) in value.items()}


def to_json(offsets: Offsets) -> Checkpoint:
    """Return offsets for a checkpoint, always in the same order: Spark compares texts."""
    return {name: list(offsets[name]) for name in sorted(offsets)}


Place = int | str | Mapping[str, Position]
"""A time in milliseconds since 1970, ``earliest`` or ``latest``, or entries by the full name of a partition."""


def place(values: Values, which: str, default: str) -> Place:
    """Return where a query begins or ends, from ``startingTime`` or ``startingOffsets``, or those of the end."""
    option = f"{which}Offsets"
    if (millis := values.get(f"{which}Time")) is not None:
        if option in values:
            fail(option, found=f"{which}Time, too", expected="one of both")
        return int(millis)
    if (text := str(values.get(option, default))) in ("latest", default):
        return text
    try:
        ids = {full_name(name): vendor().MessageId.deserialize(bytes(each)) for name, each in json.loads(text).items()}
        return {name: (each.ledger_id(), each.entry_id()) for name, each in ids.items()}
    except Exception:  # of the client, too
        expected = f'{default}, latest, or JSON as {{"orders-partition-0": [8, 12, 16, 3]}}: the bytes of message ids'
        fail(option, found=repr(text), expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarLog(Log):
    connection: Connection
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    start: Place = "earliest"
    stop: Place = "latest"
    subscription: str = ""
    read_timeout_seconds: float = 60.0
    receiver_queue_size: int = 1000
    fail_on_data_loss: bool = True

    def lost(self, partition: str, what: str) -> None:
        """Report that messages were, or may have been, deleted before this query read them."""
        text = (
            f"{partition}: {what}. Does another query use the same subscription, was it removed, or did a time-to-live "
            "or a quota move it?"
        )
        if self.fail_on_data_loss:
            text = f"{text} With failOnDataLoss=false the query continues there."
            raise DataLossError(text, destination=partition)
        _log.warning("%s", text)

    def ranges(self) -> list[Range]:
        """Return what the topics hold now. No subscription is created."""
        client = client_for(self.connection)
        return [each for each in in_parallel(partial(self._range, client), self.partitions(client)) if each is not None]

    def partitions(self, client: pulsar.Client, *, known: bool = False) -> list[str]:
        """Return the partitions of all topics that there are now. Topics are ``known`` if they were checked before."""
        topics: Sequence[str] = self.topics
        if self.pattern is not None:
            with web_service(self.connection) as admin:
                found = topics_of(admin, ["/".join(self.pattern.pattern.split("/")[2:4])])
            topics = list(filter(self.pattern.fullmatch, found))
        if not known:
            in_parallel(partial(check_topic, self.connection), self.topics)
        names = list_partitions(client, self.connection, topics)
        for option, each in (("startingOffsets", self.start), ("endingOffsets", self.stop)):
            if isinstance(each, Mapping) and (unknown := set(each) - set(names)):
                fail(option, found=", ".join(sorted(unknown)), expected=f"partitions of the topics: {', '.join(names)}")
        return names

    def start_of(self, client: pulsar.Client, partition: str, end: Position) -> Position:
        """Return the position before the first entry to read; ``end`` if there is none yet."""
        return self._find(client, partition, end, self.start, before=1)

    def _range(self, client: pulsar.Client, partition: str) -> Range | None:
        if (end := self._end(client, partition)) == NOTHING:
            return None
        start = self.start_of(client, partition, end)
        stop = min(end, self._find(client, partition, end, self.stop))
        return OffsetRange(partition, start, stop) if stop > start else None

    def _find(self, client: pulsar.Client, partition: str, end: Position, place: Place, before: int = 0) -> Position:
        """Return the last entry before a time, the named one, or the one ``before`` it."""
        if isinstance(place, str):
            return end if place == "latest" else NOTHING
        if not isinstance(place, int):
            ledger, entry = place.get(partition, (NOTHING[0], 0) if before else end)
            return ledger, entry - before
        with (
            client_errors(self.connection, partition, "finding the first message of a time"),
            contextlib.closing(open_reader(client, partition, NOTHING, queue=1)) as reader,
        ):
            reader.seek(place)
            if not reader.has_message_available():
                return end
            ledger, entry = position_of(reader.read_next(round(self.read_timeout_seconds * 1000)))
            return ledger, entry - 1

    def batches(self, offsets: Range, schema: pa.Schema, /) -> Iterator[pa.RecordBatch]:
        topic = split_partition(offsets.partition)
        received: list[Received] = []
        size = 0
        for each in read_messages(client_for(self.connection), offsets, self):
            received.append(each)
            size += each[2].length() + _PER_MESSAGE_BYTES
            if len(received) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield _batch_of(received, topic, schema)
                received, size = [], 0
        if received:
            yield _batch_of(received, topic, schema)

    def _end(self, client: pulsar.Client, partition: str) -> Position:
        with (
            client_errors(self.connection, partition, "reading its last message id"),
            contextlib.closing(open_reader(client, partition, None, queue=1)) as reader,
        ):
            if not reader.has_message_available():
                return NOTHING
            return position_of(reader.read_next(round(self.read_timeout_seconds * 1000)))


def read_messages(client: pulsar.Client, offsets: Range, log: PulsarLog) -> Iterator[Received]:
    """Yield the messages of a range in order, every entry as a whole. Raises as `PulsarLog.batches` does."""
    with client_errors(log.connection, offsets.partition, "opening a reader"):
        # The entry that was read last comes again, which proves that nothing after it was deleted.
        connect = partial(open_reader, client, offsets.partition, offsets.start, queue=log.receiver_queue_size)
        # Wait for the end of an outage: the client raises at once when a connection is refused.
        reader = retry(connect, vendor().exceptions.ConnectError, seconds=log.read_timeout_seconds)
    try:
        if _has_more(reader, offsets, log):
            yield from _until_end(reader, offsets, log)
        else:
            _lost(offsets, None, log)  # no message would come from an empty topic
    finally:
        with contextlib.suppress(vendor().exceptions.PulsarException):
            reader.close()


def _until_end(reader: pulsar.Reader, offsets: Range, log: PulsarLog) -> Iterator[Received]:
    start, end, millis = offsets.start, offsets.end, math.ceil(log.read_timeout_seconds * 1000)
    read: Callable[[int], NativeMessage] = reader._reader.read_next
    is_first, before = True, start
    while True:
        try:
            message = read(millis)
        except Exception as error:
            _silent(offsets, log, error)
        message_id = message.message_id()
        position = message_id.ledger_id(), message_id.entry_id()
        # The first message must be the one that was read last, or, at a ledger's beginning, not be after the range.
        if is_first and (position > end if start[1] < 0 else position != start):
            _lost(offsets, position, log)
        is_first = False
        if position > end:
            if before != end:  # the end did not come: it may be a part of this message
                check_readable(message, message_id, offsets.partition)
            return
        if position > start:
            check_readable(message, message_id, offsets.partition)
            yield position, message_id, message
        before = position
        # At the topic's end no next message shows that the batch is complete; most messages have no batch.
        if position == end and (message_id.batch_index() < 0 or not _has_more(reader, offsets, log)):
            return


def _has_more(reader: pulsar.Reader, offsets: Range, log: PulsarLog) -> bool:
    with client_errors(log.connection, offsets.partition, "checking for more messages"):
        return bool(reader.has_message_available())


def _lost(offsets: Range, first: Position | None, log: PulsarLog) -> None:
    gone = f"entry {offsets.start}, the last that this query has read, is gone; messages after it may be gone, too"
    if offsets.start == NOTHING:
        gone = f"everything up to {offsets.end} is gone and was never read"
    log.lost(offsets.partition, f"{gone}; the topic continues with {first or 'nothing'}")


def _silent(offsets: Range, log: PulsarLog, error: Exception) -> NoReturn:
    if not isinstance(error, vendor().exceptions.PulsarException):
        raise error
    what = (
        f"no message arrived within {log.read_timeout_seconds:g} s; {offsets.end} is still missing, or is part of a "
        "payload in chunks of the client's own (chunking_enabled), which this source does not read"
    )
    if not isinstance(error, vendor().exceptions.Timeout):
        what = "reading failed"
    wrapped = transport_error(log.connection, offsets.partition, what, error)
    wrapped.retryable = not isinstance(wrapped, AccessError)
    raise wrapped from error


# Arrow --------------------------------------------------------------------------------------------------------------

_LAST_MILLIS = 253_402_300_799_999  # of the year 9999: Python and Spark's texts have no later times


def _batch_of(received: Sequence[Received], topic: tuple[str, int], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [_column(field, received, topic) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_VALUES: dict[str, Callable[[Sequence[Received]], Sequence[object]]] = {
    "key": lambda received: [message.partition_key() or None for _, _, message in received],
    "value": lambda received: [_value(message) for _, _, message in received],
    "message_id": lambda received: [message_id.serialize() for _, message_id, _ in received],
    "ledger_id": lambda received: [position[0] for position, _, _ in received],
    "entry_id": lambda received: [position[1] for position, _, _ in received],
    "batch_index": lambda received: [message_id.batch_index() for _, message_id, _ in received],
    "publish_time": lambda received: [message.publish_timestamp() for _, _, message in received],
    "event_time": lambda received: [_moment(message.event_timestamp()) for _, _, message in received],
    "producer_name": lambda received: [message.producer_name() for _, _, message in received],
}


def _column(field: pa.Field, received: Sequence[Received], topic: tuple[str, int]) -> pa.Array:
    import pyarrow as pa

    if field.name in ("topic", "partition"):
        return pa.repeat(pa.scalar(topic[field.name == "partition"], field.type), len(received))
    if field.name == "properties":
        return pa.array([list(message.properties().items()) for _, _, message in received], field.type)
    values = _VALUES[field.name](received)
    if field.name.endswith("_time"):
        return pa.array(values, pa.timestamp("ms", field.type.tz)).cast(field.type)
    return pa.array(values, field.type)


def _moment(millis: int) -> int | None:
    """Return an event time; ``None`` for 0, and for nanoseconds that were set by mistake."""
    return millis if 0 < millis <= _LAST_MILLIS else None


def _value(message: NativeMessage) -> bytes | None:
    data = message.data()
    return data if data or not message.has_null_value() else None


# Messages that this source cannot read ------------------------------------------------------------------------------

_FIRST_CHUNK = b"\x3a"  # field 7 of `MessageIdData` (Pulsar's protocol): where a payload in chunks begins


def check_readable(message: NativeMessage, message_id: NativeId, partition: str) -> None:
    if message.encryption_context() is not None:
        _refuse(message_id, partition, "is encrypted, and this source has no keys")
    if message_id.batch_index() >= 0:  # never in chunks, and its id has fields of the batch
        return
    place = message_id.partition(), message_id.ledger_id(), message_id.entry_id()
    encoded = message_id.serialize()
    if _FIRST_CHUNK in encoded and encoded != vendor().MessageId(*place, -1).serialize():
        why = "ends a payload in chunks of the client's own (chunking_enabled), of which a batch could hold a part"
        _refuse(message_id, partition, f"{why}; send it with claimcheck, as a pointer or in its chunks")


def _refuse(message_id: NativeId, partition: str, why: str) -> NoReturn:
    place = message_id.ledger_id(), message_id.entry_id()
    raise ForeignMessageError(
        f"{partition}: entry {place} {why}. The query stops before it: other clients can read the topic, and a new "
        "query with startingOffsets=latest reads later messages, once there are any",
        destination=partition,
    )


# Where a trigger ends ------------------------------------------------------------------------------------------------

_SAMPLE_ROWS = 1000
_SAMPLED_ROWS = 10_000  # of all partitions together, but at least `_LEAST_ROWS` of each
_LEAST_ROWS = 50
_ROUNDS = 4  # each lets partitions with more messages use what the others left; after that the rest is small


def limited(client: pulsar.Client, start: Offsets, last: Offsets, log: PulsarLog, limit: int) -> Offsets:
    """Return where a trigger ends within a number of rows of all partitions together; only a sample is read."""
    if not last:
        return last
    begun = {name: start.get(name, NOTHING) for name in last}
    sample = min(_SAMPLE_ROWS, max(_LEAST_ROWS, _SAMPLED_ROWS // len(last)))
    sizes = cache(partial(ledger_sizes, log.connection))
    queue = max(
        1, log.receiver_queue_size // min(len(last), IN_PARALLEL)
    )  # as many messages in memory as with one reader

    def end_of(name: str, begin: Position, part: int) -> tuple[Position, int]:
        shallow = replace(log, receiver_queue_size=max(1, min(queue, part, sample)))
        offsets, is_first = OffsetRange(name, begin, last[name]), begin == begun[name]
        with contextlib.closing(_entries(client, offsets, shallow)) as entries:
            try:
                return end_within(entries, offsets, part, sizes, sample=sample, is_first=is_first)
            except ForeignMessageError:
                if is_first:  # else this trigger ends before it, and the next one fails
                    raise
                return begin, 0

    return share(begun, last, limit, end_of, in_parallel)


def share(
    start: Mapping[str, P],
    last: Mapping[str, P],
    limit: int,
    end_of: Callable[[str, P, int], tuple[P, int]],
    run: Callable[..., Iterable[tuple[P, int]]] = map,
) -> dict[str, P]:
    """Find the end of every partition; larger partitions get what smaller ones leave."""
    ends, ongoing = {name: start[name] for name in last}, list(last)
    for _ in range(_ROUNDS):
        part, begun = max(1, limit // len(ongoing)), dict(ends)
        results = run(lambda name: end_of(name, begun[name], part), ongoing)  # noqa: B023
        for name, (end, rows) in zip(ongoing, results, strict=True):
            ends[name], limit = end, max(0, limit - rows)
        before, ongoing = ongoing, [name for name in ongoing if ends[name] != last[name]]
        if len(ongoing) in (0, len(before)) or limit < len(ongoing):
            break
    return ends


def end_within(
    entries: Iterable[tuple[Position, int]],
    offsets: Range,
    limit: int,
    sizes: Callable[[str], Mapping[int, int]],
    *,
    sample: int,
    is_first: bool,
) -> tuple[Position, int]:
    """Return where a partition's share of a trigger ends, and its rows: whole entries, and at first at least one."""
    # Without entries, the whole range was deleted; later, the next entry is larger than the rest of the limit.
    end, spent = offsets.end if is_first else offsets.start, 0
    for number, (position, rows) in enumerate(entries, 1):
        if spent + rows > limit and (number > 1 or not is_first):
            break
        end, spent = position, spent + rows
        if spent < sample:
            continue
        # Extrapolate within the ledger, as if all entries were like those that were read.
        wanted = max(0, limit - spent) * number // spent
        is_last = end[0] == offsets.end[0]
        last = offsets.end[1] if is_last else sizes(offsets.partition).get(end[0], 0) - 1
        if is_last or end[1] + wanted <= last:
            more = min(wanted, last - end[1])
            return (end[0], end[1] + more), spent + more * spent // number
    return end, spent


def _entries(client: pulsar.Client, offsets: Range, log: PulsarLog) -> Generator[tuple[Position, int]]:
    """Yield the position of each entry, and its rows."""
    current: Position | None = None
    rows = 0
    try:
        for position, _, _ in read_messages(client, offsets, log):
            if current is not None and position != current:
                yield current, rows
                rows = 0
            current, rows = position, rows + 1
    except ForeignMessageError:
        if current is None:  # else this trigger ends before it, and the next one fails
            raise
    if current is not None:
        yield current, rows
