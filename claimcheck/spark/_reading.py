"""How tasks read and write payloads, from rows of Arrow batches and back, and `resolver`, which does so for RDDs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar
from typing import Literal as OneOf

from claimcheck._client import ClaimCheck
from claimcheck._validation import check_int, check_value, fail
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import is_lookalike
from claimcheck._wire.pointer import Pointer
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError, PayloadTooLargeError
from claimcheck.spark._columns import (
    MAX_COLUMN_BYTES,
    Origin,
    binary_array,
    check_destination,
    check_new,
    column_at,
    error_array,
    error_type,
    is_bad_message,
    map_batches,
    prepare,
    require_arrow,
    row_source,
    session_of,
)
from claimcheck.spark._metrics import Metrics, Tally
from claimcheck.spark._worker import (
    AnyConfig,
    Concurrency,
    Job,
    OrderedExecutor,
    adaptive_concurrency,
    as_config,
    claim_check,
    payload_size,
    same,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

R = TypeVar("R")
T = TypeVar("T")

Outcome = bytes | None | Exception | Callable[[], BinaryIO]
"""The result of one message: its payload, ``None`` for a tombstone, the error, or a function that opens the payload."""

Instead = Callable[[Pointer], Outcome]

_log = logging.getLogger(__name__)

MAX_INFLIGHT_BYTES = 64 << 20
"""Default bound on the payload bytes that one task fetches ahead."""

OUT_BATCH_BYTES = 16 << 20
"""Default payload bytes per Arrow batch sent to the JVM; larger batches were slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A row whose payload could not be read.

    Attributes:
        row: All columns, including the message.
        error: The error.
        source: Where the row came from, as far as its columns tell.
    """

    row: dict[str, Any] = field(repr=False)
    error: Exception
    source: str


class ResultError(ClaimCheckError, TypeError):
    """The result of a function does not match the declared columns."""


OnError = OneOf["fail", "null"] | Callable[[DeadLetter], object]
"""What happens to a row without a payload: it fails the task, gets an error, or goes to a function."""


def views(column: pa.Array) -> Iterator[memoryview | None]:
    """Yield the values of a ``binary`` or ``large_binary`` column as views, each of which keeps the column alive."""
    import pyarrow as pa

    if not len(column):
        return
    _, offsets, data = column.buffers()  # https://arrow.apache.org/docs/format/Columnar.html
    ends = memoryview(offsets).cast("q" if pa.types.is_large_binary(column.type) else "i")
    whole = memoryview(data or b"").cast("B")
    spans = pairwise(ends[column.offset : column.offset + len(column) + 1])
    valid = column.is_valid()
    for number, (start, end) in enumerate(spans):
        yield whole[start:end] if not column.null_count or valid[number].as_py() else None


class Row(NamedTuple):
    """One row of an Arrow batch; ``names`` are the DataFrame's names of its columns."""

    batch: pa.RecordBatch
    number: int
    names: tuple[str, ...] = ()

    def values(self) -> dict[str, object]:
        return self.values_of(range(self.batch.num_columns))

    def values_of(self, columns: Iterable[int]) -> dict[str, object]:
        return {self.names[index]: self.batch.column(index)[self.number].as_py() for index in columns}


