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

from claimcheck._content.coder import Unpacker
from claimcheck._receive.chunk_rules import Fault, error_of, fault_of, incomplete
from claimcheck._validation import check_value
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import Abort, Chunk, decode
from claimcheck._wire.signing import Seal
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import (
    check_new,
    error_type,
    error_value,
    is_bad_message,
    with_fields,
    with_index_names,
)
from claimcheck.spark._metrics import Metrics, Tally
from claimcheck.spark._reading import MAX_INFLIGHT_BYTES, Reading, Row, RowGroup, Stage, views
from claimcheck.spark._reassemble_common import (
    ColumnIndexes,
    ExpireBy,
    Joined,
    added_columns,
    declared_claims,
    decoded,
    is_genuine,
    max_payload_bytes,
    read_header,
)
from claimcheck.spark._reassemble_stream import reassemble_stream
from claimcheck.spark._worker import AnyConfig, claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

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
    that is null for rows that did not come as chunks, and ``error``, a struct of ``type``, ``message``, ``store`` and
    ``key``. A payload in chunks gets the row of its first chunk, with a null ``column``, since no single message is the
    payload. Plain messages, literals, pointers and nulls in the same column are resolved as by
    `claimcheck.spark.resolve` and keep their rows. Bad messages become rows with an error: a damaged envelope, a
    payload that is gone or too large, chunks that conflict or are missing. A payload aborted by its writer becomes no
    row. Errors that are not specific to one row (a store that is down) fail the task.

    The checksum and the signature of a payload in chunks are in the headers of its last message, not in the chunks.
    They are checked if the DataFrame has the headers, in a column ``headers`` as of Spark's Kafka source, or in a map
    of texts ``properties``; without them, bytes changed inside a chunk after sending go unnoticed, and with
    ``signing.require`` every payload in chunks is an error. An abort envelope whose signature is missing or wrong is
    ignored.

    **On a batch** one shuffle brings all chunks of a payload together, and each partition holds one payload in memory
    at a time. Chunks that are not in the DataFrame are missing.

    **On a stream** chunks are stored in ``config.store``, and small references to them in Spark's state, until the
    payload is complete. Their names depend on the query and the content, so that a replay writes the same ones. A later
    micro-batch deletes them, when the one with the payload or its error is committed, so a replay never misses one.
    Those of a query that was stopped, or that could not be deleted, expire with their store: its lifetime must be well
    above ``chunking.expire_after_seconds``, for which the first chunk waits for the others, and which must be much
    longer than a micro-batch. Each micro-batch reads the source twice, once for the chunks and once for everything
    else. Streaming needs pyspark 4.1 and the RocksDB state store.

    Args:
        column: A binary column of messages.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`. The limits in
            ``chunking`` on one payload apply, and ``limits``; those on pending payloads do not.
        source: The columns that identify where messages came from and who sent them: text, whole numbers or binary.
            Chunks of different sources never mix, and an abort envelope applies only to its own source. ``None`` for
            those of ``topic``, ``partition`` and ``key`` that the DataFrame has, ``()`` for none.
        destination: The topic that all messages were read from, for the check of signatures. ``None`` uses the column
            ``topic`` of each row.
        expire_by: On a stream: ``clock`` uses the machine's time, which also passes while no messages arrive; in Spark
            a query with ``trigger(availableNow=True)`` then never ends. ``data`` uses the arrival of messages
            of any kind: the query ends, and leaves incomplete payloads to the next run.
        max_inflight_bytes: Bound on the bytes of the payloads or chunks that one task reads or writes at once.
        metrics: Counts the rows of the result.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns when called and reads nothing yet.

    Raises:
        ConfigError: The configuration or an option is invalid. The function raises it for columns, and on a stream for
            an unsupported version of pyspark, state store or configuration.
        MissingDependencyError: pyspark, pyarrow or pandas is missing; on a stream also protobuf.
    """
    reading = Reading.of(config, max_inflight_bytes, metrics, "null")
    check_value("expire_by", expire_by, ExpireBy)

    def transform(df: DataFrame) -> DataFrame:
        placed = reading.at(df, destination)
        check_new(df.columns, uuid="uuid", payload="payload", error="error")
        columns = ColumnIndexes.find(df, column, source)
        placed = replace(placed, origin=replace(placed.origin, headers=columns.headers))
        named, schema = with_index_names(df), _schema(df, columns)
        if df.isStreaming:
            return reassemble_stream(named, columns, placed, expire_by, schema)
        return _reassemble_batch(named, columns, placed, schema)

    return transform


def _schema(df: DataFrame, columns: ColumnIndexes) -> StructType:
    """Return the columns of the input, with nullable messages, and those that are added."""
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


class BatchAssembler:
    """Joins the chunks of one payload, which are added in order."""

    def __init__(
        self,
        uuid: str,
        config: Config,
        *,
        max_bytes: int,
        unpacker: Unpacker | None = None,
        seal: Seal | None = None,
        destination: str | None = None,
    ) -> None:
        self._uuid = uuid
        self._unpacker = unpacker or Unpacker(header=config.header, limit=max_bytes)
        self._seal, self._destination = seal or Seal(config), destination
        self._header, self._max_chunks, self._max_bytes = config.header, config.chunks.max_chunks, max_bytes
        self._positions: list[int] = []
        self._count = self._size = 0
        self._last = memoryview(b"")
        self._aborted = False
        self._declared: str | None = None
        self.pieces: list[Buffer] = []
        self.error: ClaimCheckError | None = None

    @property
    def aborted(self) -> bool:
        """Whether the writer aborted the payload before it was complete: not an error, but no payload either."""
        return self._aborted and self.error is None and len(self._positions) < max(self._count, 1)

    def add(self, message: memoryview, declared: str | None = None) -> bool:
        """Add the next message and what its headers declare; returns whether it is a chunk."""
        try:
            envelope = decode(message, header=self._header)
        except ClaimCheckError as error:
            self._fail(error)
            return True
        if isinstance(envelope, Abort):
            if is_genuine(self._seal, declared, uuid=self._uuid, destination=self._destination):
                self._aborted = True
        elif isinstance(envelope, Chunk) and self.error is None:
            self._declared = self._declared or declared
            self._add(envelope)
        return not isinstance(envelope, Abort)

    def finish(self) -> None:
        """End the payload: chunks that are still missing are an error."""
        if self.error is not None:
            return
        if len(self._positions) < self._count:
            why = "the others are not in this DataFrame, or were never sent"
            self._fail(error_of(incomplete(self._uuid, self._positions, self._count, why)))
            return
        payload = decoded(
            self._seal, self._unpacker, self._declared, self.pieces, uuid=self._uuid, destination=self._destination
        )
        if isinstance(payload, ClaimCheckError):
            self._fail(payload)
        else:
            self.pieces = payload

    def _add(self, chunk: Chunk) -> None:
        self._count = self._count or chunk.count
        same: bool | None = None
        if self._positions and self._positions[-1] == chunk.position:
            same = bytes(self._last) == bytes(chunk.piece)  # comparing views is ten times slower
        size = self._size + (len(chunk.piece) if same is None else 0)
        if (fault := self._fault(chunk, size, same)) is not None:
            self._fail(error_of(fault))
        elif same is None:
            self._positions.append(chunk.position)
            self._last, self._size = chunk.piece, size
            if chunk.position == len(self._positions) - 1:
                self.pieces.append(chunk.piece)
            else:  # a chunk is missing, so the payload cannot become complete
                self.pieces = []

    def _fault(self, chunk: Chunk, size: int, same: bool | None) -> Fault | None:
        return fault_of(
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

    def _fail(self, error: ClaimCheckError) -> None:
        self.error, self.pieces, self._last = error, [], memoryview(b"")


class _Message(NamedTuple):
    """A row, with the uuid of its payload if it is a chunk or an abort envelope."""

    row: Row
    uuid: str | None
    source: tuple[Hashable, ...]
    message: memoryview | None
    declared: str | None


@dataclass(frozen=True, slots=True)
class _ReassembleStage(Stage[Joined]):
    """Joins the payloads of one partition, and resolves its other messages."""

    reading: Reading
    columns: ColumnIndexes

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, Joined, int]]:
        messages = self._messages(batches)
        first_chunk = list[_Message]()
        with closing(self._resolved(messages, first_chunk)) as resolved:
            yield from resolved
        with closing(Tally(self.reading.metrics)) as tally:
            for _, chunks in groupby(chain(first_chunk, messages), key=lambda each: (each.uuid, each.source)):
                found = self._joined(chunks)
                if found is not None:
                    found[1].counted(tally)
                    yield found
                    del found

    def _messages(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Message]:
        for batch in batches:
            uuids = batch.column(batch.num_columns - _HELPERS).to_pylist()
            declared = batch.column(batch.num_columns - 1).to_pylist()
            sources = [batch.column(index).to_pylist() for index in self.columns.source]
            messages = views(batch.column(self.columns.message))
            for number, (uuid, message) in enumerate(zip(uuids, messages, strict=True)):
                source = tuple(column[number] for column in sources)
                yield _Message(Row(batch, number), uuid, source, message, declared[number])

    def _resolved(
        self, messages: Iterator[_Message], first_chunk: list[_Message]
    ) -> Generator[tuple[Row, Joined, int]]:
        """Resolve messages up to the first chunk, which is appended to ``first_chunk``."""

        def plain() -> Iterator[tuple[Row, bytes | None]]:
            for each in messages:
                if each.uuid is not None:
                    first_chunk.append(each)
                    return
                yield each.row, None if each.message is None else bytes(each.message)

        with closing(self.reading.rows(plain())) as rows:
            for row, message, outcome in rows:
                size = len(message or b"")
                if isinstance(outcome, ClaimCheckError):
                    if not is_bad_message(outcome, self.reading.config):
                        raise outcome
                    yield row, Joined(None, None, error_value(outcome)), size
                elif isinstance(outcome, bytes):
                    yield row, Joined(None, [outcome], None), size + len(outcome)
                else:
                    yield row, Joined(None, None, None), size
                del outcome

    def _joined(self, messages: Iterator[_Message]) -> tuple[Row, Joined, int] | None:
        """Join one payload; its row is that of its first chunk."""
        payload, first, reading = None, None, self.reading
        cc = claim_check(reading.config)
        for each in messages:
            payload = payload or BatchAssembler(
                str(each.uuid),
                reading.config,
                max_bytes=max_payload_bytes(reading.config),
                unpacker=cc.opened.unpacker,
                seal=cc.opened.seal,
                destination=reading.origin.destination_of(each.row.batch, each.row.number),
            )
            is_chunk = payload.add(each.message or memoryview(b""), each.declared)
            first = first or (each if is_chunk else None)
        if payload is None or first is None or payload.aborted:
            return None
        payload.finish()
        error = None if payload.error is None else error_value(payload.error)
        joined = Joined(first.uuid, None if error else payload.pieces, error)
        return first.row, joined, sum(map(len, payload.pieces))

    def output(self, group: RowGroup[Joined]) -> pa.RecordBatch:
        import pyarrow as pa

        fields = list(group.batch.schema)[:-_HELPERS]
        numbers = pa.array(group.numbers, type=pa.int64())
        pairs = zip(group.numbers, group.values, strict=True)
        messages = pa.array([n if value.uuid is None else None for n, value in pairs], type=pa.int64())
        taken = [messages if index == self.columns.message else numbers for index in range(len(fields))]
        columns = [group.batch.column(index).take(which) for index, which in enumerate(taken)]
        columns += added_columns(group.values, fields[self.columns.message].type)
        return pa.RecordBatch.from_arrays(columns, names=[*(f.name for f in fields), "uuid", "payload", "error"])
