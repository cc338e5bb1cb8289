"""What can go wrong with the topics of a Pulsar cluster: their policies, limits, clock and dead letters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

from claimcheck._check import Finding, check_address
from claimcheck._client import ClaimCheck
from claimcheck._doctor._clock import http_skew
from claimcheck._doctor._findings import examined, explained, finding
from claimcheck._doctor._pulsar_subscriptions import examine_subscriptions
from claimcheck._doctor._topics import Expectation, PulsarTarget, on_command_line, outlives
from claimcheck._registry import import_vendor
from claimcheck._texts import duration
from claimcheck.transports.pulsar._admin import (
    MAX_MESSAGE_BYTES,
    AdminClient,
    AdminError,
    full_name,
    topic_path,
    trusting,
)

_SECONDS = 10
_DISABLED = (405, 412)  # topic-level policies are turned off
_quiet = logging.getLogger(__name__)


def examine_pulsar(cc: ClaimCheck, target: PulsarTarget, clock: Callable[[], float]) -> Iterator[Finding]:
    """Yield the findings about the topics of a cluster, and about their subscriptions."""
    for option, url in (("--pulsar", target.url), ("--admin-url", target.admin_url)):
        if url is not None:
            yield from on_command_line("pulsar", option, url, "Pass a token in CLAIMCHECK_PULSAR_TOKEN.")
            yield from explained(check_address("pulsar", url))
    if target.url is not None:
        yield from _broker(target, target.url)
    if target.admin_url is None:
        message = "only the web service knows policies, limits and subscriptions"
        yield finding("info", "pulsar-not-examined", "pulsar", message, "Pass --admin-url.")
        return
    try:
        admin = admin_of(target, target.admin_url)
        begin = clock()
        admin.get(f"{topic_path(target.topics[0])}/partitions")
    except (AdminError, ValueError) as error:
        fix = "Check --admin-url, the token and the CA certificates."
        yield finding("error", "pulsar-unreachable", "pulsar", str(error), fix, error=error)
        return
    yield from examined("pulsar", "pulsar", "the clock", lambda: _clock(admin, begin, clock()))
    for topic in map(full_name, target.topics):
        yield from examined("pulsar", f"topic {topic}", "the topic", partial(_topic, cc, admin, topic, target, clock))


def admin_of(target: PulsarTarget, url: str) -> AdminClient:
    """Return a client for the web service."""
    headers = {"Authorization": f"Bearer {target.token}"} if target.token else None
    trust = trusting(target.ca_file, option="--tls-ca-file")
    return AdminClient(url, headers=headers, trust=trust, timeout_seconds=_SECONDS)


def client_of(target: PulsarTarget, url: str) -> Any:
    """Return a client for the broker; it connects at first use."""
    vendor = import_vendor("pulsar", extra="pulsar")
    options: dict[str, Any] = {"operation_timeout_seconds": _SECONDS, "logger": _quiet, "tls_validate_hostname": True}
    if target.token:
        options["authentication"] = vendor.AuthenticationToken(target.token)
    if target.ca_file:
        options["tls_trust_certs_file_path"] = target.ca_file
    if target.listener_name:
        options["listener_name"] = target.listener_name
    return vendor.Client(url, **options)


def _broker(target: PulsarTarget, url: str) -> Iterator[Finding]:
    try:
        with closing(client_of(target, url)) as client:
            client.get_topic_partitions(full_name(target.topics[0]))
    except Exception as error:
        message = f"the broker cannot be reached: {type(error).__name__}: {error}"
        fix = "Check --pulsar, the token and the CA certificates."
        yield finding("error", "pulsar-unreachable", "pulsar", message, fix, error=error)


def _clock(admin: AdminClient, begin: float, end: float) -> Iterator[Finding]:
    yield from http_skew("pulsar", "the broker's", admin.date, begin, end)


# A topic -------------------------------------------------------------------------------------------------------


def _topic(
    cc: ClaimCheck, admin: AdminClient, topic: str, target: PulsarTarget, clock: Callable[[], float]
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
    yield from examine_subscriptions(stats.get("subscriptions") or {}, target.subscriptions, expected, clock)
    names = [f"{topic}-{subscription}-DLQ" for subscription in stats.get("subscriptions") or {}]
    for name in sorted({*names, *map(full_name, target.dead_letter_topics)}):
        look = partial(_dead_letters, admin, name, expected)
        yield from examined("pulsar", f"topic {name}", "the dead-letter topic", look)


def topic_stats(admin: AdminClient, topic: str) -> dict[str, Any] | None:
    """Return the statistics of a topic, with the age of each backlog; ``None`` if there is no such topic."""
    path = topic_path(topic)
    partitions = (admin.get(f"{path}/partitions") or {}).get("partitions")
    which = "partitioned-stats?perPartition=true&" if partitions else "stats?"
    stats: dict[str, Any] | None = admin.get(f"{path}/{which}getEarliestTimeInBacklog=true")
    if stats is not None and partitions:
        for name, each in stats.get("subscriptions", {}).items():  # their sum loses some of the times
            parts = [part["subscriptions"].get(name, {}) for part in stats.get("partitions", {}).values()]
            times = [part.get("earliestMsgPublishTimeInBacklog") or 0 for part in parts]
            each["earliestMsgPublishTimeInBacklog"] = min((time for time in times if time > 0), default=0)
    return stats


def _policy(admin: AdminClient, topic: str, name: str) -> Any:
    """Return the policy in effect: that of the topic, else of its namespace, else of the broker."""
    path = topic_path(topic)
    try:
        return admin.get(f"{path}/{name}?applied=true")
    except AdminError as error:
        if error.status not in _DISABLED:
            raise
        return admin.get(f"namespaces/{'/'.join(path.split('/')[1:3])}/{name}")


def _retention_seconds(admin: AdminClient, topic: str) -> float | None:
    """Return how long acknowledged messages are kept; ``None`` for no limit."""
    minutes = (_policy(admin, topic, "retention") or {}).get("retentionTimeInMinutes", 0)
    return minutes * 60.0 if minutes >= 0 else None


def _ttl_seconds(admin: AdminClient, topic: str) -> float | None:
    """Return the time after which unacknowledged messages are dropped; ``None`` for never."""
    return float(_policy(admin, topic, "messageTTL") or 0) or None


def _retention(admin: AdminClient, topic: str, expected: Expectation) -> Iterator[Finding]:
    kept = _retention_seconds(admin, topic)
    if expected.lifetime is not None and outlives(kept, expected.lifetime):
        text = "unlimited" if kept is None else duration(kept)
        message = f"the retention of acknowledged messages is {text}, and payloads live {duration(expected.lifetime)}"
        fix = "Reduce the retention of the topic or namespace, or raise ttl_seconds."
        yield finding("warning", "pulsar-retention", expected.path, message, fix)


def _message_ttl(admin: AdminClient, topic: str, expected: Expectation) -> Iterator[Finding]:
    ttl = _ttl_seconds(admin, topic)
    if expected.lifetime is not None and outlives(ttl, expected.lifetime):
        text = "there is no message TTL" if ttl is None else f"the message TTL is {duration(ttl)}"
        message = f"{text}, so unread messages stay longer than their payloads ({duration(expected.lifetime)})"
        fix = "Set a message TTL below ttl_seconds, or raise ttl_seconds and watch the backlog."
        yield finding("warning", "pulsar-message-ttl", expected.path, message, fix)


def _quotas(admin: AdminClient, topic: str, expected: Expectation) -> Iterator[Finding]:
    quotas = _policy(admin, topic, "backlogQuotaMap") or {}
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
    kept, ttl = _retention_seconds(admin, name), _ttl_seconds(admin, name)
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
