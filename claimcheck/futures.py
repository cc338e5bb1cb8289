"""Produce calls that return futures: the outcome is known when the future is done, not when the call returns."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from claimcheck.envelope import Envelope
from claimcheck.outbound import Outbound, in_background, is_future

__all__ = ["follow"]

AnyFuture = Any
"""`concurrent.futures.Future` or `asyncio.Future`: the same few methods, no common base, both slow to import."""


def follow(out: Outbound, produce: Callable[[Envelope], Any]) -> Any:
    """Return what a decorated call returns: its first result, which counts as sent unless it is a future.

    A pointer's future comes back as it is; when it fails for certain, the stored payload is deleted. The futures of
    several chunks come back as one, which has the first one's result once all are done.
    """
    first = out.results[0]
    if not is_future(first):
        out.finish()
    elif out.total > 1:
        return _Joined(out, produce).future
    elif out.awaits_outcome:  # to look at a future's error marks it as seen: without need it stays the caller's
        first.add_done_callback(lambda done: _finish(out, done))
    return first


def _is_on_loop(future: AnyFuture) -> bool:
    return hasattr(future, "get_loop")


def _new_like(future: AnyFuture) -> AnyFuture:
    if _is_on_loop(future):
        return future.get_loop().create_future()
    from concurrent.futures import Future

    joined: AnyFuture = Future()
    joined.set_running_or_notify_cancel()  # its parts are on their way: it can no longer be cancelled
    return joined


def _record(out: Outbound, number: int, done: AnyFuture) -> None:
    error = _error_of(done)
    if error is None:
        out.ledger.acknowledged(number, done.result())
    else:
        out.ledger.failed(number, error)


def _error_of(future: AnyFuture) -> BaseException | None:
    if future.cancelled():
        from concurrent.futures import CancelledError

        return CancelledError("the future was cancelled")
    error: BaseException | None = future.exception()
    return error


def _finish(out: Outbound, done: AnyFuture) -> None:
    _record(out, 0, done)
    if _is_on_loop(done) and out.ledger.verdict().rollback:  # an event loop must not wait for a store
        done.get_loop().run_in_executor(None, out.finish)
    else:
        out.finish()


class _Joined:
    """One future for the futures of all chunks of a payload."""

    def __init__(self, out: Outbound, produce: Callable[[Envelope], Any]) -> None:
        self._out = out
        self._produce = produce
        self._left = len(out.results)
        self._lock = threading.Lock()
        self.future: AnyFuture = _new_like(out.results[0])
        for number, future in enumerate(list(out.results)):
            future.add_done_callback(lambda done, number=number: self._one_done(number, done))

    def _one_done(self, number: int, done: AnyFuture) -> None:
        with self._lock:
            _record(self._out, number, done)
            self._left -= 1
            if self._left:
                return
        error = self._end()
        if self.future.done():  # the caller cancelled it
            return
        if error is None:
            self.future.set_result(self._out.results[0].result())
        else:
            self.future.set_exception(error)

    def _end(self) -> BaseException | None:
        """Tell readers of chunks that will not be completed; returns the joined future's error."""
        out, error = self._out, self._out.ledger.error
        told = out.tell_readers(self._produce)
        if inspect.iscoroutine(told):
            in_background(self.future.get_loop(), told)
        if not (out.finish().abort and isinstance(error, Exception)):
            return error
        partial = out.ledger.partial_error(error)
        partial.__cause__ = error
        return partial
