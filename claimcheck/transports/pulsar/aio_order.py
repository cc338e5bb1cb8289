"""Sends of one event loop keep the order in which they were called, however long each takes to prepare."""

from __future__ import annotations

import asyncio

__all__ = ["Order", "Turn"]


class Order:
    """A chain of turns: each comes when the one before has ended, whether that one failed or not."""

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    @property
    def at_rest(self) -> bool:
        """Whether nobody has a turn, or waits for one."""
        return self._last is None or self._last.done() or self._last.get_loop().is_closed()

    def take(self) -> Turn:
        """Take the place behind all others."""
        before = None if self.at_rest else self._last
        self._last = asyncio.get_running_loop().create_future()
        return Turn(before, self._last)

    async def rest(self) -> None:
        """Wait for everybody who has a place now."""
        if self._last is not None and not self.at_rest:
            await asyncio.wait({self._last})


class Turn:
    """One place in the chain; whoever took it must `end` it."""

    def __init__(self, before: asyncio.Future[None] | None, mine: asyncio.Future[None]) -> None:
        self._before = before
        self._mine = mine

    async def come(self) -> None:
        """Wait for it."""
        if self._before is not None and not self._before.done():
            await asyncio.wait({self._before})  # which leaves it alone when the waiting is cancelled

    def end(self) -> None:
        """It is over; one that ends before it came leaves its place to the one before."""
        if self._before is None or self._before.done():
            self._mine.set_result(None)
        else:
            self._before.add_done_callback(lambda _: self._mine.set_result(None))
