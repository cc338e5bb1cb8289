"""What can go wrong with the servers of stores: eviction, expiry, restarts, permissions, space and clocks."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from claimcheck._operate.check import Configured
from claimcheck._operate.findings import Finding, examined, finding, http_skew, reason_of, skew
from claimcheck._store.store import Store
from claimcheck._texts import duration, size_text
from claimcheck.errors import ClaimCheckError, ScanNotSupportedError, StoreUnavailableError
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.obstore import ObstoreStore
from claimcheck.stores.pulsar_topic import PulsarTopicStore
from claimcheck.stores.redis import RedisStore
from claimcheck.stores.s3 import S3Store
from claimcheck.stores.s3._client import client_error, code_of

_ENTRIES = 1000
_DAY = 86_400
_SWEPT_WITHIN = 4 * _DAY  # lifecycle rules count in whole days, have a grace, and run with a delay


def examine_stores(cc: Configured, clock: Callable[[], float], failed: Container[str] = ()) -> Iterator[Finding]:
    """Yield the findings about all stores, except those that `claimcheck.ClaimCheck.check` reports."""
    for name in cc.config.stores:
        path = f"stores.{name}"
        try:
            store = None if path in failed else cc.store(name)
        except ClaimCheckError:  # which check reports
            store = None
        if store is not None and not isinstance(store, RedisStore):  # which expires payloads, and may have many keys
            yield from _listing(store, path, clock)
        if store is not None:
            yield from _server(cc, store, path, clock)


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


def _server(cc: Configured, store: Store, path: str, clock: Callable[[], float]) -> Iterator[Finding]:
    if isinstance(store, RedisStore):
        yield from examined("redis", path, "the server", partial(_redis, store, path, clock))
    elif isinstance(store, S3Store):
        look = partial(_s3, store, path, clock, cc.config.longest_dead_letter_ttl_seconds)
        yield from examined("s3", path, "the bucket", look)
    elif isinstance(store, FilesystemStore):
        path = f"{path}.path"
        yield from examined("filesystem", path, "the free space", partial(_space, store._root, path))
        yield from examined("filesystem", path, "the permissions", partial(_rights, store._root, path, store._mode))
    elif isinstance(store, ObstoreStore):
        message = "could not examine lifecycle rules, versioning and public access: obstore cannot read them"
        fix = "Use the provider's own tools, or run the check with a store of type s3 for this bucket."
        yield finding("info", "obstore-not-examined", path, message, fix)
    elif isinstance(store, PulsarTopicStore) and store._admin_url is None:
        message = "could not examine the retention of the side topic: the store has no admin_url"
        fix = "Set admin_url; the store then refuses a retention that is shorter than ttl_seconds."
        yield finding("info", "pulsar-not-examined", path, message, fix)


# Redis ---------------------------------------------------------------------------------------------------------

_OLDEST_VERSION = (6, 2)
_FULL = 0.8


def _redis(store: RedisStore, path: str, clock: Callable[[], float]) -> Iterator[Finding]:
    """Look at the server, the sentinel's master, or each master of a cluster."""
    server = store._server
    nodes = [(path, server.client)]
    if server.is_cluster:
        masters = server.client.get_primaries()
        nodes = [(f"{path} ({node.name})", server.client.get_redis_connection(node)) for node in masters]
    for place, client in nodes:
        yield from examined("redis", place, "the clock", partial(_redis_clock, place, client, clock))
        yield from examined("redis", place, "INFO", partial(_redis_info, place, client))


def _redis_clock(path: str, client: Any, clock: Callable[[], float]) -> Iterator[Finding]:
    begin = clock()
    seconds, microseconds = client.time()
    yield from skew(path, "the server's", seconds + microseconds / 1e6, begin, clock())


def _redis_info(path: str, client: Any) -> Iterator[Finding]:
    info = client.info()
    yield from _redis_version(path, str(info.get("redis_version", "")))
    policy, replicas = info.get("maxmemory_policy", "noeviction"), info.get("connected_slaves", 0)
    if info.get("maxmemory") and policy != "noeviction":
        fix = "Set maxmemory-policy to noeviction, also in the server's configuration file."
        yield finding("warning", "redis-eviction", path, f"maxmemory-policy is {policy}", fix)
    if info.get("role") == "master" and replicas and "min_slaves_good_slaves" not in info:
        known = "there is 1 replica" if replicas == 1 else f"there are {replicas} replicas"
        fix = "Set min-replicas-to-write to at least 1, and min-replicas-max-lag to 10: this limits the loss."
        message = f"{known}, and min-replicas-to-write is 0"
        yield finding("warning", "redis-replication-unsafe", path, message, fix)
    yield from _redis_memory(path, info)
    yield from examined("redis", path, "the setting save", partial(_redis_persistence, path, client, info))


