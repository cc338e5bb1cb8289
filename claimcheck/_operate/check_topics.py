"""What can go wrong with topics and their readers: retention, limits, lag, dead letters, payloads that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import claimcheck.transports.kafka._queries as kafka
import claimcheck.transports.pulsar._queries as pulsar
from claimcheck._operate.check import check_address, remote_hosts
from claimcheck._operate.findings import Finding, Severity, examined, finding, hidden
from claimcheck._texts import duration
from claimcheck._wire.envelope import unverified_pointer
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ClaimCheckError, ConfigError, PayloadNotFoundError, TransportError
from claimcheck.transports._common.topics import is_dead_letter_topic

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_SECONDS = 10
_MS = 1000
_LATE = 0.5
_MESSAGES = 10_000
_READ_BYTES = 1 << 20  # of a larger payload only the first byte is read
_BROKER_BYTES = 1_048_588  # the default of Kafka's max.message.bytes
_FIXES = {
    "kafka-pointer-rejected": "Give readers and writers the same stores, prefixes and signing keys.",
    "kafka-payload-missing": "Check that this is the writers' store (address, database, bucket), and evicts nothing.",
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the configuration promises for one topic."""

    path: str
    strategy: str
    store: str | None
    lifetime: float | None
    threshold: int | None
    chunk_bytes: int | None

    @classmethod
    def of(cls, cc: ClaimCheck, topic: str) -> Expectation:
        """Return what a configuration promises for a topic, by the name that the producer uses."""
        config = cc.config.for_destination(topic)
        store = config.store if config.strategy not in ("chunking", "inline") else None
        lifetime, chunk = cc.store(store).ttl_seconds if store else None, config.chunking.max_message_bytes
        return cls(
            path=f"topic {topic}",
            strategy=config.strategy,
            store=store,
            lifetime=lifetime,
            threshold=None if config.threshold_bytes == "auto" else config.threshold_bytes,
            chunk_bytes=None if chunk == "auto" else chunk,
        )

    @property
    def chunks(self) -> bool:
        return self.strategy in ("chunking", "hybrid")

    def too_large(self, limit: int, default: int) -> Iterator[tuple[Severity, str]]:
        """Yield what would be larger than a topic's limit: an error, or a warning if only the default is."""
        options = {"threshold_bytes": self.threshold}
        if self.chunks:
            options["chunking.max_message_bytes"] = self.chunk_bytes
        for option, value in options.items():
            if value is None and default > limit:
                yield "warning", f"{option} is auto ({default:,} bytes by default), and the topic accepts {limit:,}"
            elif value is not None and value > limit:
                yield "error", f"{option} is {value:,} bytes, and the topic accepts {limit:,}"

    def behind(
        self, kind: str, what: str, *, now: float, oldest: float, expires: float | None = None
    ) -> Iterator[Finding]:
        """Yield a finding if a reader is so late that payloads have expired, or soon will."""
        age, fix = now - oldest, "Start more consumers, or raise ttl_seconds: it applies to later payloads."
        if expires is not None and expires <= now:
            message = f"the payload of {what} expired {duration(now - expires)} ago"
            yield finding("error", kind, self.path, message, fix)
        elif self.lifetime is not None and age >= _LATE * self.lifetime:
            message = f"{what} is {duration(age)} old, and payloads live {duration(self.lifetime)}"
            yield finding("error" if age >= self.lifetime else "warning", kind, self.path, message, fix)


def _outlives(seconds: float | None, lifetime: float | None) -> bool:
    """Whether messages that are kept for a time (``None``: without limit) stay longer than their payloads."""
    return lifetime is not None and (seconds is None or seconds > lifetime)


def _on_command_line(path: str, option: str, address: str, fix: str) -> Iterator[Finding]:
    if "@" in address or "password=" in address:
        yield finding("warning", "secret-on-command-line", path, f"{option} contains a user name or password", fix)


# Kafka -----------------------------------------------------------------------------------------------------------


