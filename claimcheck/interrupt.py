"""Asking work in another thread to stop: between two pieces of a payload it looks whether somebody did."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["Interrupted", "check_interrupt", "interruptible"]

P = ParamSpec("P")
R = TypeVar("R")

_stop: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("claimcheck_stop", default=None)


class Interrupted(BaseException):
    """Raised where the work is, never to a caller: whoever asked for the stop is gone."""


def check_interrupt() -> None:
    """Raise if whoever waits for this work has asked it to stop."""
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise Interrupted("nobody waits for this any more")


def interruptible(stop: threading.Event, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function whose reads and writes end, with `Interrupted`, soon after ``stop`` is set."""
    token = _stop.set(stop)
    try:
        return function(*args, **kwargs)
    finally:
        _stop.reset(token)
