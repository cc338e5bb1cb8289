"""Blocking work in a thread on behalf of an asyncio task, and its cancellation between pieces of a payload."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

__all__ = ["STOP", "Interrupted", "check_interrupt", "in_thread", "interruptible"]

P = ParamSpec("P")
R = TypeVar("R")

STOP: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("claimcheck_stop", default=None)
"""Set by a cancelled task to stop the work of its thread; ``None`` outside of such work."""


class Interrupted(BaseException):
    """Raised in the thread whose work was cancelled; never reaches a caller."""


def check_interrupt() -> None:
    """Raise `Interrupted` if the current work was cancelled."""
    stop = STOP.get()
    if stop is not None and stop.is_set():
        raise Interrupted("the caller was cancelled")


def interruptible(stop: threading.Event, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function whose reads and writes raise `Interrupted` soon after ``stop`` is set."""
    token = STOP.set(stop)
    try:
        return function(*args, **kwargs)
    finally:
        STOP.reset(token)


async def in_thread(
    function: Callable[[], R], *, undo: Callable[[R], None] = lambda _: None, to_the_end: bool = False
) -> R:
    """Call a blocking function in a thread.

    If the task is cancelled, the function stops at its next piece of a payload: its connection is closed and what it
    wrote is deleted. If it completed nevertheless, its result is undone.

    Args:
        function: The function to call.
        undo: Called in a thread with a result that arrived after the cancellation.
        to_the_end: Whether a cancelled task waits until the function has ended, because it uses an object of the
            caller's, such as a file.
    """
    import asyncio  # a third of the whole import time

    handover = _Handover(function, undo)
    running = asyncio.ensure_future(asyncio.to_thread(handover.run))
    running.add_done_callback(lambda done: done.cancelled() or done.exception())  # marks an error as retrieved
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        for result in handover.abandon():
            await asyncio.shield(asyncio.to_thread(undo, result))
        if to_the_end:
            await asyncio.wait([running])
        raise


class _Handover(Generic[R]):
    """Passes a result from a thread to a task; if the task was cancelled, the thread undoes the result."""

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
        """Stop the function; returns the result if there is one already, for the caller to undo."""
        with self._lock:
            self._stop.set()
            return list(self._results)
