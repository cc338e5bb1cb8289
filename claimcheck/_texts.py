"""Numbers and foreign texts as short texts for people, the parts of URLs, and two constants of the wire format."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urllib.parse import SplitResult

HEADER = b"PRF_wdkafcli_header_"
"""The default for the bytes that every envelope begins with."""

MAX_POINTER_BYTES = 8192
"""The default of ``limits.max_pointer_bytes``."""

# The expression of RFC 3986, appendix B.
_URL = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL)
_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


def duration(seconds: float) -> str:
    """Return a time span in a readable unit: ``7 days``, ``1.5 hours``."""
    seconds = round(seconds, 1 if seconds < 10 else None)
    name, unit = next((each for each in _UNITS if seconds >= each[1]), _UNITS[-1])
    text = f"{seconds / unit:,.1f}".removesuffix(".0")
    return f"{text} {name}{'' if text == '1' else 's'}"


def size_text(size: float, *, digits: int = 4) -> str:
    """Return a number of bytes for people, with so many significant digits at most: ``64 KiB``, ``1.5 MiB``."""
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= unit_bytes:
            return f"{float(f'{size / unit_bytes:.{digits}g}'):.4g} {unit}"
    return f"{size:.0f} bytes"


def time_text(seconds: float) -> str:
    """Return a time, given in seconds since 1970, in UTC: ``2026-11-22T11:30:04+00:00``."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a pointer may claim any year
        return f"{seconds * 1000:.0f} ms"


def printable(text: str, *, keep: str = "") -> str:
    """Return the text with a space for each character that a terminal would interpret, except those to keep."""
    return "".join(ch if ch.isprintable() or ch in keep else " " for ch in text)


def split_url(text: str) -> SplitResult:
    """Split a URL as `urlsplit` does, but accept several hosts: newer Pythons refuse such lists if one is ``[::1]``."""
    from urllib.parse import SplitResult  # slow to import

    match = _URL.match(text)
    assert match is not None, "it matches every text"
    scheme, *rest = match.groups("")
    return SplitResult(scheme.lower(), *rest)
