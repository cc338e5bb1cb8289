"""On a batch: the chunks of a payload meet in one partition, in their order, and one payload is held at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark.columns import MAX_COLUMN_BYTES
from claimcheck.spark.core import Outcome, is_bad_message, weight
from claimcheck.spark.metrics import Tally
from claimcheck.spark.reassembly.arrays import Done, added_columns, count, cut, error_of
from claimcheck.spark.reassembly.group import Group
from claimcheck.spark.reassembly.heads import declared_of, head_of
from claimcheck.spark.reassembly.options import Options, Places
from claimcheck.spark.row import Row
from claimcheck.spark.rows import RowByRow
from claimcheck.spark.values import views
from claimcheck.spark.worker import claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["reassembled"]

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
