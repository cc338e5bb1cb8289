"""Writes payloads: `offload` turns them into envelopes, and `pin` copies them to a long-lived store.

``df.transform(offload("payload", destination="orders", ...))`` is ready for any sink. Spark reruns tasks, sometimes two
attempts at once. Each attempt writes payloads of its own, and none deletes what another has published.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from claimcheck._client import ClaimCheck
from claimcheck._store.listing import destination_of
from claimcheck._store.store import Store
from claimcheck._validation import check_int, fail
from claimcheck._wire.envelope import Envelope, Kind, is_lookalike
from claimcheck._wire.headers import DEFAULT_LIMIT, WireLimit, kafka_overhead
from claimcheck._wire.pointer import PINNED, Pointer
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import (
    HEADERS_TYPE,
    check_new,
    check_reached,
    check_writing,
    error_array,
    find_column,
    header_pairs,
    map_batches,
    prepare,
    row_source,
    session_of,
)
from claimcheck.spark._metrics import Metrics, Tally
from claimcheck.spark._reading import (
    MAX_INFLIGHT_BYTES,
    OnError,
    Reading,
    Row,
    RowGroup,
    Stage,
    messages_of,
    views,
    with_results,
)
from claimcheck.spark._worker import AnyConfig, Job, claim_check, same

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


_COPY_BYTES = 8 << 20  # of a larger payload, no more is in memory

_Pinned = bytes | None | Exception


def offload(
    column: str,
    *,
    destination: str,
    config: AnyConfig,
    key: str | None = None,
    headers: str | None = None,
    max_message_bytes: int | None = None,
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that turns a column of payloads into messages, for ``df.transform``.

    A payload becomes one row, or one row for each of its chunks, in order. The columns are those of Spark's Kafka sink:
    the message, ``value``, ``key`` and ``headers``, and all other columns of the payload's row.

    When Spark reruns a task, or runs two attempts at once, each attempt writes its payloads again. Those of an attempt
    or a job that failed stay in the store until their lifetime ends, or a garbage collection deletes them. What the
    sink wrote of such an attempt is read, too: Spark's sinks deliver at least once.

    Payloads leave Spark faster with ``spark.sql.execution.arrow.maxBytesPerBatch`` set to ``16m``.

    Args:
        column: A binary column of payloads, which is dropped; null stays null: a tombstone.
        destination: The topic of the messages; selects the configuration's overrides for it.
        config: As in `resolve`.
        key: The column of keys, binary or text. Where payloads may be chunked and the key is null, the payload's uuid
            replaces it, so that the chunks stay together; without ``key`` a binary column ``key`` is added for that.
        headers: The column of headers, in the form of Kafka headers. Without it, ``headers`` is added for our hints.
        max_message_bytes: The broker's limit, counted as Kafka does; 1,000,000 unless the configuration sets another.
        max_inflight_bytes: Bound on the payload bytes being written at once.
        metrics: Counts what tasks do.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns when called and writes nothing yet.

    Raises:
        ConfigError, MissingDependencyError: As `resolve`.
    """
    if not isinstance(destination, str) or not destination:
        fail("destination", found=repr(destination), expected="the name of a topic")
    if max_message_bytes is not None:
        check_int("max_message_bytes", max_message_bytes, minimum=1)
    reading = Reading.of(config, max_inflight_bytes, metrics)
    checked = reading.config
    check_writing(own := checked.for_destination(destination))
    limit = None if max_message_bytes is None else WireLimit(max_message_bytes, kafka_overhead)

    def transform(df: DataFrame) -> DataFrame:
        prepare(own, session_of(df))
        may_chunk = ClaimCheck(checked).may_chunk(destination)
        columns = _Columns.find(df, column, key, headers, may_chunk=may_chunk)
        stage = _OffloadStage(reading, columns, destination, limit)
        return map_batches(df, stage, kept=columns.kept, added=columns.added())

    return transform


@dataclass(frozen=True, slots=True)
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
        keys = [key or "key"] if key is not None or may_chunk else []
        names = ("value", *keys, headers or "headers")
        check_new([df.columns[i] for i in kept], names)
        is_text = key_index is not None and df.dtypes[key_index][1] == "string"
        return cls(index, key_index, headers_index, kept, names, is_text, tuple(df.columns))

    def added(self) -> dict[str, DataType]:
        from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

        pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        key: list[DataType] = [StringType() if self.text_key else BinaryType()] * (len(self.names) - 2)
        return dict(zip(self.names, [BinaryType(), *key, ArrayType(pair)], strict=True))


