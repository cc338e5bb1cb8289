"""Blocking work in a bounded number of threads, and its cancellation between pieces of a payload."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

IO_THREADS = 128
"""Blocking calls that run at the same time in one process, on behalf of tasks and of `ClaimCheck.resolve_many`."""

IO_BYTES = 256 << 20
"""The most bytes of payloads that these calls read at the same time; a larger payload is read while no other is."""

_MOST_PIPELINED = 32  # calls
_PIPELINED_BYTES = 1 << 20
_PIPELINED_THREADS = 4  # that share the calls that wait: with more, most calls run alone, at twice the cost

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


class Pipelined(NamedTuple):
    """A request that may be sent together with those of other calls that wait at the same time.

    ``send`` sends several of them, and raises nothing. The calls run in its context, each waiting for its own reply.
    """

    send: Callable[[Sequence[Any]], AbstractContextManager[object]]
    request: object


@dataclass(slots=True, eq=False)
class _Call:
    future: Future[Any]
    run: Callable[[], object]
    size: int
    send: Callable[[Sequence[Any]], AbstractContextManager[object]] | None
    request: object


class IoThreads:
    """Runs blocking calls in a bounded number of threads, in the order in which they were submitted. Thread-safe."""

    def __init__(self, threads: int = IO_THREADS, max_bytes: int = IO_BYTES, *, name: str = "claimcheck-io") -> None:
        from concurrent.futures import ThreadPoolExecutor  # as slow to import as asyncio

        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads, self._max_bytes = threads, max_bytes
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._running = self._bytes = 0
        self._woken = 0  # threads that run, and have not taken a call yet

    def submit(self, function: Callable[[], R], *, size: int = 0, pipelined: Pipelined | None = None) -> Future[R]:
        """Call a function in a thread. Cancelling the future removes a call that has not started."""
        from concurrent.futures import Future

        context, future = contextvars.copy_context(), Future[R]()
        call = _Call(future, lambda: context.run(function), size, *(pipelined or (None, None)))
        with self._lock:
            self._waiting.append(call)
            try:
                self._wake()
            except RuntimeError:  # closed, or the interpreter is shutting down
                self._waiting.remove(call)
                raise
        return future

    def close(self) -> None:
        """Cancel the calls that wait, and end the threads after those that run."""
        with self._lock:
            self._waiting = deque(call for call in self._waiting if not call.future.cancel())
        self._executor.shutdown(wait=False)

    def _wake(self) -> None:
        """Wake threads for the calls that may run. One at a time for pipelined calls: more of them arrive meanwhile."""
        while self._running < self._threads and self._next_may_run():
            if self._woken >= (len(self._waiting) if self._waiting[0].send is None else 1):
                break
            self._executor.submit(self._work)
            self._running += 1
            self._woken += 1

    def _next_may_run(self) -> bool:
        while self._waiting and self._waiting[0].future.cancelled():
            self._waiting.popleft()
        size = self._waiting[0].size if self._waiting else 0
        has_room = not size or not self._bytes or self._bytes + size <= self._max_bytes
        return bool(self._waiting) and has_room

    def _take(self) -> list[_Call]:
        if not self._next_may_run():
            return []
        send, calls, size = self._waiting[0].send, list[_Call](), 0
        most = 1 if send is None else min(_MOST_PIPELINED, -(-len(self._waiting) // _PIPELINED_THREADS))
        while len(calls) < most and size < _PIPELINED_BYTES and self._next_may_run() and self._waiting[0].send == send:
            calls.append(call := self._waiting.popleft())
            self._bytes += call.size
            size += call.size
        return calls

    def _work(self) -> None:
        with self._lock:
            self._woken -= 1
        while calls := self._next():
            try:
                _run(calls)
            finally:
                with self._lock:
                    self._bytes -= sum(call.size for call in calls)

    def _next(self) -> list[_Call]:
        """Return the next calls for a thread that has none, which ends if there are none."""
        with self._lock:
            calls = self._take()
            self._running -= not calls
            with contextlib.suppress(RuntimeError):  # no new threads start: this one goes on
                self._wake()
        return calls


def _run(calls: list[_Call]) -> None:
    # Before anything is sent: what a cancelled call has sent, it has to undo.
    calls = [call for call in calls if call.future.set_running_or_notify_cancel()]
    send = calls[0].send if len(calls) > 1 else None
    with contextlib.nullcontext() if send is None else send([call.request for call in calls]):
        for call in calls:
            _complete(call)


def _complete(call: _Call) -> None:
    try:
        result = call.run()
    except BaseException as error:
        call.future.set_exception(error)
    else:
        call.future.set_result(result)


_io: list[IoThreads] = []
_io_lock = threading.Lock()


def io_threads() -> IoThreads:
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
    pipelined: Pipelined | None = None,
) -> R:
    import asyncio  # a third of the whole import time
    from concurrent.futures import wait

    handover = _Handover(function, undo)
    running = io_threads().submit(handover.run, size=size, pipelined=pipelined)
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        for result in handover.abandon():
            await asyncio.shield(asyncio.wrap_future(io_threads().submit(functools.partial(undo, result))))
        if not running.done():  # in a thread of the loop, for which `asyncio.run` waits
            ended = asyncio.get_running_loop().run_in_executor(None, wait, [running])
            if to_the_end:
                await asyncio.shield(ended)
        raise


def retrieved(future: asyncio.Future[R]) -> asyncio.Future[R]:
    """Mark an error of a future as retrieved: it is raised all the same where the result is."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


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
