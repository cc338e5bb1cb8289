"""What the driver checks: columns, topics, and whether every process reaches the stores; and the batches between."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from claimcheck._validation import check_type, fail
from claimcheck._wire.buffers import Buffer
from claimcheck.config import Config, expand
from claimcheck.errors import (
    UNUSABLE,
    ChunkError,
    ClaimCheckError,
    ConfigError,
    EnvelopeError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
    import_vendor,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

    BatchFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    RowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterable[tuple[Any, ...]]]

MAX_COLUMN_BYTES = 2040 << 20
"""The largest payload that fits into a column: JVM arrays end below 2 GiB, and 2100 MiB failed in tests."""

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
"""The type of Kafka headers in Spark's Kafka source and sink."""

MAP_TYPE = "map<string,string>"
"""The type of headers with unique names, such as Pulsar properties."""

MESSAGE_ERRORS: tuple[type[ClaimCheckError], ...] = (
    ChunkError,
    EnvelopeError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)
"""Errors that can be the fault of a single message; see `is_bad_message`."""

_HEADERS = ("headers", HEADERS_TYPE), ("properties", MAP_TYPE), ("headers", MAP_TYPE), ("properties", HEADERS_TYPE)
_BATCH_ROWS = 8192
_ABSOLUTE = "an absolute path that driver and executors share, also as the default of a variable"
_LOCAL_MASTER = re.compile(r"local(\[.*\])?")  # not local-cluster, whose executors have separate folders
_SOURCE = ("topic", "partition", "offset", "message_id", "ledger_id", "entry_id", "batch_index")
_MESSAGE_CHARACTERS = 2000
_ERROR = ("type", "message", "store", "key")


def require_arrow() -> None:
    for module in ("pyspark", "pyarrow", "pandas"):
        import_vendor(module, extra="spark")


def older_pyspark(than: tuple[int, int]) -> str | None:
    """Return the installed version of pyspark, if it is older."""
    version: str = import_vendor("pyspark", extra="spark").__version__
    return version if tuple(map(int, re.findall(r"\d+", version)[:2])) < than else None


def session_of(df: DataFrame) -> SparkSession:
    """Return the session of a DataFrame; raises an `ArgumentTypeError` for anything else, such as a frame of pandas."""
    valid = hasattr(df, "sparkSession") and hasattr(df, "mapInArrow")
    expected = "a DataFrame of Spark; spark.createDataFrame makes one of a pandas DataFrame"
    check_type("df", df, valid=valid, expected=expected)
    return df.sparkSession


def find_column(df: DataFrame, option: str, name: object, *types: str) -> int:
    """Return the index of the column that ``option`` names; case-insensitive, as in Spark."""
    return _find(df, option, name, [name], types or ("binary",))[0]


def find_field(df: DataFrame, option: str, name: object) -> tuple[int, ...]:
    """Return the index of a binary column, or those of the columns and fields that lead to ``column.field``."""
    is_nested = isinstance(name, str) and name.lower() not in map(str.lower, df.columns)
    return _find(df, option, name, str(name).split(".") if is_nested else [name], ("binary",))


def _find(df: DataFrame, option: str, name: object, parts: list[Any], types: tuple[str, ...]) -> tuple[int, ...]:
    if not isinstance(name, str):
        fail(option, found=f"a {type(name).__name__}", expected="the name of a column, as text")
    kind: Any = df.schema
    path = list[int]()
    for part in map(str.lower, parts):
        names = [each.lower() for each in getattr(kind, "names", ())]
        if names.count(part) != 1:
            found = f"{name!r} {names.count(part)} times" if part in names else repr(name)
            where = "field of its column" if path else "column of the DataFrame"
            known = ", ".join(getattr(kind, "names", ())) or "none"
            fail(option, found=found, expected=f"exactly one {where} ({known})")
        path.append(names.index(part))
        kind = kind.fields[path[-1]].dataType
    if (actual := kind.simpleString()) not in types:
        fail(option, found=f"{name!r} of type {actual}", expected=f"a column of type {' or '.join(types)}")
    return tuple(path)


def column_at(batch: pa.RecordBatch, path: int | tuple[int, ...]) -> pa.Array:
    """Return a column, or a field of its structs, which is null where these are."""
    import pyarrow.compute as pc

    column, *fields = (path,) if isinstance(path, int) else path
    return pc.struct_field(batch.column(column), fields) if fields else batch.column(column)


def check_new(taken: Iterable[str], added: Iterable[str]) -> None:
    """Check the names of new columns against those of the columns that stay."""
    names = [name.lower() for name in taken]
    for name in added:
        if name.lower() in names:
            fail(name, found=f"{name!r}, which is taken", expected=f"a new name (taken: {', '.join(names)})")
        names.append(name.lower())


