"""The way in for ``claimcheck ...``; says what to install where click or rich is missing."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from claimcheck._registry import import_vendor
from claimcheck.errors import MissingDependencyError

__all__ = ["main"]

_MISSING_PACKAGE = 3  # the exit code of everything that is wrong before the work begins, see claimcheck.cli._commands


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code, see ``claimcheck --help``.

    Args:
        arguments: Without the program's name; by default those of the process.
    """
    try:
        for package in ("click", "rich"):
            import_vendor(package, extra="cli")
    except MissingDependencyError as error:
        sys.exit(_complain(f"claimcheck: {error}"))
    from claimcheck.cli._commands import commands

    _end_in_order_on_sigterm()
    commands.main(arguments, prog_name="claimcheck")


def _complain(text: str) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
    return _MISSING_PACKAGE


def _end_in_order_on_sigterm() -> None:
    """Let clean-up run; who ignores the signal (see ``nohup``), or runs this in a thread, is left alone."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # sent again, as `timeout` does, it must not disturb the clean-up
    sys.exit(128 + number)
