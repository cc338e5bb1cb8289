"""`reassemble` on a batch: a shuffle brings the chunks of a payload together, in order; tasks hold one payload each."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

from claimcheck._content import Unpacker
from claimcheck._envelope import Abort, Buffer, Chunk, decode
from claimcheck._signing import Seal
from claimcheck.config import Config
from claimcheck.errors import (
    ChunkConflictError,
    ClaimCheckError,
    IncompletePayloadError,
    PayloadTooLargeError,
)
from claimcheck.spark._columns import error_value
from claimcheck.spark._fetching import is_bad_message
from claimcheck.spark._metrics import Tally
from claimcheck.spark._reassemble_chunks import (
    conflict_text,
    declared_claims,
    incomplete_text,
    read_header,
    too_large_text,
)
from claimcheck.spark._reassemble_common import (
    ColumnIndexes,
    Options,
    OutputRow,
    added_columns,
    count,
    cut,
    decoded,
    is_genuine,
)
from claimcheck.spark._rows import Row, views
from claimcheck.spark._worker import claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_UUID, _POSITION, _DECLARED = "uuid", "position", "declared"
_HELPERS = 3  # these columns follow those of the input
_HASHED = ("string", "binary", "tinyint", "smallint", "int", "bigint", "timestamp", "timestamp_ntz", "date", "double")


def reassemble_batch(df: DataFrame, columns: ColumnIndexes, options: Options, schema: StructType) -> DataFrame:
    """Join the chunks of a batch whose column names need no quotes; returns a DataFrame with this schema."""
    names = df.columns
    header = read_header(df[names[columns.message]], options.config.header)
    declared = declared_claims(df, columns.headers).alias(_DECLARED)
    parsed = df.select("*", header.uuid.alias(_UUID), header.position.alias(_POSITION), declared)
    source = [names[index] for index in columns.source]
    sorted_rows = parsed.repartition(_partition_key(parsed, source)).sortWithinPartitions(_UUID, *source, _POSITION)
    return sorted_rows.mapInArrow(_ReassembleStage(options, columns), schema)


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
        self._count = 0
        self._last: memoryview | None = None
        self._aborted = False
        self._declared: str | None = None
        self.pieces: list[Buffer] = []
        self.size = 0
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
        seen = len(self._positions)
        if seen < self._count:
            why = "the others are not in this DataFrame, or were never sent"
            text = incomplete_text(self._uuid, self._positions, self._count, why)
            self._fail(IncompletePayloadError(text, uuid=self._uuid, seen=seen, total=self._count))
            return
        payload = decoded(
            self._seal, self._unpacker, self._declared, self.pieces, uuid=self._uuid, destination=self._destination
        )
        if isinstance(payload, ClaimCheckError):
            self._fail(payload)
        else:
            self.pieces, self.size = payload, sum(map(len, payload))

    def _add(self, chunk: Chunk) -> None:
        self._count = self._count or chunk.count
        if chunk.count != self._count:
            self._conflict(chunk, f"declares {chunk.count} chunks, but an earlier one {self._count}")
        elif chunk.count > self._max_chunks:
            self._too_large(chunk.count, self._max_chunks, "chunks (chunking.max_chunks)")
        elif self._positions and self._positions[-1] == chunk.position:
            if self._last is None or bytes(self._last) != bytes(chunk.piece):  # comparing views is ten times slower
                self._conflict(chunk, "arrived twice with different bytes")
        else:
            self._keep(chunk)

    def _keep(self, chunk: Chunk) -> None:
        self._positions.append(chunk.position)
        self._last = chunk.piece
        self.size += len(chunk.piece)
        if self.size > self._max_bytes:
            self._too_large(self.size, self._max_bytes, "bytes or more (chunking.max_payload_bytes)")
        elif chunk.position == len(self._positions) - 1:
            self.pieces.append(chunk.piece)
        else:  # a chunk is missing, so the payload cannot become complete
            self.pieces = []

    def _conflict(self, chunk: Chunk, why: str) -> None:
        text, seen = conflict_text(self._uuid, chunk.position, why), len(self._positions)
        self._fail(ChunkConflictError(text, uuid=self._uuid, position=chunk.position, seen=seen, total=self._count))

    def _too_large(self, size: int, limit: int, what: str) -> None:
        self._fail(PayloadTooLargeError(too_large_text(self._uuid, size, limit, what), size=size, limit=limit))

    def _fail(self, error: ClaimCheckError) -> None:
        self.error, self.pieces, self._last = error, [], None


class _Message(NamedTuple):
    """A row, with the uuid of its payload if it is a chunk or an abort envelope."""

    row: Row
    uuid: str | None
    source: tuple[Hashable, ...]
    message: memoryview | None
    declared: str | None


@dataclass(frozen=True, slots=True)
class _ReassembleStage:
    """Pickled and sent to the workers, where it is called once per partition."""

    options: Options
    columns: ColumnIndexes

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self._output_rows(batches)) as rows:
            # not a loop, whose variable would keep the payloads alive
            yield from map(self._output, cut(rows, max_bytes=self.options.reading.out_batch_bytes))

    def _output_rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[OutputRow]:
        """Messages that are not chunks come first: they have no uuid, and nulls sort first."""
        messages = self._messages(batches)
        first_chunk = list[_Message]()
        with closing(self._resolved(messages, first_chunk)) as resolved:
            yield from resolved
        with closing(Tally(self.options.reading.metrics)) as tally:
            for _, chunks in groupby(chain(first_chunk, messages), key=lambda each: (each.uuid, each.source)):
                row = self._joined(chunks)
                if row is not None:
                    count(tally, row)
                    yield row
                    del row

    def _messages(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Message]:
        for batch in batches:
            uuids = batch.column(batch.num_columns - _HELPERS).to_pylist()
            declared = batch.column(batch.num_columns - 1).to_pylist()
            sources = [batch.column(index).to_pylist() for index in self.columns.source]
            messages = views(batch.column(self.columns.message))
            for number, (uuid, message) in enumerate(zip(uuids, messages, strict=True)):
                source = tuple(column[number] for column in sources)
                yield _Message(Row(batch, number), uuid, source, message, declared[number])

    def _resolved(self, messages: Iterator[_Message], first_chunk: list[_Message]) -> Generator[OutputRow]:
        """Resolve messages up to the first chunk, which is appended to ``first_chunk``."""

        def plain() -> Iterator[tuple[Row, bytes | None]]:
            for each in messages:
                if each.uuid is not None:
                    first_chunk.append(each)
                    return
                yield each.row, None if each.message is None else bytes(each.message)

        config = self.options.config
        with closing(self.options.reading.rows(plain())) as rows:
            for row, message, outcome in rows:
                size, error, pieces = len(message or b""), None, None
                if isinstance(outcome, ClaimCheckError):
                    if not is_bad_message(outcome, config):
                        raise outcome
                    error = error_value(outcome)
                elif isinstance(outcome, bytes):
                    size, pieces = size + len(outcome), [outcome]
                yield OutputRow(row.batch, row.number, True, None, pieces, error, size)

    def _joined(self, messages: Iterator[_Message]) -> OutputRow | None:
        """Join one payload; its row is that of its first chunk."""
        payload, first, reading = None, None, self.options.reading
        cc = claim_check(reading.config)
        for each in messages:
            payload = payload or BatchAssembler(
                str(each.uuid),
                reading.config,
                max_bytes=self.options.max_payload_bytes,
                unpacker=cc._current().unpacker,
                seal=cc._current().seal,
                destination=reading.origin.destination_of(each.row.batch, each.row.number),
            )
            is_chunk = payload.add(each.message or memoryview(b""), each.declared)
            first = first or (each if is_chunk else None)
        if payload is None or first is None or payload.aborted:
            return None
        payload.finish()
        error = None if payload.error is None else error_value(payload.error)
        pieces = None if error else payload.pieces
        return OutputRow(first.row.batch, first.row.number, False, first.uuid, pieces, error, payload.size)

    def _output(self, rows: list[OutputRow]) -> pa.RecordBatch:
        import pyarrow as pa

        kept = pa.Table.from_batches(list(self._kept(rows))).combine_chunks()
        columns = [column.chunk(0) for column in kept.columns]
        columns += added_columns(rows, columns[self.columns.message].type)
        return pa.RecordBatch.from_arrays(columns, names=[*kept.column_names, "uuid", "payload", "error"])

    def _kept(self, rows: list[OutputRow]) -> Iterator[pa.RecordBatch]:
        """Yield the input columns of rows, without the messages of payloads in chunks."""
        import pyarrow as pa

        for _, run in groupby(rows, key=lambda row: id(row.batch)):
            same = list(run)
            batch, fields = same[0].batch, list(same[0].batch.schema)[:-_HELPERS]
            numbers = pa.array([row.number for row in same], type=pa.int64())
            messages = pa.array([row.number if row.keeps_message else None for row in same], type=pa.int64())
            taken = [messages if index == self.columns.message else numbers for index in range(len(fields))]
            kept = [batch.column(index).take(which) for index, which in enumerate(taken)]
            yield pa.RecordBatch.from_arrays(kept, names=[each.name for each in fields])
