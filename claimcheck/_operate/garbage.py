"""Which stored payloads can be garbage, and which of them a message refers to. No I/O.

Garbage is a payload that no readable message points at: its message was never sent, or the topic no longer has it. What
this module does not understand counts as referenced, or ends the collection; it never makes a payload garbage.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from claimcheck._store.listing import StoreEntry, destination_of
from claimcheck._wire import pointer as pointers
from claimcheck._wire.buffers import Buffer, as_view
from claimcheck._wire.envelope import Kind, PointerData, decode, is_lookalike
from claimcheck._wire.pointer import slug
from claimcheck.config import HEADER
from claimcheck.errors import UnknownVersionError

GRACE_SECONDS = 86_400.0
"""The default grace period: longer than any time between the write of a payload and the send of its message."""

AGES = (("less than 7 days", 7 * 86_400), ("7 to 30 days", 30 * 86_400), ("more than 30 days", math.inf))
"""The classes of age in a report, with their upper limits in seconds."""

Verdict = Literal["candidate", "recent", "unknown", "other", "leftover"]

_UUID_LENGTH = 36


@dataclass(frozen=True, slots=True)
class Reference:
    """What a pointer names."""

    store: str | None
    key: str


def reference_of(message: Buffer, *, header: bytes = HEADER) -> Reference | None:
    """Return what a message points at; ``None`` if it is not a pointer."""
    if not is_lookalike(message, header=header):
        return None
    kind = as_view(message)[len(header)]
    if kind not in tuple(Kind):
        text = f"unknown envelope type {kind} (known are 0 to 4): a newer claimcheck may have written it"
        raise UnknownVersionError(text, kind=kind)
    if kind != Kind.POINTER:
        return None
    envelope = decode(message, header=header)
    assert isinstance(envelope, PointerData)
    # Without the limit of this configuration: another reader's may be higher.
    pointer = pointers.decode(envelope.data, max_bytes=len(envelope.data))
    return Reference(pointer.store, pointer.key)


def fingerprint(key: str) -> bytes:
    """Return 16 bytes that identify a payload, for large sets: its uuid, or a hash of a key without one."""
    name = key.removesuffix("}")[-_UUID_LENGTH:]
    try:
        return uuid.UUID(name).bytes if len(name) == _UUID_LENGTH else _hashed(key)
    except ValueError:
        return _hashed(key)


def _hashed(key: str) -> bytes:
    return hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Candidates:
    """Which entries of a listing can be garbage, before any message is read."""

    slugs: Mapping[str, str]
    before_ms: int

    @classmethod
    def of(cls, names: Mapping[str, Iterable[str]], *, now: float, grace_seconds: float) -> Candidates:
        """Return the candidates at a time."""
        slugs = {slug(name): topic for topic, several in names.items() for name in several}
        return cls(slugs, math.floor(now * 1000) - math.ceil(grace_seconds * 1000))

    def topic_of(self, entry: StoreEntry, *, prefix: str = "") -> str | None:
        """Return the topic that an entry's payload was written for; ``None`` if it is none of these."""
        return self.slugs.get(destination_of(entry.key.removeprefix(prefix)))

    def verdict(self, entry: StoreEntry, *, prefix: str = "") -> Verdict:
        """Return whether an entry is a ``candidate``, or why it is kept; see `topic_of`."""
        if entry.kind != "payload":
            return "leftover"
        if self.topic_of(entry, prefix=prefix) is None:
            return "other"
        is_renewed = entry.has_lifetime and entry.expires_ms is not None  # by a write that uses the same key
        if entry.created_ms is None or not (entry.is_immutable or is_renewed):
            return "unknown"
        return "candidate" if entry.created_ms < self.before_ms else "recent"


def same_slug(names: Mapping[str, Iterable[str]], others: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the other topics whose payloads cannot be told from those of these topics, and which of these it is."""
    taken = {slug(name): topic for topic, several in names.items() for name in several}
    found = {}
    for topic, several in others.items():
        for name in several:
            if topic not in names and slug(name) in taken:
                found[topic] = taken[slug(name)]
    return found
