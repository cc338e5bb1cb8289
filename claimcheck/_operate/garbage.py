"""Which stored payloads can be garbage, which of them a message refers to, and which cluster may collect them.

Garbage is a payload that no readable message points at: its message was never sent, or the topic no longer has it. What
this module does not understand counts as referenced, or ends the collection; it never makes a payload garbage.

A claim is a record in the store of the payloads. Two clusters that share a store, a prefix and the name of a topic
write the same kind of keys. A collection reads the messages of one cluster, so to it every payload of the other one is
an orphan. Therefore a store remembers, for each topic, whose payloads it has. The record is an entry that no listing
returns, so that no sweep or collection deletes it. It is created only if there is none, and is written again by every
deletion, because lifecycle rules go by age.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from claimcheck._content.source import Source
from claimcheck._store.contract import Translated
from claimcheck._store.listing import CLAIM, StoreEntry, destination_of
from claimcheck._store.store import Store
from claimcheck._wire.buffers import Buffer, as_view
from claimcheck._wire.envelope import Kind, is_lookalike, unverified_pointer
from claimcheck._wire.pointer import Pointer, slug
from claimcheck.config import HEADER
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    KeyTakenError,
    PayloadNotFoundError,
    StoreError,
    StoreUnavailableError,
    UnknownVersionError,
)

GRACE_SECONDS = 86_400.0
"""The default grace period: longer than any time between the write of a payload and the send of its message."""

Verdict = Literal["candidate", "recent", "unknown", "other", "leftover"]

_UUID_LENGTH = 36
_RECORD_BYTES = 1024  # always, so that it can be read without knowing who wrote it


def reference_of(message: Buffer, *, header: bytes = HEADER) -> str | None:
    """Return the key that a message points at; ``None`` if it is not a pointer."""
    if not is_lookalike(message, header=header):
        return None
    kind = as_view(message)[len(header)]
    if kind not in tuple(Kind):
        text = f"unknown envelope type {kind} (known are 0 to 4): a newer claimcheck may have written it"
        raise UnknownVersionError(text, kind=kind)
    pointer = unverified_pointer(message, header=header) if kind == Kind.POINTER else None
    return pointer.key if pointer else None


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
        if entry.created_ms is None or not entry.has_lifetime:
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


# Claims --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    slug: str
    topic: str
    clusters: frozenset[str]


def claims_of(names: Iterable[tuple[str, Iterable[str], str]]) -> list[Claim]:
    """Return claims on topics, each of which is given with all names that its producers may use, and its cluster."""
    claims = dict[str, Claim]()
    for topic, several, cluster in names:
        for each in map(slug, several):
            others = claims[each].clusters if each in claims else frozenset()
            claims[each] = Claim(each, topic, others | {cluster})
    return list(claims.values())


def check_claims(store: Store, claims: Iterable[Claim], *, delete: bool, claim: bool) -> list[str]:
    """Return the topics that no cluster has claimed in a store. A collection may delete only if there is none."""
    unclaimed = dict[str, None]()
    for each in claims:
        owners = _owners(store, each.slug)
        if owners is None and delete and claim:
            _write(store, each.slug, each.clusters, renew=False)
            owners = _owners(store, each.slug)  # of two that create it at the same time, one succeeds
        elif owners is not None and delete and owners <= each.clusters:
            _write(store, each.slug, owners, renew=True)
        if owners is None:
            unclaimed[each.topic] = None
        elif not owners <= each.clusters:
            raise _foreign(store, each, owners)
    return list(unclaimed)


def unclaimed_error(unclaimed: Mapping[str, Iterable[str]], *, option: str) -> ConfigError:
    """Return the error for topics that have to be claimed before anything is deleted."""
    places = "; ".join(f"{', '.join(topics)} in store {store!r}" for store, topics in unclaimed.items() if topics)
    text = (
        f"nothing was deleted: no cluster has claimed {places}. If no other cluster keeps payloads of these topics "
        f"there, and the report is right, repeat it with {option}; later runs do not need it"
    )
    return ConfigError(text, path=option)


def _foreign(store: Store, claim: Claim, owners: frozenset[str]) -> ConfigError:
    text = (
        f"the payloads of topic {claim.topic} in store {store.name!r} belong to {_names(owners)}, and this collection "
        f"reads the messages of {_names(claim.clusters)}. Nothing was deleted. Use another store or prefix for each "
        f"cluster; if the owner no longer exists, delete the record {_pointer(store, claim.slug).key!r} from the store"
    )
    return ConfigError(text, path=f"stores.{store.name}")


def _names(clusters: Iterable[str]) -> str:
    return " and ".join(sorted(clusters))


# The record ----------------------------------------------------------------------------------------------------


def _pointer(store: Store, name: str) -> Pointer:
    count = -(-_RECORD_BYTES // (store.segment_bytes or _RECORD_BYTES))
    segment_bytes = store.segment_bytes if count > 1 else None
    key = f"{store.prefix}gc-{name}{CLAIM}"
    return Pointer(key=key, store=store.name, size=_RECORD_BYTES, segments=count, segment_bytes=segment_bytes)


def _owners(store: Store, name: str) -> frozenset[str] | None:
    """Return the clusters that a topic belongs to; ``None`` if it was not claimed."""
    pointer = _pointer(store, name)
    try:
        text = _read(store, pointer)
    except PayloadNotFoundError:
        return None
    except StoreUnavailableError:
        if next(store.scan(), None) is not None:
            raise
        return None  # a directory that the first write creates
    try:
        return frozenset(map(str, json.loads(text)["clusters"]))
    except (ValueError, TypeError, KeyError) as error:
        why = f"the record {pointer.key!r} of who may collect garbage is damaged: delete it, and claim the topic again"
        raise StoreError(f"store {store.name!r}: {why}", store=store.name, key=pointer.key) from error


def _read(store: Store, pointer: Pointer, *, again: bool = True) -> bytes:
    try:
        with Translated(store, pointer, "read"):
            return b"".join(map(bytes, store._read(pointer)))
    except IntegrityError:  # in Redis, if it was created between two requests of the same read
        if not again:
            raise
        return _read(store, pointer, again=False)


def _write(store: Store, name: str, clusters: Iterable[str], *, renew: bool) -> None:
    """Write the record; it never expires. Does nothing if there is one, unless it is renewed."""
    pointer = _pointer(store, name)
    text = json.dumps({"clusters": sorted(clusters)}).encode().ljust(_RECORD_BYTES)
    if len(text) > _RECORD_BYTES:
        raise ConfigError(f"the names of the clusters are too long to be recorded: {_names(clusters)}")
    source = Source(text, limit=len(text))
    if renew:
        pointer = replace(pointer, created_ms=int(store.context.clock() * 1000))
    with contextlib.suppress(KeyTakenError), Translated(store, pointer, "write"):
        store._write(pointer, source)
