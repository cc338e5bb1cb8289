"""On a batch: the chunks of a payload meet in one partition, in their order, and one payload is held at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck._envelope import Abort, Buffer, Chunk, decode
from claimcheck.config import Config
from claimcheck.errors import (
    ChunkConflictError,
    ClaimCheckError,
    IncompletePayloadError,
    PayloadTooLargeError,
)
from claimcheck.spark._columns import MAX_COLUMN_BYTES
from claimcheck.spark._fetching import Outcome, is_bad_message, weight
from claimcheck.spark._metrics import Tally
from claimcheck.spark._reassemble import error_texts
from claimcheck.spark._reassemble.arrow_output import Done, added_columns, count, cut, error_of
from claimcheck.spark._reassemble.chunk_heads import contradiction, declared_of, head_of
from claimcheck.spark._reassemble.options import Options, Places
from claimcheck.spark._rows import Row, RowByRow, views
from claimcheck.spark._worker import claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = [
    "Group",
    "reassembled",
]


class Group:
    """The chunks of one payload.

    What is held is bounded by the payload's limits, whatever the chunks declare; of a payload that cannot become whole
    nothing is held but the numbers of its chunks.

    Args:
        uuid: The payload's.
        config: Its limits on payloads in chunks hold.
        max_bytes: The payload may have.
    """

    def __init__(self, uuid: str, config: Config, *, max_bytes: int) -> None:
        self._uuid = uuid
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
    def given_up(self) -> bool:
        """Whether its writer gave it up before it was whole: it is no payload, and nothing is missed."""
        return self._aborted and self.error is None and len(self._positions) < max(self._count, 1)

    def add(self, message: memoryview, declared: str | None = None) -> bool:
        """Take the next message, and the checksum that its headers declare; gives whether it was a chunk."""
        try:
            envelope = decode(message, header=self._header)
        except ClaimCheckError as error:
            self._fail(error)
            return True
        if isinstance(envelope, Abort):
            self._aborted = True
        elif isinstance(envelope, Chunk) and self.error is None:
            self._declared = self._declared or declared
            self._add(envelope)
        return not isinstance(envelope, Abort)

    def finish(self) -> None:
        """Say that there are no more: what is missing now is an error."""
        if self.error is None and len(self._positions) < self._count:
            text = error_texts.incomplete(
                self._uuid, self._positions, self._count, "the others are not in this DataFrame, or were never sent"
            )
            seen = len(self._positions)
            self._fail(IncompletePayloadError(text, uuid=self._uuid, seen=seen, total=self._count))
        elif self.error is None and (wrong := contradiction(self._declared, self.pieces)) is not None:
            self._fail(wrong)

    def _add(self, chunk: Chunk) -> None:
        self._count = self._count or chunk.count
        if chunk.count != self._count:
            self._conflict(chunk, f"says {chunk.count} chunks, an earlier one {self._count}")
        elif chunk.count > self._max_chunks:
            self._too_large(chunk.count, self._max_chunks, "chunks (chunking.max_chunks)")
        elif self._positions and self._positions[-1] == chunk.position:
            if self._last is None or bytes(self._last) != bytes(chunk.piece):  # of views, comparing is ten times slower
                self._conflict(chunk, "came twice with different bytes")
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
        else:  # one is missing: it cannot become whole
            self.pieces = []

    def _conflict(self, chunk: Chunk, why: str) -> None:
        text = error_texts.conflicting(self._uuid, chunk.position, why)
        seen = len(self._positions)
        self._fail(ChunkConflictError(text, uuid=self._uuid, position=chunk.position, seen=seen, total=self._count))

    def _too_large(self, size: int, limit: int, what: str) -> None:
        self._fail(PayloadTooLargeError(error_texts.too_large(self._uuid, size, limit, what), size=size, limit=limit))

    def _fail(self, error: ClaimCheckError) -> None:
        self.error, self.pieces, self._last = error, [], None


_UUID, _POSITION, _DECLARED = "uuid", "position", "declared"
_HELPERS = 3  # these, behind the columns that came
_HASHED = ("string", "binary", "tinyint", "smallint", "int", "bigint", "timestamp", "timestamp_ntz", "date", "double")


def reassembled(df: DataFrame, places: Places, options: Options, schema: StructType) -> DataFrame:
    """Put the chunks of a batch together.

    Args:
        df: With columns of names that stand for themselves.
        places: Of the messages and their sources.
        options: See `claimcheck.spark.reassemble`.
        schema: Of the result.
    """
    names = df.columns
    head = head_of(df[names[places.value]], options.config.header)
    declared = declared_of(df, places.headers).alias(_DECLARED)
    known = df.select("*", head.uuid.alias(_UUID), head.position.alias(_POSITION), declared)
    source = [names[index] for index in places.source]
    together = known.repartition(_meeting(known, source)).sortWithinPartitions(_UUID, *source, _POSITION)
    return together.mapInArrow(_Stage(options, places), schema)


def _meeting(df: DataFrame, source: list[str]) -> Column:
    """What decides on a row's partition: chunks meet, other rows spread, and the same way when a task runs again."""
    from pyspark.sql import functions as F  # noqa: N812

    hashed = [name for name, kind in df.dtypes if kind in _HASHED]
    return F.when(df[_UUID].isNotNull(), F.xxhash64(_UUID, *source)).otherwise(F.xxhash64(*hashed))


