"""The lifecycle rule that makes a bucket delete expired payloads and incomplete uploads below a store's prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from claimcheck._store.contract import translated
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ConfigError, StoreError
from claimcheck.stores.s3 import S3Store
from claimcheck.stores.s3._client import client_error, code_of

_DAY = 86_400
_NONE = {"NoSuchLifecycleConfiguration", "NoSuchLifecycleConfigurationError"}


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    bucket: str
    prefix: str
    days: int
    upload_days: int = 1

    @property
    def name(self) -> str:
        """Its ID in the bucket, by which it is found again."""
        return f"claimcheck:{self.prefix}"[:255]

    def as_dict(self) -> dict[str, Any]:
        return {
            "ID": self.name,
            "Status": "Enabled",
            "Filter": {"Prefix": self.prefix},
            "Expiration": {"Days": self.days},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": self.upload_days},
        }

    def matches(self, found: dict[str, Any]) -> bool:
        """Whether a rule in the bucket does the same; servers may add fields to it."""
        return all(found.get(name) == value for name, value in self.as_dict().items())


def rule_for(store: S3Store, *, grace_seconds: float, others: list[S3Store]) -> LifecycleRule:
    """Return the rule for a store: its lifetime plus the grace, rounded up to days."""
    path = f"stores.{store.name}"
    if store.ttl_seconds is None:
        raise ConfigError(f"{path}.ttl_seconds: not set, so its payloads do not expire", path=f"{path}.ttl_seconds")
    if not store.prefix:
        text = f"{path}.prefix: not set, so a rule would delete every object in the bucket {store.bucket}"
        raise ConfigError(text, path=f"{path}.prefix")
    for other in others:
        inside = other.bucket == store.bucket and other.prefix.startswith(store.prefix)
        if inside and (other.ttl_seconds is None or other.ttl_seconds > store.ttl_seconds):
            text = f"{path}.prefix: the rule would also delete payloads of the store {other.name!r}, which live longer"
            raise ConfigError(text, path=f"{path}.prefix")
    days = max(1, math.ceil((store.ttl_seconds + grace_seconds) / _DAY))
    return LifecycleRule(store.bucket, store.prefix, days, max(1, math.ceil(grace_seconds / _DAY)))


def rules_of(store: S3Store) -> list[dict[str, Any]]:
    return list(_configuration(store)[0])


def apply(store: S3Store, rule: LifecycleRule) -> bool:
    """Add or replace the rule, and leave all others as they are; return whether anything was written."""
    rules, options = _configuration(store)
    if any(map(rule.matches, rules)):
        return False
    merged = [each for each in rules if each.get("ID") != rule.name] + [rule.as_dict()]
    try:
        store._s3().put_bucket_lifecycle_configuration(
            Bucket=rule.bucket, LifecycleConfiguration={"Rules": merged}, **options
        )
    except client_error() as error:
        raise _failed(store, "writing", error) from error
    return True


def _configuration(store: S3Store) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rules, and the other setting that writing them would reset."""
    try:
        answer = store._s3().get_bucket_lifecycle_configuration(Bucket=store.bucket)
    except client_error() as error:
        if code_of(error) in _NONE:
            return [], {}
        raise _failed(store, "reading", error) from error
    size = answer.get("TransitionDefaultMinimumObjectSize")
    return answer.get("Rules", []), {"TransitionDefaultMinimumObjectSize": size} if size else {}


def _failed(store: S3Store, operation: str, error: Exception) -> StoreError:
    return translated(store, error, Pointer(key=""), f"{operation} the lifecycle rules of {store.bucket}")
