"""Compares this machine's clock with a server's."""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import parsedate_to_datetime

from claimcheck._check import Finding
from claimcheck._doctor._findings import finding
from claimcheck._texts import duration

_TOLERANCE_SECONDS = 5.0


def skew(path: str, whose: str, theirs: float, begin: float, end: float) -> Iterator[Finding]:
    """Yield a finding if clocks differ."""
    ahead = begin - theirs if begin > theirs else theirs - end
    if ahead > _TOLERANCE_SECONDS:
        side = "ahead of" if begin > theirs else "behind"
        message = f"this machine's clock is {duration(ahead)} {side} {whose}"
        yield finding("warning", "clock-skew", path, message, "Synchronize the clocks of both machines with NTP.")


def http_skew(path: str, whose: str, date: str | None, begin: float, end: float) -> Iterator[Finding]:
    """Yield a finding if this clock differs from the ``Date`` of an HTTP response."""
    if not date:
        raise LookupError("the response has no Date header")
    yield from skew(path, whose, parsedate_to_datetime(date).timestamp(), begin - 1, end)
