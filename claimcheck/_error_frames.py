"""Frees what the traceback of an error refers to: the local variables of every function that the error passed."""

from __future__ import annotations

import traceback

__all__ = ["clear_frames"]


def clear_frames(error: BaseException) -> None:
    """Clear the local variables of all finished functions in the tracebacks of an error and of its causes.

    They include buffers as large as payloads, and errors are kept: in logs, in lists of dead letters, by error
    reporting. The tracebacks still show file and line.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            pending += [one.__cause__, one.__context__]
