"""What the sources have in common towards Spark: its schema in Arrow's words, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from claimcheck.spark.sources.shares import Budget
from claimcheck.validation import fail

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

__all__ = ["arrow_schema", "as_ddl", "check_columns", "default_limit"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Give the types that Spark compares batches with, to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def as_ddl(columns: Mapping[str, str]) -> str:
    """Write columns as Spark reads them."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def check_columns(schema: StructType, columns: Mapping[str, str]) -> StructType:
    """Accept a schema that a user gave: some of the columns, which are then the only ones to be made.

    Args:
        schema: The user's.
        columns: All that there are, and their types.

    Raises:
        ConfigError: A column that there is not, or one of another type.
    """
    names = [field.name for field in schema.fields]
    if not names or len(set(names)) < len(names):
        fail("schema", found=", ".join(names) or "no columns", expected=f"some, each once, of: {as_ddl(columns)}")
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if columns.get(field.name) != kind:
            fail("schema", found=f"{field.name} {kind}", expected=f"columns out of: {as_ddl(columns)}")
    return schema


def default_limit(budget: Budget) -> ReadLimit:
    """Tell Spark about a limit, in the word that it has for it."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

    if budget.rows is not None:
        return ReadMaxRows(budget.rows)
    return ReadAllAvailable() if budget.size is None else ReadMaxBytes(budget.size)
