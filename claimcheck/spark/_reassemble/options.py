"""What `reassemble` was told, as values that travel to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from claimcheck._validation import fail
from claimcheck.config import Config
from claimcheck.spark._columns import HEADERS_TYPE, MAP_TYPE, MAX_COLUMN_BYTES, find_column
from claimcheck.spark._fetching import Concurrency
from claimcheck.spark._rows import Faults, Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ExpireBy", "Options", "Places"]

ExpireBy = Literal["clock", "data"]
"""Whose time it is that passes: the machine's, or that of the messages' arrival."""

_SOURCE_KINDS = ("string", "tinyint", "smallint", "int", "bigint", "binary")
_USUAL_SOURCE = ("topic", "partition", "key")  # of the writers a topic tells no more than the key
_USUAL_HEADERS = {"headers": HEADERS_TYPE, "properties": MAP_TYPE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How payloads are put together; see `claimcheck.spark.reassemble`.

    Attributes:
        reading: How messages that are no chunks are read: errors stay, as rows.
    """

    config: Config
    expire_after_seconds: float
    expire_by: ExpireBy
    remember_seconds: float
    concurrency: Concurrency
    max_inflight_bytes: int
    out_batch_bytes: int
    metrics: Any = None
    reading: Reading = field(init=False)

    def __post_init__(self) -> None:
        reading = Reading(
            config=self.config,
            concurrency=self.concurrency,
            max_inflight_bytes=self.max_inflight_bytes,
            out_batch_bytes=self.out_batch_bytes,
            faults=Faults(on_error="null"),
            metrics=self.metrics,
        )
        object.__setattr__(self, "reading", reading)

    @property
    def max_payload_bytes(self) -> int:
        """Of a payload that comes as chunks: what the configuration allows and a column can hold."""
        return min(self.config.chunks.max_payload_bytes, MAX_COLUMN_BYTES)


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are among the columns, counted from 0.

    Attributes:
        value: The messages.
        source: What says where they came from.
        headers: Of the messages; ``None`` for nowhere.
    """

    value: int
    source: tuple[int, ...]
    headers: int | None = None

    @classmethod
    def found(cls, df: DataFrame, column: str, source: Sequence[str] | None, headers: str | None = None) -> Places:
        """Look for them.

        Raises:
            ConfigError: One is not there, or is of a type that it cannot be.
        """
        value = find_column(df, "column", column)
        if isinstance(source, str):
            fail("source", found=f"the text {source!r}", expected="a list of columns")
        kinds = {name.lower(): kind for name, kind in df.dtypes}
        if source is None:
            source = [name for name in _USUAL_SOURCE if kinds.get(name) in _SOURCE_KINDS]
        if headers is None:
            usual = [name for name, kind in _USUAL_HEADERS.items() if kinds.get(name) == kind]
            headers = usual[0] if usual else None
        place = None if headers is None else find_column(df, "headers", headers, HEADERS_TYPE, MAP_TYPE)
        return cls(value, tuple(_source_place(df, name) for name in source), place)


def _source_place(df: DataFrame, name: object) -> int:
    kinds = {column.lower(): kind for column, kind in df.dtypes}
    kind = kinds.get(name.lower()) if isinstance(name, str) else None
    return find_column(df, "source", name, kind if kind in _SOURCE_KINDS else "string, binary or a whole number")