def _redis_version(path: str, version: str) -> Iterator[Finding]:
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers and numbers < _OLDEST_VERSION:
        yield finding("error", "redis-version", path, f"the server is Redis {version}", "Install Redis 6.2 or newer.")


def _redis_memory(path: str, info: dict[str, Any]) -> Iterator[Finding]:
    used, most = info.get("used_memory", 0), info.get("maxmemory", 0)
    if not most:
        fix = "Set maxmemory to what the machine can spare, and maxmemory-policy to noeviction."
        yield finding("warning", "redis-memory-unlimited", path, "maxmemory is not set", fix)
        most = info.get("total_system_memory", 0)
    if most and used >= _FULL * most:
        message = f"{used / most:.0%} of the memory is used ({size_text(used)} of {size_text(most)})"
        fix = "Increase maxmemory, reduce ttl_seconds, or use a store on disk."
        yield finding("warning", "redis-memory-low", path, message, fix)


def _redis_persistence(path: str, client: Any, info: dict[str, Any]) -> Iterator[Finding]:
    if not info.get("aof_enabled") and client.config_get("save").get("save") == "":
        fix = "Set appendonly to yes; appendfsync everysec is a good compromise."
        message = "the server writes no append-only file and no snapshots"
        yield finding("warning", "redis-no-persistence", path, message, fix)


# S3 ------------------------------------------------------------------------------------------------------------

_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}  # GLACIER_IR can be read at once
_EVERYONE = ("/global/AllUsers", "/global/AuthenticatedUsers")
_NO_RULES = ("NoSuchLifecycleConfiguration", "NoSuchLifecycleConfigurationError")
_NO_BLOCK = ("NoSuchPublicAccessBlockConfiguration", "NotImplemented", "MethodNotAllowed", "XNotImplemented")


def _s3(store: S3Store, path: str, clock: Callable[[], float], dead_letter_ttl: float) -> Iterator[Finding]:
    ask = partial(_asked, store._s3(), store.bucket)
    yield from examined("s3", path, "the clock", partial(_s3_clock, ask, path, clock))
    look = partial(_lifecycle, ask, path, store, dead_letter_ttl)
    yield from examined("s3", path, "the lifecycle rules", look)
    yield from examined("s3", path, "the bucket policy", partial(_policy, ask, path))
    yield from examined("s3", path, "the bucket's ACL", partial(_acl, ask, path))


def _asked(client: Any, bucket: str, operation: str, *absent: str) -> dict[str, Any]:
    """Return the response to one request; an empty one if the service answers with one of these codes."""
    try:
        response: dict[str, Any] = getattr(client, operation)(Bucket=bucket)
    except client_error() as error:
        if code_of(error) in absent:
            return {}
        raise
    return response


_Ask = Callable[..., dict[str, Any]]


def _s3_clock(ask: _Ask, path: str, clock: Callable[[], float]) -> Iterator[Finding]:
    begin = clock()
    headers = ask("head_bucket")["ResponseMetadata"]["HTTPHeaders"]
    yield from http_skew(path, "the server's", headers.get("date"), begin, clock())


@dataclass(frozen=True, slots=True)
class _Rule:
    """An enabled lifecycle rule."""

    name: str
    prefix: str
    by_tag: bool
    by_size: bool
    days: int | None
    archive_days: int | None
    aborts: bool
    noncurrent: bool

    @classmethod
    def of(cls, raw: dict[str, Any]) -> _Rule:
        """Parse a rule of either form, with ``Filter`` or with the older ``Prefix``."""
        chosen = raw.get("Filter") or {}
        chosen = {**chosen, **chosen.get("And", {})}
        expiration = raw.get("Expiration", {})
        moved = [each.get("Days", 0) for each in raw.get("Transitions", []) if each.get("StorageClass") in _ARCHIVES]
        return cls(
            name=raw.get("ID", "(unnamed)"),
            prefix=chosen.get("Prefix") or raw.get("Prefix") or "",
            by_tag="Tag" in chosen or bool(chosen.get("Tags")),
            by_size="ObjectSizeGreaterThan" in chosen or "ObjectSizeLessThan" in chosen,
            days=expiration.get("Days", 0 if "Date" in expiration else None),
            archive_days=min(moved, default=None),
            aborts="AbortIncompleteMultipartUpload" in raw,
            noncurrent="NoncurrentVersionExpiration" in raw,
        )

    def covers(self, prefix: str) -> bool:
        """Whether it applies to every object below a prefix."""
        return prefix.startswith(self.prefix) and not self.by_tag and not self.by_size

    def touches(self, prefix: str) -> bool:
        """Whether it applies to some payloads below a prefix."""
        return (prefix.startswith(self.prefix) or self.prefix.startswith(prefix)) and not self.by_tag


