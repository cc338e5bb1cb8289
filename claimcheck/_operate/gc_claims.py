"""Which cluster's garbage collection may delete the payloads of a topic: a record in the store of the payloads.

Two clusters that share a store, a prefix and the name of a topic write the same kind of keys. A collection reads the
messages of one cluster, so to it every payload of the other one is an orphan. Therefore a store remembers, for each
topic, whose payloads it has. The record is an entry that no listing returns, so that no sweep or collection deletes it.
It is created only if there is none, and is written again by every deletion, because lifecycle rules go by age.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from claimcheck._content.source import Source
from claimcheck._store.contract import Translated
from claimcheck._store.listing import CLAIM
from claimcheck._store.store import Store
from claimcheck._wire.pointer import Pointer, slug
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    KeyTakenError,
    PayloadNotFoundError,
    StoreError,
    StoreUnavailableError,
)

_RECORD_BYTES = 1024  # always, so that it can be read without knowing who wrote it


@dataclass(frozen=True, slots=True)
class Claim:
    """A topic that is collected."""

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
    with Translated(store, pointer, "write"):
        store._reach()
        try:
            (store._rewrite if renew else store._write)(pointer, source)
        except Exception as error:
            if store._translate(error) is not KeyTakenError and not isinstance(error, KeyTakenError):
                raise
