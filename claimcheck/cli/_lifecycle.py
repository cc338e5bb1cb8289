"""``lifecycle``: the rule that makes a bucket delete expired payloads."""

from __future__ import annotations

from collections.abc import Iterator

import click

from claimcheck._client import ClaimCheck
from claimcheck.cli._commands import loaded, store_option, with_config
from claimcheck.cli._files import STDIO, check_output
from claimcheck.errors import ConfigError
from claimcheck.stores.s3 import S3Store
from claimcheck.stores.s3._lifecycle import LifecycleRule, apply, rule_for, rules_of

_GRACE_SECONDS = 86_400


@click.command()
@with_config
@store_option
@click.option(
    "--apply",
    "write",
    is_flag=True,
    help="Add the rule to the bucket, or replace it. Without it, nothing is changed, only shown.",
)
def lifecycle(config: str, names: tuple[str, ...], write: bool) -> None:
    """Make the bucket of an s3 store delete objects below its prefix after ttl_seconds plus one day.

    The same rule aborts incomplete multipart uploads. Other rules of the bucket stay as they are. Applying the rule
    again changes nothing.
    """
    check_output(STDIO)
    with loaded(config) as cc:
        for store in _stores(cc, names):
            others = [each for each in _stores(cc, ()) if each is not store]
            rule = rule_for(store, grace_seconds=_GRACE_SECONDS, others=others)
            click.echo("\n".join(_described(store, rule, write=write)))


def _stores(cc: ClaimCheck, names: tuple[str, ...]) -> list[S3Store]:
    chosen = names or tuple(name for name, store in cc.config.stores.items() if store.type == "s3")
    stores = [cc.store(name) for name in chosen]
    for store in stores:
        if not isinstance(store, S3Store):
            text = f"stores.{store.name}.type: lifecycle rules are for s3 stores only"
            raise ConfigError(text, path=f"stores.{store.name}.type")
    if not stores:
        raise ConfigError("the configuration has no s3 store", path="stores")
    return [store for store in stores if isinstance(store, S3Store)]


def _described(store: S3Store, rule: LifecycleRule, *, write: bool) -> Iterator[str]:
    """Apply the rule if requested, and describe it."""
    yield (
        f"{store.name}: bucket {rule.bucket}, prefix {rule.prefix}: delete objects after {_days(rule.days)}, "
        f"abort incomplete uploads after {_days(rule.upload_days)}"
    )
    if write:
        yield "  the rule was written" if apply(store, rule) else "  the rule is already there: nothing changed"
        return
    known = next((each for each in rules_of(store) if each.get("ID") == rule.name), None)
    if known is None:
        yield "  the rule is missing: --apply adds it"
    else:
        yield "  the rule is there" if rule.matches(known) else "  the rule differs: --apply replaces it"


def _days(count: int) -> str:
    return "1 day" if count == 1 else f"{count} days"
