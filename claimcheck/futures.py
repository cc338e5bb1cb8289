"""Produce calls that return futures: the outcome is known when the future is done, not when the call returns."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

from claimcheck.envelope import Envelope
from claimcheck.outbound import Outbound, in_background

__all__ = ["follow"]

_log = logging.getLogger(__name__)

AnyFuture = Any
"""`concurrent.futures.Future` or `asyncio.Future`: the same few methods, no common base, both slow to import."""


def follow(out: Outbound, produce: Callable[[Envelope], Any]) -> Any:
    """Return what a decorated call returns: its first result, which counts as sent unless it is a future.

    A pointer's future comes back as it is; when it fails definitely the stored payload is removed. The futures of
    several chunks come back as one, which has the first one's result once all are done.
    """
    first = out.results[0]
    if not _is_future(first):
        out.keep()
        return first
    if out.total > 1:
        return _Joined(out, produce).future
    if out.undoable:  # to look at a future's error marks it as seen: without need it stays the caller's
        first.add_done_callback(lambda done: _conclude(out, done))
    return first


def _is_future(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("add_done_callback", "exception", "cancelled"))


def _is_on_loop(future: AnyFuture) -> bool:
    return hasattr(future, "get_loop")


def _new_like(future: AnyFuture) -> AnyFuture:
    if _is_on_loop(future):
        return future.get_loop().create_future()
    from concurrent.futures import Future

    joined: AnyFuture = Future()
    joined.set_running_or_notify_cancel()  # its parts are on their way: it can no longer be cancelled
    return joined


def _error_of(future: AnyFuture) -> BaseException | None:
    if future.cancelled():
        from concurrent.futures import CancelledError

        return CancelledError("the future was cancelled")
    error: BaseException | None = future.exception()
    return error


def _conclude(out: Outbound, done: AnyFuture) -> None:
    error = _error_of(done)
    if error is None or not out.undoable:
        out.keep()
    elif _is_on_loop(done):  # an event loop must not wait for a store
        done.get_loop().run_in_executor(None, out.conclude, error)
    else:
        out.conclude(error)


class _Joined:
    """One future for the futures of all chunks of a payload."""

    def __init__(self, out: Outbound, produce: Callable[[Envelope], Any]) -> None:
        self._out = out
        self._produce = produce
        self._left = len(out.results)
        self._lock = threading.Lock()
        first = out.results[0]
        self.future: AnyFuture = _new_like(first)
        for future in list(out.results):
            future.add_done_callback(self._one_done)

    def _one_done(self, _: AnyFuture) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        error = self._failure()
        if self.future.done():  # the caller cancelled it
            return
        if error is None:
            self.future.set_result(self._out.results[0].result())
        else:
            self.future.set_exception(error)

    def _failure(self) -> BaseException | None:
        """The first error; a `PartialSendError` when a reader may hold some of the chunks, who is then told."""
        errors = [_error_of(future) for future in self._out.results]
        first = next((error for error in errors if error is not None), None)
        if first is None:
            return None
        if all(error is not None and self._out.judge(error) == "failed" for error in errors):
            return first
        self._tell_readers()
        sent = [f.result() for f, error in zip(self._out.results, errors, strict=True) if error is None]
        partial = self._out.partial(sent, first)
        partial.__cause__ = first
        return partial

    def _tell_readers(self) -> None:
        try:
            told = self._produce(self._out.abort) if self._out.abort else None
            if inspect.iscoroutine(told):
                in_background(self.future.get_loop(), told)
        except Exception as error:
            _log.warning("could not send the abort envelope: %s", type(error).__name__)
