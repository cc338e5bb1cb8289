"""``init`` and ``check``: a first configuration, and a report about one."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from dataclasses import dataclass

import click

from claimcheck._check import CheckReport, Finding
from claimcheck._registry import pip_install
from claimcheck._texts import printable
from claimcheck.cli._files import is_terminal

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

BROKERS = {
    "kafka": "auto is the producer's message.max.bytes, 1,000,000 by default.",
    "pulsar": "auto is the limit that the broker tells the producer, 5 MiB by default.",
    "none": "auto is 1,000,000 bytes without a producer of claimcheck.",
}

_TEMPLATE = """\
# Configuration of claimcheck. To check it: claimcheck check --open
# ${NAME} and ${NAME:-default} in store options and keys come from the environment.

# %(strategy_text)s
strategy: %(strategy)s

# Messages up to this size are sent unchanged.
# %(broker_text)s
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


@dataclass(frozen=True, slots=True)
class Answers:
    """The choices behind a new configuration."""

    strategy: str
    store: str | None
    broker: str


def ask(strategy: str | None, store: str | None, broker: str | None) -> Answers:
    """Ask for each choice that is ``None`` on a terminal, or use its default."""
    strategy = strategy or _ask("How should large payloads travel?", STRATEGIES)
    if store is None and strategy != "chunking":
        store = _ask("Which store?", STORES)
    return Answers(strategy, store, broker or _ask("Which broker?", BROKERS))


def _ask(question: str, choices: dict[str, str]) -> str:
    default = next(iter(choices))
    if not is_terminal(sys.stdin):
        return default
    answer: str = click.prompt(question, type=click.Choice(list(choices)), default=default, err=True)
    return answer


def as_yaml(answers: Answers) -> str:
    """Return a commented configuration file."""
    stores = f"\nstores:\n{STORES[answers.store]}" if answers.store else ""
    return _TEMPLATE % {
        "strategy": answers.strategy,
        "strategy_text": STRATEGIES[answers.strategy],
        "broker_text": BROKERS[answers.broker],
        "stores": stores.replace("%(directory)s", os.path.abspath("claimcheck-payloads")),
    }


def next_steps(answers: Answers, path: str) -> str:
    """Return what to do after the file was written."""
    extras = [each for each in (answers.store, answers.broker) if each in ("redis", "s3", "kafka", "pulsar")]
    install = f"\n  {pip_install(','.join(extras))}" if extras else ""
    return f"Wrote {path}. Next:{install}\n  claimcheck check {shlex.quote(path)} --open"


def report_lines(report: CheckReport, path: str) -> list[str]:
    """Return a report as lines of styled text."""
    return [*(line for finding in report.findings for line in _finding_lines(finding)), summary(report, path)]


def summary(report: CheckReport, path: str) -> str:
    """Return the last line of a report: how many errors and warnings there are."""
    counts = Counter(finding.severity for finding in report.findings)
    parts = [f"{counts[each]} {each}{'s' if counts[each] > 1 else ''}" for each in ("error", "warning") if counts[each]]
    return f"{path}: {', '.join(parts) or 'no problems found'}"


def _finding_lines(finding: Finding) -> list[str]:
    color = {"error": "red", "warning": "yellow", "info": "blue"}[finding.severity]
    where = f"{finding.path}: " if finding.path and not finding.message.startswith(finding.path) else ""
    first = f"{click.style(finding.severity.ljust(8), fg=color)} {where}{printable(finding.message)}"
    return [first, f"{'':8} {printable(finding.fix)}"] if finding.fix else [first]


def report_json(report: CheckReport) -> dict[str, object]:
    """Return a report as JSON values."""
    findings = [
        {"severity": each.severity, "path": each.path, "message": each.message, "fix": each.fix}
        for each in report.findings
    ]
    return {"ok": report.ok, "findings": findings}
