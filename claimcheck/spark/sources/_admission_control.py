"""Admission control: how a trigger's limit is shared among partitions, and where a partition's share ends. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from claimcheck._wire import envelope, pointer
from claimcheck._wire.envelope import PointerData
from claimcheck.config import HEADER, MAX_POINTER_BYTES, Config
from claimcheck.errors import ClaimCheckError

P = TypeVar("P")

_ROUNDS = 4  # each lets partitions with more messages use what the others left; after that the rest is small


@dataclass(frozen=True, slots=True)
class Budget:
    """The rows and bytes that a trigger, or one partition's share of it, may read; ``None`` means no limit."""

    rows: int | None = None
    size: int | None = None

    @property
    def unlimited(self) -> bool:
        return self.rows is None and self.size is None

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
