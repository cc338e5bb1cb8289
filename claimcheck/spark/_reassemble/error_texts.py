"""What is said of payloads that do not become whole. Imports nothing: it travels to where we are not installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["conflicting", "incomplete", "missing", "too_large"]

_RANGES = 8


def missing(positions: Iterable[int], count: int) -> str:
    """Say which numbers below ``count`` are not there, as ``1, 4-7 and 12 more``.

    Args:
        positions: Those that are, lowest first, each once.
        count: As declared; nothing is allocated by it.
    """
    told, more = list[str](), 0
    for first, last in _gaps(positions, count):
        if len(told) < _RANGES:
            told.append(str(first) if first == last else f"{first}-{last}")
        else:
            more += last - first + 1
    return ", ".join(told) + (f" and {more} more" if more else "")


def _gaps(positions: Iterable[int], count: int) -> Iterator[tuple[int, int]]:
    following = 0
    for position in positions:
        if position > following:
            yield following, position - 1
        following = position + 1
    if following < count:
        yield following, count - 1


def incomplete(uuid: str, positions: list[int], count: int, why: str) -> str:
    """Say that chunks are missing, and which."""
    return f"only {len(positions)} of {count} chunks of {uuid} came, missing {missing(positions, count)}: {why}"


def conflicting(uuid: str, position: int, why: str) -> str:
    """Say that chunks contradict each other."""
    return f"chunk {position} of {uuid} {why}: two writers, or damage"


def too_large(uuid: str, size: int, limit: int, what: str) -> str:
    """Say that a payload is over a limit."""
    return f"the payload {uuid} has {size} {what}, the limit is {limit}"