def examine_kafka(cc: ClaimCheck, target: kafka.KafkaTarget, clock: Callable[[], float]) -> Iterator[Finding]:
    """Yield the findings about the topics of a cluster, and about the groups that read them."""
    fix = "Put it into the file of --kafka-config, as sasl.username and sasl.password."
    yield from _on_command_line("kafka", "--kafka", target.servers, fix)
    yield from examined("kafka", "kafka", "the address", partial(_plain_connection, target))
    try:
        cluster = target.cluster(seconds=_SECONDS)
        known = cluster.topics()
    except ConfigError as error:
        yield _invalid(target, error.__context__)
        return
    except TransportError as error:
        message = f"Kafka at {target.servers} cannot be reached: {error}"
        fix = "Check the address and the client's settings: security.protocol, sasl.*, ssl.*."
        yield finding("error", "kafka-unreachable", "kafka", message, fix, error=error)
        return
    for name in target.topics:
        look = partial(_kafka_topic, cc, cluster, name, target.groups, known, clock)
        yield from examined("kafka", f"topic {name}", "the topic", look)


def _invalid(target: kafka.KafkaTarget, error: Any) -> Finding:
    """Return the finding about settings that the client refuses; it names a setting, but quotes no value."""
    text = getattr(error.args[0], "str", lambda: error)() if error.args else error
    text = hidden(str(text).strip(), [word for word in " ".join(target.options.values()).split() if not word.isdigit()])
    message = f"the client refuses its settings: {text.removeprefix('Failed to create admin client: ')}"
    fix = "Correct the setting in the file of --kafka-config, or in its environment variable."
    return finding("error", "kafka-settings-invalid", "kafka", message, fix, error=ConfigError(message))


def _plain_connection(target: kafka.KafkaTarget) -> Iterator[Finding]:
    remote = remote_hosts(target.servers)
    if remote and not target.options.get("security.protocol", "").lower().endswith("ssl"):
        fix = "Set security.protocol to ssl or sasl_ssl, or use a network that no one else can read."
        yield finding("warning", "connection-plain", "kafka", f"connections to {remote[0]} are not encrypted", fix)


def _kafka_topic(
    cc: ClaimCheck,
    cluster: kafka.Cluster,
    name: str,
    groups: tuple[str, ...],
    known: Mapping[str, Any],
    clock: Callable[[], float],
) -> Iterator[Finding]:
    """Yield the findings about a topic, its groups and its dead-letter topics."""
    if name not in known or known[name].error is not None:
        message = "the topic does not exist, or may not be described"
        fix = "Check its name, and grant DESCRIBE_CONFIGS."
        yield finding("error", "kafka-topic-missing", f"topic {name}", message, fix)
        return
    expected = Expectation.of(cc, name)
    yield from examined(
        "kafka", expected.path, "the topic's configuration",
        lambda: examine_settings(kafka.topic_settings(cluster.admin, name), expected),
    )  # fmt: skip
    reader = _Groups(cc, cluster, name, cluster.partitions([name], known), expected, clock)
    yield from examined("kafka", expected.path, "the consumer groups", partial(reader.findings, groups))
    for each in sorted(other for other in known if is_dead_letter_topic(other, name)):
        look = partial(_kafka_dead_letters, cluster, each, expected)
        yield from examined("kafka", f"topic {each}", "the topic's configuration", look)


def examine_settings(config: kafka.TopicSettings, expected: Expectation) -> Iterator[Finding]:
    path, lifetime = expected.path, expected.lifetime
    longest = None if config.retention is None else config.retention + config.segment
    if config.compacted and (expected.chunks or lifetime is not None):
        fix = "Use cleanup.policy=delete; for compacted topics use strategy external and a store without ttl_seconds."
        yield finding("error" if expected.chunks else "warning", "kafka-compacted", path, "the topic is compacted", fix)
    elif lifetime is not None and _outlives(longest, lifetime):
        kept = "unlimited" if longest is None else f"{duration(longest)} with segment.ms"
        message = f"retention is {kept}, and payloads live {duration(lifetime)}"
        severity: Severity = "warning" if _outlives(config.retention, lifetime) else "info"
        yield finding(
            severity, "kafka-retention", path, message, "Reduce retention.ms or segment.ms, or raise ttl_seconds."
        )
    for severity, message in expected.too_large(config.max_message_bytes or _BROKER_BYTES, kafka.MAX_MESSAGE_BYTES):
        fix = "Raise max.message.bytes, or lower the option. With auto, pass max_message_bytes= to KafkaProducer."
        yield finding(severity, "kafka-limit", path, message, fix)


