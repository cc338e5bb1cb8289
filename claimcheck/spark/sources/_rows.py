"""The rows that a sink writes: the columns that it needs, and the messages that they hold."""

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

_KINDS = {
    "value": ("binary",),
    "key": ("binary", "string"),
    "topic": ("string",),
    "properties": (MAP_TYPE,),
    "headers": (HEADERS_TYPE,),
}


@dataclass(frozen=True, slots=True)
class SinkRow:
    number: int
    topic: str
    value: bytes | None
    key: str | bytes | None
    headers: list[tuple[str, str | bytes]]
    batch: pa.RecordBatch
    index: int

    @property
    def source(self) -> str:
        columns = self.batch.slice(self.index, 1)
        names = [n for n in ("topic", "partition", "offset", "ledger_id", "entry_id") if n in columns.schema.names]
        origin = row_source(columns.select(names).to_pylist()[0]) if names else ""
        return f"row {self.number} of this task" + (f" ({origin})" if origin else "")

    def error(self, why: str) -> RowSendError:
        text = f"{self.topic}: {self.source} was not sent: {why}"
        return RowSendError(text, destination=self.topic, row=self.number)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a batch that hold the parts of a message."""

    places: dict[str, int]
    topic: str | None

    @classmethod
    def of(cls, schema: StructType, *, topic: str | None) -> Columns:
        """Find the columns, on the driver; all others are ignored."""
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
            fail("column value", found="nothing", expected="a column of type binary: the messages to send")
        if topic is None and "topic" not in places:
            fail("topic", found="nothing", expected="the name of a topic, or a column of that name")
        return cls(places, topic)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[SinkRow]:
        """Return the rows of a task; raises `RowSendError` at a row without a topic."""
        number = 0
        for batch in batches:
            columns = {name: batch.column(place) for name, place in self.places.items()}
            for index in range(batch.num_rows):
                parts = {name: column[index].as_py() for name, column in columns.items()}
                topic = self.topic or parts.get("topic") or ""
                row = SinkRow(number, topic, parts["value"], parts.get("key"), _headers(parts), batch, index)
                if not row.topic:
                    raise row.error("its column topic is null, and there is no option topic")
                yield row
                number += 1


def _headers(parts: dict[str, Any]) -> list[tuple[str, str | bytes]]:
    pairs: list[tuple[str | None, str | bytes | None]] = [*(parts.get("properties") or ())]
    pairs += [(each["key"], each["value"]) for each in parts.get("headers") or () if each is not None]
    return [(name, b"" if value is None else value) for name, value in pairs if name is not None]
