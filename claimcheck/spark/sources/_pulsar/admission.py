"""Admission control: where a trigger ends in each partition."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from claimcheck.spark.sources._admission_control import Budget, Entry, Scale, Spent, share, take
from claimcheck.spark.sources._errors import ForeignMessageError
from claimcheck.spark.sources._pulsar.client import IN_PARALLEL, in_parallel, ledger_sizes
from claimcheck.spark.sources._pulsar.ranges import NOTHING, Offsets, Position, Range
from claimcheck.spark.sources._pulsar.reader import PulsarLog, read_messages
from claimcheck.spark.sources._source import OffsetRange

if TYPE_CHECKING:
    import pulsar

_SAMPLE_ROWS = 1000
_SAMPLED_ROWS = 10_000  # of all partitions together, but at least `_LEAST_ROWS` of each
_LEAST_ROWS = 50


def newer(start: Offsets, last: Offsets) -> Offsets:
    """Return the ends of partitions with new messages; the end of an emptied topic is before what was read."""
    return {name: end for name, end in last.items() if end > start.get(name, NOTHING)}


def limited(client: pulsar.Client, start: Offsets, last: Offsets, budget: Budget, log: PulsarLog) -> Offsets:
    """Return where a trigger ends within a budget for all partitions together."""
    if budget.unlimited or not last:
        return last
    begun = {name: start.get(name, NOTHING) for name in last}
    sample = min(_SAMPLE_ROWS, max(_LEAST_ROWS, _SAMPLED_ROWS // len(last)))
    sizes = cache(partial(ledger_sizes, log.connection))
    queue = max(1, log.queue // min(len(last), IN_PARALLEL))  # as many messages in memory as with one reader

    def end_of(name: str, begin: Position, part: Budget) -> tuple[Position, Spent]:
        rows = sample if part.rows is None else min(part.rows, sample)
        shallow = replace(log, queue=max(1, min(queue, rows)))
        offsets, is_first = OffsetRange(name, begin, last[name]), begin == begun[name]
        entries = _entries(client, offsets, shallow, None if part.size is None else log.scale)
        with contextlib.closing(entries):
            try:
                return _end(entries, offsets, part, sizes, sample=sample, is_first=is_first)
            except ForeignMessageError:
                if is_first:  # else this trigger ends before it, and the next one fails
                    raise
                return begin, Spent()

    return share(begun, last, budget, end_of, in_parallel)


def _end(
    entries: Iterable[Entry[Position]],
    offsets: Range,
    budget: Budget,
    sizes: Callable[[str], Mapping[int, int]],
    *,
    sample: int,
    is_first: bool,
) -> tuple[Position, Spent]:
    # Without entries, the whole range was deleted; later, the next entry is larger than the rest of the budget.
    end, spent = offsets.end if is_first else offsets.start, Spent()
    for number, (end, spent) in enumerate(take(entries, budget, least=is_first), 1):
        if budget.size is not None or budget.rows is None or spent.rows < sample:
            continue
        # Extrapolate within the ledger, as if all entries were like those that were read.
        wanted = max(0, budget.rows - spent.rows) * number // spent.rows
        is_last = end[0] == offsets.end[0]
        last = offsets.end[1] if is_last else sizes(offsets.partition).get(end[0], 0) - 1
        if is_last or end[1] + wanted <= last:
            more = min(wanted, last - end[1])
            return (end[0], end[1] + more), spent.plus(more * spent.rows // number, 0)
    return end, spent


def _entries(client: pulsar.Client, offsets: Range, log: PulsarLog, scale: Scale | None) -> Generator[Entry[Position]]:
    current: Position | None = None
    rows = size = 0
    try:
        for position, _, message in read_messages(client, offsets, log):
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
