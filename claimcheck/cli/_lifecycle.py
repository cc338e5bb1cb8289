"""``lifecycle``: the rule that makes a bucket delete expired payloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from claimcheck._client import ClaimCheck
from claimcheck.cli._configuration import config_option, loaded
from claimcheck.cli._files import STDIO, check_output
from claimcheck.cli._help import COMMANDS
from claimcheck.cli._sweep import duration
from claimcheck.errors import ConfigError
from claimcheck.stores.s3 import S3Store

if TYPE_CHECKING:
    from claimcheck.stores.s3._lifecycle import LifecycleRule


@click.command(short_help=COMMANDS["lifecycle"])
@config_option
@click.option("--store", "names", metavar="NAME", multiple=True, help="Only this store; repeatable.  [default: all s3]")
@click.option("--show", is_flag=True, help="Only show the rules; the default.")
@click.option("--apply", "write", is_flag=True, help="Add the rule to the bucket, or replace it.")
@click.option(
    "--grace",
    metavar="TIME",
    callback=duration,
    default="1d",
    show_default=True,
    help="Keep objects this much longer than their lifetime.",
)
def lifecycle(config: str, names: tuple[str, ...], show: bool, write: bool, grace: float) -> None:
    """Make the bucket of an s3 store delete objects below its prefix after ttl_seconds plus the grace period.

    If dead_letter_ttl_seconds is longer than ttl_seconds, it applies to all objects. The same rule aborts incomplete
    multipart uploads. Other rules of the bucket stay as they are. Applying the rule again changes nothing.
    """
    if show and write:
        raise click.UsageError("--show and --apply cannot be combined")
    check_output(STDIO, force=False)
    from claimcheck.stores.s3._lifecycle import rule_for

    with loaded(config) as cc:
        for store in _stores(cc, names):
            others = [each for each in _stores(cc, ()) if each is not store]
            longest = cc.config.longest_dead_letter_ttl_seconds
            rule = rule_for(store, grace_seconds=grace, others=others, dead_letter_ttl_seconds=longest)
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


def _described(store: S3Store, rule: LifecycleRule, *, write: bool) -> list[str]:
    """Apply the rule if requested, and describe it."""
    from claimcheck.stores.s3._lifecycle import apply, rules_of

    text = (
        f"{store.name}: bucket {rule.bucket}, prefix {rule.prefix}: delete objects after {_days(rule.days)}, "
        f"abort incomplete uploads after {_days(rule.upload_days)}"
    )
    if write:
        return [
            text,
            "  the rule was written" if apply(store, rule) else "  the rule is already there: nothing changed",
        ]
    rules = rules_of(store)
    known = next((each for each in rules if each.get("ID") == rule.name), None)
    if known is not None and rule.matches(known):
        state = "the rule is there"
    else:
        state = "the rule is missing: --apply adds it" if known is None else "the rule differs: --apply replaces it"
    other = len(rules) - (known is not None)
    return [text, f"  {state}", f"  {other} other {'rule' if other == 1 else 'rules'} in this bucket"]


def _days(count: int) -> str:
    return "1 day" if count == 1 else f"{count} days"
