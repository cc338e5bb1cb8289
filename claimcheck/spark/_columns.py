"""The columns that the functions of this package read and add: found as Spark finds them, checked on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from claimcheck._registry import import_vendor
from claimcheck._validation import fail
from claimcheck.errors import ClaimCheckError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = [
    "HEADERS_TYPE",
    "MAP_TYPE",
    "MAX_COLUMN_BYTES",
    "arrow_error_type",
    "by_place",
    "check_named_apart",
    "check_new",
    "check_types",
    "error_type",
    "error_value",
    "find_column",
    "need_arrow",
    "over_rows",
    "row_source",
    "with_fields",
]

MAX_COLUMN_BYTES = 2040 << 20
"""The largest payload that fits a column: the JVM has no larger arrays, and 2100 MiB were seen to fail."""

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
"""Of headers, as Spark's source and sink for Kafka have them."""

MAP_TYPE = "map<string,string>"
"""Of headers where names are there once, as Pulsar has its properties."""

_SOURCE = ("topic", "partition", "offset", "message_id", "ledger_id", "entry_id", "batch_index")
_MESSAGE_CHARACTERS = 2000
_ERROR = ("type", "message", "store", "key")


def need_arrow() -> None:
    """Make sure of what ``mapInArrow`` wants; pandas, too, though Spark does not use it there.

    Raises:
        MissingDependencyError: Names the extra.
    """
    for module in ("pyspark", "pyarrow", "pandas"):
        import_vendor(module, extra="spark")


def find_column(df: DataFrame, option: str, name: object, *kinds: str) -> int:
    """Find a column's place; names count as Spark counts them, whatever their case.

    Args:
        df: Where to look.
        option: What the caller calls the argument.
        name: Of the column.
        kinds: The types that it may have, as Spark writes them in ``simpleString``; by default ``binary``.

    Raises:
        ConfigError: There is no such column, or several, or it is of another type.
    """
    if not isinstance(name, str):
        fail(option, found=f"a {type(name).__name__}", expected="the name of a column, as text")
    names, shown = [each.lower() for each in df.columns], ", ".join(df.columns) or "none"
    if names.count(name.lower()) != 1:
        found = f"{name!r} {names.count(name.lower())} times" if name.lower() in names else repr(name)
        fail(option, found=found, expected=f"exactly one column of the DataFrame ({shown})")
    index = names.index(name.lower())
    actual = df.schema.fields[index].dataType.simpleString()
    if actual not in (kinds or ("binary",)):
        expected = f"a column of type {' or '.join(kinds or ('binary',))}"
        fail(option, found=f"{name!r} of type {actual}", expected=expected)
    return index


def check_new(taken: Iterable[str], **added: object) -> None:
    """Refuse names for new columns that are taken, or that are no names.

    Args:
        taken: Names of the columns that stay.
        added: From the caller's argument to the name of the column.

    Raises:
        ConfigError: Names the argument.
    """
    names = [name.lower() for name in taken]
    for option, name in added.items():
        if not isinstance(name, str) or not name:
            found = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
            fail(option, found=found, expected="the name of a column, as text")
        if name.lower() in names:
            fail(option, found=f"{name!r}, which is taken", expected=f"a new name (taken: {', '.join(names)})")
        names.append(name.lower())


def check_named_apart(names: Sequence[str], option: str) -> None:
    """Refuse columns of one name, of which a dictionary would keep the last.

    Args:
        names: Of the columns.
        option: What asks for the dictionary.

    Raises:
        ConfigError: Names one of them.
    """
    twin = next((name for name in names if names.count(name) > 1), None)
    if twin is not None:
        fail(option, found=f"several columns {twin!r}", expected="columns of different names: a row is a dictionary")


def with_fields(kept: Iterable[StructField], /, **added: DataType) -> StructType:
    """Make a schema of columns that stay and columns that are added, which may be null."""
    from pyspark.sql.types import StructField, StructType

    return StructType([*kept, *(StructField(name, kind) for name, kind in added.items())])


def over_rows(
    df: DataFrame,
    stage: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    *,
    kept: Sequence[int],
    added: Mapping[str, DataType],
) -> DataFrame:
    """Run a stage in the workers, which goes by the places of columns; Spark gives what comes out its names.

    Nothing is renamed where that can be helped: Spark would copy each row for it, payloads included.

    Args:
        df: Whose rows.
        stage: Called once per partition.
        kept: Places of the columns that stay, which come first.
        added: Names and types of those that follow.

    Raises:
        ConfigError: A column is of a type that Spark gives to no Python worker.
    """
    check_types(df)
    names = {name.lower() for name in df.columns}
    told_apart = len(names) == len(df.columns) and not any(name == "" or set(name) & set(".`*") for name in names)
    fields = [df.schema.fields[place] for place in kept]
    return (df if told_apart else by_place(df)).mapInArrow(stage, with_fields(fields, **added))


def by_place(df: DataFrame) -> DataFrame:
    """Call columns ``c0``, ``c1`` and so on, whose names may have dots, or be there twice."""
    return df.toDF(*(f"c{place}" for place in range(len(df.columns))))


def check_types(df: DataFrame) -> None:
    """Refuse columns that no Python worker can be given, whether they are wanted there or not.

    Raises:
        ConfigError: Names the column.
    """
    for field in df.schema.fields:
        if _has_months(field.dataType):
            kind = field.dataType.simpleString()
            expected = "none of those, which no Python worker is given: cast it to string, or drop it"
            fail("df", found=f"the column {field.name!r} of type {kind}", expected=expected)


def _has_months(kind: DataType) -> bool:
    """Whether there are intervals in it that are no durations."""
    if type(kind).__name__ in ("CalendarIntervalType", "YearMonthIntervalType"):  # some versions lack the second
        return True
    parts = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
    parts += [field.dataType for field in getattr(kind, "fields", ())]
    return any(_has_months(part) for part in parts if part is not None)


def error_type() -> StructType:
    """Give the type of an error column: ``type`` (the class's name), ``message``, ``store`` and ``key``, all text."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in _ERROR])


def arrow_error_type() -> pa.DataType:
    """Give the same for Arrow."""
    import pyarrow as pa

    return pa.struct([(name, pa.string()) for name in _ERROR])


def error_value(error: BaseException) -> dict[str, str | None]:
    """Write an error as a value of such a column."""
    store, key = getattr(error, "store", None), getattr(error, "key", None)
    named = isinstance(error, ClaimCheckError)
    return {
        "type": type(error).__name__,
        "message": _told(error),
        "store": str(store) if named and store else None,
        "key": str(key) if named and key else None,
    }


def _told(error: BaseException) -> str:
    try:
        return str(error)[:_MESSAGE_CHARACTERS]
    except Exception as second:  # a stranger's error may not even be able to say what it is
        return f"it cannot be said: {type(second).__name__}"


def row_source(row: Mapping[str, Any]) -> str:
    """Say where a row came from, as far as its columns tell: those of Kafka's source, and of ours."""
    told = {name.lower(): value for name, value in row.items()}
    parts = [f"{name} {told[name]}" for name in _SOURCE if isinstance(told.get(name), (str, int))]
    return ", ".join(parts)
