"""Use payloads where they are: ``df.transform(map_payloads(fn, "width int, height int", ...))``.

The payload never leaves the Python worker; only what the function makes of it goes on to Spark. That saves the way of
every payload to the JVM and back, and there is no limit of 2 GiB.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck._client import ClaimCheck
from claimcheck._validation import fail
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import check_named_apart, check_new, error_type, find_column, need_arrow, over_rows
from claimcheck.spark._fetching import MAX_INFLIGHT_BYTES, OUT_BATCH_BYTES, Concurrency, check_choice
from claimcheck.spark._metrics import Metrics
from claimcheck.spark._rows import (
    Columns,
    DeadLetter,
    Faults,
    Group,
    OnError,
    Reading,
    ResultError,
    Row,
    RowByRow,
    error_array,
    grouped,
    messages_of,
)
from claimcheck.spark._worker import AnyConfig, as_config, check_paths, claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["map_payloads"]

_OUT_ROWS = 1024


def map_payloads(
    fn: Callable[..., Any],
    schema: str | StructType,
    *,
    column: str,
    config: AnyConfig,
    as_file: bool = False,
    with_row: bool = False,
    on_error: OnError = "fail",
    error: str = "error",
    dead_letter: Callable[[DeadLetter], object] | None = None,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Make the function that adds what another function makes of each payload, for ``df.transform``.

    All other columns, and the order within a partition, stay as they are.

    Args:
        fn: Called in the worker with the payload, once for each row that has one; it travels there pickled. Returns
            a mapping by column names, a tuple in their order (a Row or a named tuple with their names: by these), or,
            where there is one column, its value; ``None`` for nulls. Times without a zone are taken as UTC.
        schema: Of the columns to add, as text or as Spark's type.
        column: A binary column of envelopes and plain messages. Where it is null, so is what is added.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        as_file: Whether ``fn`` gets a binary file in place of bytes. Payloads of more than ``max_inflight_bytes``
            are read from their store while ``fn`` reads, in bounded memory, and are verified before their last byte;
            what of them is not read is not verified.
        with_row: Whether ``fn`` gets a second argument: the row, a dictionary of all columns, whose names differ then.
        on_error: As of `resolve`; what ``fn`` raises counts as an error of the row, too.
        error: Name of the column with the error, for ``null``.
        dead_letter: As of `resolve`.
        concurrency: Fetches at once per task, 1 to 64, or ``auto``: threads where fetching means waiting.
        max_inflight_bytes: Bound on the payload bytes that a task fetches ahead.
        metrics: Counts what tasks do, where it is wanted.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns at once and reads nothing yet.

    Raises:
        ConfigError: The configuration or an option cannot be used; the function raises it for columns.
        MissingDependencyError: pyspark, pyarrow or pandas is missing.
    """
    need_arrow()
    check_choice("as_file", as_file, True, False)
    check_choice("with_row", with_row, True, False)
    if not callable(fn):
        fail("fn", found=repr(fn), expected="a function of a payload")
    reading = Reading(
        config=as_config(config),
        concurrency=concurrency,
        max_inflight_bytes=max_inflight_bytes,
        out_batch_bytes=OUT_BATCH_BYTES,
        faults=Faults(on_error=on_error, dead_letter=dead_letter),
        metrics=metrics,
    )

    def transform(df: DataFrame) -> DataFrame:
        check_paths(reading.config, df.sparkSession)
        if with_row:
            check_named_apart(df.columns, "with_row")
        index, new = find_column(df, "column", column), _parsed(df, schema)
        kinds: dict[str, DataType] = {field.name: field.dataType for field in new.fields}
        check_new(df.columns, **{f"schema.{name}": name for name in kinds})
        if on_error == "null":
            check_new([*df.columns, *kinds], error=error)
            kinds[error] = error_type()
        stage = _Stage(reading, index, tuple(df.columns), new, fn, as_file, with_row, with_errors=on_error == "null")
        return over_rows(df, stage, kept=range(len(df.columns)), added=kinds)

    return transform


def _parsed(df: DataFrame, schema: str | StructType) -> StructType:
    """Text becomes a type in the way that Spark Connect and every version have."""
    if isinstance(schema, str) and schema.strip():
        schema = df.sparkSession.createDataFrame([], schema).schema
    names = [] if isinstance(schema, str) else getattr(schema, "names", [])
    if isinstance(schema, str) or not names or len({name.lower() for name in names}) < len(names):
        fail("schema", found=repr(schema), expected="columns, each once, as 'width int, height int' or a StructType")
    return schema


