"""The way in for ``claimcheck ...``; says what to install where click or rich is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from claimcheck.errors import MissingDependencyError
from claimcheck.registry import import_vendor

__all__ = ["main"]

_MISSING_PACKAGE = 3  # the exit code of everything that is wrong before the work begins, see claimcheck.cli.errors


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
    from claimcheck.cli.commands import commands

    commands.main(arguments, prog_name="claimcheck")


def _complain(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return _MISSING_PACKAGE
