"""What can go wrong with the topics of a Kafka cluster: their retention, compaction, limits, replicas and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from claimcheck._check import Finding, remote_hosts
from claimcheck._client import ClaimCheck
from claimcheck._doctor._findings import examined, finding, hidden
from claimcheck._doctor._kafka_groups import GroupReader
from claimcheck._doctor._topics import Expectation, KafkaTarget, is_dead_letter_topic, on_command_line, outlives
from claimcheck._registry import import_vendor
from claimcheck._texts import duration
from claimcheck.errors import ConfigError, TransportError
from claimcheck.transports.kafka._cluster import Cluster
from claimcheck.transports.kafka._topic_limits import MAX_MESSAGE_BYTES

_SECONDS = 10.0
_MS = 1000
_AHEAD_SECONDS = 60.0


def examine_kafka(cc: ClaimCheck, target: KafkaTarget, clock: Callable[[], float]) -> Iterator[Finding]:
    """Yield the findings about the topics of a cluster, and about the groups that read them."""
    settings = {**target.options, "bootstrap.servers": target.servers}
    fix = "Put it into the file of --kafka-config, as sasl.username and sasl.password."
    yield from on_command_line("kafka", "--kafka", target.servers, fix)
    yield from examined("kafka", "kafka", "the address", partial(_encryption, target))
    try:
        cluster = Cluster(settings, path="--kafka-config")
    except ConfigError as error:  # it connects later
        yield _invalid(target, error.__context__)
        return
    try:
        known = cluster.metadata(timeout=_SECONDS).topics
    except TransportError as error:
        message = f"Kafka at {target.servers} cannot be reached: {error}"
        fix = "Check the address and the client's settings: security.protocol, sasl.*, ssl.*."
        yield finding("error", "kafka-unreachable", "kafka", message, fix, error=error)
        return
    examination = _Examination(cc, cluster.admin, settings, target, known, clock)
    for topic in target.topics:
        yield from examined("kafka", f"topic {topic}", "the topic", partial(examination.topic, topic))


@dataclass(frozen=True, slots=True)
class _Examination:
    """The examination of a cluster that answers."""

    cc: ClaimCheck
    admin: Any
    settings: Mapping[str, object] = field(repr=False)
    target: KafkaTarget
    known: Mapping[str, Any] = field(repr=False)
    clock: Callable[[], float]

    def topic(self, name: str) -> Iterator[Finding]:
        """Yield the findings about a topic, its groups and its dead-letter topics."""
        if name not in self.known or self.known[name].error is not None:
            yield _missing(name)
            return
        expected, partitions = Expectation.of(self.cc, name), self.known[name].partitions
        replicas = min(len(partition.replicas) for partition in partitions.values())
        config = partial(_settings, self.admin, name, expected, replicas)
        yield from examined("kafka", expected.path, "the topic's configuration", config)
        times = partial(_timestamps, self.admin, name, sorted(partitions), expected.path, self.clock)
        yield from examined("kafka", expected.path, "the newest timestamps", times)
        reader = GroupReader(self.cc, self.admin, self.settings, name, sorted(partitions), expected, self.clock)
        groups = partial(reader.findings, self.target.groups)
        yield from examined("kafka", expected.path, "the consumer groups", groups)
        for each in _dead_letter_topics(name, self.known, self.target.dead_letter_topics):
            look = partial(_dead_letters, self.admin, each, expected)
            yield from examined("kafka", f"topic {each}", "the topic's configuration", look)


def _encryption(target: KafkaTarget) -> Iterator[Finding]:
    remote = remote_hosts(target.servers)
    if remote and not target.options.get("security.protocol", "").lower().endswith("ssl"):
        fix = "Set security.protocol to ssl or sasl_ssl, or use a network that no one else can read."
        yield finding("warning", "connection-plain", "kafka", f"connections to {remote[0]} are not encrypted", fix)


def _invalid(target: KafkaTarget, error: Any) -> Finding:
    """Return the finding about settings that the client refuses; it names a setting, but quotes no value."""
    text = getattr(error.args[0], "str", lambda: error)() if error.args else error
    words = " ".join(target.options.values()).split()
    text = hidden(str(text).strip(), [word for word in words if not word.isdigit()])
    message = f"the client refuses its settings: {text.removeprefix('Failed to create admin client: ')}"
    fix = "Correct the setting in the file of --kafka-config, or in its environment variable."
    return finding("error", "kafka-settings-invalid", "kafka", message, fix, error=ConfigError(message))


def _missing(topic: str) -> Finding:
    message = "the topic does not exist, or may not be described"
    fix = "Check its name, and grant DESCRIBE and DESCRIBE_CONFIGS."
    return finding("error", "kafka-topic-missing", f"topic {topic}", message, fix)


# Configuration -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic that matter for payloads."""

    retention: float | None
    segment: float
    local_retention: float | None
    by_bytes: bool
    compacted: bool
    max_message_bytes: int
    min_insync: int

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> TopicConfig:
        """Parse the settings as the broker returns them."""
        retention = float(values.get("retention.ms") or -1)
        policy = values.get("cleanup.policy") or "delete"
        local = float(values.get("local.retention.ms") or -2)
        tiered = values.get("remote.storage.enable") == "true" and local >= 0
        return cls(
            retention=retention / _MS if retention >= 0 and "delete" in policy else None,
            segment=float(values.get("segment.ms") or 0) / _MS,
            local_retention=local / _MS if tiered else None,
            by_bytes=int(values.get("retention.bytes") or -1) >= 0,
            compacted="compact" in policy,
            max_message_bytes=int(values.get("max.message.bytes") or 1_048_588),
            min_insync=int(values.get("min.insync.replicas") or 1),
        )

    @property
    def retention_text(self) -> str:
        """The retention for people."""
        text = f"{duration(self.retention)}" if self.retention is not None else "unlimited"
        if self.by_bytes and self.retention is None:
            text += " (only retention.bytes limits it)"
        if self.local_retention is not None:
            text += f" (local.retention.ms, {duration(self.local_retention)}, applies to the brokers' disks only)"
        return text


