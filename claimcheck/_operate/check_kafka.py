"""What can go wrong with the topics of a Kafka cluster: their retention, compaction, limits and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from claimcheck._operate.check import remote_hosts
from claimcheck._operate.check_topics import Expectation, behind, on_command_line, outlives
from claimcheck._operate.findings import Finding, examined, finding, hidden
from claimcheck._texts import duration
from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import PointerData, decode
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ClaimCheckError, ConfigError, PayloadNotFoundError, TransportError
from claimcheck.transports._common.topics import is_dead_letter_topic
from claimcheck.transports.kafka._queries import (
    MAX_MESSAGE_BYTES,
    Cluster,
    KafkaTarget,
    Place,
    TopicSettings,
    groups_of,
    log_offsets,
    topic_settings,
)

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_SECONDS = 10.0
_MS = 1000
_MESSAGES = 10_000
_READ_BYTES = 1 << 20  # of a larger payload only the first byte is read
_BROKER_BYTES = 1_048_588  # the broker's default of max.message.bytes
_FIXES = {
    "kafka-pointer-rejected": "Give readers and writers the same stores, prefixes and signing keys.",
    "kafka-payload-missing": "Check that this is the writers' store (address, database, bucket), and evicts nothing.",
}


def examine_kafka(cc: ClaimCheck, target: KafkaTarget, clock: Callable[[], float]) -> Iterator[Finding]:
    """Yield the findings about the topics of a cluster, and about the groups that read them."""
    fix = "Put it into the file of --kafka-config, as sasl.username and sasl.password."
    yield from on_command_line("kafka", "--kafka", target.servers, fix)
    yield from examined("kafka", "kafka", "the address", partial(_encryption, target))
    try:
        cluster = target.cluster(seconds=_SECONDS)
    except ConfigError as error:  # it connects later
        yield _invalid(target, error.__context__)
        return
    try:
        known = cluster.topics()
    except TransportError as error:
        message = f"Kafka at {target.servers} cannot be reached: {error}"
        fix = "Check the address and the client's settings: security.protocol, sasl.*, ssl.*."
        yield finding("error", "kafka-unreachable", "kafka", message, fix, error=error)
        return
    for name in target.topics:
        look = partial(_topic, cc, cluster, name, target.groups, known, clock)
        yield from examined("kafka", f"topic {name}", "the topic", look)


def _topic(
    cc: ClaimCheck,
    cluster: Cluster,
    name: str,
    groups: tuple[str, ...],
    known: Mapping[str, Any],
    clock: Callable[[], float],
) -> Iterator[Finding]:
    """Yield the findings about a topic, its groups and its dead-letter topics."""
    if name not in known or known[name].error is not None:
        fix = "Check its name, and grant DESCRIBE and DESCRIBE_CONFIGS."
        message = "the topic does not exist, or may not be described"
        yield finding("error", "kafka-topic-missing", f"topic {name}", message, fix)
        return
    expected = Expectation.of(cc, name)
    settings = partial(_settings, cluster, name, expected)
    yield from examined("kafka", expected.path, "the topic's configuration", settings)
    reader = _Groups(cc, cluster, name, cluster.partitions([name], known), expected, clock)
    yield from examined("kafka", expected.path, "the consumer groups", partial(reader.findings, groups))
    for each in sorted(other for other in known if is_dead_letter_topic(other, name)):
        look = partial(_dead_letters, cluster, each, expected)
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


# Configuration -------------------------------------------------------------------------------------------------


def _settings(cluster: Cluster, topic: str, expected: Expectation) -> Iterator[Finding]:
    yield from expected.unset()
    yield from examine_settings(topic_settings(cluster.admin, topic), expected)


def examine_settings(config: TopicSettings, expected: Expectation) -> Iterator[Finding]:
    """Yield the findings about the settings of one topic."""
    path, lifetime = expected.path, expected.lifetime
    if config.compacted and (expected.chunks or lifetime is not None):
        fix = "Use cleanup.policy=delete; for compacted topics use strategy external and a store without ttl_seconds."
        yield finding("error" if expected.chunks else "warning", "kafka-compacted", path, "the topic is compacted", fix)
    elif lifetime is not None and outlives(config.retention, lifetime):
        message = f"retention is {_retention_text(config)}, and payloads live {duration(lifetime)}"
        yield finding("warning", "kafka-retention", path, message, "Reduce retention.ms, or raise ttl_seconds.")
    elif lifetime is not None and outlives((config.retention or 0) + config.segment, lifetime):
        longest = duration((config.retention or 0) + config.segment)
        message = f"with little traffic, a message stays up to {longest} (retention.ms plus segment.ms), "
        message += f"and payloads live {duration(lifetime)}"
        fix = "Reduce segment.ms to an hour, for example, or raise ttl_seconds."
        yield finding("info", "kafka-segment-roll", path, message, fix)
    for severity, message in expected.too_large(config.max_message_bytes or _BROKER_BYTES, MAX_MESSAGE_BYTES):
        fix = "Raise max.message.bytes, or lower the option. With auto, pass max_message_bytes= to KafkaProducer."
        yield finding(severity, "kafka-limit", path, message, fix)


def _retention_text(config: TopicSettings) -> str:
    text = f"{duration(config.retention)}" if config.retention is not None else "unlimited"
    if config.retention_bytes is not None and config.retention is None:
        text += " (only retention.bytes limits it)"
    if config.local_retention is not None:
        text += f" (local.retention.ms, {duration(config.local_retention)}, applies to the brokers' disks only)"
    return text


def _dead_letters(cluster: Cluster, name: str, expected: Expectation) -> Iterator[Finding]:
    config = topic_settings(cluster.admin, name)
    if (lifetime := expected.dead_letter_lifetime) is not None and outlives(config.retention, lifetime):
        message = f"this dead-letter topic keeps messages for {_retention_text(config)}, "
        message += f"and their payloads live {duration(lifetime)}"
        fix = "Reduce its retention.ms, or raise dead_letter_ttl_seconds to it."
        yield finding("warning", "kafka-dead-letters", f"topic {name}", message, fix)


# Groups --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Groups:
    """Looks at the lag of the groups that have committed offsets of one topic."""

    cc: ClaimCheck
    cluster: Cluster
    topic: str
    partitions: Sequence[Place]
    expected: Expectation
    clock: Callable[[], float]

    def findings(self, groups: tuple[str, ...]) -> Iterator[Finding]:
        """Yield the findings about groups; an empty tuple stands for all."""
        committed = groups_of(self.cluster.admin, self.topic, groups)
        for name in groups:
            if name not in committed:
                message = f"group {name} has committed no offsets for this topic"
                yield finding("warning", "kafka-group-unknown", self.expected.path, message, "Check its name.")
        for name, offsets in committed.items():
            yield from examined("kafka", self.expected.path, f"group {name}", partial(self._group, name, offsets))

    def _group(self, group: str, offsets: Mapping[Place, int]) -> Iterator[Finding]:
        earliest, latest = (log_offsets(self.cluster.admin, self.partitions, at) for at in ("earliest", "latest"))
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
            yield from behind(
                "kafka-group-lag",
                f"the oldest unread pointer of group {group}",
                self.expected.path,
                self.expected.lifetime,
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
            envelope = decode(message.value() or b"", header=self.cc.config.header)
            if isinstance(envelope, PointerData):
                return pointers.decode(envelope.data)
        return None

    def _first_pointers(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> list[tuple[Any, Pointer]]:
        """Return the first message with a pointer of each partition, if it is among the next few."""
        left = {place: min(ends[place], start + _MESSAGES) for place, start in starts.items()}
        found = []
        for message in self.cluster.read(starts, left):
            pointer = self._pointer(message)
            if pointer is not None:
                found.append((message, pointer))
                del left[message.topic(), message.partition()]
        return found
