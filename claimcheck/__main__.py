"""The command line: ``claimcheck ...``, or ``python -m claimcheck``."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from claimcheck.errors import MissingDependencyError, import_vendor

_MISSING_PACKAGE = 3  # see EXIT_CODES


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code, see ``claimcheck --help``.

    Args:
        arguments: Without the program's name; by default those of the process.
    """
    try:
        import_vendor("click", extra="cli")
    except MissingDependencyError as error:
        if sys.stderr is not None:  # it was closed
            sys.stderr.write(f"claimcheck: {error}\n")
        sys.exit(_MISSING_PACKAGE)
    from claimcheck.cli._commands import commands

    # Let cleanup run, unless the signal is ignored (``nohup``) or this is not the main thread.
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)
    commands.main(arguments, prog_name="claimcheck")


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice: the second must not interrupt the cleanup
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