def reject_oversized(pointer: Pointer) -> None:
    if (pointer.size or 0) > MAX_COLUMN_BYTES:
        limit, place = MAX_COLUMN_BYTES, {"store": pointer.store, "key": pointer.key}
        why = f"a payload of {pointer.size} bytes does not fit into a Spark column ({limit} bytes)"
        instead = "use it inside the worker, with map_payloads(..., as_file=True), up to limits.max_payload_bytes"
        raise PayloadTooLargeError(f"{why}: {instead}", size=pointer.size, limit=limit, **place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The options that functions share; see `claimcheck.spark.resolve`. Sent to the workers."""

    config: Config
    concurrency: Concurrency = "auto"
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES
    out_batch_bytes: int = OUT_BATCH_BYTES
    on_error: OnError = "fail"
    metrics: Metrics | None = None
    origin: Origin = field(default_factory=Origin)

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "null") and not callable(self.on_error):
            fail("on_error", found=repr(self.on_error), expected="'fail', 'null' or a function of a DeadLetter")
        check_value("metrics", self.metrics, Metrics | None)
        check_int("max_inflight_bytes", self.max_inflight_bytes, minimum=1)

    @classmethod
    def of(
        cls, config: AnyConfig, max_inflight_bytes: int, metrics: Metrics | None, on_error: OnError = "fail"
    ) -> Reading:
        """Check the options of a function on the driver, and that the packages for it are installed."""
        require_arrow()
        checked = as_config(config)
        return cls(config=checked, max_inflight_bytes=max_inflight_bytes, on_error=on_error, metrics=metrics)

    def at(self, df: DataFrame, destination: str | None = None) -> Reading:
        """Check a DataFrame on the driver; return the same for its rows."""
        prepare(self.config, session_of(df))
        return replace(self, origin=Origin.find(df, self.config, destination))

    def handle(self, row: Row, error: Exception) -> Exception | None:
        """Handle a row without a payload; returns the error that the row shows, or ``None`` to drop the row."""
        if self.on_error == "fail" or self._affects_all(error):
            if source := row_source(row.values()):
                error.add_note(f"Row: {source}")
            raise error
        if not callable(self.on_error):
            return error
        values = row.values()
        self.on_error(DeadLetter(row=values, error=error, source=row_source(values)))
        return None

    def _affects_all(self, error: Exception) -> bool:
        """Whether an error would affect every row; errors of the user's function never do."""
        if not isinstance(error, ClaimCheckError) or isinstance(error, ResultError):
            return False
        return not is_bad_message(error, self.config)

    def rows(
        self, messages: Iterable[tuple[Row, bytes | None]], *, instead: Instead = reject_oversized
    ) -> Generator[tuple[Row, Outcome]]:
        """Resolve messages in order; yields each row that stays, with its payload or the error that it shows."""
        cc, tally = claim_check(self.config), Tally(self.metrics)
        jobs = (self._job(cc, row, message, instead) for row, message in messages)
        with closing(self.run(jobs, tally)) as results:
            for (row, store), outcome in results:
                if not isinstance(outcome, Exception):
                    tally.row(payload_size(outcome), store=store)
                    yield row, outcome
                else:
                    tally.row(0, error=type(outcome).__name__)
                    if (shown := self.handle(row, outcome)) is not None:
                        yield row, shown
                del outcome  # it would keep the payload alive during the next fetch

    def run(
        self, jobs: Iterable[Job[T, R]], tally: Tally, operation: OneOf["read", "write"] = "read"
    ) -> Generator[tuple[T, R]]:
        """Run jobs that read or write payloads; yields items and results, in order."""
        concurrency = adaptive_concurrency(self.config, self.concurrency, operation)
        return OrderedExecutor[T, R](concurrency, self.max_inflight_bytes).run(jobs, tally.close)

    def _job(self, cc: ClaimCheck, row: Row, message: bytes | None, instead: Instead) -> Resolving[Row]:
        headers = None
        if self.origin.headers is not None and message is not None and is_lookalike(message, header=cc.config.header):
            headers = self.origin.headers_of(row.batch, row.number)
        destination = self.origin.destination_of(row.batch, row.number)
        return resolving(cc, row, message, headers=headers, destination=destination, instead=instead)


# Resolving messages without Spark ---------------------------------------------------------------------------------

Resolving: TypeAlias = Job[tuple[T, str | None], Outcome]
"""Resolves one message; the item has the store that its pointer names."""


def resolving(
    cc: ClaimCheck,
    item: T,
    message: Buffer | None,
    *,
    destination: str | None,
    headers: object = None,
    instead: Instead = lambda pointer: None,
) -> Resolving[T]:
    """Return the job that resolves a message; ``instead`` may return another result for a pointer."""
    try:
        work = cc.opened.messages.work(message, headers, destination)
        if (pointer := work.pointer) is None:
            return Job((item, None), partial(outcome_of, work.run), work.size)
        result = instead(pointer)
    except ClaimCheckError as error:
        return Job((item, None), partial(same, error))
    placed = item, pointer.store or "pointer of version 1"
    if result is not None:
        return Job(placed, partial(same, result))
    return Job(placed, partial(outcome_of, work.run), pointer.size, waits=True)


def outcome_of(run: Callable[[], Buffer | None]) -> Outcome:
    try:
        payload = run()
        return payload if payload is None or type(payload) is bytes else bytes(payload)
    except ClaimCheckError as error:
        return error


# Rows of Arrow batches --------------------------------------------------------------------------------------------


def messages_of(
    batches: Iterable[pa.RecordBatch], path: int | tuple[int, ...], names: tuple[str, ...]
) -> Iterator[tuple[Row, bytes | None]]:
    """Yield every row with the value of one column."""
    for batch in batches:
        for number, message in enumerate(views(column_at(batch, path))):
            yield Row(batch, number, names), None if message is None else bytes(message)


class RowGroup(NamedTuple, Generic[T]):
    """Rows of one batch that leave the worker together, with a value for each."""

    batch: pa.RecordBatch
    numbers: list[int]
    values: list[T]

    def with_columns(self, added: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return the rows with more columns, named ``c0`` ... and ``a0`` ...: Spark ignores these names."""
        import pyarrow as pa

        first, count = self.numbers[0] if self.numbers else 0, len(self.numbers)
        contiguous = self.numbers == list(range(first, first + count))
        kept = self.batch.slice(first, count) if contiguous else self.batch.take(pa.array(self.numbers))
        names = [f"c{index}" for index in range(kept.num_columns)] + [f"a{index}" for index in range(len(added))]
        return pa.RecordBatch.from_arrays([*kept.columns, *added], names=names)


@dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """What a function of this package does: pickled and sent to the workers, and called once per partition."""

    reading: Reading
    max_rows: ClassVar[int] = 1 << 14

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self.rows(batches)) as rows:
            groups = grouped(rows, max_bytes=self.reading.out_batch_bytes, max_rows=self.max_rows)
            # not a loop, whose variable would keep the payloads alive while Spark writes the batch
            yield from map(self.output, groups)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, T, int]]:
        raise NotImplementedError

    def output(self, group: RowGroup[T]) -> pa.RecordBatch:
        raise NotImplementedError


def grouped(rows: Iterable[tuple[Row, T, int]], *, max_bytes: int, max_rows: int) -> Iterator[RowGroup[T]]:
    """Group rows by the bytes of their values; a larger value is a group of its own."""
    groups, held = list[RowGroup[T]](), 0
    for row, value, size in rows:
        if groups and (row.batch is not groups[0].batch or held + size > max_bytes):
            yield groups.pop()
        if not groups:
            groups, held = [RowGroup[T](row.batch, [], [])], 0
        groups[0].numbers.append(row.number)
        groups[0].values.append(value)
        held += size
        del row, value
        if held >= max_bytes or len(groups[0].numbers) >= max_rows:
            yield groups.pop()
    yield from groups


# The stage that resolves ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResolveStage(Stage[Outcome]):
    path: int | tuple[int, ...]
    names: tuple[str, ...]

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, Outcome, int]]:
        with closing(self.reading.rows(messages_of(batches, self.path, self.names))) as rows:
            for row, outcome in rows:
                yield row, outcome, payload_size(outcome)
                del outcome

    def output(self, group: RowGroup[Outcome]) -> pa.RecordBatch:
        errors = [error_array(group.values)] if self.reading.on_error == "null" else []
        payloads: list[Sequence[Buffer] | None] = [(v,) if isinstance(v, bytes) else None for v in group.values]
        group.values.clear()  # the only references to the payloads are in the list that is emptied now
        kind = column_at(group.batch, self.path).type  # large_binary where Spark uses it
        return group.with_columns([binary_array(payloads, kind), *errors])


def with_results(df: DataFrame, stage: Stage[Any], added: Mapping[str, DataType]) -> DataFrame:
    errors = {"error": error_type()} if stage.reading.on_error == "null" else {}
    check_new(df.columns, [*added, *errors])
    return map_batches(df, stage, kept=range(len(df.columns)), added={**added, **errors})


# For RDDs -------------------------------------------------------------------------------------------------------


def resolver(
    config: AnyConfig,
    *,
    on_error: OneOf["fail", "skip"] = "fail",
    keyed: bool = False,
    destination: str | None = None,
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that resolves a partition of messages, for ``rdd.mapPartitions``.

    It is lazy: it fetches payloads on demand, a bounded number of bytes ahead, and keeps their order. The worker opens
    connections, once per process.

    Args:
        config: As in `resolve`.
        on_error: ``fail`` raises the first error, which fails the task. ``skip`` logs a warning and drops the message
            if the error is specific to it. Other errors always fail the task. A chunk is an error: use
            `claimcheck.spark.reassemble` on a DataFrame.
        keyed: Elements are pairs of any key and a message, and become pairs of the key and the payload.
        destination: The topic that the messages were read from. Required where signing keys are configured, unless
            ``signing.bind_destination`` is false.
        max_inflight_bytes: As in `resolve`.

    Returns:
        A picklable callable from ``Iterator[bytes]`` to ``Iterator[bytes]``; ``None`` stays ``None``.

    Raises:
        ConfigError: The configuration or an option is invalid.
    """
    from pyspark.sql import SparkSession

    check_value("on_error", on_error, OneOf["fail", "skip"])
    checked = as_config(config)
    check_destination(checked, destination)
    if session := SparkSession.getActiveSession():
        prepare(checked, session)
    reading = Reading(config=checked, max_inflight_bytes=max_inflight_bytes, origin=Origin(destination))
    return partial(_resolve_partition, reading, on_error == "skip", keyed)


def _resolve_partition(reading: Reading, skip_errors: bool, keyed: bool, elements: Iterable[Any]) -> Iterator[Any]:
    config, destination = reading.config, reading.origin.destination
    cc, pairs = claim_check(config), elements if keyed else ((None, element) for element in elements)
    jobs = (resolving(cc, key, message, destination=destination) for key, message in pairs)
    with closing(reading.run(jobs, Tally(None))) as results:
        for (key, _), outcome in results:
            if not isinstance(outcome, ClaimCheckError):
                yield (key, outcome) if keyed else outcome
            elif skip_errors and is_bad_message(outcome, config):
                _log.warning("skipped a message: %s: %s", type(outcome).__name__, outcome)
            else:
                raise outcome
            del outcome
