"""The values of a binary Arrow column, where they lie: a scalar of pyarrow, ``as_buffer()`` included, is a copy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["views"]


def views(column: pa.Array) -> Iterator[memoryview | None]:
    """Go through the values of a ``binary`` or ``large_binary`` column, which each of them keeps alive."""
    import pyarrow as pa

    if not len(column):
        return
    _, offsets, data = column.buffers()  # https://arrow.apache.org/docs/format/Columnar.html
    ends = memoryview(offsets).cast("q" if pa.types.is_large_binary(column.type) else "i")
    whole = memoryview(data or b"").cast("B")
    spans = pairwise(ends[column.offset : column.offset + len(column) + 1])
    there = column.is_valid()
    for number, (start, end) in enumerate(spans):
        yield whole[start:end] if not column.null_count or there[number].as_py() else None