class _Input(NamedTuple):
    """One row's payload, which stays in the Arrow batch, with its key and headers."""

    row: Row
    payload: memoryview | None
    key: bytes | str | None
    headers: list[tuple[str, bytes | None]] | None


@dataclass(frozen=True, slots=True)
class _OffloadStage(Stage[Envelope]):
    columns: _Columns
    destination: str
    limit: WireLimit | None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, Envelope, int]]:
        writer, tally = _Writer(self), Tally(self.reading.metrics)
        inputs = chain.from_iterable(map(self._inputs, batches))  # no loop: its variable would keep the last batch
        jobs = map(writer.job, inputs)
        with closing(self.reading.run(jobs, tally, "write")) as written:
            for item, envelopes in written:
                tally.row(len(item.payload or b""), store=writer.store if envelopes[0].kind == Kind.POINTER else None)
                for envelope in envelopes:
                    yield item.row, envelope, len(envelope.data or b"")
                del item

    def _inputs(self, batch: pa.RecordBatch) -> Iterator[_Input]:
        columns = self.columns
        rest = _with_values(batch, columns.payload)  # payloads would stay in memory until their rows leave
        keys = None if columns.key is None else batch.column(columns.key)
        headers = None if columns.headers is None else batch.column(columns.headers)
        for number, payload in enumerate(views(batch.column(columns.payload))):
            pairs = None if headers is None else headers[number].as_py()
            key = None if keys is None else keys[number].as_py()
            yield _Input(Row(rest, number, columns.all_names), payload, key, pairs and header_pairs(pairs))

    def output(self, group: RowGroup[Envelope]) -> pa.RecordBatch:
        import pyarrow as pa

        columns, batch, envelopes = self.columns, group.batch, group.values
        binary = batch.schema.field(columns.payload).type
        text = pa.large_string() if binary == pa.large_binary() else pa.string()
        pair = pa.struct([("key", text), ("value", binary)])
        added = [pa.array([None if each.data is None else bytes(each.data) for each in envelopes], type=binary)]
        if len(columns.names) > 2:  # with keys
            added.append(pa.array([each.key for each in envelopes], type=text if columns.text_key else binary))
        added.append(pa.array([_pairs(each) for each in envelopes], type=pa.list_(pair)))
        kept = batch.select(list(columns.kept))
        return RowGroup(kept, group.numbers, group.values).with_columns(added)


