"""Envelopes to payloads: `resolve` and `map_payloads` for DataFrames, `resolver` for RDDs.

With `map_payloads`, payloads never leave the Python worker; only the function's results go to Spark. That avoids
copying every payload to the JVM and back, and the 2 GiB limit of a column. Both functions work on Arrow batches
(``mapInArrow``): batch and streaming, also with Spark Connect. Only the workers access stores.
"""

from __future__ import annotations

import inspect
import io
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, NamedTuple

from claimcheck._validation import check_value, fail
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import (
    Origin,
    check_destination,
    check_paths,
    error_array,
    find_column,
    is_bad_message,
)
from claimcheck.spark._metrics import Metrics, Tally
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
    resolving,
    with_results,
)
from claimcheck.spark._worker import AnyConfig, as_config, claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


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

        placed, index = reading.at(df, destination), find_column(df, "column", column)
        stage = ResolveStage(placed, index, tuple(df.columns))
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
        index, parsed = find_column(df, "column", column), _parsed(df, schema)
        stage = _MapStage(placed, index, tuple(df.columns), parsed, fn, as_file, with_row)
        return with_results(df, stage, {field.name: field.dataType for field in parsed.fields})

    return transform


def _parsed(df: DataFrame, schema: str | StructType) -> StructType:
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
class _MapStage(Stage[_Result]):
    max_rows: ClassVar[int] = 1024

    reading: Reading
    index: int
    names: tuple[str, ...]
    schema: StructType
    fn: Callable[..., object]
    as_file: bool
    with_row: bool

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, _Result, int]]:
        messages = messages_of(batches, self.index, self.names)
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
            raise ResultError(
                f"the function returned a {type(result).__name__}, expected a mapping or a tuple of {names}"
            )
        return result

    def output(self, group: RowGroup[_Result]) -> pa.RecordBatch:
        import pyarrow as pa

        large = group.batch.schema.field(self.index).type == pa.large_binary()
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


# For RDDs -------------------------------------------------------------------------------------------------------


def resolver(
    config: AnyConfig,
    *,
    on_error: Literal["fail", "skip"] = "fail",
    keyed: bool = False,
    destination: str | None = None,
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
) -> PartitionResolver:
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

    check_value("on_error", on_error, Literal["fail", "skip"])
    checked = as_config(config)
    check_destination(checked, destination)
    if session := SparkSession.getActiveSession():
        check_paths(checked, session)
    reading = Reading(config=checked, max_inflight_bytes=max_inflight_bytes, origin=Origin(destination))
    return PartitionResolver(reading, skip_errors=on_error == "skip", keyed=keyed)


@dataclass(frozen=True, slots=True)
class PartitionResolver:
    """The result of `resolver`: pickled and sent to the workers, where it is called once per partition."""

    reading: Reading
    skip_errors: bool
    keyed: bool

    def __call__(self, elements: Iterable[Any]) -> Iterator[Any]:
        config, destination = self.reading.config, self.reading.origin.destination
        cc, pairs = claim_check(config), elements if self.keyed else ((None, element) for element in elements)
        jobs = (resolving(cc, key, message, destination=destination) for key, message in pairs)
        with closing(self.reading.run(jobs, Tally(None))) as results:
            for (key, _), outcome in results:
                if not isinstance(outcome, ClaimCheckError):
                    yield (key, outcome) if self.keyed else outcome
                elif self.skip_errors and is_bad_message(outcome, config):
                    _log.warning("skipped a message: %s: %s", type(outcome).__name__, outcome)
                else:
                    raise outcome
                del outcome
