"""How a limit per trigger is shared among partitions, and where a partition's share ends. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from claimcheck import _envelope as envelope
from claimcheck import _pointer as pointer
from claimcheck._envelope import CHUNK_OVERHEAD_BYTES, HEADER, PointerData
from claimcheck._pointer import MAX_POINTER_BYTES
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError

__all__ = [
    "Budget",
    "Entry",
    "Scale",
    "share",
    "Spent",
    "take",
]

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


@dataclass(frozen=True, slots=True)
class Scale:
    """Weighs messages.

    Nobody has checked a signature yet: a pointer that lies makes a trigger smaller or larger, and no more.

    Attributes:
        header: What envelopes begin with.
        max_pointer_bytes: A longer pointer counts as the message that it is.
    """

    header: bytes = HEADER
    max_pointer_bytes: int = MAX_POINTER_BYTES

    @classmethod
    def of(cls, config: Config | None) -> Scale:
        """Make the one for a configuration, or for the defaults."""
        return cls() if config is None else cls(config.header, config.limits.max_pointer_bytes)

    @property
    def head_bytes(self) -> int:
        """So much of a message's beginning is enough to weigh it."""
        return len(self.header) + self.max_pointer_bytes + CHUNK_OVERHEAD_BYTES

    def weigh(self, head: bytes | None, size: int) -> int:
        """Count the bytes that resolving one message will bring.

        Args:
            head: The message, or `head_bytes` of it; ``None`` for a tombstone.
            size: Bytes of the whole message.

        Returns:
            The size that a pointer declares. Anything else counts as itself: chunks, plain messages, damaged pointers,
            and those of version 1, which declare nothing.
        """
        if head is None or not head.startswith(self.header):
            return size
        try:
            found = envelope.decode(head, header=self.header)
            if not isinstance(found, PointerData):
                return size
            declared = pointer.decode(found.data, max_bytes=self.max_pointer_bytes).size
        except ClaimCheckError:
            return size
        return size if declared is None else declared
