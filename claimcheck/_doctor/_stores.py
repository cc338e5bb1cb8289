"""What can go wrong with the stores of a configuration, each with the examination that suits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from functools import partial
from itertools import islice

from claimcheck._check import Finding, reason_of
from claimcheck._client import ClaimCheck
from claimcheck._doctor._filesystem import examine_filesystem
from claimcheck._doctor._findings import examined, finding
from claimcheck._doctor._redis import examine_redis
from claimcheck._doctor._s3 import examine_s3
from claimcheck._store import Store
from claimcheck._texts import duration
from claimcheck.errors import ClaimCheckError, ScanNotSupportedError, StoreUnavailableError
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.obstore import ObstoreStore
from claimcheck.stores.pulsar_topic import PulsarTopicStore
from claimcheck.stores.redis import RedisStore
from claimcheck.stores.s3 import S3Store

_ENTRIES = 1000
_SWEPT_WITHIN = 4 * 86_400  # lifecycle rules count in whole days, have a grace, and run with a delay


def examine_stores(cc: ClaimCheck, clock: Callable[[], float], failed: Container[str] = ()) -> Iterator[Finding]:
    """Yield the findings about all stores, except those that `claimcheck.ClaimCheck.check` reports."""
    for name in cc.config.stores:
        if f"stores.{name}" in failed:
            continue
        try:
            store = cc.store(name)
        except ClaimCheckError:  # which check reports
            continue
        if not isinstance(store, RedisStore):  # which expires payloads, and may have many keys of other programs
            yield from _listing(store, f"stores.{name}", clock)
        yield from _server(cc, store, f"stores.{name}", clock)


def _listing(store: Store, path: str, clock: Callable[[], float]) -> Iterator[Finding]:
    """Look at the first entries of the listing that a sweep needs; `check` has already deleted something."""
    try:
        entries = list(islice(store.scan(), _ENTRIES))
        ends = [entry.expires_ms / 1000 for entry in entries if entry.expires_ms is not None]
        late = clock() - min(ends, default=math.inf)
        if late > _SWEPT_WITHIN:
            message = f"there are payloads that expired up to {duration(late)} ago"
            fix = "Run 'claimcheck sweep --yes' every day, and look at the log of its last run."
            yield finding("warning", "store-not-swept", path, message, fix)
    except ScanNotSupportedError:
        message = f"a store of type {type(store).__name__} cannot list its payloads"
        fix = "Let the storage system itself delete payloads by age."
        yield finding("info", "store-not-listable", path, message, fix)
    except StoreUnavailableError:  # which check reports
        return
    except Exception as error:
        message = f"payloads cannot be listed: {reason_of(error)}"
        fix = "Grant the permission to list: s3:ListBucket, or read permission on the directory."
        yield finding("warning", "store-not-listable", path, message, fix)


def _server(cc: ClaimCheck, store: Store, path: str, clock: Callable[[], float]) -> Iterator[Finding]:
    if isinstance(store, RedisStore):
        yield from examined("redis", path, "the server", partial(examine_redis, store, path, clock))
    elif isinstance(store, S3Store):
        longest = cc.config.longest_dead_letter_ttl_seconds
        look = partial(examine_s3, store, path, clock, dead_letter_ttl_seconds=longest)
        yield from examined("s3", path, "the bucket", look)
    elif isinstance(store, FilesystemStore):
        yield from examine_filesystem(store, path)
    elif isinstance(store, ObstoreStore):
        message = "could not examine lifecycle rules, versioning and public access: obstore cannot read them"
        fix = "Use the provider's own tools, or run the doctor with a store of type s3 for this bucket."
        yield finding("info", "obstore-not-examined", path, message, fix)
    elif isinstance(store, PulsarTopicStore) and store._admin_url is None:
        message = "could not examine the retention of the side topic: the store has no admin_url"
        fix = "Set admin_url; the store then refuses a retention that is shorter than ttl_seconds."
        yield finding("info", "pulsar-not-examined", path, message, fix)
