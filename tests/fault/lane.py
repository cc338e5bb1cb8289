"""One direction of a line through a proxy, and what happens to the bytes that pass there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

__all__ = ["BrokenLineError", "Lane"]

_TICKS_PER_SECOND = 50  # how often something passes on a lane that is slow


class BrokenLineError(ConnectionError):
    """The connection that was about to carry a byte ends instead."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__("reset" if reset else "cut")
        self.reset = reset


class Lane:
    """Incidents happen at a byte: everything before it arrives, nothing after it does until the incident is over.

    All counts begin at the moment of the call and run on over connections. A lane may be told things from any thread
    while nothing passes.

    Attributes:
        passed: Bytes since the lane was made.
    """

    def __init__(self) -> None:
        self.passed = 0
        self._incidents: list[tuple[int, int, Callable[[], object]]] = []
        self._flips: set[int] = set()
        self._held: list[threading.Event] = []
        self._rate: int | None = None

    def at(self, count: int, action: Callable[[], object]) -> None:
        """After so many bytes, and not before there is a byte, call something that may take its time or raise."""
        self._incidents.append((self.passed + count, count, action))
        self._incidents.sort(key=lambda incident: incident[0])

    def break_after(self, count: int, *, reset: bool = False, times: int | None = 1) -> None:
        """Break the connection after so many bytes; again after as many more, until it was done so many times."""

        def broken() -> None:
            left = None if times is None else times - 1
            if left != 0:
                self.break_after(count, reset=reset, times=left)
            raise BrokenLineError(reset=reset)

        self.at(count, broken)

    def hold(self, after: int = 0) -> threading.Event:
        """Hold back all bytes after so many, until the event that is returned is set."""
        event = threading.Event()
        self._held.append(event)
        self.at(after, event.wait)
        return event

    def flip(self, offset: int) -> None:
        """Change the byte that passes after so many others."""
        self._flips.add(self.passed + offset)

    def throttle(self, bytes_per_second: int | None) -> None:
        """Let no more than this pass from now on; ``None`` for as much as there is."""
        self._rate = bytes_per_second

    def free(self) -> None:
        """Forget everything that was to happen, and release what is held."""
        self._incidents.clear()
        self._flips.clear()
        self._rate = None
        for event in self._held:
            event.set()

    async def carry(self, data: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass bytes on.

        Raises:
            BrokenLineError: It was to happen here; what comes before was passed on.
        """
        data = self._falsified(data)
        while data:
            await self._happen(0)
            piece, data = data[: self._room()], data[self._room() :]
            self.passed += len(piece)
            if self._rate:
                await asyncio.sleep(len(piece) / self._rate)
            await write(piece)
            await self._happen(1)

    async def _happen(self, least: int) -> None:
        """What is due; after a byte, nothing that was told since and is to wait for the next one."""
        while self._incidents and self._incidents[0][0] <= self.passed and self._incidents[0][1] >= least:
            *_, action = self._incidents.pop(0)
            await asyncio.to_thread(action)

    def _room(self) -> int:
        room = self._incidents[0][0] - self.passed if self._incidents else 1 << 30
        return min(room, max(1, self._rate // _TICKS_PER_SECOND)) if self._rate else room

    def _falsified(self, data: bytes) -> bytes:
        here = [offset - self.passed for offset in self._flips if 0 <= offset - self.passed < len(data)]
        changed = bytearray(data)
        for offset in here:
            changed[offset] ^= 1
        return bytes(changed) if here else data
