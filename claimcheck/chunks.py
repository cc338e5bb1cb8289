"""The state of payloads that travel in chunks: their messages, the events of reassembly, one record per payload."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from claimcheck.config import Action
from claimcheck.errors import ClaimCheckError

__all__ = ["Action", "Assembled", "Broken", "Dropped", "Event", "Identity", "Record", "Slot"]

_MAX_CLAIMS = 8  # different claims about one payload; two are enough to refuse it


class Identity(NamedTuple):
    """Which payload a chunk belongs to: equal uuids of different writers are different payloads."""

    source: Hashable
    uuid: str
    writer: Hashable = None


@dataclass(slots=True)
class Slot:
    """One message: its position, the transport's handle, and who sent it as far as the broker tells."""

    position: Any
    handle: Any
    headers: Any = field(default=None, repr=False)
    key: Any = field(default=None, repr=False)
    writer: Hashable = field(default=None, repr=False)


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """The state of one payload, or rather of one attempt to receive it: given back, it begins anew."""

    identity: Identity
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
    crc32s: array[int] = field(default_factory=lambda: array("I"))  # of the payload up to the end of each chunk

    def __repr__(self) -> str:
        return f"<{self.state} payload {self.identity.uuid}>"

    @property
    def weight(self) -> int:
        """What remembering it costs, counted in positions: a checksum takes far less than a position in a dict."""
        return len(self.by_position) + len(self.crc32s) // 16

    def hold(self, slot: Slot, claims: frozenset[tuple[str, str]] = frozenset()) -> bool:
        """Add a message; returns whether its position was known, in which case only the handle is replaced."""
        known = self.by_position.get(slot.position)
        if known is not None:
            known.handle = slot.handle
            return True
        self.by_position[slot.position] = slot
        self.slots.append(slot)
        if len(self.declared) < _MAX_CLAIMS:
            self.declared |= claims
        self._keep_headers_of_first(slot)
        return False

    def let_go(self) -> None:
        """Keep the positions of the messages, to recognise them when they are redelivered, and nothing else."""
        self.slots, self.first = [], None
        self.by_position = dict.fromkeys(self.by_position)

    def _keep_headers_of_first(self, slot: Slot) -> None:
        """Headers can be larger than the pieces: only those of the first message are kept."""
        if self.first is None or slot.position < self.first.position:
            self.first, slot = slot, self.first or slot
        if slot is not self.first:
            slot.headers = slot.key = None


@dataclass(frozen=True, slots=True)
class _Event:
    """What all events know: the payload, and its messages (late duplicates join the list until it is settled)."""

    attempt: Record
    slots: list[Slot]

    @property
    def identity(self) -> Identity:
        """Which payload this is."""
        return self.attempt.identity

    @property
    def source(self) -> Hashable:
        """Where the messages came from."""
        return self.attempt.identity.source

    @property
    def uuid(self) -> str:
        """The payload's uuid."""
        return self.attempt.identity.uuid


@dataclass(frozen=True, slots=True)
class Assembled(_Event):
    """A complete payload: its pieces in order.

    Of headers and keys only those of the message with the lowest position are kept; ``declared`` has the claims of all
    headers.
    """

    pieces: list[memoryview] = field(repr=False)
    declared: set[tuple[str, str]]

    @property
    def crc32(self) -> int:
        """The checksum of the whole payload."""
        return self.attempt.crc32s[-1]


@dataclass(frozen=True, slots=True)
class Broken(_Event):
    """A payload that cannot be delivered, or a late message that contradicts one (``late``).

    ``reason`` is ``expired`` or ``evicted`` for a payload that stayed incomplete after its last redelivery.
    """

    error: ClaimCheckError
    reason: str = ""
    late: bool = False


@dataclass(frozen=True, slots=True)
class Dropped(_Event):
    """Messages that do not become a payload now, and the action for the transport."""

    reason: str
    action: Action
    error: ClaimCheckError | None = None


Event = Assembled | Broken | Dropped
