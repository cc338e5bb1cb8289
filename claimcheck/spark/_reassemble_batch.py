"""`reassemble` on a batch: a shuffle brings the chunks of a payload together, in order; tasks hold one payload each."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

from claimcheck._content.coder import Unpacker
from claimcheck._receive.chunk_rules import Fault, error_of, fault_of, incomplete
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import Abort, Chunk, decode
from claimcheck._wire.signing import Seal
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import error_value
from claimcheck.spark._fetching import is_bad_message
from claimcheck.spark._metrics import Tally
from claimcheck.spark._reading import Reading, Row, RowGroup, Stage, views
from claimcheck.spark._reassemble_common import (
    ColumnIndexes,
    Joined,
    Options,
    added_columns,
    declared_claims,
    decoded,
    is_genuine,
    read_header,
)
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
    uuid, position = read_header(df[names[columns.message]], options.config.header)
    declared = declared_claims(df, columns.headers).alias(_DECLARED)
    parsed = df.select("*", uuid.alias(_UUID), position.alias(_POSITION), declared)
    source = [names[index] for index in columns.source]
    sorted_rows = parsed.repartition(_partition_key(parsed, source)).sortWithinPartitions(_UUID, *source, _POSITION)
    return sorted_rows.mapInArrow(_ReassembleStage(options.reading, options, columns), schema)


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
    options: Options
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
                max_bytes=self.options.max_payload_bytes,
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
