"""How a limit per trigger is shared among partitions, and where a partition's share ends. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Budget", "Entry", "Spent", "share", "take"]

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a trigger, or one partition's share of it, may read; ``None`` is without limit."""

    rows: int | None = None
    size: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether nothing has to be counted."""
        return self.rows is None and self.size is None

    def divided(self, parts: int) -> Budget:
        """An equal part, never nothing: every partition gets on."""
        return Budget(*(None if each is None else max(1, each // parts) for each in (self.rows, self.size)))

    def without(self, spent: Spent) -> Budget:
        """What is left."""
        rows = None if self.rows is None else max(0, self.rows - spent.rows)
        return Budget(rows, None if self.size is None else max(0, self.size - spent.size))

    def holds(self, spent: Spent) -> bool:
        """Whether so much may be read."""
        rows = self.rows is None or spent.rows <= self.rows
        return rows and (self.size is None or spent.size <= self.size)


@dataclass(frozen=True, slots=True)
class Spent:
    """What was read, or will be."""

    rows: int = 0
    size: int = 0

    def plus(self, rows: int, size: int) -> Spent:
        """And so much more."""
        return Spent(self.rows + rows, self.size + size)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is read as a whole or not at all.

    Attributes:
        position: Its place.
        rows: Messages in it.
        size: Bytes of payloads that they stand for.
    """

    position: Any
    rows: int
    size: int


def take(entries: Iterable[Entry], budget: Budget) -> Iterator[tuple[Any, Spent]]:
    """Go through a partition as far as its share allows, and always over one entry.

    Yields:
        After each entry its position and what has been spent with it.
    """
    spent = Spent()
    for number, entry in enumerate(entries):
        spent = spent.plus(entry.rows, entry.size)
        if number and not budget.holds(spent):
            return
        yield entry.position, spent


def share(
    partitions: Mapping[str, int], budget: Budget, end_of: Callable[[str, Budget], tuple[P, Spent]]
) -> dict[str, P]:
    """Find every partition's end; what the smaller ones leave is for the larger ones.

    Args:
        partitions: Those with anything new, and about how much.
        budget: Of all together.
        end_of: Finds one partition's end within its share, and says what it spends.
    """
    ends = {}
    for done, name in enumerate(sorted(partitions, key=lambda each: (partitions[each], each))):
        ends[name], spent = end_of(name, budget.divided(len(partitions) - done))
        budget = budget.without(spent)
    return ends
