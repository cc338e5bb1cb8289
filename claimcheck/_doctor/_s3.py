"""What can go wrong with a bucket: missing or early lifecycle rules, old versions, public access."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from claimcheck._check import Finding
from claimcheck._doctor._clock import http_skew
from claimcheck._doctor._findings import examined, finding
from claimcheck._texts import duration
from claimcheck.stores.s3 import S3Store
from claimcheck.stores.s3._client import client_error, code_of

_DAY = 86_400
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}  # GLACIER_IR can be read at once
_EVERYONE = ("/global/AllUsers", "/global/AuthenticatedUsers")
_NO_RULES = ("NoSuchLifecycleConfiguration", "NoSuchLifecycleConfigurationError")
_NOT_THERE = ("NotImplemented", "MethodNotAllowed", "XNotImplemented")


def examine_s3(
    store: S3Store, path: str, clock: Callable[[], float], *, dead_letter_ttl_seconds: float = 0
) -> Iterator[Finding]:
    """Yield the findings about the bucket of a store."""
    bucket = _Bucket(store._s3(), store._bucket)
    yield from examined("s3", path, "the clock", partial(_clock, bucket, path, clock))
    lifecycle = partial(_lifecycle, bucket, path, store, dead_letter_ttl_seconds)
    yield from examined("s3", path, "the lifecycle rules", lifecycle)
    yield from examined("s3", path, "the bucket policy", partial(_policy, bucket, path))
    yield from examined("s3", path, "the bucket's ACL", partial(_acl, bucket, path))


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Requests about one bucket."""

    client: Any
    name: str

    def get(self, operation: str, *absent: str) -> dict[str, Any]:
        """Return the response to one request; an empty one if the service answers with one of these codes."""
        try:
            response: dict[str, Any] = getattr(self.client, operation)(Bucket=self.name)
        except client_error() as error:
            if code_of(error) in absent:
                return {}
            raise
        return response


def _clock(bucket: _Bucket, path: str, clock: Callable[[], float]) -> Iterator[Finding]:
    begin = clock()
    headers = bucket.get("head_bucket")["ResponseMetadata"]["HTTPHeaders"]
    yield from http_skew(path, "the server's", headers.get("date"), begin, clock())


# Lifecycle rules -----------------------------------------------------------------------------------------------


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


def _lifecycle(bucket: _Bucket, path: str, store: S3Store, dead_letter_ttl: float) -> Iterator[Finding]:
    raw = bucket.get("get_bucket_lifecycle_configuration", *_NO_RULES).get("Rules", [])
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
    yield from examined("s3", path, "the versioning", partial(_versioning, bucket, path, noncurrent))


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


def _versioning(bucket: _Bucket, path: str, noncurrent: bool) -> Iterator[Finding]:
    if bucket.get("get_bucket_versioning").get("Status") == "Enabled" and not noncurrent:
        message = "versioning is enabled, and no lifecycle rule deletes noncurrent versions"
        fix = "Add NoncurrentVersionExpiration after one day to the lifecycle rule of the prefix."
        yield finding("warning", "s3-versioning", path, message, fix)


# Access --------------------------------------------------------------------------------------------------------


def _policy(bucket: _Bucket, path: str) -> Iterator[Finding]:
    text = bucket.get("get_bucket_policy", "NoSuchBucketPolicy").get("Policy")
    statements = json.loads(text).get("Statement", []) if text else []
    statements = [statements] if isinstance(statements, dict) else statements
    if any(_is_public(each) for each in statements) and not _blocks(bucket).get("RestrictPublicBuckets"):
        yield _public(path, "the bucket policy grants access to everyone")


def _is_public(statement: dict[str, Any]) -> bool:
    principal = statement.get("Principal")
    who = principal.get("AWS", []) if isinstance(principal, dict) else principal
    return statement.get("Effect") == "Allow" and "Condition" not in statement and (who == "*" or "*" in (who or []))


def _acl(bucket: _Bucket, path: str) -> Iterator[Finding]:
    grants = bucket.get("get_bucket_acl").get("Grants", [])
    rights = {each["Permission"] for each in grants if each["Grantee"].get("URI", "").endswith(_EVERYONE)}
    if rights and not _blocks(bucket).get("IgnorePublicAcls"):
        yield _public(path, f"the bucket's ACL grants {' and '.join(sorted(rights))} to everyone")


def _blocks(bucket: _Bucket) -> dict[str, bool]:
    """Return the public access block of the bucket; many servers have none."""
    response = bucket.get("get_public_access_block", "NoSuchPublicAccessBlockConfiguration", *_NOT_THERE)
    blocks: dict[str, bool] = response.get("PublicAccessBlockConfiguration", {})
    return blocks


def _public(path: str, message: str) -> Finding:
    fix = "Remove the grant, and turn on the bucket's public access block."
    return finding("warning", "s3-public", path, message, fix)
