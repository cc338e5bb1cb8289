"""Payloads to envelopes: ``df.transform(offload("payload", destination="orders", ...))``, ready for any sink.

Spark reruns tasks, sometimes two attempts at once. A payload is identified by the run, the row's position and its
content: all attempts use the same key in the store, so nothing is stored twice, and no attempt deletes what another
has published.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from claimcheck._client import ClaimCheck
from claimcheck._validation import check_int, fail
from claimcheck._wire.checksum import content_hash
from claimcheck._wire.envelope import Envelope, Kind, is_lookalike
from claimcheck._wire.headers import DEFAULT_LIMIT, WireLimit, kafka_overhead
from claimcheck.spark._columns import (
    HEADERS_TYPE,
    check_new,
    find_column,
    map_batches,
    require_arrow,
    row_source,
    session_of,
)
from claimcheck.spark._fetching import MAX_INFLIGHT_BYTES, Concurrency, Job
from claimcheck.spark._metrics import Metrics, Tally
from claimcheck.spark._reading import Reading, Row, RowGroup, Stage, views
from claimcheck.spark._worker import AnyConfig, as_config, check_paths, check_writing, claim_check, task_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def offload(
    column: str,
    *,
    destination: str,
    config: AnyConfig,
    key: str | None = None,
    headers: str | None = None,
    max_message_bytes: int | None = None,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that turns a column of payloads into messages, for ``df.transform``.

    A payload becomes one row, or one row for each of its chunks, in order. The columns are those of Spark's Kafka sink
    and of our sinks: the message, ``value``, ``key`` and ``headers``, and all other columns of the payload's row.

    When Spark reruns a task, or runs two attempts at once, the same payload in the same position is written under the
    same name. This needs rows in the same order each time; otherwise payloads of failed attempts stay until they
    expire, but none is lost. Payloads of a job that fails stay until they expire, too.

    Payloads leave Spark faster with ``spark.sql.execution.arrow.maxBytesPerBatch`` set to ``16m``.

    Args:
        column: A binary column of payloads, which is dropped; null stays null: a tombstone.
        destination: The topic of the messages; selects the configuration's overrides for it.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        key: The column of keys, binary or text. Where payloads may be chunked and the key is null, the payload's uuid
            replaces it, so that the chunks stay together; without ``key`` a binary column ``key`` is added for that.
        headers: The column of headers, in the form of Kafka headers. Without it, ``headers`` is added for our hints.
        max_message_bytes: The broker's limit, counted as Kafka does; 1,000,000 unless the configuration sets another.
        concurrency: Concurrent writes per task, 1 to 64, or ``auto``: threads where writing means waiting.
        max_inflight_bytes: Bound on the payload bytes being written at once.
        metrics: Counts what tasks do.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns when called and writes nothing yet.

    Raises:
        ConfigError: The configuration or an option is invalid; the function raises it for columns.
        MissingDependencyError: pyspark, pyarrow or pandas is missing.
    """
    require_arrow()
    if not isinstance(destination, str) or not destination:
        fail("destination", found=repr(destination), expected="the name of a topic")
    if max_message_bytes is not None:
        check_int("max_message_bytes", max_message_bytes, minimum=1)
    checked, run = as_config(config), uuid.uuid4()
    reading = Reading(config=checked, concurrency=concurrency, max_inflight_bytes=max_inflight_bytes, metrics=metrics)
    check_writing(own := checked.for_destination(destination))
    limit = None if max_message_bytes is None else WireLimit(max_message_bytes, kafka_overhead)

    def transform(df: DataFrame) -> DataFrame:
        check_paths(own, session_of(df))
        may_chunk = ClaimCheck(checked).may_chunk(destination)
        columns = _Columns.find(df, column, key, headers, may_chunk=may_chunk)
        stage = _OffloadStage(reading, run.bytes, columns, destination, limit)
        return map_batches(df, stage, kept=columns.kept, added=columns.added())

    return transform


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The columns of the input, by index; those that are ``kept`` precede the added ones, which have ``names``."""

    payload: int
    key: int | None
    headers: int | None
    kept: tuple[int, ...]
    names: tuple[str, ...]
    text_key: bool
    all_names: tuple[str, ...]

    @classmethod
    def find(cls, df: DataFrame, payload: str, key: str | None, headers: str | None, *, may_chunk: bool) -> _Columns:
        index = find_column(df, "column", payload)
        key_index = None if key is None else find_column(df, "key", key, "binary", "string")
        headers_index = None if headers is None else find_column(df, "headers", headers, HEADERS_TYPE)
        kept = tuple(i for i in range(len(df.columns)) if i not in (index, key_index, headers_index))
        named = {"value": "value"}
        if key is not None or may_chunk:
            named["key"] = key or "key"
        named["headers"] = headers or "headers"
        check_new([df.columns[i] for i in kept], **named)
        return cls(
            payload=index,
            key=key_index,
            headers=headers_index,
            kept=kept,
            names=tuple(named.values()),
            text_key=key_index is not None and df.dtypes[key_index][1] == "string",
            all_names=tuple(df.columns),
        )

    def added(self) -> dict[str, DataType]:
        from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

        pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        key: list[DataType] = [StringType() if self.text_key else BinaryType()] if self.has_key else []
        return dict(zip(self.names, [BinaryType(), *key, ArrayType(pair)], strict=True))

    @property
    def has_key(self) -> bool:
        return len(self.names) > 2


class _Input(NamedTuple):
    """One row's payload, which stays in the Arrow batch, with its key and headers."""

    row: Row
    payload: memoryview | None
    key: bytes | str | None
    headers: list[tuple[str, bytes | None]] | None

    @property
    def size(self) -> int:
        return 0 if self.payload is None else len(self.payload)


