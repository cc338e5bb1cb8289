"""Admission control of the Pulsar source: where a trigger ends, within a limit that all partitions share.

Messages are weighed by reading them; of many rows, only a sample is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from claimcheck._wire import envelope, pointer
from claimcheck._wire.envelope import PointerData
from claimcheck.config import HEADER, MAX_POINTER_BYTES, Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark.sources._errors import ForeignMessageError
from claimcheck.spark.sources._pulsar_client import IN_PARALLEL, in_parallel, ledger_sizes
from claimcheck.spark.sources._pulsar_reader import NOTHING, Offsets, Position, PulsarLog, Range, read_messages
from claimcheck.spark.sources._source import OffsetRange

if TYPE_CHECKING:
    import pulsar

P = TypeVar("P")

_SAMPLE_ROWS = 1000
_SAMPLED_ROWS = 10_000  # of all partitions together, but at least `_LEAST_ROWS` of each
_LEAST_ROWS = 50
_ROUNDS = 4  # each lets partitions with more messages use what the others left; after that the rest is small


@dataclass(frozen=True, slots=True)
class Budget:
    """The rows and bytes that a trigger, or one partition's share of it, may read; ``None`` means no limit."""

    rows: int | None = None
    size: int | None = None

    def divided(self, parts: int) -> Budget:
        """Return an equal part, never zero, so that every partition makes progress."""
        return Budget(*(None if each is None else max(1, each // parts) for each in (self.rows, self.size)))

    def covers(self, parts: int) -> bool:
        return all(each is None or each >= parts for each in (self.rows, self.size))

    def without(self, spent: Spent) -> Budget:
        rows = None if self.rows is None else max(0, self.rows - spent.rows)
        return Budget(rows, None if self.size is None else max(0, self.size - spent.size))

    def allows(self, spent: Spent) -> bool:
        rows = self.rows is None or spent.rows <= self.rows
        return rows and (self.size is None or spent.size <= self.size)


class Spent(NamedTuple):
    rows: int = 0
    size: int = 0


class Entry(NamedTuple, Generic[P]):
    """Messages that are read together or not at all: their position, their number, and the bytes of their payloads."""

    position: P
    rows: int
    size: int


def take(entries: Iterable[Entry[P]], budget: Budget, *, least: int = 1) -> Iterator[tuple[P, Spent]]:
    """Go through a partition as far as its share allows, but at least over ``least`` entries."""
    spent = Spent()
    for number, entry in enumerate(entries):
        spent = Spent(spent.rows + entry.rows, spent.size + entry.size)
        if number >= least and not budget.allows(spent):
            return
        yield entry.position, spent


def share(
    start: Mapping[str, P],
    last: Mapping[str, P],
    budget: Budget,
    end_of: Callable[[str, P, Budget], tuple[P, Spent]],
    run: Callable[..., Iterable[tuple[P, Spent]]] = map,
) -> dict[str, P]:
    """Find the end of every partition; larger partitions get what smaller ones leave."""
    ends, ongoing = {name: start[name] for name in last}, list(last)
    for _ in range(_ROUNDS if last else 0):
        part, begun = budget.divided(len(ongoing)), dict(ends)
        results = run(lambda name: end_of(name, begun[name], part), ongoing)  # noqa: B023
        for name, (end, spent) in zip(ongoing, results, strict=True):
            ends[name], budget = end, budget.without(spent)
        before, ongoing = ongoing, [name for name in ongoing if ends[name] != last[name]]
        if len(ongoing) in (0, len(before)) or not budget.covers(len(ongoing)):
            break
    return ends


@dataclass(frozen=True, slots=True)
class Scale:
    """Weighs messages. Signatures are not checked yet: a false pointer only makes a trigger smaller or larger."""

    header: bytes = HEADER
    max_pointer_bytes: int = MAX_POINTER_BYTES

    @classmethod
    def of(cls, config: Config | None) -> Scale:
        return cls() if config is None else cls(config.header, config.limits.max_pointer_bytes)

    def weigh(self, head: bytes | None, size: int) -> int:
        if head is None or not head.startswith(self.header):
            return size
        try:
            decoded = envelope.decode(head, header=self.header)
            if not isinstance(decoded, PointerData):
                return size
            declared = pointer.decode(decoded.data, max_bytes=self.max_pointer_bytes).size
        except ClaimCheckError:
            return size
        return size if declared is None else declared


# Where a trigger ends ------------------------------------------------------------------------------------------------


def newer(start: Offsets, last: Offsets) -> Offsets:
    """Return the ends of partitions with new messages; the end of an emptied topic is before what was read."""
    return {name: end for name, end in last.items() if end > start.get(name, NOTHING)}


def limited(client: pulsar.Client, start: Offsets, last: Offsets, log: PulsarLog) -> Offsets:
    """Return where a trigger ends within a budget for all partitions together."""
    budget, scale = Budget(log.max_rows, log.max_payload_bytes), Scale.of(log.config)
    if not last:
        return last
    begun = {name: start.get(name, NOTHING) for name in last}
    sample = min(_SAMPLE_ROWS, max(_LEAST_ROWS, _SAMPLED_ROWS // len(last)))
    sizes = cache(partial(ledger_sizes, log.connection))
    queue = max(1, log.queue // min(len(last), IN_PARALLEL))  # as many messages in memory as with one reader

    def end_of(name: str, begin: Position, part: Budget) -> tuple[Position, Spent]:
        rows = sample if part.rows is None else min(part.rows, sample)
        shallow = replace(log, queue=max(1, min(queue, rows)))
        offsets, is_first = OffsetRange(name, begin, last[name]), begin == begun[name]
        entries = _entries(client, offsets, shallow, None if part.size is None else scale)
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
            return (end[0], end[1] + more), Spent(spent.rows + more * spent.rows // number, spent.size)
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
