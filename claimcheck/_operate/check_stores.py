"""What can go wrong with the servers of stores: eviction, expiry, restarts, permissions and clocks."""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claimcheck._operate.findings import Finding, examined, finding, reason_of
from claimcheck._store.store import Store
from claimcheck._texts import duration
from claimcheck.config import StoreConfig
from claimcheck.errors import ClaimCheckError, ScanNotSupportedError, StoreUnavailableError
from claimcheck.stores.s3._client import client_error, code_of

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_ENTRIES = 1000
_TOLERANCE_SECONDS = 6.0  # times of HTTP have whole seconds
_DAY = 86_400
_SWEPT_WITHIN = 4 * _DAY  # lifecycle rules count in whole days, have a grace, and run with a delay
_OLDEST_REDIS = (6, 2)
_NO_RULES = {"NoSuchLifecycleConfiguration", "NoSuchLifecycleConfigurationError"}
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}  # GLACIER_IR can be read at once


def examine_stores(cc: ClaimCheck, clock: Callable[[], float], failed: Container[str] = ()) -> Iterator[Finding]:
    """Yield the findings about all stores, except those that `claimcheck.ClaimCheck.check` reports."""
    for name in cc.config.stores:
        path, config = f"stores.{name}", cc.config.stores[name]
        if path in failed:
            continue
        with suppress(ClaimCheckError):  # which check reports
            store = cc.store(name)
            if config.type != "redis":  # which expires payloads, and may have many keys
                yield from _listing(store, path, clock)
            yield from _server(config, store, path, clock)


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


def _server(config: StoreConfig, store: Any, path: str, clock: Callable[[], float]) -> Iterator[Finding]:
    if (kind := config.type) == "redis":
        yield from examined("redis", path, "the clock", partial(_clock, store, path, clock))
        for name, client in store._server.nodes():
            place = f"{path} ({name})" if name else path
            yield from examined("redis", place, "its settings", partial(_redis, place, client))
    elif kind == "s3":
        yield from examined("s3", path, "the clock", partial(_clock, store, path, clock))
        yield from examined("s3", path, "the lifecycle rules", partial(_lifecycle, store, path))
    elif kind == "filesystem":
        look = partial(_rights, store.root, f"{path}.path", store.mode)
        yield from examined("filesystem", f"{path}.path", "the permissions", look)
    elif kind == "pulsar-topic" and store.admin_url is None:
        message = "could not examine the retention of the side topic: the store has no admin_url"
        fix = "Set admin_url; the store then refuses a retention that is shorter than ttl_seconds."
        yield finding("info", "pulsar-not-examined", path, message, fix)


def _clock(store: Store, path: str, clock: Callable[[], float]) -> Iterator[Finding]:
    begin, theirs = clock(), store._server_time() or clock()
    ahead = max(begin - theirs, theirs - clock())
    if ahead > _TOLERANCE_SECONDS:
        side = "ahead of" if begin > theirs else "behind"
        message = f"this machine's clock is {duration(ahead)} {side} the server's"
        yield finding("warning", "clock-skew", path, message, "Synchronize the clocks of both machines with NTP.")


def _redis(path: str, client: Any) -> Iterator[Finding]:
    """Look at the server, the sentinel's master, or a master of a cluster."""
    info = client.info()
    version = tuple(map(int, re.findall(r"\d+", str(info.get("redis_version")))[:2]))
    if version and version < _OLDEST_REDIS:
        message, fix = f"the server is Redis {info['redis_version']}", "Install Redis 6.2 or newer."
        yield finding("error", "redis-version", path, message, fix)
    policy, replicas = info.get("maxmemory_policy", "noeviction"), info.get("connected_slaves", 0)
    if info.get("maxmemory") and policy != "noeviction":
        fix = "Set maxmemory-policy to noeviction, also in the server's configuration file."
        yield finding("warning", "redis-eviction", path, f"maxmemory-policy is {policy}", fix)
    if not info.get("maxmemory"):
        fix = "Set maxmemory to what the machine can spare, and maxmemory-policy to noeviction."
        yield finding("warning", "redis-memory-unlimited", path, "maxmemory is not set", fix)
    if info.get("role") == "master" and replicas and "min_slaves_good_slaves" not in info:
        known = "there is 1 replica" if replicas == 1 else f"there are {replicas} replicas"
        fix = "Set min-replicas-to-write to at least 1, and min-replicas-max-lag to 10: this limits the loss."
        message = f"{known}, and min-replicas-to-write is 0"
        yield finding("warning", "redis-replication-unsafe", path, message, fix)
    if not info.get("aof_enabled") and client.config_get("save").get("save") == "":
        fix = "Set appendonly to yes; appendfsync everysec is a good compromise."
        message = "the server writes no append-only file and no snapshots"
        yield finding("warning", "redis-no-persistence", path, message, fix)


