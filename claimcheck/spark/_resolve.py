"""Envelopes to payloads: `resolve` and `map_payloads`; and `repartition_by_payload`, which spreads them.

With `map_payloads`, payloads never leave the Python worker, which avoids copies to the JVM and the 2 GiB limit of a
column. The functions work on Arrow batches (``mapInArrow``), also with Spark Connect. Only the workers access stores.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, TypeAlias

from claimcheck._validation import check_int, fail
from claimcheck._wire import headers as hints
from claimcheck._wire.envelope import unverified_pointer
from claimcheck._wire.pointer import Pointer
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import (
    column_at,
    error_array,
    find_field,
    map_batches,
    map_rows,
    require_arrow,
    session_of,
    with_index_names,
)
from claimcheck.spark._metrics import Metrics
from claimcheck.spark._reading import (
    MAX_INFLIGHT_BYTES,
    OnError,
    Outcome,
    Reading,
    ResolveStage,
    ResultError,
    Row,
    RowGroup,
    Stage,
    messages_of,
    with_results,
)
from claimcheck.spark._worker import AnyConfig, as_config, claim_check, partition_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


_BIN = "__claimcheck_bin"
_UNKNOWN_BYTES = 1 << 20  # assumed for pointers of version 1, which declare no size


def resolve(
    column: str,
    *,
    config: AnyConfig,
    destination: str | None = None,
    on_error: OnError = "fail",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that resolves a column of messages, for ``df.transform``.

    Adds the binary column ``payload``, and keeps all other columns, and the order within a partition. Filter and drop
    *before* resolving: later filters save no fetches. Two actions on the result resolve twice: persist it, or do both
    in one action.

    Args:
        column: A binary column of envelopes and plain messages; null stays null.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        destination: The topic that all messages were read from, for the check of signatures. ``None`` uses the column
            ``topic`` of each row.
        on_error: ``fail`` raises the first error, which fails the task. ``null`` leaves the payload null and adds a
            column ``error``, a struct of ``type``, ``message``, ``store`` and ``key`` that is null for every row
            without an error. A function gets each bad row as a `DeadLetter`, in the worker, and the row is dropped;
            the function is pickled, runs again if Spark reruns the task, and its exceptions fail the task. Errors that
            are not specific to one row always fail the task, so that an outage never becomes data: a store that is
            down, a driver or variable that the worker lacks for the configuration's ``store`` or one listed in
            ``reads_from``, or a key that it lacks.
        max_inflight_bytes: Bound on the payload bytes that a task fetches ahead.
        metrics: Counts what tasks do.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns when called and reads nothing yet.

    Raises:
        ConfigError: The configuration or an option is invalid; the function raises it for columns.
        MissingDependencyError: pyspark, pyarrow or pandas is missing.
    """
    reading = Reading.of(config, max_inflight_bytes, metrics, on_error)

    def transform(df: DataFrame) -> DataFrame:
        from pyspark.sql.types import BinaryType

        placed, path = reading.at(df, destination), find_field(df, "column", column)
        stage = ResolveStage(placed, path, tuple(df.columns))
        return with_results(df, stage, {"payload": BinaryType()})

    return transform


# A function of each payload -------------------------------------------------------------------------------------


