"""``init`` and ``lifecycle``: a first configuration, and the rule that makes a bucket delete expired payloads."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import click

from claimcheck._client import ClaimCheck
from claimcheck.cli._commands import CONFIG, OUTPUT, loaded, store_option, with_config
from claimcheck.cli._files import STDIO, check_output, output
from claimcheck.errors import ConfigError, pip_install
from claimcheck.stores.s3 import S3Store
from claimcheck.stores.s3._lifecycle import LifecycleRule, apply, rule_for, rules_of

_GRACE_SECONDS = 86_400

STRATEGIES = {
    "external": "A large payload goes to the store. While the store is down, sending fails.",
    "hybrid": "A large payload goes to the store. While the store is down, wrapped consumers get chunks.",
    "chunking": "A large payload is sent as chunks through the broker. No store is needed.",
}

STORES = {
    "redis": """\
  redis:
    type: redis
    # Use rediss:// for TLS.
    url: "${REDIS_SECRET_URL:-redis://localhost:6379/0}"
    # Payloads expire after this time. Use at least the retention of the topics.
    ttl_seconds: 604800
""",
    "s3": """\
  s3:
    type: s3
    bucket: "${S3_BUCKET:-payloads}"
    prefix: claimcheck/
    # For servers other than Amazon's:
    # endpoint_url: https://s3.example.com
    # To delete objects after this time: claimcheck lifecycle --apply
    ttl_seconds: 604800
""",
    "filesystem": """\
  files:
    type: filesystem
    # All writers and readers need this directory, for example on a shared volume.
    path: %(directory)s
    create: true
    # To delete files after this time, run in a cron job: claimcheck sweep --yes
    ttl_seconds: 604800
""",
    "memory": """\
  memory:
    # For tests only: no other process can read these payloads.
    type: memory
""",
}

_TEMPLATE = """\
# Configuration of claimcheck. To check it: claimcheck check --servers
# ${NAME} and ${NAME:-default} in store options and keys come from the environment.

# %(strategy_text)s
strategy: %(strategy)s

# Messages up to this size are sent unchanged. auto is the limit of the producer: on Kafka its message.max.bytes,
# 1,000,000 by default; on Pulsar what the broker tells it, 5 MiB by default.
threshold_bytes: auto
%(stores)s
# Sign pointers, so that readers follow only those of your own writers:
# signing:
#   key_id: k1
#   keys: {k1: "${CLAIMCHECK_SIGNING_SECRET}"}  # openssl rand -hex 32

# Encrypt payloads before they are stored, or sent in chunks:
# encryption:
#   key_id: k1
#   keys: {k1: "${CLAIMCHECK_ENCRYPTION_SECRET}"}  # openssl rand -base64 32
#   inline: true  # also those that stay in their messages

# Overrides for some topics; the first match counts:
# destinations:
#   "audit.*": {threshold_bytes: 100000}
"""


def as_yaml(strategy: str, store: str | None) -> str:
    """Return a commented configuration file."""
    stores = f"\nstores:\n{STORES[store]}" if store else ""
    return _TEMPLATE % {
        "strategy": strategy,
        "strategy_text": STRATEGIES[strategy],
        "stores": stores.replace("%(directory)s", os.path.abspath("claimcheck-payloads")),
    }


def _next_steps(store: str | None, path: str) -> str:
    install = f"\n  {pip_install(store)}" if store in ("redis", "s3") else ""
    return f"Wrote {path}. Next:{install}\n  claimcheck --config {shlex.quote(path)} check --servers"


@click.command()
@click.option("--strategy", type=click.Choice(list(STRATEGIES)), default="external", show_default=True)
@click.option("--store", type=click.Choice(list(STORES)), help="[default: redis, none with chunking]")
@click.option("-o", "--output", "target", metavar="FILE", type=OUTPUT, default=CONFIG, show_default=True)
def init(strategy: str, store: str | None, target: str) -> None:
    """Write a commented configuration file."""
    chosen = store or (None if strategy == "chunking" else "redis")
    with output(target) as out:
        out.write(as_yaml(strategy, chosen).encode())
    if target != STDIO:
        click.echo(_next_steps(chosen, target), err=True)


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
