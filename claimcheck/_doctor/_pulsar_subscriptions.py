"""What can go wrong with the subscriptions of a Pulsar topic: their type, and the age of their backlogs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from claimcheck._check import Finding
from claimcheck._doctor._findings import finding
from claimcheck._doctor._topics import Expectation, behind

_MS = 1000


def examine_subscriptions(
    stats: Mapping[str, Mapping[str, Any]], names: tuple[str, ...], expected: Expectation, clock: Callable[[], float]
) -> Iterator[Finding]:
    """Yield the findings about subscriptions."""
    path = expected.path
    for name in names:
        if name not in stats:
            message = f"there is no subscription {name}"
            yield finding("warning", "pulsar-subscription-unknown", path, message, "Check its name.")
    for name in sorted(set(stats) & set(names or stats)):
        yield from _subscription(name, stats[name], expected, clock)


def _subscription(
    name: str, stats: Mapping[str, Any], expected: Expectation, clock: Callable[[], float]
) -> Iterator[Finding]:
    if stats.get("type") == "Shared" and expected.chunks:
        message = f"subscription {name} is Shared, and payloads may be sent as chunks (strategy {expected.strategy})"
        fix = "Subscribe as Key_Shared, Failover or Exclusive, or use strategy external."
        is_certain = expected.strategy == "chunking"
        yield finding("error" if is_certain else "warning", "pulsar-shared-chunks", expected.path, message, fix)
    published = stats.get("earliestMsgPublishTimeInBacklog") or 0
    if stats.get("msgBacklog") and published > 0:
        what, oldest = f"the oldest unread message of subscription {name}", published / _MS
        yield from behind("pulsar-backlog", what, expected.path, expected.lifetime, now=clock(), oldest=oldest)
