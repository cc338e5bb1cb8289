"""Work in a thread for a task on an event loop, and how it is asked to stop: it looks between pieces of a payload."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["STOP", "Interrupted", "check_interrupt", "in_thread", "interruptible"]

R = TypeVar("R")

STOP: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("claimcheck_stop", default=None)
"""Set by a cancelled task to stop the work of its thread; ``None`` where no task waits."""


class Interrupted(BaseException):
    """Raised where the work is, never to a caller: whoever asked for the stop is gone."""


def check_interrupt() -> None:
    """Raise if whoever waits for this work has asked it to stop."""
    stop = STOP.get()
    if stop is not None and stop.is_set():
        raise Interrupted("nobody waits for this any more")


def interruptible(stop: threading.Event, function: Callable[..., R], *args: Any) -> R:
    """Call a function whose reads and writes end, with `Interrupted`, soon after ``stop`` is set."""
    token = STOP.set(stop)
    try:
        return function(*args)
    finally:
        STOP.reset(token)


async def in_thread(
    function: Callable[[], R], *, undo: Callable[[R], None] = lambda _: None, to_the_end: bool = False
) -> R:
    """Call a function in a thread, so that the event loop goes on.

    A task that is cancelled meanwhile asks the function to stop. It does so at its next piece of a payload: its
    connection is closed, what it had written is removed, and what it completed all the same is undone.

    Args:
        function: What to call; it may block.
        undo: Takes back a result that nobody waits for any more; called in a thread.
        to_the_end: Whether a cancelled task waits until the function has ended, because it uses something of the
            caller's.
    """
    import asyncio  # a third of the whole import time, for those who need it

    handover = _Handover(function, undo)
    running = asyncio.ensure_future(asyncio.to_thread(handover.run))
    running.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, even if nobody waits
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        for result in handover.abandon():
            await asyncio.shield(asyncio.to_thread(undo, result))
        if to_the_end:
            await asyncio.wait([running])
        raise


class _Handover(Generic[R]):
    """A result that a thread makes for a task, which may be gone when it is there: then the thread undoes it."""

    def __init__(self, function: Callable[[], R], undo: Callable[[R], None]) -> None:
        self._function = function
        self._undo = undo
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._results: list[R] = []

    def run(self) -> R:
        result = interruptible(self._stop, self._function)
        with self._lock:
            self._results.append(result)
            abandoned = self._stop.is_set()
        if abandoned:
            self._undo(result)
        return result

    def abandon(self) -> list[R]:
        """Nobody waits any more; returns the result, if there is one already: the caller must undo it."""
        with self._lock:
            self._stop.set()
            return list(self._results)
