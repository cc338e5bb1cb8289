"""What is kept of a payload in chunks: its messages, its pieces, joined as they arrive, and its state."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from claimcheck._wire.buffers import FreshBytes
from claimcheck._wire.checksum import crc32
from claimcheck.config import Action
from claimcheck.errors import ClaimCheckError

Position = Any
"""A message's place in its source, of the transport's own type; hashable, and ordered within a source."""

Handle = Any
"""What a transport needs to acknowledge a message, of its own type."""

_MAX_CLAIMS = 8  # different claims about one payload; two suffice to refuse it


class Pieces:
    __slots__ = ("_declared", "_ends", "_fresh", "_separate", "_trusted", "crc32s", "size")

    def __init__(self, declared: int = 0, *, trusted: int = 0) -> None:
        self.size = 0
        self.crc32s = array("I")
        self._declared = declared
        self._trusted = trusted
        self._fresh: FreshBytes | None = None
        self._ends = array("Q")  # of the joined pieces
        self._separate: dict[int, memoryview] = {}

    def add(self, position: int, piece: memoryview) -> None:
        """Add a piece, uncopied if it is a view of ``bytes``."""
        self._separate[position] = piece if isinstance(piece.obj, bytes) else memoryview(bytes(piece))
        self.size += len(piece)
        if self._fresh is None and self.size <= self._declared <= max(2 * self.size, self._trusted):
            self._fresh = FreshBytes(self._declared)
        if self._fresh is not None:
            self._join(self._fresh.view)

    def content(self) -> bytes:
        """Return the whole payload; call it once, when all pieces were added."""
        if self._fresh is not None and not self._separate and self.size == self._declared:
            self._fresh.view.release()
            return self._fresh.payload
        pieces = [piece for _, piece in sorted(self)]
        for piece in pieces[len(self.crc32s) :]:
            self._checksum(piece)
        return b"".join(pieces)

    def _join(self, whole: memoryview) -> None:
        start = self._ends[-1] if self._ends else 0
        while (piece := self._separate.get(len(self._ends))) is not None and start + len(piece) <= len(whole):
            del self._separate[len(self._ends)]
            self._checksum(piece)
            whole[start : (start := start + len(piece))] = piece
            self._ends.append(start)

    def _checksum(self, piece: memoryview) -> None:
        self.crc32s.append(crc32(piece, self.crc32s[-1] if self.crc32s else 0))

    def __contains__(self, position: int) -> bool:
        return position < len(self._ends) or position in self._separate

    def __getitem__(self, position: int) -> memoryview:
        if self._fresh is None or position >= len(self._ends):
            return self._separate[position]
        return self._fresh.view[self._ends[position - 1] if position else 0 : self._ends[position]]

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        return ((position, self[position]) for position in (*range(len(self._ends)), *self._separate))


class Identity(NamedTuple):
    """The payload that a chunk belongs to. Equal uuids of different writers are different payloads."""

    source: Hashable
    uuid: str
    writer: Hashable = None


@dataclass(slots=True)
class Slot:
    """One message: its position, the transport's handle, and its sender if the broker reports it."""

    position: Position
    handle: Handle
    headers: object = field(default=None, repr=False)
    key: object = field(default=None, repr=False)
    writer: Hashable = field(default=None, repr=False)


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """The state of one attempt to receive a payload; a redelivered payload is a new attempt."""

    identity: Identity
    count: int
    first_seen: float
    state: Literal["pending", "failed", "delivered", "broken", "dropped"] = "pending"
    acked: bool = False
    action: Action = "ack"
    reason: str = ""
    error: ClaimCheckError | None = None
    pieces: Pieces = field(default_factory=Pieces)
    numbers: set[int] = field(default_factory=set)
    slots: list[Slot] = field(default_factory=list)
    by_position: dict[Position, Slot | None] = field(default_factory=dict)
    first: Slot | None = None
    declared: frozenset[tuple[str, str]] = frozenset()
    crc32s: array[int] = field(default_factory=lambda: array("I"))  # of the payload up to the end of each chunk

    def __repr__(self) -> str:
        return f"<{self.state} payload {self.identity.uuid}>"

    @property
    def weight(self) -> int:
        """The memory it takes, in positions; a checksum takes far less than a position in a dict."""
        return len(self.by_position) + len(self.crc32s) // 16

    def hold(self, slot: Slot, claims: frozenset[tuple[str, str]] = frozenset()) -> bool:
        """Add a message; returns whether its position was known already, in which case only the handle is replaced."""
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

    def release(self) -> None:
        """Keep only the positions of the messages, to recognize redelivered ones."""
        self.slots, self.first = [], None
        self.by_position = dict.fromkeys(self.by_position)

    def _keep_headers_of_first(self, slot: Slot) -> None:
        """Keep only the headers of the first message; headers can be larger than the pieces."""
        if self.first is None or slot.position < self.first.position:
            self.first, slot = slot, self.first or slot
        if slot is not self.first:
            slot.headers = slot.key = None