def with_fields(kept: Iterable[StructField], /, **added: DataType) -> StructType:
    """Return a schema of existing columns followed by new, nullable ones."""
    from pyspark.sql.types import StructField, StructType

    return StructType([*kept, *(StructField(name, kind) for name, kind in added.items())])


def map_batches(
    df: DataFrame, function: BatchFunction, *, kept: Sequence[int], added: Mapping[str, DataType]
) -> DataFrame:
    """Run a function on the Arrow batches of a DataFrame; it finds columns by index, and Spark names its output."""
    fields = [df.schema.fields[index] for index in kept]
    return with_index_names(df).mapInArrow(function, with_fields(fields, **added))


def map_rows(df: DataFrame, function: RowFunction, columns: str) -> DataFrame:
    """Run a function on the Arrow batches of one of our own DataFrames; it yields rows of these columns."""
    return df.mapInArrow(partial(_batches_of, function, columns), columns)


def _batches_of(function: RowFunction, schema: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    types = {"string": pa.string(), "binary": pa.binary(), "int": pa.int32(), "bigint": pa.int64()}
    columns = [each.split() for each in schema.split(", ")]
    names, kinds = [name for name, _ in columns], [types[kind] for _, kind in columns]
    rows = iter(function(batches))
    while some := list(islice(rows, _BATCH_ROWS)):
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*some, strict=True), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def with_index_names(df: DataFrame) -> DataFrame:
    """Rename the columns to ``c0``, ``c1`` and so on, because names may contain dots or occur twice."""
    return df.toDF(*(f"c{index}" for index in range(len(df.columns))))


def error_type() -> StructType:
    """Return the type of an error column: ``type`` (a class name), ``message``, ``store`` and ``key``, all text."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in _ERROR])


def error_array(values: Iterable[object]) -> pa.Array:
    """Return a column with the errors among the values."""
    import pyarrow as pa

    errors = [error_value(value) if isinstance(value, Exception) else None for value in values]
    return pa.array(errors, type=pa.struct([(name, pa.string()) for name in _ERROR]))


def error_value(error: BaseException) -> dict[str, str | None]:
    try:
        message = str(error)[:_MESSAGE_CHARACTERS]
    except Exception as second:  # a third-party error may fail to format itself
        message = f"no message: str() raised {type(second).__name__}"
    values = (getattr(error, name, None) if isinstance(error, ClaimCheckError) else None for name in ("store", "key"))
    store, key = (str(value) if value else None for value in values)
    return {"type": type(error).__name__, "message": message, "store": store, "key": key}


def binary_array(values: list[Sequence[Buffer] | None], kind: pa.DataType) -> pa.Array:
    """Return a ``binary`` or ``large_binary`` column of joined pieces, and empty the list as they are copied."""
    import pyarrow as pa

    sizes = (sum(map(len, pieces or ())) for pieces in values)
    ends = array("q" if pa.types.is_large_binary(kind) else "i", accumulate(sizes, initial=0))
    count, is_valid = len(values), [pieces is not None for pieces in values]
    valid = None if all(is_valid) else pa.array(is_valid).buffers()[1]
    if count == 1 and len(values[0] or ()) == 1:
        (piece,) = values.pop() or ()
        return pa.Array.from_buffers(kind, 1, [valid, pa.py_buffer(ends), pa.py_buffer(piece)])
    data = pa.allocate_buffer(ends[-1])
    view = memoryview(data).cast("B")
    while values:
        position = ends[len(values) - 1]
        for piece in values.pop() or ():
            view[position : position + len(piece)] = piece
            position += len(piece)
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(ends), data])


def is_bad_message(error: ClaimCheckError, config: Config) -> bool:
    """Return whether an error concerns one message only, so that a task may continue without it."""
    if isinstance(error, PointerRejectedError) and error.reason == "store" and isinstance(error.__cause__, UNUSABLE):
        return error.store not in {config.store, *(config.reads_from or ())}
    return isinstance(error, MESSAGE_ERRORS) and not error.retryable


def row_source(row: Mapping[str, object]) -> str:
    """Describe where a row came from, from the columns of Spark's Kafka source or of our sources."""
    values = {name.lower(): value for name, value in row.items()}
    return ", ".join(f"{name} {values[name]}" for name in _SOURCE if isinstance(values.get(name), (str, int)))


# Where the messages of a DataFrame were read from, for the check of their signatures and of their stores -------------