class _Result(NamedTuple):
    """What the function made of one payload, as values in the order of the columns, or why it made nothing."""

    values: tuple[Any, ...]
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Stage:
    """What `map_payloads` sends to the workers; called once per partition."""

    reading: Reading
    index: int
    names: tuple[str, ...]
    schema: StructType
    fn: Callable[..., Any]
    as_file: bool
    with_row: bool
    with_errors: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self._results(batches)) as results:
            for group in grouped(results, max_bytes=self.reading.out_batch_bytes, max_rows=_OUT_ROWS):
                yield from self._output(group)

    def _results(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, _Result, int]]:
        cc, columns = claim_check(self.reading.config), Columns(self.names)
        streams = _Streams(cc, self.reading.max_inflight_bytes if self.as_file else None)
        messages = streams.without(messages_of(batches, self.index, self.names))
        with closing(self.reading.rows(messages, RowByRow(cc))) as rows:
            for row, _, outcome in rows:
                result = self._result(row, streams.instead_of(row, outcome), columns)
                if result.error is None or self.reading.keeps(row, result.error):
                    yield row, result, sum(map(_weight, result.values))

    def _result(self, row: Row, payload: Any, columns: Columns) -> _Result:
        nothing = self._nothing()
        if payload is None or isinstance(payload, Exception):
            return _Result(nothing, payload)
        try:
            return _Result(self._called(payload, (columns.of(row),) if self.with_row else ()))
        except MemoryError:  # of this worker, not of this row
            raise
        except Exception as error:
            return _Result(nothing, error)

    def _nothing(self) -> tuple[Any, ...]:
        return (None,) * len(self.schema)

    def _called(self, payload: Any, more: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.as_file:
            return self._values(self.fn(payload, *more))
        with io.BytesIO(payload) if isinstance(payload, bytes) else payload() as file:
            return self._values(self.fn(file, *more))

    def _values(self, result: Any) -> tuple[Any, ...]:
        names = self.schema.names
        if result is None:
            return self._nothing()
        if isinstance(result, tuple) and set(named := _names_of(result)) == set(names):
            return tuple(result[named.index(name)] for name in names)
        if isinstance(result, Mapping) and (len(names) > 1 or set(result) == set(names)):
            if unknown := set(result) - set(names):
                raise ResultError(f"the function gave {sorted(unknown)}, the schema has {names}")
            return tuple(result.get(name) for name in names)
        if len(names) == 1 and not (type(result) is tuple and len(result) == 1):
            return (result,)
        if not isinstance(result, tuple) or len(result) != len(names):
            raise ResultError(f"the function gave {_told(result)}, a mapping or a tuple of {names} is expected")
        return tuple(result)

    def _output(self, group: Group) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        large = group.batch.schema.field(self.index).type == pa.large_binary()
        fields = list(_arrow_fields(self.schema, large=large))
        try:
            columns = [_array(group.values, place, field) for place, field in enumerate(fields)]
        except ResultError:
            group = self._without_misfits(group, fields)
            columns = [_array(group.values, place, field) for place, field in enumerate(fields)]
        if self.with_errors:
            columns.append(error_array(result.error for result in group.values))
        if group.numbers:
            yield group.widened(columns)

    def _without_misfits(self, group: Group, fields: list[pa.Field]) -> Group:
        """What does not fit its column is an error of its row, like any other."""
        fitting = Group(group.batch, [], [])
        for number, result in zip(group.numbers, group.values, strict=True):
            error = _misfit(result, fields)
            if error is None or self.reading.keeps(Row(group.batch, number, self.names), error):
                fitting.numbers.append(number)
                fitting.values.append(result if error is None else _Result(self._nothing(), error))
        return fitting


def _array(results: list[_Result], place: int, field: pa.Field) -> pa.Array:
    """One column of results.

    Raises:
        ResultError: One of them does not fit.
    """
    import pyarrow as pa

    values = [result.values[place] for result in results]
    try:
        if pa.types.is_integer(field.type) and any(isinstance(value, float) and value % 1 for value in values):
            raise ValueError("a number with a fraction, of which Arrow would keep the rest only")
        return pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        text = f"the function's result does not fit column {field.name!r} of type {field.type}: {str(error)[:300]}"
        raise ResultError(text) from error


def _misfit(result: _Result, fields: list[pa.Field]) -> ResultError | None:
    try:
        for place, field in enumerate(fields):
            _array([result], place, field)
    except ResultError as error:
        return error
    return None


class _Streams:
    """Payloads that are too large to be fetched ahead, and are read while they are used.

    Args:
        cc: Opens them.
        above: Payload bytes from which on; ``None`` for never.
    """

    def __init__(self, cc: ClaimCheck, above: int | None) -> None:
        self._cc, self._above = cc, above
        self._messages: dict[tuple[int, int], bytes] = {}

    def without(self, messages: Iterable[tuple[Row, bytes | None]]) -> Iterator[tuple[Row, bytes | None]]:
        """Leave out the messages that are opened later."""
        for row, message in messages:
            large = message is not None and self._is_large(message)
            if large:
                self._messages[id(row.batch), row.number] = message or b""
            yield row, None if large else message

    def instead_of(self, row: Row, outcome: Any) -> Any:
        """What the function gets: the payload, or what opens it."""
        message = self._messages.pop((id(row.batch), row.number), None) if self._messages else None
        return outcome if message is None else lambda: self._cc.open(message)

    def _is_large(self, message: bytes) -> bool:
        if self._above is None:
            return False
        try:
            pointer = self._cc.pointer(message)
        except ClaimCheckError:  # resolving it says so
            return False
        return pointer is not None and (pointer.size is None or pointer.size > self._above)


def _arrow_fields(schema: StructType, *, large: bool) -> Iterable[pa.Field]:
    from pyspark.sql.pandas.types import to_arrow_schema

    more: dict[str, Any] = {"prefers_large_types": True} if large else {}
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # of some versions, which want to be told
        more["timezone"] = "UTC"
    fields: Iterable[pa.Field] = to_arrow_schema(schema, **more)
    return fields


def _names_of(result: tuple[Any, ...]) -> list[str]:
    """Of a Row of Spark, or of a tuple whose places have names."""
    names: Any = getattr(result, "__fields__", None) or getattr(result, "_fields", ())
    return list(names)


def _weight(value: Any) -> int:
    return len(value) if isinstance(value, (bytes, bytearray, str, list, tuple, dict)) else 8


def _told(result: Any) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
