"""Chunks to payloads: ``df.transform(reassemble("value", config="claimcheck.yaml"))``, batch and streaming.

On a batch, a shuffle brings the chunks of a payload together, in order; tasks hold one payload each. For streams see
`claimcheck.spark._reassemble_stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

from claimcheck._receive.chunk_rules import error_of, fault_of, incomplete
from claimcheck._validation import check_value
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import Chunk, decode
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import check_new, error_type, with_fields, with_index_names
from claimcheck.spark._metrics import Metrics, Tally
from claimcheck.spark._reading import MAX_INFLIGHT_BYTES, Reading, Row, RowGroup, Stage, views
from claimcheck.spark._reassemble_common import (
    ColumnIndexes,
    ExpireBy,
    Joined,
    added_columns,
    declared_claims,
    is_genuine,
    joined,
    max_payload_bytes,
    read_header,
)
from claimcheck.spark._reassemble_stream import reassemble_stream
from claimcheck.spark._worker import AnyConfig, claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_ADDED = ("uuid", "payload", "error")
_UUID, _POSITION, _DECLARED = "uuid", "position", "declared"
_HELPERS = 3  # these columns follow those of the input
_HASHED = ("string", "binary", "tinyint", "smallint", "int", "bigint", "timestamp", "timestamp_ntz", "date", "double")


def reassemble(
    column: str,
    *,
    config: AnyConfig,
    source: Sequence[str] | None = None,
    destination: str | None = None,
    expire_by: ExpireBy = "clock",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that joins chunks into payloads, for ``df.transform``; on a batch and on a stream.

    Returns one row per payload, in no particular order, with three more columns: the binary ``payload``, ``uuid``, text
    that is null for rows that did not come as chunks, and ``error``, as in `resolve`. A payload in chunks gets the row
    of its first chunk, with a null ``column``. Other messages in the same column are resolved and keep their rows. Bad
    messages become rows with an error: a damaged envelope, a payload that is gone or too large, chunks that conflict or
    are missing. A payload aborted by its writer becomes no row. Errors that are not specific to one row fail the task.

    The checksum and the signature of a payload in chunks are in the headers of its last message. They are checked if
    the DataFrame has the headers, in a column ``headers`` as of Spark's Kafka source, or in a map of texts
    ``properties``; without them, bytes changed inside a chunk after sending go unnoticed, and with ``signing.require``
    every payload in chunks is an error, and every abort envelope is ignored.

    **On a batch** one shuffle brings all chunks of a payload together, and each partition holds one payload in memory
    at a time. Chunks that are not in the DataFrame are missing.

    **On a stream** chunks are stored in ``config.store``, and small references to them in Spark's state until the
    payload is complete. Stored chunks stay until they expire: the store's ``ttl_seconds`` must be well above
    ``chunking.expire_after_seconds``, for which the first chunk waits for the others, and which must be much longer
    than a micro-batch. Each micro-batch reads the source twice. Streaming needs pyspark 4.1 and the RocksDB state
    store.

    Args:
        column: A binary column of messages.
        config: As in `resolve`. The limits in ``chunking`` on one payload apply, and ``limits``; those on pending
            payloads do not.
        source: The columns that identify where messages came from and who sent them: text, whole numbers or binary.
            Chunks of different sources never mix, and an abort envelope applies only to its own source. ``None`` for
            those of ``topic``, ``partition`` and ``key`` that the DataFrame has, ``()`` for none.
        destination: As in `resolve`.
        expire_by: On a stream: ``clock`` uses the machine's time, which also passes while no messages arrive; in Spark
            a query with ``trigger(availableNow=True)`` then never ends. ``data`` uses the arrival of messages
            of any kind: the query ends, and leaves incomplete payloads to the next run.
        max_inflight_bytes: Bound on the bytes of the payloads or chunks that one task reads or writes at once.
        metrics: Counts the rows of the result.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns when called and reads nothing yet.

    Raises:
        ConfigError: As `resolve`. On a stream, the function raises it for an unsupported version of pyspark, state
            store or configuration, too.
        MissingDependencyError: As `resolve`; on a stream also for protobuf.
    """
    reading = Reading.of(config, max_inflight_bytes, metrics, "null")
    check_value("expire_by", expire_by, ExpireBy)

    def transform(df: DataFrame) -> DataFrame:
        placed = reading.at(df, destination)
        check_new(df.columns, _ADDED)
        columns = ColumnIndexes.find(df, column, source)
        placed = replace(placed, origin=replace(placed.origin, headers=columns.headers))
        named, schema = with_index_names(df), _schema(df, columns)
        if df.isStreaming:
            return reassemble_stream(named, columns, placed, expire_by, schema)
        return _reassemble_batch(named, columns, placed, schema)

    return transform


