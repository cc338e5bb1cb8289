"""What an error holds on to: its traceback keeps the local variables of every function that it came through."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType

__all__ = ["let_go"]


def let_go(error: BaseException) -> None:
    """Clear the locals of the functions that have ended with an error, and with those that it came from.

    Among them are buffers as large as payloads, and errors are kept: in logs, in lists of dead letters, by whoever
    reports them. Where each function stood is still to be seen.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            _clear(one.__traceback__)
            pending += [one.__cause__, one.__context__]


def _clear(trace: TracebackType | None) -> None:
    while trace is not None:
        with suppress(RuntimeError):  # it has not ended
            trace.tb_frame.clear()
        trace = trace.tb_next
