"""Lifetimes in keys, so that a payload's expiry is known without opening it. No I/O.

The last part of a key has one of three forms, told apart by the character before the uuid, so that no name of a
destination can imitate another form:

- ``{destination}-{created}-{lifetime}.{uuid}``: of a write with a fresh uuid.
- ``{destination}-{lifetime}_{uuid}``: of a write with an identity. All attempts have to use the same key, so the time
  is not part of it: the lifetime begins when the medium last stored the entry.
- ``{destination}-{uuid}``: of earlier releases and of pointers of version 1; the key has no lifetime.

``created`` is like ``20261122T113004Z``; ``lifetime`` is like ``604800s``, rounded up, or ``never``.
"""

from __future__ import annotations

import functools
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

UNLIMITED = "never"
"""The lifetime of a payload that does not expire."""

CLAIM = ".gc-owner"
"""The end of the key of a record, which is not a payload; see `claimcheck._gc_claims`."""

_LIFETIME = r"\d{1,11}s|never"
_NAME = re.compile(
    r"(?P<destination>~?[A-Za-z0-9._-]{1,64}?)-"  # not greedy: most destinations are short
    rf"(?:(?P<created>\d{{8}}T\d{{6}}Z)-(?P<lifetime>{_LIFETIME})\.|(?P<relative>{_LIFETIME})_|(?<=-))"
    r"(?P<open>\{)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?P<close>\})?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class KeyLifetime:
    """What a key says about the lifetime of its payload."""

    created_ms: int | None = None
    lifetime_ms: int | None = None
    is_known: bool = False


def with_lifetime(
    key: str, unique: uuid.UUID, *, created_ms: int, expires_ms: int | None, fresh: bool, max_bytes: int
) -> str:
    """Return a new key with a lifetime in front of its uuid."""
    tail = f"-{{{unique}}}" if key.endswith("}") else f"-{unique}"
    moment = _moment(created_ms // 1000)
    if not key.endswith(tail) or moment is None:
        return key
    lifetime = UNLIMITED if expires_ms is None else f"{-(-(expires_ms - created_ms) // 1000)}s"
    mark = f"-{moment}-{lifetime}." if fresh else f"-{lifetime}_"
    marked = f"{key[: -len(tail)]}{mark}{tail[1:]}"
    return marked if len(marked.encode()) <= max_bytes else key


def parse_name(name: str) -> KeyLifetime | None:
    """Return what the last part of a key says; ``None`` if this library did not create it."""
    match = _NAME.fullmatch(name)
    if match is None or (match["open"] is None) != (match["close"] is None):
        return None
    created, lifetime = match["created"], match["lifetime"] or match["relative"]
    return KeyLifetime() if lifetime is None else _known(created, lifetime)


def destination_of(key: str) -> str:
    """Return the part of a key that names the destination; empty if this library did not create the key."""
    match = _NAME.fullmatch(key.rpartition("/")[2].partition("@")[0])
    return "" if match is None else match["destination"]


@functools.lru_cache(maxsize=1024)
def _known(created: str | None, lifetime: str) -> KeyLifetime | None:
    created_ms = None if created is None else _milliseconds(created)
    if created is not None and created_ms is None:
        return None
    return KeyLifetime(created_ms, None if lifetime == UNLIMITED else int(lifetime[:-1]) * 1000, is_known=True)


@functools.lru_cache(maxsize=16)
def _moment(seconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")
    except (ValueError, OverflowError, OSError):  # an injected clock may return any time
        return None


def _milliseconds(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp()) * 1000 + 999
    except ValueError:
        return None
