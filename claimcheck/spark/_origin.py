"""Where the messages of a DataFrame were read from, for the check of their signatures and of their stores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from claimcheck._validation import fail
from claimcheck.config import Config
from claimcheck.spark._columns import HEADERS_TYPE, MAP_TYPE
from claimcheck.spark._fetching import ReadFrom

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

DEFAULT_HEADERS = {"headers": HEADERS_TYPE, "properties": MAP_TYPE}
"""The columns of headers of Spark's Kafka source and of our sources."""

_TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where rows were read from: one topic, or the topic in a column."""

    destination: str | None = None
    topic: int | None = None
    headers: int | None = None

    @classmethod
    def find(cls, df: DataFrame, config: Config, destination: str | None) -> Origin:
        """Find the columns on the driver."""
        headers = next(
            (at for name, kind in DEFAULT_HEADERS.items() if (at := _index(df, name, kind)) is not None), None
        )
        topic = _index(df, _TOPIC, "string") if destination is None else None
        check_destination(config, destination, is_known=topic is not None)
        if not config.signing.keys and not config.destinations:
            return cls()
        return cls(destination, topic, headers)

    def read_from(self, batch: pa.RecordBatch, number: int) -> ReadFrom:
        """Return where a row was read from."""
        headers = None if self.headers is None else partial(_pairs, batch, self.headers, number)
        return ReadFrom(self.destination_of(batch, number), headers)

    def destination_of(self, batch: pa.RecordBatch, number: int) -> str | None:
        """Return the topic of a row; ``None`` if it is not known."""
        return self.destination if self.topic is None else batch.column(self.topic)[number].as_py()

    def without_column(self, index: int) -> Origin:
        """Return the same for rows without a column."""
        topic = None if self.topic is None else self.topic - (index < self.topic)
        return Origin(self.destination, topic)


def check_destination(config: Config, destination: object, *, is_known: bool = False) -> None:
    """Check the option ``destination`` on the driver; ``is_known``: whether a column has the topics."""
    expected = "the topic that the messages were read from"
    if destination is not None and (not isinstance(destination, str) or not destination):
        fail("destination", found=repr(destination), expected=expected)
    if destination is None and not is_known and config.signing.keys and config.signing.bind_destination:
        fail("destination", found="nothing", expected=f"{expected}, because signatures cover it, or a column {_TOPIC}")


def _index(df: DataFrame, name: str, kind: str) -> int | None:
    """Return the index of a column, if there is exactly one of that name, and it has this type."""
    found = [index for index, (column, _) in enumerate(df.dtypes) if column.lower() == name]
    return found[0] if len(found) == 1 and df.dtypes[found[0]][1] == kind else None


def _pairs(batch: pa.RecordBatch, index: int, number: int) -> list[tuple[str, object]]:
    """Return the headers of a row: Kafka's are structs, and those of a map are pairs."""
    value = batch.column(index)[number].as_py() or ()
    return [(each["key"], each["value"]) if isinstance(each, dict) else tuple(each) for each in value]