def map_payloads(
    fn: Callable[..., object],
    schema: str | StructType,
    *,
    column: str,
    config: AnyConfig,
    as_file: bool = False,
    with_row: bool = False,
    destination: str | None = None,
    on_error: OnError = "fail",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that adds the results of ``fn`` for each payload, for ``df.transform``.

    Keeps all other columns, and the order within a partition. Checks its arguments as `resolve` does.

    Args:
        fn: Called in the worker with the payload, once for each row that has one; it is pickled. Returns a mapping by
            column name, a tuple in column order (a Row or named tuple is matched by name), or, for a single column, its
            value; ``None`` for nulls. Times without a zone are taken as UTC.
        schema: The columns to add, as text or as Spark's type.
        column: A binary column of envelopes and plain messages. Where it is null, the added columns are null.
        config: As in `resolve`.
        as_file: Whether ``fn`` receives a binary file instead of bytes. Payloads of more than ``max_inflight_bytes``
            are read from their store while ``fn`` reads, in bounded memory, and are verified before their last byte;
            a payload that ``fn`` does not read to the end is not verified.
        with_row: Whether ``fn`` receives the row as a second argument: a dictionary of all columns, whose names must
            be unique.
        destination: As in `resolve`.
        on_error: As in `resolve`. Exceptions of ``fn`` count as errors of the row, too.
        max_inflight_bytes: As in `resolve`.
        metrics: Counts what tasks do.
    """
    if not callable(fn):
        fail("fn", found=repr(fn), expected="a function of a payload")
    reading = Reading.of(config, max_inflight_bytes, metrics, on_error)

    def transform(df: DataFrame) -> DataFrame:
        placed = reading.at(df, destination)
        twice = next((name for name in df.columns if df.columns.count(name) > 1), None)
        if with_row and twice is not None:
            expected = "columns with different names: each row becomes a dictionary"
            fail("with_row", found=f"several columns {twice!r}", expected=expected)
        path, parsed = find_field(df, "column", column), parsed_schema(df, schema)
        stage = MapStage(placed, path, tuple(df.columns), parsed, fn, as_file, with_row)
        return with_results(df, stage, {field.name: field.dataType for field in parsed.fields})

    return transform


def parsed_schema(df: DataFrame, schema: str | StructType) -> StructType:
    """Parse a schema in a way that works with Spark Connect and in every version."""
    if isinstance(schema, str) and schema.strip():
        schema = df.sparkSession.createDataFrame([], schema).schema
    names = [] if isinstance(schema, str) else getattr(schema, "names", [])
    if isinstance(schema, str) or not names or len({name.lower() for name in names}) < len(names):
        fail("schema", found=repr(schema), expected="columns, each once, as 'width int, height int' or a StructType")
    return schema


class _Result(NamedTuple):
    """The function's result for one payload, as values in column order, or the error."""

    values: Sequence[object]
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class MapStage(Stage[_Result]):
    max_rows: ClassVar[int] = 1024

    path: tuple[int, ...]
    names: tuple[str, ...]
    schema: StructType
    fn: Callable[..., object]
    as_file: bool
    with_row: bool

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, _Result, int]]:
        messages = messages_of(batches, self.path, self.names)
        with closing(self.reading.rows(messages, instead=self._opener)) as rows:
            for row, outcome in rows:
                result = self._result(row, outcome)
                del outcome  # it would keep the payload alive during the next fetch
                if result is not None:
                    yield row, result, sum(map(_size, result.values))

    def _opener(self, pointer: Pointer) -> Callable[[], BinaryIO] | None:
        """Return a function that opens a payload that is too large to fetch ahead."""
        if not self.as_file or (pointer.size is not None and pointer.size <= self.reading.max_inflight_bytes):
            return None
        return partial(claim_check(self.reading.config).opened.messages.open, pointer)

    def _result(self, row: Row, outcome: Outcome) -> _Result | None:
        if outcome is None or isinstance(outcome, Exception):
            return _Result(self._nulls(), outcome)
        try:
            return _Result(self._call(outcome, *([row.values()] if self.with_row else [])))
        except MemoryError:  # a problem of this worker, not of this row
            raise
        except Exception as error:
            return self._error_result(row, error)

    def _error_result(self, row: Row, error: Exception) -> _Result | None:
        shown = self.reading.handle(row, error)
        return None if shown is None else _Result(self._nulls(), shown)

    def _nulls(self) -> tuple[None, ...]:
        return (None,) * len(self.schema)

    def _call(self, payload: bytes | Callable[[], BinaryIO], *row: dict[str, object]) -> Sequence[object]:
        if not self.as_file:
            return self._values(self.fn(payload, *row))
        with io.BytesIO(payload) if isinstance(payload, bytes) else payload() as file:
            return self._values(self.fn(file, *row))

    def _values(self, result: object) -> Sequence[object]:
        names = self.schema.names
        if result is None:
            return self._nulls()
        # Of a Row or a named tuple.
        fields: Sequence[str] = getattr(result, "__fields__", None) or getattr(result, "_fields", None) or ()
        if isinstance(result, tuple) and set(fields) == set(names):
            return [result[fields.index(name)] for name in names]
        if isinstance(result, Mapping) and (len(names) > 1 or set(result) == set(names)):
            if unknown := set(result) - set(names):
                raise ResultError(f"the function returned {sorted(unknown)}, but the schema has {names}")
            return [result.get(name) for name in names]
        if len(names) == 1 and not (type(result) is tuple and len(result) == 1):
            return (result,)
        if not isinstance(result, tuple) or len(result) != len(names):
            text = f"the function returned a {type(result).__name__}, expected a mapping or a tuple of {names}"
            raise ResultError(text)
        return result

    def output(self, group: RowGroup[_Result]) -> pa.RecordBatch:
        import pyarrow as pa

        large = column_at(group.batch, self.path).type == pa.large_binary()
        fields = _arrow_fields(self.schema, large=large)
        try:
            columns = _arrays(group.values, fields)
        except ResultError:
            group = self._without_misfits(group, fields)
            columns = _arrays(group.values, fields)
        if self.reading.on_error == "null":
            columns.append(error_array(result.error for result in group.values))
        return group.with_columns(columns)

    def _without_misfits(self, group: RowGroup[_Result], fields: list[pa.Field]) -> RowGroup[_Result]:
        """Handle results that do not fit their columns as errors of their rows."""
        fitting = RowGroup[_Result](group.batch, [], [])
        for number, result in zip(group.numbers, group.values, strict=True):
            kept: _Result | None = result
            try:
                _arrays([result], fields)
            except ResultError as error:
                kept = self._error_result(Row(group.batch, number, self.names), error)
            if kept is not None:
                fitting.numbers.append(number)
                fitting.values.append(kept)
        return fitting


