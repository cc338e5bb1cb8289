"""Keys with the lifetime of their payloads, and what a store returns when it lists and deletes payloads. No I/O.

The last part of a key is ``{destination}-{created}-{lifetime}.{uuid}``. Earlier releases also wrote
``{destination}-{uuid}``, as pointers of version 1 still have it, and ``{destination}-{lifetime}_{uuid}`` for payloads
that a task could write again: these keys have no lifetime. The character before the uuid tells the forms apart, so that
no name of a destination can imitate another form.

``created`` is like ``20261122T113004Z``; ``lifetime`` is like ``604800s``, rounded up, or ``never``.
"""

from __future__ import annotations

import functools
import re
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from claimcheck._validation import Check
from claimcheck._wire.pointer import MAX_PREFIX_BYTES, is_key_prefix
from claimcheck.errors import StoreError

KEY_PREFIX = Check(
    is_key_prefix,
    f"printable text of up to {MAX_PREFIX_BYTES} bytes that begins with no slash and has no '.' or '..' in it",
)
"""For the annotation of an option with a prefix of keys: ``Annotated[str, KEY_PREFIX]``."""

UNLIMITED = "never"
"""The lifetime of a payload that does not expire."""

CLAIM = ".gc-owner"
"""The end of the key of a record, which is not a payload; see `claimcheck._operate.garbage`."""

_LIFETIME = r"\d{1,11}s|never"
_NAME = re.compile(
    r"(?P<destination>~?[A-Za-z0-9._-]{1,64}?)-"  # not greedy: most destinations are short
    rf"(?:(?P<created>\d{{8}}T\d{{6}}Z)-(?P<lifetime>{_LIFETIME})\.|(?:{_LIFETIME})_|(?<=-))"
    r"(?P<open>\{)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?P<close>\})?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class KeyLifetime:
    created_ms: int | None = None
    lifetime_ms: int | None = None


def with_lifetime(key: str, unique: uuid.UUID, *, created_ms: int, expires_ms: int | None, max_bytes: int) -> str:
    tail = f"-{{{unique}}}" if key.endswith("}") else f"-{unique}"
    moment = _moment(created_ms // 1000)
    if not key.endswith(tail) or moment is None:
        return key
    lifetime = UNLIMITED if expires_ms is None else f"{-(-(expires_ms - created_ms) // 1000)}s"
    marked = f"{key[: -len(tail)]}-{moment}-{lifetime}.{tail[1:]}"
    return marked if len(marked.encode()) <= max_bytes else key


def parse_name(name: str) -> KeyLifetime | None:
    """Return what the last part of a key says; ``None`` if this library did not create it."""
    match = _NAME.fullmatch(name)
    if match is None or (match["open"] is None) != (match["close"] is None):
        return None
    return _known(match["created"], match["lifetime"]) if match["created"] else KeyLifetime()


def destination_of(key: str) -> str:
    """Return the part of a key that names the destination; empty if this library did not create the key."""
    match = _NAME.fullmatch(key.rpartition("/")[2].partition("@")[0])
    return "" if match is None else match["destination"]


@functools.lru_cache(maxsize=1024)
def _known(created: str, lifetime: str) -> KeyLifetime | None:
    try:
        created_ms = int(datetime.fromisoformat(created).timestamp()) * 1000 + 999
    except ValueError:
        return None
    return KeyLifetime(created_ms, None if lifetime == UNLIMITED else int(lifetime[:-1]) * 1000)


@functools.lru_cache(maxsize=16)
def _moment(seconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")
    except (ValueError, OverflowError, OSError):  # an injected clock may return any time
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
    """One payload in a store, or what an interrupted write left behind.

    Attributes:
        kind: ``payload``, or ``leftover``: a temporary file, an incomplete multipart upload, an empty folder. No
            pointer names a leftover.
        key: The payload's key; for a leftover its name in the medium.
        size: Stored bytes; ``None`` if the medium does not tell.
        created_ms: When it was written, milliseconds since 1970: the time in the key, to the second, otherwise the time
            at which the medium last stored it. ``None`` if unknown.
        expires_ms: When its lifetime ends, milliseconds since 1970; ``None`` if it has none, or if unknown.
        has_lifetime: Whether the lifetime is known; with ``expires_ms`` ``None`` it is unlimited. False for leftovers
            and for keys of earlier releases.
        version: What the medium needs to delete a leftover that is as it was listed.
    """

    kind: Literal["payload", "leftover"] = "payload"
    key: str
    size: int | None = None
    created_ms: int | None = None
    expires_ms: int | None = None
    has_lifetime: bool = False
    version: str = field(default="", repr=False)

    @classmethod
    def of(cls, key: str, known: KeyLifetime, *, size: int | None = None, stored_ms: int | None = None) -> StoreEntry:
        """Return the entry of a payload, which the medium stored at ``stored_ms``."""
        created, lifetime = known.created_ms, known.lifetime_ms
        return cls(
            key=key,
            size=size,
            created_ms=stored_ms if created is None else created,
            expires_ms=None if created is None or lifetime is None else created + lifetime,
            has_lifetime=created is not None,
        )


@dataclass(frozen=True, slots=True)
class Deletion:
    """What became of one entry that `Store.delete` was called with.

    Attributes:
        entry: The entry.
        outcome: ``deleted``; ``gone``: it was no longer there; ``changed``: a leftover is in use again, and stays;
            ``failed``: it may still be there.
        error: The error, only for ``failed``.
    """

    entry: StoreEntry
    outcome: Literal["deleted", "gone", "changed", "failed"]
    error: Exception | None = None


class IncompleteScanError(StoreError):
    """Parts of a store could not be listed. It is raised at the end, after everything else was listed."""

    errors: tuple[StoreError, ...] = ()