@dataclass(frozen=True, slots=True)
class Origin:
    """Where rows were read from: one topic, or the topic in a column."""

    destination: str | None = None
    topic: int | None = None
    headers: int | None = None

    @classmethod
    def find(cls, df: DataFrame, config: Config, destination: str | None) -> Origin:
        topic = _index(df, "topic", "string") if destination is None else None
        check_destination(config, destination, is_known=topic is not None)
        if not config.signing.keys and not config.destinations:
            return cls()
        return cls(destination, topic, headers_index(df))

    def destination_of(self, batch: pa.RecordBatch, number: int) -> str | None:
        return self.destination if self.topic is None else batch.column(self.topic)[number].as_py()

    def headers_of(self, batch: pa.RecordBatch, number: int) -> list[tuple[str, object]] | None:
        """Return the headers of a row, if they are known."""
        return [] if self.headers is None else header_pairs(batch.column(self.headers)[number].as_py())

    def without_column(self, index: int) -> Origin:
        """Return the same for rows without a column."""
        return Origin(self.destination, self.topic and self.topic - (index < self.topic))


def header_pairs(value: Any) -> list[tuple[str, Any]]:
    """Return headers as Arrow or pandas has them: Kafka's are structs, and those of a map are pairs or a dictionary."""
    items = value.items() if isinstance(value, dict) else () if value is None else value
    return [(each["key"], each["value"]) if isinstance(each, dict) else tuple(each) for each in items]


def check_destination(config: Config, destination: object, *, is_known: bool = False) -> None:
    """Check the option ``destination`` on the driver; ``is_known``: whether a column has the topics."""
    expected = "the topic that the messages were read from"
    if destination is not None and (not isinstance(destination, str) or not destination):
        fail("destination", found=repr(destination), expected=expected)
    if destination is None and not is_known and config.signing.keys and config.signing.bind_destination:
        fail("destination", found="nothing", expected=f"{expected}, because signatures cover it, or a column topic")


def headers_index(df: DataFrame) -> int | None:
    return next((found for name, kind in _HEADERS if (found := _index(df, name, kind)) is not None), None)


def _index(df: DataFrame, name: str, kind: str) -> int | None:
    """Return the index of a column, if there is exactly one of that name, and it has this type."""
    found = [index for index, (column, _) in enumerate(df.dtypes) if column.lower() == name]
    return found[0] if len(found) == 1 and df.dtypes[found[0]][1] == kind else None


# Whether every process reaches the stores -------------------------------------------------------------------


def check_reached(config: Config) -> None:
    """Check that every process can read the store of a configuration: ``memory`` is private to each."""
    if config.store is not None and config.stores[config.store].type == "memory":
        fail(f"stores.{config.store}.type", found="'memory'", expected="a store that every process can reach")


def check_writing(config: Config) -> None:
    """Check the same where a destination's strategy writes to the store."""
    if config.strategy in ("external", "hybrid"):
        check_reached(config)


def name_python(spark: SparkSession) -> None:
    """Have workers run the Python of ``spark.pyspark.python``, which only ``spark-submit`` heeds; or locally this one.

    Otherwise they run the first ``python3`` on ``PATH``, which has no packages unless the environment is active.
    """
    named = spark.conf.get("spark.pyspark.python", None) or (sys.executable if is_one_machine(spark) else None)
    if named and "PYSPARK_PYTHON" not in os.environ and hasattr(spark, "_jsparkSession"):
        spark.sparkContext.pythonExec = named


def prepare(config: Config, spark: SparkSession) -> None:
    """Name the workers' Python, and check the paths of stores, unless the session runs on one machine."""
    name_python(spark)
    if not is_one_machine(spark):
        for name in sorted({config.store or "", *config.readable} & config.stores.keys()):
            store = config.stores[name]
            if store.type == "filesystem" and _is_relative(store.options.get("path")):
                fail(f"stores.{name}.path", found="a relative path", expected=_ABSOLUTE)


def _is_relative(path: object) -> bool:
    """Whether a path is relative, with the variables of this process or without any."""
    environs: tuple[Mapping[str, str], ...] = (os.environ, {})
    for environ in environs:
        with contextlib.suppress(ConfigError):  # a variable that is set only on the executors
            if not os.path.isabs(str(expand(path, path="path", environ=environ))):
                return True
    return False


def is_one_machine(spark: SparkSession) -> bool:
    """Return whether driver and workers share one machine and working folder; ``False`` if unknown."""
    try:
        return _LOCAL_MASTER.fullmatch(spark.conf.get("spark.master") or "") is not None
    except Exception:  # some services hide their configuration
        return False
