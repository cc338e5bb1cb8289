"""Entry point of ``claimcheck ...``. ``--version`` and ``--help`` work without click and rich."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from claimcheck.cli._help import plain_help, version
from claimcheck.errors import MissingDependencyError, import_vendor, pip_install

__all__ = ["main"]

_MISSING_PACKAGE = 3  # see EXIT_CODES


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code, see ``claimcheck --help``.

    Args:
        arguments: Without the program's name; by default those of the process.
    """
    try:
        for package in ("click", "rich"):
            import_vendor(package, extra="cli")
    except MissingDependencyError as error:
        _without_packages(sys.argv[1:] if arguments is None else arguments, error)
    from claimcheck.cli._commands import commands

    _exit_on_sigterm()
    commands.main(arguments, prog_name="claimcheck")


def _without_packages(arguments: Sequence[str], error: MissingDependencyError) -> None:
    option = next(iter(arguments), "--help")
    if option == "--version":
        text, code = f"claimcheck, version {version()}\n", 0
    elif option in ("-h", "--help"):
        text, code = f"{plain_help()}\nThe commands need another package: {pip_install(error.extra or 'cli')}\n", 0
    else:
        text, code = f"claimcheck: {error}\n", _MISSING_PACKAGE
    stream = sys.stderr if code else sys.stdout
    if stream is not None:  # the standard stream was closed
        stream.write(text)
    sys.exit(code)


def _exit_on_sigterm() -> None:
    """Let cleanup run, unless the signal is ignored (``nohup``) or this is not the main thread."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice: the second must not interrupt the cleanup
    sys.exit(128 + number)
