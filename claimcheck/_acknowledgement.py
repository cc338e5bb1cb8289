"""Cumulative acknowledgement beside messages that must not be acknowledged yet.

A payload in chunks is acknowledged as a whole, and its messages lie between others. "Everything up to here" may
therefore include messages of payloads that are incomplete or not settled. The lowest of those is the *hole*: everything
before it is acknowledged cumulatively, and what lies between it and the target one by one.

Pure: no I/O and no clock. Positions of one source are hashable and ordered; handles are whatever the transport needs to
acknowledge a message.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["AckPlan", "CumulativeAcks"]

_LIMIT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AckPlan:
    """What to acknowledge.

    Attributes:
        before: Acknowledge cumulatively everything before this position, but not the position itself. ``None``:
            everything up to and including the target.
        individually: Handles of the messages to acknowledge one by one, lowest position first.
    """

    before: Any | None
    individually: tuple[Any, ...]


class CumulativeAcks:
    """The messages of one source that can be acknowledged on their own and lie behind a hole. Not thread-safe.

    Needed only while there is a hole: a transport creates one with the first chunk and drops it when everything is
    settled, so that a topic without chunks costs nothing.

    Args:
        limit: Messages remembered at once. Beyond it the lowest are forgotten: nothing acknowledges them until a
            cumulative acknowledgement passes them, and until then the broker may deliver them again.
    """

    def __init__(self, *, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._handles: dict[Any, Any] = {}
        self._heap: list[Any] = []  # positions, with some that are no longer in `_handles`

    def __len__(self) -> int:
        return len(self._handles)

    def received(self, position: Any, handle: Any) -> None:
        """Remember a message that is a payload of its own (plain, a pointer, or not readable at all).

        Call it for every such message received while there is a hole, also if it was received before.
        """
        if position not in self._handles:
            heapq.heappush(self._heap, position)
        self._handles[position] = handle
        while len(self._handles) > self._limit:
            self._handles.pop(heapq.heappop(self._heap), None)
        if len(self._heap) > 2 * len(self._handles) + 64:  # most of them were forgotten
            self._heap = sorted(self._handles)

    def forget(self, position: Any) -> None:
        """The message was acknowledged or given back on its own."""
        self._handles.pop(position, None)

    def up_to(self, target: Any, *, hole: Any | None, settled: Iterable[tuple[Any, Any]] = ()) -> AckPlan:
        """Acknowledge everything up to a message; what the plan covers is forgotten here.

        Args:
            target: Position of the message.
            hole: Lowest position of any payload that is incomplete or not settled; ``None`` without one.
            settled: Position and handle of each message of the payloads that this acknowledgement settles.
        """
        before = hole if hole is not None and hole <= target else None
        behind = dict(settled)
        while self._heap and self._heap[0] <= target:
            position = heapq.heappop(self._heap)
            if position in self._handles:
                behind[position] = self._handles.pop(position)
        covered = target if before is None else before
        individually = tuple(behind[position] for position in sorted(behind) if position > covered)
        return AckPlan(before=before, individually=individually)
