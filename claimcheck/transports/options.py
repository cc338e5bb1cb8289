"""Options of the wrappers, looked at when they are given, not when they are needed."""

from __future__ import annotations

import threading
from typing import Any

from claimcheck.validation import fail

__all__ = ["check_number", "check_seconds"]


def check_number(name: str, value: Any, *, least: int) -> None:
    """Refuse an option that is no whole number, or too small a one.

    Raises:
        ConfigError: With name, what was found and what is expected.
    """
    if not isinstance(value, int) or value < least:
        fail(name, found=repr(value), expected=f"a whole number from {least}")


def check_seconds(name: str, value: Any) -> None:
    """Refuse an option that is no time to wait. Raises as `check_number`."""
    if not isinstance(value, int | float) or not 0 < value <= threading.TIMEOUT_MAX:
        fail(name, found=repr(value), expected="a number of seconds above 0")