def _lifecycle(store: Any, path: str) -> Iterator[Finding]:
    rules = [rule for rule in _rules_of(store) if rule.get("Status") == "Enabled"]
    covering = [rule for rule in rules if _covers(rule, store.prefix)]
    where = f"objects below {store.prefix!r}" if store.prefix else "the objects of this bucket"
    if not any(rule.get("Expiration", {}).get("Days") for rule in covering):
        fix = "Add a rule that deletes them a day after ttl_seconds, or run 'claimcheck sweep --yes' every day."
        yield finding("warning", "s3-no-expiry", path, f"no lifecycle rule deletes {where}", fix)
    if not any("AbortIncompleteMultipartUpload" in rule for rule in covering):
        fix = "Add AbortIncompleteMultipartUpload after one day to the rule of the prefix."
        yield finding("warning", "s3-no-abort", path, "no lifecycle rule aborts incomplete multipart uploads", fix)
    for rule in rules:
        if _touches(rule, store.prefix) and store.ttl_seconds is not None:
            yield from _too_early(rule, path, store.ttl_seconds)
    versioning = store._s3().get_bucket_versioning(Bucket=store.bucket).get("Status")
    if versioning == "Enabled" and not any("NoncurrentVersionExpiration" in rule for rule in covering):
        message = "versioning is enabled, and no lifecycle rule deletes noncurrent versions"
        fix = "Add NoncurrentVersionExpiration after one day to the lifecycle rule of the prefix."
        yield finding("warning", "s3-versioning", path, message, fix)


def _rules_of(store: Any) -> list[dict[str, Any]]:
    try:
        rules: list[dict[str, Any]] = store._s3().get_bucket_lifecycle_configuration(Bucket=store.bucket)["Rules"]
    except client_error() as error:
        if code_of(error) not in _NO_RULES:
            raise
        return []
    return rules


def _filter(rule: dict[str, Any]) -> tuple[str, set[str]]:
    """Return the prefix of a rule of either form, with ``Filter`` or with the older ``Prefix``, and its conditions."""
    chosen = rule.get("Filter") or {}
    chosen = {**chosen, **chosen.get("And", {})}
    return chosen.pop("Prefix", None) or rule.get("Prefix") or "", {name for name, value in chosen.items() if value} - {
        "And"
    }


def _covers(rule: dict[str, Any], prefix: str) -> bool:
    """Whether a rule applies to every object below a prefix."""
    own, conditions = _filter(rule)
    return prefix.startswith(own) and not conditions


def _touches(rule: dict[str, Any], prefix: str) -> bool:
    """Whether a rule applies to some payloads below a prefix."""
    own, conditions = _filter(rule)
    return (prefix.startswith(own) or own.startswith(prefix)) and not conditions & {"Tag", "Tags"}


def _too_early(rule: dict[str, Any], path: str, lifetime: float) -> Iterator[Finding]:
    name, expiration = rule.get("ID", "(unnamed)"), rule.get("Expiration", {})
    days = expiration.get("Days", 0 if "Date" in expiration else math.inf)
    moved = [each.get("Days", 0) for each in rule.get("Transitions", []) if each.get("StorageClass") in _ARCHIVES]
    if days * _DAY < lifetime:
        when = f"after {duration(days * _DAY)}" if days else "on a fixed date"
        message = f"the lifecycle rule {name!r} deletes payloads {when}, but ttl_seconds is {duration(lifetime)}"
        fix = "Change the rule to delete them later, or reduce ttl_seconds."
        yield finding("error", "s3-expiry-early", path, message, fix)
    if min(moved, default=math.inf) * _DAY < lifetime:
        message = f"the lifecycle rule {name!r} archives payloads after {duration(min(moved) * _DAY)}"
        yield finding("error", "s3-archived", path, message, "Exclude the prefix from the rule, or use GLACIER_IR.")


def _rights(root: Path, path: str, mode: int) -> Iterator[Finding]:
    """Look at the rights of others to the directory, and to the payloads that this configuration writes."""
    if not all(each.stat().st_mode & stat.S_IXOTH for each in (root, *root.resolve().parents)):
        return  # no one else gets into this directory
    own, rights = root.stat().st_mode, []
    if own & stat.S_IWOTH:
        rights.append("add files" if own & stat.S_ISVTX else "replace and delete payloads")
    if mode & stat.S_IROTH:
        rights.append("read payloads")
    if mode & stat.S_IWOTH:
        rights.append("overwrite payloads")
    if rights:
        message = f"any user of this machine can {' and '.join(rights)} (mode {stat.S_IMODE(own):04o})"
        fix = f"Remove the rights of others: chmod o= {root}"
        yield finding("warning", "filesystem-permissions", path, message, fix)
