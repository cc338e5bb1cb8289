"""Payloads in, envelopes out: ``df.transform(offload("payload", destination="orders", ...))``, ready for any sink.

Tasks are run again, and sometimes two at once. What identifies a payload here is the run, the row's place and its
content: attempts name the same key in the store, so that nothing rests twice and nothing that one attempt has made
known is removed by another.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck._checksum import content_hash
from claimcheck._client import ClaimCheck
from claimcheck._envelope import Envelope, Kind, is_lookalike
from claimcheck._validation import fail
from claimcheck._wire_size import DEFAULT_LIMIT, WireLimit, kafka_overhead
from claimcheck.spark._columns import HEADERS_TYPE, check_new, find_column, need_arrow, over_rows, row_source
from claimcheck.spark._fetching import (
    MAX_INFLIGHT_BYTES,
    OUT_BATCH_BYTES,
    Concurrency,
    Job,
    Line,
    check_bytes,
    check_reading,
)
from claimcheck.spark._metrics import Metrics, Tally, check_metrics
from claimcheck.spark._rows import Group, Row, grouped, views
from claimcheck.spark._worker import AnyConfig, as_config, check_paths, check_writing, claim_check, pace, task_place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from claimcheck.config import Config

__all__ = ["offload"]


def offload(
    column: str,
    *,
    destination: str,
    config: AnyConfig,
    key: str | None = None,
    headers: str | None = None,
    into: str = "value",
    max_message_bytes: int | None = None,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Make the function that turns a column of payloads into messages, for ``df.transform``.

    A payload becomes one row, or one for each of its chunks, in order. The columns are those of Spark's sink for
    Kafka, and of ours: the message, ``key`` and ``headers``, and all other columns of the payload's row.

    When a task is run again, or twice at once, the same payload in the same place is written under the same name. What
    a job wrote that failed in the end stays until it expires. Rows have to come in the same order each time for that:
    else what an attempt wrote that did not succeed expires, too, and never is anything lost.

    Payloads come out of Spark quicker with ``spark.sql.execution.arrow.maxBytesPerBatch`` at ``16m``.

    Args:
        column: A binary column of payloads, which leaves the DataFrame; null stays null: a tombstone.
        destination: The topic that the messages will go to; it chooses what the configuration says of it.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        key: The column of keys, binary or text. Where chunks may be sent and it is null, the payload's identity takes
            its place, so that they stay together; without it a binary column ``key`` is added for them.
        headers: The column of headers, in the form of Kafka's. Without it ``headers`` is added, for our hints.
        into: Name of the column of messages.
        max_message_bytes: What the broker takes, counted as Kafka does; 1,000,000 unless the configuration says more.
        concurrency: Writes at once per task, 1 to 64, or ``auto``: threads where writing means waiting.
        max_inflight_bytes: Bound on the payload bytes that are on their way at once.
        metrics: Counts what tasks do, where it is wanted.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns at once and writes nothing yet.

    Raises:
        ConfigError: The configuration or an option cannot be used; the function raises it for columns.
        MissingDependencyError: pyspark, pyarrow or pandas is missing.
    """
    need_arrow()
    check_metrics(metrics)
    check_reading(concurrency=concurrency, max_inflight_bytes=max_inflight_bytes)
    if not isinstance(destination, str) or not destination:
        fail("destination", found=repr(destination), expected="the name of a topic")
    if max_message_bytes is not None:
        check_bytes("max_message_bytes", max_message_bytes)
    known, run = as_config(config), uuid.uuid4()
    check_writing(own := known.for_destination(destination))
    limit = None if max_message_bytes is None else WireLimit(max_message_bytes, kafka_overhead)

    def transform(df: DataFrame) -> DataFrame:
        check_paths(own, df.sparkSession)
        columns = _Columns.found(df, column, key, headers, into, may_chunk=ClaimCheck(known).may_chunk(destination))
        stage = _Stage(known, run.bytes, columns, destination, limit, concurrency, max_inflight_bytes, metrics)
        return over_rows(df, stage, kept=columns.kept, added=columns.added())

    return transform


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Which columns mean what; numbers are places in the DataFrame that came.

    Attributes:
        payload: Where payloads are.
        key: Where keys are; ``None`` for nowhere.
        headers: Where headers are; ``None`` for nowhere.
        kept: Those that go through as they are.
        names: Of the columns that follow them: message, key where there is one, headers.
        text_key: Whether keys are text.
        all_names: Of the columns that came.
    """

    payload: int
    key: int | None
    headers: int | None
    kept: tuple[int, ...]
    names: tuple[str, ...]
    text_key: bool
    all_names: tuple[str, ...]

    @classmethod
    def found(
        cls, df: DataFrame, payload: str, key: str | None, headers: str | None, into: str, *, may_chunk: bool
    ) -> _Columns:
        index = find_column(df, "column", payload)
        kinds = {name.lower(): kind for name, kind in df.dtypes}
        text = key is not None and kinds.get(str(key).lower()) == "string"
        key_index = None if key is None else find_column(df, "key", key, "binary", "string")
        headers_index = None if headers is None else find_column(df, "headers", headers, HEADERS_TYPE)
        kept = tuple(i for i in range(len(df.columns)) if i not in (index, key_index, headers_index))
        named = {"into": into, "headers": headers or "headers"}
        if key is not None or may_chunk:
            named = {"into": into, "key": key or "key", "headers": headers or "headers"}
        check_new([df.columns[i] for i in kept], **named)
        return cls(
            payload=index,
            key=key_index,
            headers=headers_index,
            kept=kept,
            names=tuple(named.values()),
            text_key=text,
            all_names=tuple(df.columns),
        )

    def added(self) -> dict[str, DataType]:
        """Names and types of the columns that are added."""
        from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

        pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        key: list[DataType] = [StringType() if self.text_key else BinaryType()] if self.has_key else []
        return dict(zip(self.names, [BinaryType(), *key, ArrayType(pair)], strict=True))

    @property
    def has_key(self) -> bool:
        """Whether keys are among what is added."""
        return len(self.names) > 2


class _Given(NamedTuple):
    """One payload as its row has it; its bytes stay in the Arrow batch."""

    row: Row
    payload: memoryview | None
    key: Any
    headers: list[tuple[str, bytes | None]] | None

    @property
    def size(self) -> int:
        return 0 if self.payload is None else len(self.payload)


_Sent = tuple[_Given, list[Envelope]]


@dataclass(frozen=True, slots=True)
class _Stage:
    """What `offload` sends to the workers; called once per partition."""

    config: Config
    run: bytes
    columns: _Columns
    destination: str
    limit: WireLimit | None
    concurrency: Concurrency
    max_inflight_bytes: int
    metrics: Any

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self._messages(batches)) as messages:
            for group in grouped(messages, max_bytes=OUT_BATCH_BYTES):
                yield self._output(group)

    def _messages(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, Envelope, int]]:
        writer = _Writer(self, task_place())
        learnt = pace(self.config, self.concurrency, "write")
        line, tally = Line[_Sent](learnt, self.max_inflight_bytes, measure=lambda sent: 0), Tally(self.metrics)
        try:
            for given, envelopes in line.run(writer.job(*each) for each in enumerate(self._given(batches))):
                tally.row(given.size, store=writer.store_of(envelopes))
                for envelope in envelopes:
                    yield given.row, envelope, len(envelope.data or b"")
        finally:
            line.close()
            tally.close(line.waited_seconds)

    def _given(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Given]:
        columns = self.columns
        for batch in batches:
            keys = None if columns.key is None else batch.column(columns.key)
            headers = None if columns.headers is None else batch.column(columns.headers)
            for number, payload in enumerate(views(batch.column(columns.payload))):
                pairs = None if headers is None else headers[number].as_py()
                yield _Given(
                    Row(batch, number, columns.all_names),
                    payload,
                    None if keys is None else keys[number].as_py(),
                    None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs],
                )

    def _output(self, group: Group) -> pa.RecordBatch:
        import pyarrow as pa

        columns, batch, envelopes = self.columns, group.batch, group.values
        kind = batch.schema.field(columns.payload).type
        text = pa.large_string() if kind == pa.large_binary() else pa.string()
        pair = pa.struct([("key", text), ("value", kind)])
        added = [pa.array([_data(each) for each in envelopes], type=kind)]
        if columns.has_key:
            added.append(pa.array([each.key for each in envelopes], type=text if columns.text_key else kind))
        added.append(pa.array([_pairs(each.headers) for each in envelopes], type=pa.list_(pair)))
        return group._replace(batch=batch.select(list(columns.kept))).widened(added)


class _Writer:
    """Offloads the payloads of one task."""

    def __init__(self, stage: _Stage, place: tuple[str, int]) -> None:
        self._stage, self._cc = stage, claim_check(stage.config)
        self._run, self._partition = place
        self._threshold = self._cc.threshold(stage.destination, stage.limit)
        self._store = self._cc.config.for_destination(stage.destination).store
        self._overhead = (stage.limit or DEFAULT_LIMIT).overhead

    def job(self, number: int, given: _Given) -> Job[_Sent]:
        """What turns the payload of the task's row of this number into envelopes."""
        plain = self._is_plain(given)
        return Job(partial(self._sent, given, None if plain else number), given.size, waits=not plain)

    def store_of(self, envelopes: list[Envelope]) -> str | None:
        """Where the payload of these rests, if it rests anywhere."""
        return self._store if envelopes[0].kind == Kind.POINTER else None

    def _is_plain(self, given: _Given) -> bool:
        """Whether the payload is sent as it is, for which nothing has to be written."""
        if given.payload is None:
            return True
        fits = given.size + self._overhead(given.key, given.headers) <= self._threshold
        return fits and not is_lookalike(given.payload, header=self._cc.config.header)

    def _sent(self, given: _Given, number: int | None) -> _Sent:
        try:
            with self._cc.outbound(
                given.payload,
                destination=self._stage.destination,
                key=given.key,
                headers=given.headers,
                limit=self._stage.limit,
                text_key=self._stage.columns.text_key,
                identity=None if number is None else self._identity(given, number),
            ) as out:
                return given, list(out.envelopes)
        except Exception as error:
            if source := row_source(given.row.values_of(self._stage.columns.kept)):
                error.add_note(f"Row: {source}")
            raise

    def _identity(self, given: _Given, number: int) -> uuid.UUID:
        """The same in every attempt; another one if other rows come first the next time."""
        run = self._run.encode() or self._stage.run
        digest = content_hash(b"%s/%d/%d/%d/" % (run, self._partition, number, given.size))
        digest.update(given.payload or b"")
        return uuid.UUID(bytes=digest.digest()[:16], version=5)


def _data(envelope: Envelope) -> Any:
    return envelope.data if envelope.data is None or isinstance(envelope.data, bytes) else bytes(envelope.data)


def _pairs(headers: Any) -> list[dict[str, Any]] | None:
    """Headers in the form of Kafka's column; hints are text."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"key": name, "value": value.encode() if isinstance(value, str) else value} for name, value in pairs]