def _config(admin: Any, topic: str) -> TopicConfig:
    module = import_vendor("confluent_kafka.admin", extra="kafka")
    resource = module.ConfigResource(module.ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource], request_timeout=_SECONDS)[resource].result()
    return TopicConfig.of({name: entry.value for name, entry in entries.items()})


def _settings(admin: Any, topic: str, expected: Expectation, replicas: int) -> Iterator[Finding]:
    config = _config(admin, topic)
    yield from expected.unset()
    yield from examine_config(config, expected)
    if replicas == 1:
        message, fix = "the replication factor is 1", "Create topics with three replicas."
        yield finding("info", "kafka-replication", expected.path, message, fix)
    elif config.min_insync == 1:
        message, fix = "min.insync.replicas is 1", "Set it to 2, and use acks=all in producers."
        yield finding("info", "kafka-min-insync", expected.path, message, fix)


def examine_config(config: TopicConfig, expected: Expectation) -> Iterator[Finding]:
    """Yield the findings about the settings of one topic."""
    path, lifetime = expected.path, expected.lifetime
    if config.compacted and (expected.chunks or lifetime is not None):
        fix = "Use cleanup.policy=delete; for compacted topics use strategy external and a store without ttl_seconds."
        yield finding("error" if expected.chunks else "warning", "kafka-compacted", path, "the topic is compacted", fix)
    elif lifetime is not None and outlives(config.retention, lifetime):
        message = f"retention is {config.retention_text}, and payloads live {duration(lifetime)}"
        yield finding("warning", "kafka-retention", path, message, "Reduce retention.ms, or raise ttl_seconds.")
    elif lifetime is not None and outlives((config.retention or 0) + config.segment, lifetime):
        longest = duration((config.retention or 0) + config.segment)
        message = f"with little traffic, a message stays up to {longest} (retention.ms plus segment.ms), "
        message += f"and payloads live {duration(lifetime)}"
        fix = "Reduce segment.ms to an hour, for example, or raise ttl_seconds."
        yield finding("info", "kafka-segment-roll", path, message, fix)
    for severity, message in expected.too_large(config.max_message_bytes, MAX_MESSAGE_BYTES):
        fix = "Raise max.message.bytes, or lower the option. With auto, pass admin= to KafkaProducer."
        yield finding(severity, "kafka-limit", path, message, fix)


def _timestamps(
    admin: Any, topic: str, partitions: list[int], path: str, clock: Callable[[], float]
) -> Iterator[Finding]:
    vendor = import_vendor("confluent_kafka", extra="kafka")
    spec = import_vendor("confluent_kafka.admin", extra="kafka").OffsetSpec.max_timestamp()
    requests = {vendor.TopicPartition(topic, number): spec for number in partitions}
    results = admin.list_offsets(requests, request_timeout=_SECONDS).values()
    newest = max(each.result().timestamp for each in results) / _MS  # -1 for an empty partition
    ahead = newest - clock()
    if ahead > _AHEAD_SECONDS:
        message = f"the newest message is dated {duration(ahead)} in the future"
        fix = "Correct the producer's clock, or set message.timestamp.type=LogAppendTime."
        yield finding("warning", "kafka-timestamp", path, message, fix)


# Dead letters --------------------------------------------------------------------------------------------------


def _dead_letter_topics(topic: str, known: Mapping[str, object], named: tuple[str, ...]) -> list[str]:
    """Return the dead-letter topics of a topic that exist: those with a conventional name, and those named."""
    found = [name for name in known if is_dead_letter_topic(name, topic)]
    return sorted({*found, *named})


def _dead_letters(admin: Any, name: str, expected: Expectation) -> Iterator[Finding]:
    config = _config(admin, name)
    if (lifetime := expected.dead_letter_lifetime) is not None and outlives(config.retention, lifetime):
        message = f"this dead-letter topic keeps messages for {config.retention_text}, "
        message += f"and their payloads live {duration(lifetime)}"
        fix = "Reduce its retention.ms, or raise dead_letter_ttl_seconds to it."
        yield finding("warning", "kafka-dead-letters", f"topic {name}", message, fix)
