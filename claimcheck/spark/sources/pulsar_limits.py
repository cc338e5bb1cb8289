"""Where a trigger ends: rows are estimated from a sample and then counted by entries, payload bytes are added up."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

from claimcheck.spark.sources.errors import ForeignMessageError
from claimcheck.spark.sources.pulsar_offsets import NOTHING, Offsets, Position
from claimcheck.spark.sources.pulsar_reader import Reading, Stretch, read_messages
from claimcheck.spark.sources.shares import Budget, Entry, Spent, share, take
from claimcheck.spark.sources.weights import Scale

__all__ = ["beyond", "limited", "newer"]

_SAMPLE_ROWS = 1000
_UNKNOWN = 1 << 62  # how many entries there are in ledgers that are not counted


def newer(start: Offsets, last: Offsets) -> Offsets:
    """Give the ends of partitions with anything new; a topic that forgot everything says less than we know."""
    return {name: end for name, end in last.items() if end > start.get(name, NOTHING)}


def limited(client: Any, start: Offsets, last: Offsets, budget: Budget, reading: Reading, scale: Scale) -> Offsets:
    """Find the end of a trigger within a budget.

    Rows are counted one by one up to a thousand in a partition. From there on, as long as the partition's last entry
    is in the same ledger, entries are, each for as many rows as those had on average; that costs nothing.

    Args:
        client: To read with.
        start: Where the trigger before ended.
        last: The last entries, of partitions with anything new.
        budget: For all partitions.
        reading: How to read.
        scale: Weighs messages.
    """
    if budget.unlimited:
        return last

    def end_of(name: str, part: Budget) -> tuple[Position, Spent]:
        stretch = Stretch(name, start.get(name, NOTHING), last[name])
        rows = _SAMPLE_ROWS if part.rows is None else min(part.rows, _SAMPLE_ROWS)
        shallow = replace(reading, queue=max(1, min(reading.queue, rows)))
        with closing(_entries(client, stretch, shallow, None if part.size is None else scale)) as entries:
            return _end(entries, stretch, part)

    return share({name: _distance(start.get(name, NOTHING), last[name]) for name in last}, budget, end_of)


def _end(entries: Iterable[Entry], stretch: Stretch, budget: Budget) -> tuple[Position, Spent]:
    end, spent = stretch.end, Spent()  # where nothing is left of it, the stretch is behind us
    for number, (end, spent) in enumerate(take(entries, budget), 1):
        if budget.size is None and budget.rows and spent.rows >= _SAMPLE_ROWS and end[0] == stretch.end[0]:
            return beyond(end, stretch.end, spent, number, budget.rows)
    return end, spent


def beyond(end: Position, last: Position, spent: Spent, entries: int, rows: int) -> tuple[Position, Spent]:
    """Go on within a ledger without looking, as if all entries were like those that were looked at.

    Args:
        end: The last entry that was looked at.
        last: The last one there is, in the same ledger.
        spent: Rows up to ``end``.
        entries: In how many entries they were.
        rows: The limit.
    """
    more = min((rows - spent.rows) * entries // spent.rows, last[1] - end[1])
    return (end[0], end[1] + more), spent.plus(more * spent.rows // entries, 0)


def _distance(start: Position, end: Position) -> int:
    return end[1] - start[1] if start[0] == end[0] else _UNKNOWN


def _entries(client: Any, stretch: Stretch, reading: Reading, scale: Scale | None) -> Generator[Entry]:
    current: Position | None = None
    rows = size = 0
    try:
        for position, _, message in read_messages(client, stretch, reading):
            if current is not None and position != current:
                yield Entry(current, rows, size)
                rows = size = 0
            current = position
            rows += 1
            if scale is not None:
                size += scale.weigh(message.data(), message.length())
    except ForeignMessageError:
        if current is None:  # else this trigger ends before it, and the next one fails
            raise
    if current is not None:
        yield Entry(current, rows, size)
