"""Shared by the tests of the check of servers: run it, and look at what it found."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import claimcheck
from claimcheck import CheckReport
from claimcheck.cli._check import examine
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.pulsar._queries import PulsarTarget

LIFETIME = 86_400


def configuration(store: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"strategy": "external", "store": "hot", "stores": {"hot": {"ttl_seconds": LIFETIME, **store}}, **more}


def diagnosed(
    raw: dict[str, Any],
    *,
    kafka: KafkaTarget | None = None,
    pulsar: PulsarTarget | None = None,
    clock: Callable[[], float] = time.time,
) -> CheckReport:
    """Return what the check of servers finds."""
    with claimcheck.from_dict(raw) as cc:
        return examine(cc, servers=True, target=kafka or pulsar, clock=clock)


def ids(report: CheckReport, *prefixes: str) -> list[str]:
    """Return the ids of the findings that begin with one of these prefixes, sorted."""
    return sorted(each.id for each in report.findings if each.id.startswith(prefixes or ("",)))


def text(report: CheckReport, id: str) -> str:  # noqa: A002 - the name of the field
    """Return the severity, path and message of the only finding with an id."""
    (found,) = [each for each in report.findings if each.id == id]
    return f"{found.severity} {found.path}: {found.message}"