def _with_values(batch: pa.RecordBatch, index: int, values: list[bytes | None] | None = None) -> pa.RecordBatch:
    """Return a batch with other values in one column, or nulls; ``set_column`` is not in pyarrow 15."""
    import pyarrow as pa

    kind = batch.schema.field(index).type
    column = pa.nulls(len(batch), kind) if values is None else pa.array(values, kind)
    columns = [column if number == index else each for number, each in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


class _Writer:
    def __init__(self, stage: _OffloadStage) -> None:
        self._stage, self._cc = stage, claim_check(stage.reading.config)
        self._threshold = self._cc.threshold(stage.destination, stage.limit)
        self._overhead = (stage.limit or DEFAULT_LIMIT).overhead
        self.store = self._cc.config.for_destination(stage.destination).store

    def job(self, item: _Input) -> Job[_Input, list[Envelope]]:
        return Job(item, partial(self._offload, item), len(item.payload or b""), waits=not self._is_plain(item))

    def _is_plain(self, item: _Input) -> bool:
        if item.payload is None:
            return True
        fits = len(item.payload) + self._overhead(item.key, item.headers) <= self._threshold
        return fits and not is_lookalike(item.payload, header=self._cc.config.header)

    def _offload(self, item: _Input) -> list[Envelope]:
        try:
            with self._cc.outbound(
                item.payload,
                destination=self._stage.destination,
                key=item.key,
                headers=item.headers,
                limit=self._stage.limit,
                text_key=self._stage.columns.text_key,
            ) as out:
                return list(out.envelopes)
        except Exception as error:
            if source := row_source(item.row.values_of(self._stage.columns.kept)):
                error.add_note(f"Row: {source}")
            raise


def _pairs(envelope: Envelope) -> list[dict[str, object]] | None:
    """Return the headers in the form of Kafka headers; hints are text."""
    headers = envelope.headers
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    found = [{"key": name, "value": value.encode() if isinstance(value, str) else value} for name, value in pairs]
    return found or None


# Copies in a long-lived store -----------------------------------------------------------------------------------


def pin(
    df: DataFrame,
    column: str = "value",
    *,
    config: AnyConfig,
    store: str = "archive",
    on_error: OnError = "fail",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> DataFrame:
    """Copy the payloads of a column of messages to a long-lived store, and return the rows with pointers to the copies.

    Readers of the result need the long-lived store alone. Plain messages, and pointers to that store, pass through
    unchanged. Copies are verified. They stay until the store's ``ttl_seconds``, and a garbage collection does not touch
    them. Signed pointers are signed again, and stay bound to their topics. Nothing is copied before an action. Each
    action, and each attempt of a task, writes its own copies; those of an attempt that failed stay as long.

    Args:
        df: A batch or a stream.
        column: A binary column of envelopes and plain messages; null stays null.
        config: As in `resolve`, with both stores.
        store: The name of the long-lived store.
        on_error: As in `resolve`. With ``null`` the message becomes null.
        max_inflight_bytes: Bound on the payload bytes in memory.
        metrics: Counts what tasks do.

    Raises:
        ConfigError, MissingDependencyError: As `resolve`, for columns, too.
    """
    reading = Reading.of(config, max_inflight_bytes, metrics, on_error)
    checked = reading.config
    if store not in checked.stores:
        fail("store", found=repr(store), expected=f"one of the stores {', '.join(checked.stores) or '(none)'}")
    check_reached(replace(checked, store=store))
    for each in (replace(checked, store=store), checked):
        prepare(each, session_of(df))
    return with_results(df, _PinStage(reading, find_column(df, "column", column), tuple(df.columns), store), {})


@dataclass(frozen=True, slots=True)
class _PinStage(Stage[_Pinned]):
    index: int
    names: tuple[str, ...]
    store: str

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, _Pinned, int]]:
        tally, cc = Tally(self.reading.metrics), claim_check(self.reading.config)
        jobs = (self._job(cc, *each) for each in messages_of(batches, self.index, self.names))
        with closing(self.reading.run(jobs, tally, "write")) as written:
            for (row, size), result in written:
                if not isinstance(result, Exception):
                    tally.row(size, store=self.store if size else None)
                    yield row, result, len(result or b"")
                    continue
                tally.row(0, error=type(result).__name__)
                if (shown := self.reading.handle(row, result)) is not None:
                    yield row, shown, 0

    def _job(self, cc: ClaimCheck, row: Row, message: bytes | None) -> Job[tuple[Row, int], _Pinned]:
        """Return the job that makes the new message, for a row and the bytes that it copies."""
        try:
            pointer = None if message is None else cc.opened.messages.pointer_from_anywhere(message)
            source = None if pointer is None else cc.opened.messages.store_of(pointer)
        except ClaimCheckError as error:
            return Job((row, 0), partial(same, error))
        if pointer is None or source is None or source.name == self.store:
            return Job((row, 0), partial(same, message))
        size = pointer.size or 0
        return Job((row, size), partial(self._copy, cc, pointer, source), min(size, _COPY_BYTES), waits=True)

    def _copy(self, cc: ClaimCheck, pointer: Pointer, source: Store) -> _Pinned:
        # Not below the name of any topic: a garbage collection does not touch the copy.
        destination = PINNED + destination_of(pointer.key.removeprefix(source.prefix))
        try:
            copy = source.copy(pointer, to=cc.store(self.store), destination=destination)
            return cc.opened.reseal(copy, original=pointer)
        except ClaimCheckError as error:
            return error

    def output(self, group: RowGroup[_Pinned]) -> pa.RecordBatch:
        batch = group.with_columns([error_array(group.values)] if self.reading.on_error == "null" else [])
        return _with_values(batch, self.index, [None if isinstance(each, Exception) else each for each in group.values])
