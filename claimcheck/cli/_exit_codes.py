"""The exit code and the one-line text of an error."""

from __future__ import annotations

from claimcheck._check import CheckReport
from claimcheck._registry import UNUSABLE
from claimcheck._texts import printable
from claimcheck.errors import (
    ChunkError,
    ClaimCheckError,
    ConfigError,
    ConfigProblem,
    EnvelopeError,
    IntegrityError,
    MissingDependencyError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreUnavailableError,
)

_CODES: tuple[tuple[tuple[type[ClaimCheckError], ...], int], ...] = (
    ((ConfigError, MissingDependencyError), 3),
    ((PayloadNotFoundError,), 4),
    ((EnvelopeError, IntegrityError, ChunkError), 5),
    ((StoreUnavailableError,), 6),
    ((PointerRejectedError,), 7),
)


def exit_code(error: Exception) -> int:
    """Return the exit code of an error; if this machine lacks what a pointer's store needs, that of the cause."""
    unusable = isinstance(error, PointerRejectedError) and isinstance(error.__cause__, UNUSABLE)
    reason = error.__cause__ if unusable else error
    return next((code for kinds, code in _CODES if isinstance(reason, kinds)), 1)


def report_exit_code(report: CheckReport, *, strict: bool) -> int:
    """Return the exit code of the first error; without errors 0, or 1 if warnings count."""
    if not report.ok:
        first = report.findings[0]
        return exit_code(first.error or ClaimCheckError(first.message))
    return int(strict and any(finding.severity == "warning" for finding in report.findings))


def one_line(error: Exception | ConfigProblem) -> str:
    """Return an error's text and its notes as one line; it names the type of an unexpected error."""
    line = "; ".join([_text(error), *getattr(error, "__notes__", ())])
    return printable(" ".join(line.split()))


def _text(error: Exception | ConfigProblem) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (ClaimCheckError, ConfigProblem, OSError)):
        return str(error)
    return f"unexpected {type(error).__name__}: {error} (--debug shows the traceback)"
