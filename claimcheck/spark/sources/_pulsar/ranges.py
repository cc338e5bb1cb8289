"""Positions in a partition, and ranges of entries, which can be divided among tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from claimcheck.spark.sources._pulsar.client import in_parallel
from claimcheck.spark.sources._source import OffsetRange

Position = tuple[int, int]
"""Ledger and entry, both from 0. A batch is one entry: it is read as a whole."""

Offsets = dict[str, Position]
"""The last entry that was read, by the full name of a partition; partitions without one were not read yet."""

Range = OffsetRange[Position]
"""The entries after ``start``, which must still exist, up to and including ``end``; `NOTHING` is before the first."""

NOTHING: Position = (-1, -1)
"""Before all entries."""

_Span = tuple[int, int, int]  # a ledger, and the first and last of its entries


def split(ranges: Sequence[Range], least: int, sizes: Callable[[str], Mapping[int, int]]) -> list[Range]:
    """Divide large ranges so that there are at least ``least``, of about as many entries each."""
    if len(ranges) >= least:
        return list(ranges)
    spans = in_parallel(lambda each: _spans(each, sizes), ranges)
    counts = [sum(last - first + 1 for _, first, last in each) for each in spans]
    total = max(1, sum(counts))
    shares = [math.ceil(least * count / total) for count in counts]
    return [part for each in zip(ranges, spans, shares, strict=True) for part in _parts(*each)]


def _spans(offsets: Range, sizes: Callable[[str], Mapping[int, int]]) -> list[_Span]:
    (start, before), (end, last) = offsets.start, offsets.end
    if start == end:
        return [(end, before + 1, last)]
    closed = [(ledger, size) for ledger, size in sorted(sizes(offsets.partition).items()) if start <= ledger < end]
    spans = [(ledger, before + 1 if ledger == start else 0, size - 1) for ledger, size in closed]
    return [each for each in (*spans, (end, 0, last)) if each[1] <= each[2]]


def _parts(offsets: Range, spans: Sequence[_Span], count: int) -> list[Range]:
    total = sum(last - first + 1 for _, first, last in spans)
    cuts = {_cut(spans, max(0, total * number // count - 1)) for number in range(1, count)} - {offsets.end}
    bounds = [offsets.start, *sorted(cuts), offsets.end]
    return [OffsetRange(offsets.partition, *each) for each in itertools.pairwise(bounds)]


def _cut(spans: Sequence[_Span], index: int) -> Position:
    """Return the position of an entry by its index in a range."""
    for ledger, first, last in spans:
        if index <= last - first:
            return ledger, first + index
        index -= last - first + 1
    raise IndexError(index)
