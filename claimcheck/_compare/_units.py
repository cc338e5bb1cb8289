"""Numbers and foreign texts as short texts, the same in the summary, the report and the plots."""

from __future__ import annotations

import math

__all__ = ["number_text", "printable"]


def number_text(value: float) -> str:
    """Return a number without an exponent, with at least three significant digits: ``1,234``, ``12.3``, ``0.0456``."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def printable(text: str) -> str:
    """Replace the characters that could control a terminal or hide a part of the text; line breaks stay."""
    return "".join(ch if ch.isprintable() or ch == "\n" else "\N{REPLACEMENT CHARACTER}" for ch in text)