def _arrays(results: list[_Result], fields: list[pa.Field]) -> list[pa.Array]:
    return [_array([result.values[index] for result in results], field) for index, field in enumerate(fields)]


def _array(values: list[object], field: pa.Field) -> pa.Array:
    import pyarrow as pa

    try:
        if pa.types.is_integer(field.type) and any(isinstance(value, float) and value % 1 for value in values):
            raise ValueError("a number with a fraction, which Arrow would drop")
        return pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        text = f"the function's result does not fit column {field.name!r} of type {field.type}: {str(error)[:300]}"
        raise ResultError(text) from error


def _arrow_fields(schema: StructType, *, large: bool) -> list[pa.Field]:
    from pyspark.sql.pandas.types import to_arrow_schema

    options: dict[str, Any] = {"prefers_large_types": True} if large else {}
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # required by some versions
        options["timezone"] = "UTC"
    return list(to_arrow_schema(schema, **options))


def _size(value: object) -> int:
    return len(value) if isinstance(value, (bytes, bytearray, str, list, tuple, dict)) else 8


# Partitions with equal payload bytes ----------------------------------------------------------------------------------


def repartition_by_payload(
    column: str, *, config: AnyConfig, target_bytes: int = 128 << 20
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that spreads rows so that partitions have about equal payload bytes, for ``df.transform``.

    Uses the sizes that pointers declare, within ``limits``; no store is accessed. Reads the rows twice: their sizes
    are added up when the function is called. Rows of one partition stay together if they fit, but not in order.

    Args:
        column: A binary column of envelopes and plain messages.
        config: As in `resolve`.
        target_bytes: The most payload bytes per partition, except for a partition with a single larger payload.

    Returns:
        A function from a batch DataFrame to a DataFrame with the same columns.

    Raises:
        ConfigError: As `resolve`. The function raises it for streams, too: their sources limit payload bytes.
        MissingDependencyError: As `resolve`.
    """
    require_arrow()
    check_int("target_bytes", target_bytes, minimum=1)
    checked = as_config(config)

    def transform(df: DataFrame) -> DataFrame:
        from pyspark.sql.types import IntegerType

        session_of(df)
        if df.isStreaming:
            fail("df", found="a stream", expected="a batch; a stream's source limits the bytes of a trigger")
        packed = partial(_packed, checked, find_field(df, "column", column), target_bytes)
        ranges, count = _bin_ranges(df, packed, target_bytes)
        assign, added = partial(_assigned, packed, ranges, _hash_keys(df, count)), {_BIN: IntegerType()}
        binned = map_batches(with_index_names(df), assign, kept=range(len(df.columns)), added=added)
        return binned.repartition(count, _BIN).drop(_BIN).toDF(*df.columns)

    return transform


_Packed: TypeAlias = Callable[[Iterable["pa.RecordBatch"]], Iterator[tuple["pa.RecordBatch", list[int], int]]]
_BinRanges = dict[int, tuple[int, int, int]]
"""The bins of each partition: the first one of its own, the number of those, and one that it shares."""


def _packed(
    config: Config, path: tuple[int, ...], target_bytes: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, list[int], int]]:
    """Pack the rows of a partition into bins; yields each batch, its rows' bins, and the bytes in the last one."""
    last, held = -1, 0
    for batch in batches:
        bins = list[int]()
        for message in column_at(batch, path):
            size = _payload_bytes(message.as_py(), config)
            fits = last >= 0 and (held == 0 or held + size <= target_bytes)
            last, held = (last, held + size) if fits else (last + 1, size)
            bins.append(last)
        yield batch, bins, held


def _last_bin(packed: _Packed, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, int]]:
    last = [(bins[-1], held) for _, bins, held in packed(batches) if bins][-1:]
    return ((partition_id(), *each) for each in last)