@dataclass(frozen=True, slots=True)
class _OffloadStage(Stage[Envelope]):
    """Replaces the payloads by messages."""

    reading: Reading
    run: bytes
    columns: _Columns
    destination: str
    limit: WireLimit | None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, Envelope, int]]:
        writer, tally = _Writer(self, *task_id()), Tally(self.reading.metrics)
        inputs = chain.from_iterable(map(self._inputs, batches))  # no loop: its variable would keep the last batch
        with closing(self.reading.written((writer.job(*each) for each in enumerate(inputs)), tally)) as written:
            for item, envelopes in written:
                tally.row(item.size, store=writer.store if envelopes[0].kind == Kind.POINTER else None)
                for envelope in envelopes:
                    yield item.row, envelope, len(envelope.data or b"")
                del item

    def _inputs(self, batch: pa.RecordBatch) -> Iterator[_Input]:
        columns = self.columns
        rest = _without(batch, columns.payload)
        keys = None if columns.key is None else batch.column(columns.key)
        headers = None if columns.headers is None else batch.column(columns.headers)
        for number, payload in enumerate(views(batch.column(columns.payload))):
            pairs = None if headers is None else headers[number].as_py()
            yield _Input(
                Row(rest, number, columns.all_names),
                payload,
                None if keys is None else keys[number].as_py(),
                None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs],
            )

    def output(self, group: RowGroup[Envelope]) -> pa.RecordBatch:
        import pyarrow as pa

        columns, batch, envelopes = self.columns, group.batch, group.values
        binary = batch.schema.field(columns.payload).type
        text = pa.large_string() if binary == pa.large_binary() else pa.string()
        pair = pa.struct([("key", text), ("value", binary)])
        added = [pa.array([_data(each) for each in envelopes], type=binary)]
        if columns.has_key:
            added.append(pa.array([each.key for each in envelopes], type=text if columns.text_key else binary))
        added.append(pa.array([_pairs(each) for each in envelopes], type=pa.list_(pair)))
        return group._replace(batch=batch.select(list(columns.kept))).with_columns(added)


def _without(batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
    """Return a batch with nulls for the payloads, which otherwise would stay in memory until their rows leave."""
    import pyarrow as pa

    field = batch.schema.field(index)
    return batch.set_column(index, field, pa.nulls(len(batch), field.type))


class _Writer:
    def __init__(self, stage: _OffloadStage, micro_batch: str, partition: int) -> None:
        self._stage, self._cc = stage, claim_check(stage.reading.config)
        self._run, self._partition = micro_batch.encode() or stage.run, partition
        self._threshold = self._cc.threshold(stage.destination, stage.limit)
        self._overhead = (stage.limit or DEFAULT_LIMIT).overhead
        self.store = self._cc.config.for_destination(stage.destination).store

    def job(self, number: int, item: _Input) -> Job[_Input, list[Envelope]]:
        """Return the job that offloads the payload of the task's row ``number``."""
        plain = self._is_plain(item)
        return Job(item, partial(self._offload, item, None if plain else number), item.size, waits=not plain)

    def _is_plain(self, item: _Input) -> bool:
        """Whether the payload is sent unchanged, without writing to a store."""
        if item.payload is None:
            return True
        fits = item.size + self._overhead(item.key, item.headers) <= self._threshold
        return fits and not is_lookalike(item.payload, header=self._cc.config.header)

    def _offload(self, item: _Input, number: int | None) -> list[Envelope]:
        try:
            with self._cc.outbound(
                item.payload,
                destination=self._stage.destination,
                key=item.key,
                headers=item.headers,
                limit=self._stage.limit,
                text_key=self._stage.columns.text_key,
                identity=None if number is None else self._identity(item, number),
            ) as out:
                return list(out.envelopes)
        except Exception as error:
            if source := row_source(item.row.values_of(self._stage.columns.kept)):
                error.add_note(f"Row: {source}")
            raise

    def _identity(self, item: _Input, number: int) -> uuid.UUID:
        """Return the same identity in every attempt, unless the order of rows changes."""
        digest = content_hash(b"%s/%d/%d/%d/" % (self._run, self._partition, number, item.size))
        digest.update(item.payload or b"")
        return uuid.UUID(bytes=digest.digest()[:16], version=5)


def _data(envelope: Envelope) -> bytes | None:
    return envelope.data if envelope.data is None or isinstance(envelope.data, bytes) else bytes(envelope.data)


def _pairs(envelope: Envelope) -> list[dict[str, object]] | None:
    """Return the headers in the form of Kafka headers; hints are text."""
    headers = envelope.headers
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"key": name, "value": value.encode() if isinstance(value, str) else value} for name, value in pairs]
