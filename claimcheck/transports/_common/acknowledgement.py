"""Cumulative acknowledgement next to messages that must not be acknowledged yet.

A payload in chunks is acknowledged as a whole, and other messages lie between its chunks. "Everything up to here" may
therefore include messages of payloads that are incomplete or not settled. The lowest of those is the *hole*: everything
before it is acknowledged cumulatively, and the messages between it and the target individually.

No I/O and no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from claimcheck._receive.record import Handle, Position

_LIMIT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AckPlan:
    """What to acknowledge."""

    before: Position | None
    individually: tuple[Handle, ...]


class CumulativeAcks:
    """The messages of one source after a hole that can be acknowledged individually. Not thread-safe."""

    def __init__(self, *, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._handles: dict[Position, Handle] = {}
        self._heap: list[Position] = []  # positions, including some that are no longer in `_handles`

    def __len__(self) -> int:
        return len(self._handles)

    def received(self, position: Position, handle: Handle) -> None:
        """Remember a message that is a payload of its own (plain, a pointer, or unreadable)."""
        if position not in self._handles:
            heapq.heappush(self._heap, position)
        self._handles[position] = handle
        while len(self._handles) > self._limit:
            self._handles.pop(heapq.heappop(self._heap), None)
        if len(self._heap) > 2 * len(self._handles) + 64:  # most of them were forgotten
            self._heap = sorted(self._handles)

    def forget(self, position: Position) -> None:
        """Forget a message that was acknowledged, or negatively acknowledged, individually."""
        self._handles.pop(position, None)

    def up_to(
        self, target: Position, *, hole: Position | None, settled: Iterable[tuple[Position, Handle]] = ()
    ) -> AckPlan:
        """Return the plan for acknowledging everything up to a message, and forget what it covers."""
        before = hole if hole is not None and hole <= target else None
        behind = dict(settled)
        while self._heap and self._heap[0] <= target:
            position = heapq.heappop(self._heap)
            if position in self._handles:
                behind[position] = self._handles.pop(position)
        covered = target if before is None else before
        individually = tuple(behind[position] for position in sorted(behind) if position > covered)
        return AckPlan(before=before, individually=individually)