def _kafka_dead_letters(cluster: kafka.Cluster, name: str, expected: Expectation) -> Iterator[Finding]:
    config = kafka.topic_settings(cluster.admin, name)
    if (lifetime := expected.lifetime) is not None and _outlives(config.retention, lifetime):
        kept = "ever" if config.retention is None else duration(config.retention)
        message = f"this dead-letter topic keeps messages for {kept}, "
        message += f"and their payloads live {duration(lifetime)}"
        fix = "Reduce its retention.ms, or raise ttl_seconds of the store to the longest time until a letter is read."
        yield finding("warning", "kafka-dead-letters", f"topic {name}", message, fix)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Looks at the lag of the groups that have committed offsets of one topic."""

    cc: ClaimCheck
    cluster: kafka.Cluster
    topic: str
    partitions: Sequence[kafka.Place]
    expected: Expectation
    clock: Callable[[], float]

    def findings(self, groups: tuple[str, ...]) -> Iterator[Finding]:
        """Yield the findings about groups; an empty tuple stands for all."""
        committed = kafka.groups_of(self.cluster.admin, self.topic, groups)
        for name in groups:
            if name not in committed:
                message = f"group {name} has committed no offsets for this topic"
                yield finding("warning", "kafka-group-unknown", self.expected.path, message, "Check its name.")
        for name, offsets in committed.items():
            yield from examined("kafka", self.expected.path, f"group {name}", partial(self._group, name, offsets))

    def _group(self, group: str, offsets: Mapping[kafka.Place, int]) -> Iterator[Finding]:
        earliest, latest = (kafka.log_offsets(self.cluster.admin, self.partitions, at) for at in ("earliest", "latest"))
        lost = sum(max(0, earliest[place] - offset) for place, offset in offsets.items())
        if lost:
            message = f"retention deleted up to {lost:,} messages that group {group} had not read"
            fix = "Raise retention.ms, or start more consumers."
            yield finding("warning", "kafka-group-lost", self.expected.path, message, fix)
        unread = {each: max(offsets.get(each, 0), earliest[each]) for each in self.partitions}  # 0: none committed
        unread = {place: offset for place, offset in unread.items() if offset < latest[place]}
        found = self._first_pointers(unread, latest) if self.expected.store is not None else []
        yield from self._unreadable(group, found)
        if found:
            yield from self.expected.behind(
                "kafka-group-lag",
                f"the oldest unread pointer of group {group}",
                now=self.clock(),
                oldest=min(message.timestamp()[1] for message, _ in found) / _MS,
                expires=min((each.expires_ms / _MS for _, each in found if each.expires_ms is not None), default=None),
            )

    def _unreadable(self, group: str, found: Sequence[tuple[Any, Pointer]]) -> Iterator[Finding]:
        """Yield what readers with this configuration could not read: writers may have another one."""
        problems = [problem for message, pointer in found if (problem := self._problem(message, pointer)) is not None]
        for kind, fix in _FIXES.items():
            texts = [text for each, text in problems if each == kind]
            if texts:
                what = f"{len(texts)} of {len(found)} unread pointers of group {group} that were looked at"
                yield finding("error", kind, self.expected.path, f"{what} cannot be read here: {texts[0]}", fix)

    def _problem(self, message: Any, pointer: Pointer) -> tuple[str, str] | None:
        """Return why a message cannot be read, unless its payload has expired or its store does not answer."""
        try:
            accepted = self.cc.opened.messages.pointer(message.value(), self.topic)
            store = self.cc.opened.messages.store_of(pointer if accepted is None else accepted)
            if pointer.size is not None and pointer.size > _READ_BYTES:
                store.read_range(pointer, 0, 1)
            elif pointer.size is not None:
                store.read(pointer)
        except PayloadNotFoundError as error:
            if pointer.expires_ms is None or pointer.expires_ms / _MS > self.clock():
                return "kafka-payload-missing", str(error)
        except ClaimCheckError as error:
            if not error.retryable:
                return "kafka-pointer-rejected", str(error)
        return None

    def _pointer(self, message: Any) -> Pointer | None:
        """Return the pointer of a message, also of an untrusted one."""
        with suppress(ClaimCheckError):  # a consumer reports it
            return unverified_pointer(message.value() or b"", header=self.cc.config.header)
        return None

    def _first_pointers(
        self, starts: Mapping[kafka.Place, int], ends: Mapping[kafka.Place, int]
    ) -> list[tuple[Any, Pointer]]:
        """Return the first message with a pointer of each partition, if it is among the next few."""
        left = {place: min(ends[place], start + _MESSAGES) for place, start in starts.items()}
        found = []
        for message in self.cluster.read(starts, left):
            pointer = self._pointer(message)
            if pointer is not None:
                found.append((message, pointer))
                del left[message.topic(), message.partition()]
        return found


# Pulsar ----------------------------------------------------------------------------------------------------------


def examine_pulsar(cc: ClaimCheck, target: pulsar.PulsarTarget, clock: Callable[[], float]) -> Iterator[Finding]:
    """Yield the findings about the topics of a cluster, and about their subscriptions."""
    for option, url in (("--pulsar", target.url), ("--admin-url", target.admin_url)):
        if url is not None:
            yield from _on_command_line("pulsar", option, url, "Pass a token in CLAIMCHECK_PULSAR_TOKEN.")
            yield from check_address("pulsar", url)
    if target.url is not None:
        try:
            with closing(target.client(seconds=_SECONDS)) as client:
                client.get_topic_partitions(pulsar.full_name(target.topics[0]))
        except Exception as error:
            yield _unreachable(f"the broker cannot be reached: {type(error).__name__}: {error}", "--pulsar", error)
    if target.admin_url is None:
        message = "only the web service knows policies, limits and subscriptions"
        yield finding("info", "pulsar-not-examined", "pulsar", message, "Pass --admin-url.")
        return
    try:
        admin = target.admin(seconds=_SECONDS)
        admin.get(f"{pulsar.topic_path(target.topics[0])}/partitions")
    except (pulsar.AdminError, ValueError) as error:
        yield _unreachable(str(error), "--admin-url", error)
        return
    for topic in map(pulsar.full_name, target.topics):
        look = partial(_pulsar_topic, cc, admin, topic, target, clock)
        yield from examined("pulsar", f"topic {topic}", "the topic", look)


def _unreachable(message: str, option: str, error: Exception) -> Finding:
    fix = f"Check {option}, the token and the CA certificates."
    return finding("error", "pulsar-unreachable", "pulsar", message, fix, error=error)


def _pulsar_topic(
    cc: ClaimCheck, admin: pulsar.AdminClient, topic: str, target: pulsar.PulsarTarget, clock: Callable[[], float]
) -> Iterator[Finding]:
    stats, path = pulsar.topic_stats(admin, topic), f"topic {topic}"
    if stats is None:
        yield finding("error", "pulsar-topic-missing", path, "the topic does not exist", "Check its name.")
        return
    expected = Expectation.of(cc, topic)
    subscriptions = stats.get("subscriptions") or {}
    yield from examined("pulsar", path, "the policies", partial(_policies, admin, topic, expected))
    yield from examined("pulsar", path, "the size limits", partial(_limits, admin, topic, expected))
    for name in target.subscriptions:
        if name not in subscriptions:
            message = f"there is no subscription {name}"
            yield finding("warning", "pulsar-subscription-unknown", path, message, "Check its name.")
    for name in sorted(set(subscriptions) & set(target.subscriptions or subscriptions)):
        yield from _subscription(name, subscriptions[name], expected, clock)
    for name in sorted(f"{topic}-{subscription}-DLQ" for subscription in subscriptions):
        look = partial(_pulsar_dead_letters, admin, name, expected)
        yield from examined("pulsar", f"topic {name}", "the dead-letter topic", look)


def _policies(admin: pulsar.AdminClient, topic: str, expected: Expectation) -> Iterator[Finding]:
    path, lifetime = expected.path, expected.lifetime
    kept, ttl = pulsar.retention_seconds(admin, topic), pulsar.ttl_seconds(admin, topic)
    if lifetime is not None and _outlives(kept, lifetime):
        text = "unlimited" if kept is None else duration(kept)
        message = f"the retention of acknowledged messages is {text}, and payloads live {duration(lifetime)}"
        fix = "Reduce the retention of the topic or namespace, or raise ttl_seconds."
        yield finding("warning", "pulsar-retention", path, message, fix)
    if lifetime is not None and _outlives(ttl, lifetime):
        text = "there is no message TTL" if ttl is None else f"the message TTL is {duration(ttl)}"
        message = f"{text}, so unread messages stay longer than their payloads ({duration(lifetime)})"
        fix = "Set a message TTL below ttl_seconds, or raise ttl_seconds and watch the backlog."
        yield finding("warning", "pulsar-message-ttl", path, message, fix)
    quotas = pulsar.policy(admin, topic, "backlogQuotaMap") or {}
    if expected.chunks and any(quota.get("policy") == "consumer_backlog_eviction" for quota in quotas.values()):
        message = "the backlog quota is enforced by consumer_backlog_eviction, and payloads may be sent as chunks"
        fix = "Use the policy producer_request_hold or producer_exception."
        yield finding("warning", "pulsar-backlog-eviction", path, message, fix)


def _limits(admin: pulsar.AdminClient, topic: str, expected: Expectation) -> Iterator[Finding]:
    limit = admin.max_message_bytes(topic)
    default = min(limit, pulsar.MAX_MESSAGE_BYTES)  # producers learn the limit
    for severity, message in expected.too_large(limit, default):
        fix = "Lower the option, or raise maxMessageSize of the broker."
        yield finding(severity, "pulsar-limit", expected.path, message, fix)
    own = admin.get(f"{pulsar.topic_path(topic)}/maxMessageSize")
    if own:
        message = f"the topic has its own maxMessageSize ({int(own):,} bytes), which the client does not know"
        fix = "Remove the topic's limit, or pass max_message_bytes to PulsarProducer."
        yield finding("warning", "pulsar-topic-limit", expected.path, message, fix)


def _pulsar_dead_letters(admin: pulsar.AdminClient, name: str, expected: Expectation) -> Iterator[Finding]:
    stats, path, lifetime = pulsar.topic_stats(admin, name), f"topic {name}", expected.lifetime
    if stats is None:  # created with the first dead letter
        return
    kept, ttl = pulsar.retention_seconds(admin, name), pulsar.ttl_seconds(admin, name)
    if not stats.get("subscriptions") and kept == 0:
        message = "this dead-letter topic has no subscription and no retention"
        fix = "Create a subscription to it, or set initial_subscription_name in the dead-letter policy."
        yield finding("warning", "pulsar-dead-letters-dropped", path, message, fix)
    elif lifetime is not None and (
        _outlives(ttl if stats.get("subscriptions") else 0.0, lifetime) or _outlives(kept, lifetime)
    ):
        message = f"this dead-letter topic may keep messages longer than their payloads live ({duration(lifetime)})"
        fix = "Set its message TTL and retention, or raise ttl_seconds of the store to the longer one."
        yield finding("warning", "pulsar-dead-letters", path, message, fix)


def _subscription(
    name: str, stats: Mapping[str, Any], expected: Expectation, clock: Callable[[], float]
) -> Iterator[Finding]:
    if stats.get("type") == "Shared" and expected.chunks:
        message = f"subscription {name} is Shared, and payloads may be sent as chunks (strategy {expected.strategy})"
        fix = "Subscribe as Key_Shared, Failover or Exclusive, or use strategy external."
        severity: Severity = "error" if expected.strategy == "chunking" else "warning"
        yield finding(severity, "pulsar-shared-chunks", expected.path, message, fix)
    published = stats.get("earliestMsgPublishTimeInBacklog") or 0
    if stats.get("msgBacklog") and published > 0:
        what = f"the oldest unread message of subscription {name}"
        yield from expected.behind("pulsar-backlog", what, now=clock(), oldest=published / _MS)
