"""`reassemble` on a stream: chunks are stored, and Spark's state holds small references until a payload is complete.

`_stored` writes every chunk to the store and passes on a small row with a reference: a message that resolves to the
chunk's piece, either a pointer envelope or, for a piece no larger than a pointer, a literal. When Spark reruns a task,
or replays a micro-batch after the driver died, the chunks are written again. `claimcheck.spark._reassemble_state`
tracks the chunks, and `_FetchStage` reads those of complete payloads. Stored chunks stay until they expire, so that a
replay of any micro-batch finds them.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import claimcheck._receive.chunk_rules as chunk_rules
from claimcheck._client import ClaimCheck
from claimcheck._store.store import Store
from claimcheck._validation import fail
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import Abort, Chunk, decode, encode_literal
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError, import_vendor
from claimcheck.spark._columns import Origin, check_reached, is_bad_message, map_rows, older_pyspark
from claimcheck.spark._metrics import Tally
from claimcheck.spark._reading import (
    Outcome,
    Reading,
    ResolveStage,
    Row,
    RowGroup,
    Stage,
    outcome_of,
    views,
    with_results,
)
from claimcheck.spark._reassemble_common import (
    ABORT,
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
from claimcheck.spark._worker import Job, claim_check, query_id, same

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_BEHIND_SECONDS = 3600  # how far a driver's clock may be set back without chunks counting as late
_TIME = "_claimcheck_time"
_INLINE_BYTES = 512
_DIGEST_BYTES = 16
_REMEMBER_SECONDS = 3600  # how long late duplicates of a payload that has ended are recognized


def reassemble_stream(
    df: DataFrame, columns: ColumnIndexes, reading: Reading, expire_by: ExpireBy, schema: StructType
) -> DataFrame:
    """Join the chunks of a stream whose column names need no quotes; returns a DataFrame with this schema."""
    _check(df, reading.config)
    is_chunk = read_header(df[df.columns[columns.message]], reading.config.header)[0].isNotNull()
    only_chunks = _timed_chunks(df, is_chunk) if expire_by == "data" else df.filter(is_chunk)
    chunks = _chunks(only_chunks, columns, reading, expire_by, schema)
    return _messages(df.filter(~is_chunk), columns, reading).union(chunks).toDF(*schema.names)


def _check(df: DataFrame, config: Config) -> None:
    if version := older_pyspark((4, 1)):
        expected = "4.1 or newer for reassemble on a stream; a batch, as in foreachBatch, works with older versions"
        fail("pyspark", found=f"version {version}", expected=expected)
    import_vendor("google.protobuf", extra="spark")
    provider = df.sparkSession.conf.get(_PROVIDER)
    if "RocksDB" not in str(provider):
        fail(_PROVIDER, found=repr(provider), expected=f'spark.conf.set("{_PROVIDER}", "{_ROCKSDB}")')
    if config.store is None:
        expected = "the store for the chunks of a stream until their payload is complete, which every executor reaches"
        fail("store", found="none", expected=expected)
    check_reached(config)


def _messages(df: DataFrame, columns: ColumnIndexes, reading: Reading) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - the usual alias
    from pyspark.sql.types import BinaryType

    stage = ResolveStage(reading, columns.message, tuple(df.columns))
    resolved = with_results(df, stage, {"payload": BinaryType()})
    return resolved.select(*df.columns, F.lit(None).cast("string").alias("uuid"), "payload", "error")


def _timed_chunks(df: DataFrame, is_chunk: Column) -> DataFrame:
    """Return the chunks, with a watermark that every message moves, and not only chunks."""
    from pyspark.sql import functions as F  # noqa: N812

    timed = df.withColumn(_TIME, F.current_timestamp()).withWatermark(_TIME, f"{_BEHIND_SECONDS} seconds")
    return timed.filter(is_chunk | (timed[_TIME] == F.timestamp_seconds(F.lit(0)))).drop(_TIME)


def _chunks(
    df: DataFrame, columns: ColumnIndexes, reading: Reading, expire_by: ExpireBy, schema: StructType
) -> DataFrame:
    from pyspark import cloudpickle
    from pyspark.sql import functions as F  # noqa: N812

    state = importlib.import_module("claimcheck.spark._reassemble_state")  # imports pyspark 4
    for module in (state, chunk_rules):  # see there
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    config = reading.config
    limits = state.Limits(
        max_chunks=config.chunks.max_chunks,
        max_bytes=max_payload_bytes(config),
        expire_ms=int(config.chunks.expire_after_seconds * 1000),
        remember_ms=_REMEMBER_SECONDS * 1000,
        behind_ms=_BEHIND_SECONDS * 1000 if expire_by == "data" else 0,
    )
    now = F.current_timestamp()  # of the micro-batch, the same when it is replayed
    declared = df.select("*", declared_claims(df, columns.headers).alias("declared"))
    stored = map_rows(declared, partial(_stored, reading, columns), _STORED)
    arrived = stored.withColumn("arrived", F.unix_millis(now))
    tracked = arrived.groupBy("key").transformWithState(
        statefulProcessor=state.Reassembler(limits),
        outputStructType=state.OUTPUT,
        outputMode="Append",
        timeMode="EventTime" if expire_by == "data" else "ProcessingTime",
    )
    names = (*df.columns, "uuid", "payload", "error")
    return tracked.mapInArrow(_FetchStage(reading, columns, names), schema)


# Storing chunks --------------------------------------------------------------------------------------------------


class _ChunkRow(NamedTuple):
    """A row for a chunk or an abort envelope; ``row`` has the other input columns."""

    key: str
    position: int
    total: int
    size: int
    digest: bytes
    reference: bytes | None
    row: bytes
    declared: str | None


_STORED = (
    "key string, position int, total int, size bigint, digest binary, reference binary, row binary, declared string"
)


def _stored(reading: Reading, columns: ColumnIndexes, batches: Iterable[pa.RecordBatch]) -> Iterator[_ChunkRow]:
    """Store the chunks of one partition; what their headers declare is the last column."""
    jobs = _ChunkWriter(reading, columns).jobs(batches)
    with closing(reading.run(jobs, Tally(None), "write")) as stored:
        yield from (row for _, row in stored)


class _ChunkWriter:
    """Stores the chunks of a task."""

    def __init__(self, reading: Reading, columns: ColumnIndexes) -> None:
        config = reading.config
        self._columns, self._origin, self._header = columns, reading.origin, config.header
        self._cc, self._query = claim_check(config), query_id()
        self._store = _store(self._cc)
        self._max_chunks, self._max_bytes = config.chunks.max_chunks, max_payload_bytes(config)

    def jobs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Job[None, _ChunkRow]]:
        """Yield the jobs that store chunks, and complete their rows."""
        for batch in batches:
            *inputs, last = range(batch.num_columns)
            kept = batch.select([index for index in inputs if index != self._columns.message])
            declared = batch.column(last).to_pylist()
            sources = [batch.column(index).to_pylist() for index in self._columns.source]
            for number, value in enumerate(views(batch.column(self._columns.message))):
                part, claims = decode(value or b"", header=self._header), declared[number]
                if isinstance(part, Chunk):
                    place = part.position, part.count, len(part.piece)
                elif isinstance(part, Abort):
                    destination = self._origin.destination_of(batch, number)
                    if not is_genuine(self._cc, claims, uuid=part.uuid, destination=destination):
                        continue
                    place = ABORT, 0, 0
                else:
                    continue
                key = _key([column[number] for column in sources], part.uuid)
                yield self._job(_ChunkRow(key, *place, b"", None, _packed(kept.slice(number, 1)), claims), part)

    def _job(self, row: _ChunkRow, part: Chunk | Abort) -> Job[None, _ChunkRow]:
        if isinstance(part, Abort) or row.total > self._max_chunks or row.size > self._max_bytes:
            return Job(None, partial(same, row))  # the stateful operator rejects payloads over a limit
        return Job(None, partial(self._write, row, part), row.size, waits=row.size > _INLINE_BYTES)

    def _write(self, row: _ChunkRow, chunk: Chunk) -> _ChunkRow:
        place = json.dumps([self._query, row.key, chunk.position, chunk.count]).encode()
        hashed = hashlib.blake2b(b"%d %b" % (len(place), place), digest_size=_DIGEST_BYTES)
        hashed.update(chunk.piece)
        if row.size <= _INLINE_BYTES:
            reference = encode_literal(chunk.piece, header=self._header)
        else:
            reference = self._cc.seal(self._store.write(chunk.piece, destination=f"chunk-{chunk.uuid}"))
        return row._replace(digest=hashed.digest(), reference=reference)


def _store(cc: ClaimCheck) -> Store:
    store, seconds = cc.store(cc.config.store or ""), cc.config.chunks.expire_after_seconds
    if store.ttl_seconds is None or store.ttl_seconds <= seconds:
        found = "nothing" if store.ttl_seconds is None else f"{store.ttl_seconds:g}"
        expected = f"well above expire_after_seconds ({seconds:g}): chunks wait there, and stay until they expire"
        fail(f"stores.{cc.config.store}.ttl_seconds", found=found, expected=expected)
    return store


def _key(source: list[object], uuid: str) -> str:
    return json.dumps([value.hex() if isinstance(value, bytes) else value for value in source] + [uuid])


def _packed(row: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_batch(row)
    return sink.getvalue()


# Joining payloads ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _FetchedPayload:
    """A payload whose pieces are being fetched, and the row of its first chunk."""

    place: Row
    uuid: str
    row: pa.RecordBatch
    declared: str | None
    waiting: int
    error: ClaimCheckError | None
    pieces: list[Buffer] = field(default_factory=list)

    def add(self, outcome: Outcome, config: Config) -> None:
        self.waiting -= 1
        if isinstance(outcome, ClaimCheckError):
            if not is_bad_message(outcome, config):
                raise outcome
            self.error, self.pieces = self.error or outcome, []
        elif self.error is None and isinstance(outcome, bytes):
            self.pieces.append(outcome)

    def finish(self, cc: ClaimCheck, origin: Origin) -> Joined:
        pieces, self.pieces = self.pieces, []
        if self.error is not None:
            return Joined(self.uuid, None, self.error, self.row)
        destination = origin.destination_of(self.row, 0)
        return joined(cc, self.uuid, pieces, self.declared, destination, self.row)


@dataclass(frozen=True, slots=True)
class _FetchStage(Stage[Joined]):
    """Joins the payloads of one partition of the stateful operator's output."""

    columns: ColumnIndexes
    names: tuple[str, ...]

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, Joined, int]]:
        reading, tally, cc = self.reading, Tally(self.reading.metrics), claim_check(self.reading.config)
        origin = reading.origin.without_column(self.columns.message)
        with closing(reading.run(self._jobs(batches, cc), tally)) as results:
            for payload, outcome in results:
                payload.add(outcome, reading.config)
                del outcome
                if payload.waiting == 0:
                    result = payload.finish(cc, origin).counted(tally, store=reading.config.store)
                    yield payload.place, result, result.size
                    del result, payload

    def _jobs(self, batches: Iterable[pa.RecordBatch], cc: ClaimCheck) -> Iterator[Job[_FetchedPayload, Outcome]]:
        """Yield a job for each reference of a payload; for a payload with an error, one that does nothing."""
        for batch in batches:
            rows, references = batch.column("row"), batch.column("pieces")
            names = ("uuid", "error_type", "error_message", "declared")
            values = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            for number, (identity, kind, text, declared) in enumerate(values):
                error = chunk_rules.error_of(chunk_rules.Fault(kind, text, {})) if kind else None
                pieces = [None] if kind else references[number].as_py()
                row = self._unpacked(rows[number].as_py())
                payload = _FetchedPayload(Row(batch, number), identity, row, declared, len(pieces), error)
                yield from (_fetching(cc, payload, reference) for reference in pieces)

    def _unpacked(self, packed: bytes) -> pa.RecordBatch:
        """Deserialize a row; a row from before a restart may have other columns."""
        import pyarrow as pa

        row = pa.ipc.open_stream(packed).read_next_batch()
        expected = [*self.names[: self.columns.message], *self.names[self.columns.message + 1 : -3]]
        if row.schema.names != expected:
            found = f"a checkpoint with chunks of a DataFrame with {row.num_columns + 1} columns"
            fail("checkpointLocation", found=found, expected=f"{len(expected) + 1} columns, or a new checkpoint")
        return row

    def output(self, group: RowGroup[Joined]) -> pa.RecordBatch:
        """Return the columns of the first chunks, without their messages, and the results."""
        import pyarrow as pa

        rows = [pa.Table.from_batches([value.row]) for value in group.values if value.row is not None]
        # Of one schema: an earlier session may have written times in another zone.
        kept = pa.concat_tables([row.cast(rows[0].schema) for row in rows]).combine_chunks()
        columns = [column.chunk(0) for column in kept.columns]
        kind = group.batch.schema.field("row").type
        columns.insert(self.columns.message, pa.nulls(len(rows), kind))
        return pa.RecordBatch.from_arrays([*columns, *added_columns(group.values, kind)], names=list(self.names))


def _fetching(cc: ClaimCheck, payload: _FetchedPayload, reference: bytes | None) -> Job[_FetchedPayload, Outcome]:
    if reference is None:
        return Job(payload, partial(same, None))
    try:
        pointer = cc.opened.messages.pointer_from_anywhere(reference)
    except ClaimCheckError as error:
        return Job(payload, partial(same, error))
    if pointer is not None:
        return Job(payload, partial(outcome_of, partial(cc.read, pointer)), pointer.size, waits=True)
    piece = reference.removeprefix(encode_literal(b"", header=cc.config.header))
    return Job(payload, partial(same, piece), len(piece))