class _Row(NamedTuple):
    """A row, and which payload it is a part of, if it is."""

    batch: pa.RecordBatch
    number: int
    uuid: str | None
    source: tuple[Any, ...]
    message: memoryview | None
    declared: str | None


@dataclass(frozen=True, slots=True)
class _Stage:
    """What goes to the workers: a value that pickles and opens nothing; called once per partition."""

    options: Options
    places: Places

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self._done(batches)) as done:
            for rows in cut(done, max_bytes=self.options.out_batch_bytes):
                yield self._output(rows)

    def _done(self, batches: Iterable[pa.RecordBatch]) -> Generator[Done]:
        """Messages first: they have no uuid, and nulls sort before all else."""
        rows = self._rows(batches)
        chunks = list[_Row]()
        with closing(self._messages(rows, chunks)) as messages:
            yield from messages
        with closing(Tally(self.options.metrics)) as tally:
            for _, group in groupby(chain(chunks, rows), key=lambda row: (row.uuid, row.source)):
                done = self._payload(group)
                if done is not None:
                    count(tally, done)
                    yield done

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
        for batch in batches:
            uuids = batch.column(batch.num_columns - _HELPERS).to_pylist()
            declared = batch.column(batch.num_columns - 1).to_pylist()
            sources = [batch.column(index).to_pylist() for index in self.places.source]
            messages = views(batch.column(self.places.value))
            for number, (uuid, message) in enumerate(zip(uuids, messages, strict=True)):
                source = tuple(column[number] for column in sources)
                yield _Row(batch, number, uuid, source, message, declared[number])

    def _messages(self, rows: Iterator[_Row], chunks: list[_Row]) -> Generator[Done]:
        """Resolve rows up to the first chunk, which is put into ``chunks``."""

        def messages() -> Iterator[tuple[Row, bytes | None]]:
            for row in rows:
                if row.uuid is not None:
                    chunks.append(row)
                    return
                yield Row(row.batch, row.number), None if row.message is None else bytes(row.message)

        cc = RowByRow(claim_check(self.options.config), max_bytes=MAX_COLUMN_BYTES)
        with closing(self.options.reading.rows(messages(), cc)) as resolved:
            for row, message, outcome in resolved:
                yield _done(row, len(message or b""), outcome, self.options.config)

    def _payload(self, rows: Iterator[_Row]) -> Done | None:
        """Put one payload together; its row is that of its lowest chunk."""
        group, first = None, None
        for row in rows:
            group = group or Group(str(row.uuid), self.options.config, max_bytes=self.options.max_payload_bytes)
            is_chunk = group.add(row.message or memoryview(b""), row.declared)
            first = first or (row if is_chunk else None)
        if group is None or first is None or group.given_up:
            return None
        group.finish()
        pieces = group.pieces if group.error is None else None
        return Done(first.batch, first.number, False, first.uuid, pieces, error_of(group.error), group.size)

    def _output(self, rows: list[Done]) -> pa.RecordBatch:
        import pyarrow as pa

        kept = pa.Table.from_batches(list(self._kept(rows))).combine_chunks()
        columns = [column.chunk(0) for column in kept.columns]
        columns += added_columns(rows, columns[self.places.value].type)
        return pa.RecordBatch.from_arrays(columns, names=[*kept.column_names, "uuid", "payload", "error"])

    def _kept(self, rows: list[Done]) -> Iterator[pa.RecordBatch]:
        """The columns as they came, without the messages of which no single one is the payload."""
        import pyarrow as pa

        for _, run in groupby(rows, key=lambda row: id(row.batch)):
            same = list(run)
            batch, fields = same[0].batch, list(same[0].batch.schema)[:-_HELPERS]
            numbers = pa.array([row.number for row in same], type=pa.int64())
            messages = pa.array([row.number if row.keeps_message else None for row in same], type=pa.int64())
            taken = [messages if index == self.places.value else numbers for index in range(len(fields))]
            kept = [batch.column(index).take(which) for index, which in enumerate(taken)]
            yield pa.RecordBatch.from_arrays(kept, names=[each.name for each in fields])


def _done(row: Row, size: int, outcome: Outcome, config: Config) -> Done:
    if isinstance(outcome, ClaimCheckError):
        if not is_bad_message(outcome, config):
            raise outcome
        return Done(row.batch, row.number, True, None, None, error_of(outcome), size)
    pieces = None if outcome is None else [outcome]
    return Done(row.batch, row.number, True, None, pieces, None, size + weight(outcome))
