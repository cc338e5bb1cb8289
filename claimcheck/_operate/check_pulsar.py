"""What can go wrong with the topics of a Pulsar cluster: their policies, limits, subscriptions, clock, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from claimcheck._operate.check import Configured, check_address
from claimcheck._operate.check_topics import Expectation, behind, on_command_line, outlives
from claimcheck._operate.findings import Finding, examined, finding, http_skew
from claimcheck._texts import duration
from claimcheck.transports.pulsar._queries import (
    MAX_MESSAGE_BYTES,
    AdminClient,
    AdminError,
    PulsarTarget,
    full_name,
    policy,
    retention_seconds,
    topic_path,
    topic_stats,
    ttl_seconds,
)

_SECONDS = 10
_MS = 1000


def examine_pulsar(cc: Configured, target: PulsarTarget, clock: Callable[[], float]) -> Iterator[Finding]:
    """Yield the findings about the topics of a cluster, and about their subscriptions."""
    for option, url in (("--pulsar", target.url), ("--admin-url", target.admin_url)):
        if url is not None:
            yield from on_command_line("pulsar", option, url, "Pass a token in CLAIMCHECK_PULSAR_TOKEN.")
            yield from check_address("pulsar", url)
    if target.url is not None:
        yield from _broker(target)
    if target.admin_url is None:
        message = "only the web service knows policies, limits and subscriptions"
        yield finding("info", "pulsar-not-examined", "pulsar", message, "Pass --admin-url.")
        return
    try:
        admin = target.admin(seconds=_SECONDS)
        begin = clock()
        admin.get(f"{topic_path(target.topics[0])}/partitions")
    except (AdminError, ValueError) as error:
        fix = "Check --admin-url, the token and the CA certificates."
        yield finding("error", "pulsar-unreachable", "pulsar", str(error), fix, error=error)
        return
    yield from examined("pulsar", "pulsar", "the clock", lambda: _clock(admin, begin, clock()))
    for topic in map(full_name, target.topics):
        yield from examined("pulsar", f"topic {topic}", "the topic", partial(_topic, cc, admin, topic, target, clock))


def _broker(target: PulsarTarget) -> Iterator[Finding]:
    try:
        with closing(target.client(seconds=_SECONDS)) as client:
            client.get_topic_partitions(full_name(target.topics[0]))
    except Exception as error:
        message = f"the broker cannot be reached: {type(error).__name__}: {error}"
        fix = "Check --pulsar, the token and the CA certificates."
        yield finding("error", "pulsar-unreachable", "pulsar", message, fix, error=error)


def _clock(admin: AdminClient, begin: float, end: float) -> Iterator[Finding]:
    yield from http_skew("pulsar", "the broker's", admin.date, begin, end)


# A topic -------------------------------------------------------------------------------------------------------


def _topic(
    cc: Configured, admin: AdminClient, topic: str, target: PulsarTarget, clock: Callable[[], float]
) -> Iterator[Finding]:
    stats = topic_stats(admin, topic)
    path = f"topic {topic}"
    if stats is None:
        yield finding("error", "pulsar-topic-missing", path, "the topic does not exist", "Check its name.")
        return
    expected = Expectation.of(cc, topic)
    yield from expected.unset()
    yield from examined("pulsar", path, "the retention", partial(_retention, admin, topic, expected))
    yield from examined("pulsar", path, "the message TTL", partial(_message_ttl, admin, topic, expected))
    yield from examined("pulsar", path, "the backlog quotas", partial(_quotas, admin, topic, expected))
    yield from examined("pulsar", path, "the size limits", partial(_limits, admin, topic, expected))
    yield from _subscriptions(stats.get("subscriptions") or {}, target.subscriptions, expected, clock)
    names = [f"{topic}-{subscription}-DLQ" for subscription in stats.get("subscriptions") or {}]
    for name in sorted(names):
        look = partial(_dead_letters, admin, name, expected)
        yield from examined("pulsar", f"topic {name}", "the dead-letter topic", look)


def _retention(admin: AdminClient, topic: str, expected: Expectation) -> Iterator[Finding]:
    kept = retention_seconds(admin, topic)
    if expected.lifetime is not None and outlives(kept, expected.lifetime):
        text = "unlimited" if kept is None else duration(kept)
        message = f"the retention of acknowledged messages is {text}, and payloads live {duration(expected.lifetime)}"
        fix = "Reduce the retention of the topic or namespace, or raise ttl_seconds."
        yield finding("warning", "pulsar-retention", expected.path, message, fix)


def _message_ttl(admin: AdminClient, topic: str, expected: Expectation) -> Iterator[Finding]:
    ttl = ttl_seconds(admin, topic)
    if expected.lifetime is not None and outlives(ttl, expected.lifetime):
        text = "there is no message TTL" if ttl is None else f"the message TTL is {duration(ttl)}"
        message = f"{text}, so unread messages stay longer than their payloads ({duration(expected.lifetime)})"
        fix = "Set a message TTL below ttl_seconds, or raise ttl_seconds and watch the backlog."
        yield finding("warning", "pulsar-message-ttl", expected.path, message, fix)


def _quotas(admin: AdminClient, topic: str, expected: Expectation) -> Iterator[Finding]:
    quotas = policy(admin, topic, "backlogQuotaMap") or {}
    if expected.chunks and any(quota.get("policy") == "consumer_backlog_eviction" for quota in quotas.values()):
        message = "the backlog quota is enforced by consumer_backlog_eviction, and payloads may be sent as chunks"
        fix = "Use the policy producer_request_hold or producer_exception."
        yield finding("warning", "pulsar-backlog-eviction", expected.path, message, fix)


def _limits(admin: AdminClient, topic: str, expected: Expectation) -> Iterator[Finding]:
    limit = admin.max_message_bytes(topic)
    for severity, message in expected.too_large(limit, min(limit, MAX_MESSAGE_BYTES)):  # producers learn the limit
        fix = "Lower the option, or raise maxMessageSize of the broker."
        yield finding(severity, "pulsar-limit", expected.path, message, fix)
    own = admin.get(f"{topic_path(topic)}/maxMessageSize")
    if own:
        message = f"the topic has its own maxMessageSize ({int(own):,} bytes), which the client does not know"
        fix = "Remove the topic's limit, or pass max_message_bytes to PulsarProducer."
        yield finding("warning", "pulsar-topic-limit", expected.path, message, fix)


def _dead_letters(admin: AdminClient, name: str, expected: Expectation) -> Iterator[Finding]:
    stats, path = topic_stats(admin, name), f"topic {name}"
    if stats is None:  # created with the first dead letter
        return
    kept, ttl = retention_seconds(admin, name), ttl_seconds(admin, name)
    if not stats.get("subscriptions") and kept == 0:
        message = "this dead-letter topic has no subscription and no retention"
        fix = "Create a subscription to it, or set initial_subscription_name in the dead-letter policy."
        yield finding("warning", "pulsar-dead-letters-dropped", path, message, fix)
        return
    longest = ttl if stats.get("subscriptions") else 0.0
    lifetime = expected.dead_letter_lifetime
    if lifetime is not None and (outlives(longest, lifetime) or outlives(kept, lifetime)):
        message = f"this dead-letter topic may keep messages longer than their payloads live ({duration(lifetime)})"
        fix = "Set its message TTL and retention, or raise dead_letter_ttl_seconds to the longer one."
        yield finding("warning", "pulsar-dead-letters", path, message, fix)


# Subscriptions -------------------------------------------------------------------------------------------------


def _subscriptions(
    stats: Mapping[str, Mapping[str, Any]], names: tuple[str, ...], expected: Expectation, clock: Callable[[], float]
) -> Iterator[Finding]:
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
