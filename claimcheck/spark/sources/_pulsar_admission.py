"""Admission control of the Pulsar source: where a trigger ends, within a limit that all partitions share.

Messages are weighed by reading them; of many rows, only a sample is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from claimcheck._wire import envelope, pointer
from claimcheck._wire.envelope import PointerData
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark.sources._options import ForeignMessageError
from claimcheck.spark.sources._pulsar_client import IN_PARALLEL, in_parallel, ledger_sizes
from claimcheck.spark.sources._pulsar_reader import Offsets, Position, PulsarLog, Range, read_messages
from claimcheck.spark.sources._source import OffsetRange
from claimcheck.transports.pulsar._queries import NOTHING

if TYPE_CHECKING:
    import pulsar

P = TypeVar("P")

_SAMPLE_ROWS = 1000
_SAMPLED_ROWS = 10_000  # of all partitions together, but at least `_LEAST_ROWS` of each
_LEAST_ROWS = 50
_UNLIMITED = 1 << 62
_ROUNDS = 4  # each lets partitions with more messages use what the others left; after that the rest is small


class Amount(NamedTuple):
    """Rows and the bytes of their payloads: a limit on both, or what was read."""

    rows: int = 0
    size: int = 0

    def divided(self, parts: int) -> Amount:
        """Return an equal part, never zero, so that every partition makes progress."""
        return Amount(*(max(1, each // parts) for each in self))

    def without(self, spent: Amount) -> Amount:
        return Amount(*(max(0, each - other) for each, other in zip(self, spent, strict=True)))

    def covers(self, *least: int) -> bool:
        return all(each >= other for each, other in zip(self, least, strict=True))


Entry = tuple[P, Amount]
"""Messages that are read together or not at all: their position and their amount."""


def take(entries: Iterable[Entry[P]], limit: Amount, *, least: int = 1) -> Iterator[Entry[P]]:
    """Go through a partition as far as its share allows, but at least over ``least`` entries; yields running totals."""
    spent = Amount()
    for number, (position, more) in enumerate(entries):
        spent = Amount(spent.rows + more.rows, spent.size + more.size)
        if number >= least and not limit.covers(*spent):
            return
        yield position, spent


def share(
    start: Mapping[str, P],
    last: Mapping[str, P],
    limit: Amount,
    end_of: Callable[[str, P, Amount], Entry[P]],
    run: Callable[..., Iterable[Entry[P]]] = map,
) -> dict[str, P]:
    """Find the end of every partition; larger partitions get what smaller ones leave."""
    ends, ongoing = {name: start[name] for name in last}, list(last)
    for _ in range(_ROUNDS if last else 0):
        part, begun = limit.divided(len(ongoing)), dict(ends)
        results = run(lambda name: end_of(name, begun[name], part), ongoing)  # noqa: B023
        for name, (end, spent) in zip(ongoing, results, strict=True):
            ends[name], limit = end, limit.without(spent)
        before, ongoing = ongoing, [name for name in ongoing if ends[name] != last[name]]
        if len(ongoing) in (0, len(before)) or not limit.covers(len(ongoing), len(ongoing)):
            break
    return ends


def weigh(message: bytes | None, size: int, config: Config) -> int:
    """Return the bytes of a message's payload. Signatures are not checked yet: a false pointer only moves the end."""
    if message is None or not message.startswith(config.header):
        return size
    try:
        decoded = envelope.decode(message, header=config.header)
        if not isinstance(decoded, PointerData):
            return size
        declared = pointer.decode(decoded.data, max_bytes=config.limits.max_pointer_bytes).size
    except ClaimCheckError:
        return size
    return size if declared is None else declared


# Where a trigger ends ------------------------------------------------------------------------------------------------


def newer(start: Offsets, last: Offsets) -> Offsets:
    """Return the ends of partitions with new messages; the end of an emptied topic is before what was read."""
    return {name: end for name, end in last.items() if end > start.get(name, NOTHING)}


def limited(client: pulsar.Client, start: Offsets, last: Offsets, log: PulsarLog) -> Offsets:
    """Return where a trigger ends within a budget for all partitions together."""
    limit = Amount(log.max_rows or _UNLIMITED, log.max_payload_bytes or _UNLIMITED)
    if not last:
        return last
    begun = {name: start.get(name, NOTHING) for name in last}
    sample = min(_SAMPLE_ROWS, max(_LEAST_ROWS, _SAMPLED_ROWS // len(last)))
    enough = sample if log.max_payload_bytes is None else _UNLIMITED  # rows tell nothing about their payloads
    sizes = cache(partial(ledger_sizes, log.connection))
    queue = max(1, log.queue // min(len(last), IN_PARALLEL))  # as many messages in memory as with one reader

    def end_of(name: str, begin: Position, part: Amount) -> Entry[Position]:
        shallow = replace(log, queue=max(1, min(queue, part.rows, sample)))
        offsets, is_first = OffsetRange(name, begin, last[name]), begin == begun[name]
        entries = _entries(client, offsets, shallow)
        with contextlib.closing(entries):
            try:
                return _end(entries, offsets, part, sizes, sample=enough, is_first=is_first)
            except ForeignMessageError:
                if is_first:  # else this trigger ends before it, and the next one fails
                    raise
                return begin, Amount()

    return share(begun, last, limit, end_of, in_parallel)


def _end(
    entries: Iterable[Entry[Position]],
    offsets: Range,
    limit: Amount,
    sizes: Callable[[str], Mapping[int, int]],
    *,
    sample: int,
    is_first: bool,
) -> Entry[Position]:
    # Without entries, the whole range was deleted; later, the next entry is larger than the rest of the budget.
    end, spent = offsets.end if is_first else offsets.start, Amount()
    for number, (end, spent) in enumerate(take(entries, limit, least=is_first), 1):
        if spent.rows < sample:
            continue
        # Extrapolate within the ledger, as if all entries were like those that were read.
        wanted = max(0, limit.rows - spent.rows) * number // spent.rows
        is_last = end[0] == offsets.end[0]
        last = offsets.end[1] if is_last else sizes(offsets.partition).get(end[0], 0) - 1
        if is_last or end[1] + wanted <= last:
            more = min(wanted, last - end[1])
            return (end[0], end[1] + more), Amount(spent.rows + more * spent.rows // number, spent.size)
    return end, spent


def _entries(client: pulsar.Client, offsets: Range, log: PulsarLog) -> Generator[Entry[Position]]:
    current: Position | None = None
    rows = size = 0
    try:
        for position, _, message in read_messages(client, offsets, log):
            if current is not None and position != current:
                yield current, Amount(rows, size)
                rows = size = 0
            current = position
            rows += 1
            if log.max_payload_bytes is not None:
                size += weigh(message.data(), message.length(), log.config)
    except ForeignMessageError:
        if current is None:  # else this trigger ends before it, and the next one fails
            raise
    if current is not None:
        yield current, Amount(rows, size)
