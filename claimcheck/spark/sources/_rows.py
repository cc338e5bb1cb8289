"""The rows that a sink is given: which columns they have to have, and what stands in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from claimcheck._validation import fail
from claimcheck.spark._columns import HEADERS_TYPE, MAP_TYPE, row_source
from claimcheck.spark.sources._errors import RowSendError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["Columns", "Row", "as_text"]

_KINDS = {
    "value": ("binary",),
    "key": ("binary", "string"),
    "topic": ("string",),
    "properties": (MAP_TYPE,),
    "headers": (HEADERS_TYPE,),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One message to be sent.

    Attributes:
        number: In its task, from 0.
        topic: Where to.
        value: The message, or a payload; ``None`` is a tombstone.
        key: Its key.
        headers: Pairs, in order: of the column ``properties``, then of ``headers``.
        batch: The rows that it is one of.
        index: Which of them.
    """

    number: int
    topic: str
    value: bytes | None
    key: str | bytes | None
    headers: list[tuple[str, str | bytes]]
    batch: Any
    index: int

    @property
    def source(self) -> str:
        """What to call it in an error."""
        columns = self.batch.slice(self.index, 1)
        names = [n for n in ("topic", "partition", "offset", "ledger_id", "entry_id") if n in columns.schema.names]
        told = row_source(columns.select(names).to_pylist()[0]) if names else ""
        return f"row {self.number} of this task" + (f" ({told})" if told else "")

    def error(self, why: str) -> RowSendError:
        """Make the error that ends a task here."""
        text = f"{self.topic}: {self.source} was not sent: {why}"
        return RowSendError(text, destination=self.topic, row=self.number)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where in a batch the parts of a message are.

    Attributes:
        places: From a column of `_KINDS` to its place.
        topic: Where all rows go; else a column says it.
    """

    places: dict[str, int]
    topic: str | None

    @classmethod
    def of(cls, schema: StructType, *, topic: str | None) -> Columns:
        """Look for the columns on the driver; all others are left alone.

        Raises:
            ConfigError: There is no binary ``value``, nothing tells the topic, or a column is of another type.
        """
        places: dict[str, int] = {}
        for place, field in enumerate(schema):
            name, kind = field.name.lower(), field.dataType.simpleString()
            if name not in _KINDS or (name == "topic" and topic is not None):
                continue
            if kind not in _KINDS[name] or name in places:
                found = f"{field.name!r} twice" if name in places else f"{field.name!r} of type {kind}"
                fail(f"column {name}", found=found, expected=f"one column of type {' or '.join(_KINDS[name])}")
            places[name] = place
        if "value" not in places:
            fail("column value", found="nothing", expected="a column of type binary: what is to be sent")
        if topic is None and "topic" not in places:
            fail("topic", found="nothing", expected="the name of a topic, or a column of that name")
        return cls(places, topic)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
        """Go through the rows of a task.

        Raises:
            RowSendError: A row names no topic.
        """
        number = 0
        for batch in batches:
            columns = {name: batch.column(place) for name, place in self.places.items()}
            for index in range(batch.num_rows):
                parts = {name: column[index].as_py() for name, column in columns.items()}
                topic = self.topic or parts.get("topic") or ""
                row = Row(number, topic, parts["value"], parts.get("key"), _headers(parts), batch, index)
                if not row.topic:
                    raise row.error("its column topic is null, and there is no option topic")
                yield row
                number += 1


def _headers(parts: dict[str, Any]) -> list[tuple[str, str | bytes]]:
    pairs = list(parts.get("properties") or ())
    pairs += [(each["key"], each["value"]) for each in parts.get("headers") or () if each is not None]
    return [(name, b"" if value is None else value) for name, value in pairs if name is not None]


def as_text(row: Row, what: str, value: str | bytes | None) -> str | None:
    """Give a key or a header's value as the text that Pulsar wants.

    Raises:
        RowSendError: It is no UTF-8.
    """
    if value is None or isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise row.error(f"{what} is no UTF-8, and Pulsar takes nothing else") from error
