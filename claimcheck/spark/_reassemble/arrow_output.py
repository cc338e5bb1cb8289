"""Finished payloads as Arrow columns: their bytes are copied once, from the pieces to where the JVM reads them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from claimcheck._envelope import Buffer
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import MAX_COLUMN_BYTES, arrow_error_type, error_value
from claimcheck.spark._metrics import Tally

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Done", "added_columns", "count", "cut", "error_of"]

_MAX_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Done:
    """One row of the result.

    Attributes:
        batch: Where its other columns stand.
        number: Of the row there.
        keeps_message: Whether the message stays in its column.
        uuid: Of the payload, where it came as chunks.
        pieces: Of the payload; ``None`` for none.
        error: As a value of the error column.
        size: Bytes that the row weighs.
    """

    batch: pa.RecordBatch
    number: int
    keeps_message: bool
    uuid: str | None
    pieces: Sequence[Buffer] | None = field(repr=False)
    error: dict[str, Any] | None
    size: int


def count(tally: Tally, row: Done, *, store: str | None = None) -> None:
    """Count a payload that came as chunks, which rested in that store."""
    if row.error is not None:
        tally.row(0, error=row.error["type"])
    else:
        tally.row(row.size, store=store)


def error_of(error: ClaimCheckError | None) -> dict[str, Any] | None:
    """Write an error as a value of the error column."""
    return None if error is None else error_value(error)


def cut(rows: Iterable[Done], *, max_bytes: int) -> Iterator[list[Done]]:
    """Cut rows into batches by what they weigh; a row that alone weighs more is a batch of its own."""
    batch, held, most = list[Done](), 0, min(max_bytes, MAX_COLUMN_BYTES)
    for row in rows:
        if batch and (held + row.size > most or len(batch) >= _MAX_ROWS):
            yield batch
            batch, held = [], 0
        batch.append(row)
        held += row.size
    if batch:
        yield batch


def added_columns(rows: Sequence[Done], kind: pa.DataType) -> list[pa.Array]:
    """Make the columns for uuid, payload and error.

    Args:
        rows: What is in them.
        kind: Of binary columns: ``large_binary`` where Spark asks for it.
    """
    import pyarrow as pa

    uuids = pa.array([row.uuid for row in rows], type=pa.string())
    errors = pa.array([row.error for row in rows], type=arrow_error_type())
    return [uuids, _joined([row.pieces for row in rows], kind), errors]


def _joined(values: Sequence[Sequence[Buffer] | None], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    ends = array("q" if kind == pa.large_binary() else "i", [0])
    for pieces in values:
        ends.append(ends[-1] + sum(map(len, pieces or ())))
    there = pa.array([pieces is not None for pieces in values], type=pa.bool_()).buffers()[1]
    data = b"".join(piece for pieces in values for piece in pieces or ())
    return pa.Array.from_buffers(kind, len(values), [there, pa.py_buffer(ends), pa.py_buffer(data)])
