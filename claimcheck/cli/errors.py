"""Exceptions as one line for people and an exit code for scripts."""

from __future__ import annotations

from typing import Any

import click

from claimcheck.errors import (
    ChunkError,
    ClaimCheckError,
    ConfigError,
    EnvelopeError,
    IntegrityError,
    MissingDependencyError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreUnavailableError,
)
from claimcheck.followed import UNUSABLE

__all__ = ["EXIT_CODES", "Commands", "exit_code", "one_line"]

EXIT_CODES = """\b
Exit codes:
  0  done
  1  any other error; a demo whose payloads came back wrong
  2  wrong usage
  3  the configuration is wrong, or a package that it needs is missing
  4  the payload is gone from its store
  5  damaged: no envelope, one that is cut, or a payload that is not what was written
  6  the store cannot be reached; the same command may succeed later
  7  the pointer was rejected: its signature, its store, its size
  143  ended by SIGTERM; nothing half written is left
"""

_CODES: tuple[tuple[tuple[type[ClaimCheckError], ...], int], ...] = (
    ((ConfigError, MissingDependencyError), 3),
    ((PayloadNotFoundError,), 4),
    ((EnvelopeError, IntegrityError, ChunkError), 5),
    ((StoreUnavailableError,), 6),
    ((PointerRejectedError,), 7),
)


class Commands(click.Group):
    """A group whose commands end with our exit codes, and without tracebacks unless ``--debug`` is given."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order in which one needs them."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; everything but click's own errors becomes a line and a code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"claimcheck: {one_line(error)}", err=True)
            ctx.exit(exit_code(error))


def exit_code(error: Exception) -> int:
    """Return the number that `EXIT_CODES` gives an error; what this machine lacks to follow a pointer is its cause."""
    lacking = isinstance(error, PointerRejectedError) and isinstance(error.__cause__, UNUSABLE)
    reason = error.__cause__ if lacking else error
    return next((code for kinds, code in _CODES if isinstance(reason, kinds)), 1)


def one_line(error: Exception) -> str:
    """Say what happened, its notes included, in one line; errors that are not ours say their type, too."""
    line = "; ".join([_text(error), *getattr(error, "__notes__", ())])
    return "".join(ch if ch.isprintable() else " " for ch in " ".join(line.split()))


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (ClaimCheckError, OSError)):
        return str(error)
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)"
