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

from claimcheck import _pointer as pointers
from claimcheck._envelope import HEADER, Buffer, Kind, PointerData, as_view, decode, is_lookalike
from claimcheck._key_lifetime import destination_of
from claimcheck._listing import StoreEntry
from claimcheck._pointer import slug
from claimcheck.errors import UnknownVersionError

__all__ = ["GRACE_SECONDS", "Candidates", "Reference", "Verdict", "fingerprint", "reference_of", "same_slug"]

GRACE_SECONDS = 86_400.0
"""The default grace period: longer than any time between the write of a payload and the send of its message."""

Verdict = Literal["candidate", "recent", "unknown", "other", "leftover"]

_UUID_LENGTH = 36


@dataclass(frozen=True, slots=True)
class Reference:
    """What a pointer names.

    Attributes:
        store: The store's name in the configuration; ``None`` in version 1.
        key: The payload's key.
    """

    store: str | None
    key: str


def reference_of(message: Buffer, *, header: bytes = HEADER) -> Reference | None:
    """Return what a message points at; ``None`` if it is not a pointer.

    The signature is not verified: a forged pointer can keep garbage, and never deletes anything.

    Args:
        message: The value of a message, whole.
        header: The bytes that envelopes begin with.

    Raises:
        UnknownVersionError: A newer version, or an unknown type of envelope: it may point at anything.
        EnvelopeError: A damaged pointer, which no reader can read.
    """
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
    """Return 16 bytes that identify a payload, for large sets: its uuid, or a hash of a key without one.

    The uuid of a write is in its key whatever the store, its prefix and its folders are called. So a pointer protects
    a payload even if it was written under another name of the same store.
    """
    name = key.removesuffix("}")[-_UUID_LENGTH:]
    try:
        return uuid.UUID(name).bytes if len(name) == _UUID_LENGTH else _hashed(key)
    except ValueError:
        return _hashed(key)


def _hashed(key: str) -> bytes:
    return hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Candidates:
    """Which entries of a listing can be garbage, before any message is read.

    Attributes:
        slugs: The topics whose payloads are collected, by the slugs of their names.
        before_ms: Only payloads that were written earlier, milliseconds since 1970.
    """

    slugs: Mapping[str, str]
    before_ms: int

    @classmethod
    def of(cls, names: Mapping[str, Iterable[str]], *, now: float, grace_seconds: float) -> Candidates:
        """Return the candidates at a time.

        Args:
            names: The topics, each with all names that its producers may use.
            now: Seconds since 1970.
            grace_seconds: Younger payloads are kept, as their messages may not have been sent yet.
        """
        slugs = {slug(name): topic for topic, several in names.items() for name in several}
        return cls(slugs, math.floor(now * 1000) - math.ceil(grace_seconds * 1000))

    def topic_of(self, entry: StoreEntry, *, prefix: str = "") -> str | None:
        """Return the topic that an entry's payload was written for; ``None`` if it is none of these.

        Args:
            entry: An entry of a listing.
            prefix: The store's prefix of keys.
        """
        return self.slugs.get(destination_of(entry.key.removeprefix(prefix)))

    def verdict(self, entry: StoreEntry, *, prefix: str = "") -> Verdict:
        """Return whether an entry is a ``candidate``, or why it is kept; see `topic_of`.

        ``recent``: the grace period has not passed. ``other``: a payload of another destination. ``leftover``: of an
        interrupted write, which a sweep deletes. ``unknown``: its age is not known, or an attempt that repeats the
        write might use it again without renewing it, because it has no lifetime.
        """
        if entry.kind != "payload":
            return "leftover"
        if self.topic_of(entry, prefix=prefix) is None:
            return "other"
        is_renewed = entry.has_lifetime and entry.expires_ms is not None  # by a write that uses the same key
        if entry.created_ms is None or not (entry.is_immutable or is_renewed):
            return "unknown"
        return "candidate" if entry.created_ms < self.before_ms else "recent"


def same_slug(names: Mapping[str, Iterable[str]], others: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the other topics whose payloads cannot be told from those of these topics, and which of these it is.

    Args:
        names: The topics to collect, each with all names that its producers may use.
        others: All topics of the broker, in the same form.
    """
    taken = {slug(name): topic for topic, several in names.items() for name in several}
    found = {}
    for topic, several in others.items():
        for name in several:
            if topic not in names and slug(name) in taken:
                found[topic] = taken[slug(name)]
    return found
