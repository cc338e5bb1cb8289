"""Blocking work in a bounded number of threads, and its cancellation between pieces of a payload."""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = [
    "IO_THREADS",
    "STOP",
    "Interrupted",
    "IoThreads",
    "check_interrupt",
    "in_thread",
    "interruptible",
    "io_threads",
]

IO_THREADS = 96
"""Blocking calls that run at the same time in one process, on behalf of tasks and of `ClaimCheck.resolve_many`."""

IO_BYTES = 256 << 20
"""The most bytes of payloads that these calls read at the same time; a larger payload is read while no other is."""

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


@dataclass(slots=True, eq=False)
class _Call:
    """A call that waits for a thread."""

    future: Future[Any]
    run: Callable[[], object]
    size: int


class IoThreads:
    """Runs blocking calls in a bounded number of threads, in the order in which they were submitted. Thread-safe.

    Threads start when they are needed, and stay.

    Args:
        threads: Calls that run at the same time.
        max_bytes: Limit for the sizes of all running calls together; a larger one runs while no other call has a size.
    """

    def __init__(self, threads: int = IO_THREADS, max_bytes: int = IO_BYTES) -> None:
        from concurrent.futures import ThreadPoolExecutor  # as slow to import as asyncio

        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="claimcheck-io")
        self._threads, self._max_bytes = threads, max_bytes
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._running = self._bytes = 0

    def submit(self, function: Callable[[], R], *, size: int = 0) -> Future[R]:
        """Call a function in a thread. Cancelling the future removes a call that has not started.

        Args:
            function: The function to call, in the context of the caller.
            size: Bytes that the call is about to hold in memory.
        """
        from concurrent.futures import Future

        context, future = contextvars.copy_context(), Future[R]()
        with self._lock:
            self._waiting.append(_Call(future, lambda: context.run(function), size))
            self._begin()
        return future

    def _begin(self) -> None:
        while self._waiting and self._running < self._threads:
            call = self._waiting[0]
            is_cancelled = call.future.cancelled()
            if not is_cancelled and call.size and self._bytes and self._bytes + call.size > self._max_bytes:
                return
            self._waiting.popleft()
            if not is_cancelled:
                self._running += 1
                self._bytes += call.size
                self._executor.submit(self._run, call)

    def _run(self, call: _Call) -> None:
        try:
            if call.future.set_running_or_notify_cancel():
                _complete(call)
        finally:
            with self._lock:
                self._running -= 1
                self._bytes -= call.size
                self._begin()


def _complete(call: _Call) -> None:
    """Run a call and set its result or its error."""
    try:
        result = call.run()
    except BaseException as error:
        call.future.set_exception(error)
    else:
        call.future.set_result(result)


_io: list[IoThreads] = []
_io_lock = threading.Lock()


def io_threads() -> IoThreads:
    """Return the threads of this process."""
    with _io_lock:
        if not _io:
            _io.append(IoThreads())
        return _io[0]


def _forget_threads() -> None:
    """Start new threads in a child process, where those of the parent do not exist."""
    global _io_lock
    _io_lock = threading.Lock()
    _io.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


async def in_thread(
    function: Callable[[], R],
    *,
    size: int = 0,
    undo: Callable[[R], None] = lambda _: None,
    to_the_end: bool = False,
) -> R:
    """Call a blocking function in one of the `io_threads`.

    If the task is cancelled, a function that waits for a thread is not called. One that runs stops at its next piece of
    a payload: its connection is closed and what it wrote is deleted. If it completed nevertheless, its result is
    undone.

    Args:
        function: The function to call.
        size: Bytes that the call is about to read into memory.
        undo: Called in a thread with a result that arrived after the cancellation.
        to_the_end: Whether a cancelled task waits until the function has ended, because it uses an object of the
            caller's, such as a file.
    """
    import asyncio  # a third of the whole import time
    from concurrent.futures import wait

    handover = _Handover(function, undo)
    running = io_threads().submit(handover.run, size=size)
    try:
        return await asyncio.wrap_future(running)  # its cancellation cancels a call that has not started
    except asyncio.CancelledError:
        for result in handover.abandon():
            await asyncio.shield(asyncio.wrap_future(io_threads().submit(functools.partial(undo, result))))
        if not running.done():  # in a thread of the loop, for which `asyncio.run` waits
            ended = asyncio.get_running_loop().run_in_executor(None, wait, [running])
            if to_the_end:
                await asyncio.shield(ended)
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
