"""What is known of payloads that travel in chunks: their messages, what came of them, and one record for each."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from claimcheck.config import Action
from claimcheck.errors import ClaimCheckError

__all__ = ["Action", "Assembled", "Broken", "Dropped", "Event", "Record", "Slot"]

_DECLARED = 8  # different claims about one payload; two are enough to refuse it


@dataclass(slots=True)
class Slot:
    """One message: where it is, what the transport calls it, and what its hints claim about the payload."""

    position: Any
    handle: Any
    headers: Any = field(default=None, repr=False)
    key: Any = field(default=None, repr=False)
    claims: set[tuple[str, str]] = field(default_factory=set, repr=False)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A payload, complete: its pieces in order, and all messages that brought it (late duplicates join the list).

    Of headers and keys only those of the message in the lowest place are kept; ``declared`` is what all the hints said.
    """

    source: Hashable
    uuid: str
    pieces: list[memoryview] = field(repr=False)
    slots: list[Slot]
    declared: set[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Broken:
    """A payload that can never be delivered, with the messages seen of it."""

    source: Hashable
    uuid: str
    error: ClaimCheckError
    slots: list[Slot]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Messages that will not become a payload now, and what is to be done with them."""

    source: Hashable
    uuid: str
    reason: str
    action: Action
    slots: list[Slot]
    error: ClaimCheckError | None = None


Event = Assembled | Broken | Dropped


@dataclass(slots=True)
class Record:
    """What is known of one uuid from one source."""

    source: Hashable
    uuid: str
    count: int
    first_seen: float
    state: Literal["pending", "doomed", "delivered", "broken", "dropped"] = "pending"
    acked: bool = False
    action: Action = "ack"
    reason: str = ""
    error: ClaimCheckError | None = None
    pieces: dict[int, memoryview] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    slots: list[Slot] = field(default_factory=list)
    by_position: dict[Any, Slot | None] = field(default_factory=dict)
    first: Slot | None = None
    declared: set[tuple[str, str]] = field(default_factory=set)
    size: int = 0

    def hold(self, slot: Slot) -> bool:
        """Add a message; returns whether it had come before, in which case only its handle is renewed."""
        known = self.by_position.get(slot.position)
        if known is not None:
            known.handle = slot.handle
            return True
        self.by_position[slot.position] = slot
        self.slots.append(slot)
        if len(self.declared) < _DECLARED:
            self.declared |= slot.claims
        self._keep_headers_of_first(slot)
        return False

    def let_go(self) -> None:
        """Keep the places of the messages, to know them when they come again, and nothing else of them."""
        self.slots, self.first = [], None
        self.by_position = dict.fromkeys(self.by_position)

    def _keep_headers_of_first(self, slot: Slot) -> None:
        """Of all other messages only what they declare is kept: headers can be larger than the pieces."""
        if self.first is None or slot.position < self.first.position:
            self.first, slot = slot, self.first or slot
        if slot is not self.first:
            slot.headers = slot.key = None