def _assigned(
    packed: _Packed, ranges: _BinRanges, keys: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    first, full, rest = ranges.get(partition_id(), (0, 0, 0))
    for batch, bins, _ in packed(batches):
        chosen = [keys[first + each if each < full else rest] for each in bins]
        columns = [*batch.columns, pa.array(chosen, type=pa.int32())]
        yield pa.RecordBatch.from_arrays(columns, names=list(map(str, range(len(columns)))))


def _bin_ranges(df: DataFrame, packed: _Packed, target_bytes: int) -> tuple[_BinRanges, int]:
    """Number the bins of all partitions; the last bins of partitions are combined."""
    columns = "partition bigint, full bigint, rest bigint"
    reports = sorted(map_rows(with_index_names(df), partial(_last_bin, packed), columns).collect())
    count = sum(full for _, full, _ in reports)
    ranges, first, current, held = _BinRanges(), 0, -1, 0
    for partition, full, rest in reports:
        if current < 0 or held + rest > target_bytes:
            current, held, count = count, 0, count + 1
        held += rest
        ranges[partition] = (first, full, current)
        first += full
    return ranges, max(count, 1)


def _hash_keys(df: DataFrame, count: int) -> list[int]:
    """Return for each partition a number that Spark hashes to it: only hashing works in every version."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual alias

    keys, tried = dict[int, int](), 0
    while len(keys) < count:
        numbers = df.sparkSession.range(tried, tried + 16 * count + 64)
        number = F.col("id").cast("int")
        hashed = numbers.select(number.alias("n"), F.pmod(F.hash(number), F.lit(count)).alias("place"))
        for row in hashed.groupBy("place").agg(F.min("n").alias("n")).collect():
            keys.setdefault(row["place"], row["n"])
        tried += 16 * count + 64
    return [keys[place] for place in range(count)]


def max_offsets(sample: DataFrame, *, payload_bytes: int) -> int:
    """Return how many messages hold about so many payload bytes: the ``maxOffsetsPerTrigger`` of Spark's Kafka source.

    Each chunk counts with the size of its whole payload.

    Args:
        sample: Messages with the columns ``value`` and ``headers`` of that source (``includeHeaders``), such as those
            of the last hour.
        payload_bytes: The payload bytes that a trigger may load.

    Returns:
        The quotient with the average of the sample, at least 1.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the usual alias

    declared = F.expr(f"get(filter(headers, each -> each.key = '{hints.SIZE}'), 0).value").cast("string").cast("bigint")
    size = F.coalesce(declared, F.length("value"), F.lit(0))
    return max(1, int(payload_bytes / (sample.agg(F.avg(size)).collect()[0][0] or 1)))


def _payload_bytes(message: bytes | None, config: Config) -> int:
    """Return the payload bytes that a message declares; signatures are not checked."""
    if message is None:
        return 0
    try:
        pointer = unverified_pointer(message, header=config.header)
    except ClaimCheckError:  # resolving the message raises it again
        return len(message)
    if pointer is None or (pointer.size or 0) > config.limits.max_payload_bytes:  # then it is never fetched
        return len(message)
    return _UNKNOWN_BYTES if pointer.size is None else pointer.size