def _lifecycle(ask: _Ask, path: str, store: S3Store, dead_letter_ttl: float) -> Iterator[Finding]:
    raw = ask("get_bucket_lifecycle_configuration", *_NO_RULES).get("Rules", [])
    rules = [_Rule.of(each) for each in raw if each.get("Status") == "Enabled"]
    covering = [rule for rule in rules if rule.covers(store.prefix)]
    where = f"objects below {store.prefix!r}" if store.prefix else "the objects of this bucket"
    if not any(rule.days for rule in covering):
        fix = "Run 'claimcheck lifecycle --apply': it adds a rule that deletes them after ttl_seconds plus a day."
        yield finding("warning", "s3-no-expiry", path, f"no lifecycle rule deletes {where}", fix)
    if not any(rule.aborts for rule in covering):
        fix = "Run 'claimcheck lifecycle --apply', or add AbortIncompleteMultipartUpload to the rule."
        yield finding("warning", "s3-no-abort", path, "no lifecycle rule aborts incomplete multipart uploads", fix)
    for rule in rules:
        if rule.touches(store.prefix) and store.ttl_seconds is not None:
            longer = "dead_letter_ttl_seconds" if dead_letter_ttl > store.ttl_seconds else "ttl_seconds"
            yield from _too_early(rule, path, longer, max(store.ttl_seconds, dead_letter_ttl))
    noncurrent = any(rule.noncurrent for rule in covering)
    yield from examined("s3", path, "the versioning", partial(_versioning, ask, path, noncurrent))


def _too_early(rule: _Rule, path: str, option: str, lifetime: float) -> Iterator[Finding]:
    if rule.days is not None and rule.days * _DAY < lifetime:
        when = f"after {duration(rule.days * _DAY)}" if rule.days else "on a fixed date"
        message = f"the lifecycle rule {rule.name!r} deletes payloads {when}, but {option} is {duration(lifetime)}"
        fix = f"Change the rule to delete them later, or reduce {option}."
        yield finding("error", "s3-expiry-early", path, message, fix)
    if rule.archive_days is not None and rule.archive_days * _DAY < lifetime:
        message = f"the lifecycle rule {rule.name!r} archives payloads after {duration(rule.archive_days * _DAY)}"
        fix = "Exclude the prefix from the rule, or use GLACIER_IR."
        yield finding("error", "s3-archived", path, message, fix)


def _versioning(ask: _Ask, path: str, noncurrent: bool) -> Iterator[Finding]:
    if ask("get_bucket_versioning").get("Status") == "Enabled" and not noncurrent:
        message = "versioning is enabled, and no lifecycle rule deletes noncurrent versions"
        fix = "Add NoncurrentVersionExpiration after one day to the lifecycle rule of the prefix."
        yield finding("warning", "s3-versioning", path, message, fix)


def _policy(ask: _Ask, path: str) -> Iterator[Finding]:
    text = ask("get_bucket_policy", "NoSuchBucketPolicy").get("Policy")
    statements = json.loads(text).get("Statement", []) if text else []
    statements = [statements] if isinstance(statements, dict) else statements
    if any(_is_public(each) for each in statements):
        yield from _public(ask, path, "RestrictPublicBuckets", "the bucket policy grants access to everyone")


def _is_public(statement: dict[str, Any]) -> bool:
    principal = statement.get("Principal")
    who = principal.get("AWS", []) if isinstance(principal, dict) else principal
    return statement.get("Effect") == "Allow" and "Condition" not in statement and (who == "*" or "*" in (who or []))


def _acl(ask: _Ask, path: str) -> Iterator[Finding]:
    grants = ask("get_bucket_acl").get("Grants", [])
    rights = {each["Permission"] for each in grants if each["Grantee"].get("URI", "").endswith(_EVERYONE)}
    if rights:
        message = f"the bucket's ACL grants {' and '.join(sorted(rights))} to everyone"
        yield from _public(ask, path, "IgnorePublicAcls", message)


def _public(ask: _Ask, path: str, block: str, message: str) -> Iterator[Finding]:
    """Yield a finding unless a public access block makes the grant ineffective; many servers have none."""
    if not ask("get_public_access_block", *_NO_BLOCK).get("PublicAccessBlockConfiguration", {}).get(block):
        fix = "Remove the grant, and turn on the bucket's public access block."
        yield finding("warning", "s3-public", path, message, fix)


# Directories ---------------------------------------------------------------------------------------------------

_LEAST_FREE = 0.1


def _space(root: Path, path: str) -> Iterator[Finding]:
    usage, files = shutil.disk_usage(root), os.statvfs(root)
    fix = "Delete expired payloads, or enlarge the volume."
    if usage.free < _LEAST_FREE * usage.total:
        message = f"{size_text(usage.free)} of {size_text(usage.total)} are free"
        yield finding("warning", "filesystem-full", path, message, fix)
    if files.f_files and files.f_favail < _LEAST_FREE * files.f_files:  # 0: the file system has no fixed number
        message = f"{files.f_favail:,} of {files.f_files:,} files (inodes) are free"
        yield finding("warning", "filesystem-full", path, message, fix)


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