def _schema(df: DataFrame, columns: ColumnIndexes) -> StructType:
    from pyspark.sql.types import BinaryType, StringType, StructField

    kept = list(df.schema.fields)
    kept[columns.message] = StructField(kept[columns.message].name, BinaryType())
    return with_fields(kept, uuid=StringType(), payload=BinaryType(), error=error_type())


# On a batch -----------------------------------------------------------------------------------------------------


def _reassemble_batch(df: DataFrame, columns: ColumnIndexes, reading: Reading, schema: StructType) -> DataFrame:
    """Join the chunks of a batch whose column names need no quotes; returns a DataFrame with this schema."""
    names = df.columns
    uuid, position = read_header(df[names[columns.message]], reading.config.header)
    declared = declared_claims(df, columns.headers).alias(_DECLARED)
    parsed = df.select("*", uuid.alias(_UUID), position.alias(_POSITION), declared)
    source = [names[index] for index in columns.source]
    sorted_rows = parsed.repartition(_partition_key(parsed, source)).sortWithinPartitions(_UUID, *source, _POSITION)
    return sorted_rows.mapInArrow(_ReassembleStage(reading, columns), schema)


def _partition_key(df: DataFrame, source: list[str]) -> Column:
    """Return the key that brings chunks together and spreads other rows; the same when Spark reruns a task."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual alias

    hashed = [name for name, kind in df.dtypes if kind in _HASHED]
    return F.when(df[_UUID].isNotNull(), F.xxhash64(_UUID, *source)).otherwise(F.xxhash64(*hashed))


class ChunkGroup:
    """The chunks of one payload, which are added in order of their positions."""

    def __init__(self, uuid: str, config: Config) -> None:
        self._uuid, self._max_chunks, self._max_bytes = uuid, config.chunks.max_chunks, max_payload_bytes(config)
        self._positions: list[int] = []
        self._count = self._size = 0
        self._last = memoryview(b"")
        self.pieces: list[Buffer] = []
        self.declared: str | None = None
        self.error: ClaimCheckError | None = None

    @property
    def is_complete(self) -> bool:
        return self.error is None and 0 < self._count == len(self._positions)

    def add(self, chunk: Chunk, declared: str | None = None) -> None:
        """Add the next chunk, and what the headers of its message declare."""
        if self.error is not None:
            return
        self._count, self.declared = self._count or chunk.count, self.declared or declared
        same: bool | None = None
        if self._positions and self._positions[-1] == chunk.position:
            same = bytes(self._last) == bytes(chunk.piece)  # comparing views is ten times slower
        size = self._size + (len(chunk.piece) if same is None else 0)
        fault = fault_of(
            self._uuid,
            chunk.position,
            chunk.count,
            total=self._count,
            seen=len(self._positions),
            size=size,
            same=same,
            max_chunks=self._max_chunks,
            max_bytes=self._max_bytes,
        )
        if fault is not None:
            self.error, self.pieces, self._last = error_of(fault), [], memoryview(b"")
        elif same is None:
            self._positions.append(chunk.position)
            self._last, self._size = chunk.piece, size
            self.pieces.append(chunk.piece)
            if chunk.position != len(self._positions) - 1:  # a chunk is missing: the payload cannot become complete
                self.pieces = []

    def incomplete(self) -> ClaimCheckError:
        why = "the others are not in this DataFrame, or were never sent"
        return error_of(incomplete(self._uuid, self._positions, self._count, why))


class _Message(NamedTuple):
    row: Row
    uuid: str | None
    source: tuple[Hashable, ...]
    message: memoryview | None
    declared: str | None


@dataclass(frozen=True, slots=True)
class _ReassembleStage(Stage[Joined]):
    """Joins the payloads of one partition, and resolves its other messages."""

    columns: ColumnIndexes

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, Joined, int]]:
        messages = self._messages(batches)
        first_chunk = list[_Message]()
        with closing(self.reading.rows(self._others(messages, first_chunk))) as resolved:
            for row, outcome in resolved:
                error = outcome if isinstance(outcome, Exception) else None
                result = Joined(None, [outcome] if isinstance(outcome, bytes) else None, error)
                yield row, result, result.size
                del outcome, result
        with closing(Tally(self.reading.metrics)) as tally:
            for (uuid, _), group in groupby(chain(first_chunk, messages), key=lambda each: (each.uuid, each.source)):
                for row, result in self._joined(uuid or "", group):
                    yield row, result.counted(tally), result.size
                    del result

    def _messages(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Message]:
        for batch in batches:
            uuids = batch.column(batch.num_columns - _HELPERS).to_pylist()
            declared = batch.column(batch.num_columns - 1).to_pylist()
            sources = [batch.column(index).to_pylist() for index in self.columns.source]
            messages = views(batch.column(self.columns.message))
            for number, (uuid, message) in enumerate(zip(uuids, messages, strict=True)):
                source = tuple(column[number] for column in sources)
                yield _Message(Row(batch, number, tuple(batch.schema.names)), uuid, source, message, declared[number])

    def _others(self, messages: Iterator[_Message], first_chunk: list[_Message]) -> Iterator[tuple[Row, bytes | None]]:
        """Yield messages up to the first chunk, which is appended to ``first_chunk``."""
        for each in messages:
            if each.uuid is not None:
                first_chunk.append(each)
                return
            yield each.row, None if each.message is None else bytes(each.message)

    def _joined(self, uuid: str, messages: Iterator[_Message]) -> Iterator[tuple[Row, Joined]]:
        """Join one payload, unless its writer aborted it; its row is that of its first chunk."""
        cc, group = claim_check(self.reading.config), ChunkGroup(uuid, self.reading.config)
        first, destination, is_aborted = None, None, False
        for each in messages:
            destination = self.reading.origin.destination_of(each.row.batch, each.row.number)
            part = decode(each.message or b"", header=self.reading.config.header)
            if isinstance(part, Chunk):
                first = first or each.row
                group.add(part, each.declared)
            elif not is_aborted:
                is_aborted = is_genuine(cc, each.declared, uuid=uuid, destination=destination)
        if first is None:
            return
        if group.is_complete:
            yield first, joined(cc, uuid, group.pieces, group.declared, destination)
        elif group.error is not None or not is_aborted:
            yield first, Joined(uuid, error=group.error or group.incomplete())

    def output(self, group: RowGroup[Joined]) -> pa.RecordBatch:
        import pyarrow as pa

        fields = list(group.batch.schema)[:-_HELPERS]
        numbers = pa.array(group.numbers, type=pa.int64())
        pairs = zip(group.numbers, group.values, strict=True)
        messages = pa.array([n if value.uuid is None else None for n, value in pairs], type=pa.int64())
        taken = [messages if index == self.columns.message else numbers for index in range(len(fields))]
        columns = [group.batch.column(index).take(which) for index, which in enumerate(taken)]
        columns += added_columns(group.values, fields[self.columns.message].type)
        return pa.RecordBatch.from_arrays(columns, names=[*(f.name for f in fields), *_ADDED])
