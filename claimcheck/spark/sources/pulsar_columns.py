"""Messages of Pulsar as the columns of an Arrow batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from claimcheck.spark.columns import MAP_TYPE
from claimcheck.spark.sources.pulsar_offsets import Position

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "Found", "batch_of"]

COLUMNS = {
    "key": "string",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "message_id": "binary",
    "ledger_id": "bigint",
    "entry_id": "bigint",
    "batch_index": "int",
    "publish_time": "timestamp",
    "event_time": "timestamp",
    "producer_name": "string",
    "properties": MAP_TYPE,
}
"""One row per message."""

Found = tuple[Position, Any, Any]
"""Where a message was found, its id, and the message, as the client's own core gives them."""

_LAST_MILLIS = 253_402_300_799_999  # of the year 9999, behind which neither Python nor Spark's texts have times


def batch_of(found: Sequence[Found], topic: tuple[str, int], schema: pa.Schema) -> pa.RecordBatch:
    """Column by column, and only those that are asked for: the loops are the interpreter's own."""
    import pyarrow as pa

    arrays = [_column(field, found, topic) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(field: pa.Field, found: Sequence[Found], topic: tuple[str, int]) -> pa.Array:
    import pyarrow as pa

    if field.name == "topic":
        return pa.repeat(pa.scalar(topic[0], field.type), len(found))
    if field.name == "partition":
        return pa.repeat(pa.scalar(topic[1], field.type), len(found))
    if field.name == "properties":
        return _properties([message.properties() for _, _, message in found], field.type)
    values = _values(field.name, found)
    if field.name.endswith("_time"):
        return pa.array(values, pa.timestamp("ms", field.type.tz)).cast(field.type)
    return pa.array(values, field.type)


def _values(name: str, found: Sequence[Found]) -> list[Any]:
    match name:
        case "key":
            return [message.partition_key() or None for _, _, message in found]
        case "value":
            return [_value(message) for _, _, message in found]
        case "message_id":
            return [message_id.serialize() for _, message_id, _ in found]
        case "ledger_id":
            return [position[0] for position, _, _ in found]
        case "entry_id":
            return [position[1] for position, _, _ in found]
        case "batch_index":
            return [message_id.batch_index() for _, message_id, _ in found]
        case "publish_time":
            return [message.publish_timestamp() for _, _, message in found]
        case "event_time":
            return [_moment(message.event_timestamp()) for _, _, message in found]
        case "producer_name":
            return [message.producer_name() for _, _, message in found]
        case _:
            raise AssertionError(name)


def _moment(millis: int) -> int | None:
    """Whatever a producer has set: nothing, or nanoseconds by mistake, is no time."""
    return millis if 0 < millis <= _LAST_MILLIS else None


def _value(message: Any) -> bytes | None:
    data: bytes = message.data()
    return data if data or not message.has_null_value() else None


def _properties(each: list[dict[str, str]], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    offsets, end = [0], 0
    for properties in each:
        end += len(properties)
        offsets.append(end)
    names = pa.array(list(chain.from_iterable(each)), pa.string())
    values = pa.array(list(chain.from_iterable(map(dict.values, each))), pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values).cast(kind)
