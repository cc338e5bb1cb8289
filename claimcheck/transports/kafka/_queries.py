"""What a Kafka cluster says: topics, settings, offsets, groups, and the records from one offset to another.

Nothing here joins a group, commits an offset or creates a topic.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from claimcheck.errors import ConfigError, TransportError, import_vendor
from claimcheck.transports._common.topics import IncompleteReadError
from claimcheck.transports.kafka._client import vendor

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Place = tuple[str, int]
"""A topic and the number of a partition."""

MAX_MESSAGE_BYTES = 1_000_000
"""The client's default ``message.max.bytes``; the broker's is 1,048,588."""

SECONDS = 30.0
_REQUEST_SECONDS = 10.0
_RECORDS = 500
_MS = 1000
_NO_GROUP = "GROUP_AUTHORIZATION_FAILED"  # a consumer that never joins its group can ignore it
_PASSING = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", _NO_GROUP}
_READER = {
    "group.id": "claimcheck",  # the client requires one; it is never joined
    "enable.auto.commit": False,
    "enable.partition.eof": True,  # sent where only the markers of transactions are left
    "isolation.level": "read_uncommitted",  # records of open transactions may be committed later
    "queued.max.messages.kbytes": 16_384,
    "receive.message.max.bytes": 1_000_000_000,  # a larger record is fetched again and again
}
_CHECK = "check that it runs, the address, and the security settings of the client (security.protocol, sasl.*, ssl.*)"
_SECRET = re.compile(r"password|secret|token|pem$|_key$|oauthbearer\.(config|assertion)")
_quiet = logging.getLogger(f"{__name__}.client")  # the client would write to standard error
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """Topics and groups of a Kafka cluster, and how to connect to it."""

    servers: str = field(repr=False)
    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def secrets(self) -> list[str]:
        """Words that no text may contain."""
        login = self.servers.rpartition("@")[0].rpartition("//")[2]
        values = [str(value) for name, value in self.options.items() if _SECRET.search(name)]
        return [login, *" ".join(values).split()]

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.options, "bootstrap.servers": self.servers}

    def cluster(self, *, seconds: float = SECONDS) -> Cluster:
        return Cluster(self.settings, path="the file of --kafka-config", seconds=seconds)


class Cluster:
    """A Kafka cluster, as an admin client and readers without a group see it. The client connects at first use."""

    def __init__(self, settings: Mapping[str, Any], *, path: str, seconds: float = SECONDS) -> None:
        self._settings, self._seconds = dict(settings), seconds
        self._problems: list[str] = []
        options = {**settings, "error_cb": partial(_keep, self._problems)}
        try:
            self.admin: AdminClient = _admin_module().AdminClient(options, logger=_quiet)
        except Exception:
            raise ConfigError(f"the Kafka client refuses its settings: check {path}", path=path) from None

    def topics(self) -> Mapping[str, Any]:
        """Return the metadata of all topics that may be described."""
        topics: Mapping[str, Any] = self._metadata().topics
        return topics

    def name(self) -> str:
        """Return the cluster's id, with ``kafka:`` before it."""
        found = self._metadata().cluster_id
        if not found:
            raise TransportError("the Kafka cluster has no id")
        return f"kafka:{found}"

    def partitions(self, topics: Iterable[str], known: Mapping[str, Any]) -> list[Place]:
        """Return the partitions of topics."""
        found = []
        for topic in topics:
            if known[topic].error is not None:
                text = f"topic {topic} cannot be read: {known[topic].error.str()}"
                raise IncompleteReadError(text, destination=topic)
            found += [(topic, number) for number in known[topic].partitions]
        return sorted(found)

    def _metadata(self) -> Any:
        try:
            return self.admin.list_topics(timeout=self._seconds)
        except vendor().KafkaException as error:
            raise TransportError(self.explain(error)) from error

    def explain(self, error: BaseException) -> str:
        """Return why no broker answered."""
        self.admin.poll(0)  # notes what happened meanwhile, such as a refused password
        name = self._problems[-1] if self._problems else error.args[0].name()
        return f"no Kafka broker answered ({name}): {_CHECK}"

    # Records ---------------------------------------------------------------------------------------------------

    def read(self, starts: Mapping[Place, int], ends: Mapping[Place, int], *, reset: str = "earliest") -> Iterator[Any]:
        """Yield the records from ``starts`` up to ``ends``; a partition that leaves ``ends`` is read no further."""
        left = {each for each in ends if starts[each] < ends[each]}
        if not left:
            return
        settings = {**self._settings, **_READER, "auto.offset.reset": reset}
        with closing(vendor().Consumer(settings, logger=_quiet)) as consumer:
            consumer.assign([vendor().TopicPartition(*each, starts[each]) for each in sorted(left)])
            deadline = time.monotonic() + self._seconds
            while left:
                records = consumer.consume(_RECORDS, timeout=0.5)
                for record in records:
                    where, offset = (record.topic(), record.partition()), record.offset()
                    if record.error() is None:
                        if where in left and offset < ends.get(where, 0):
                            yield record
                        offset += 1
                    elif not _is_end(record):
                        continue
                    if where in left and offset >= ends.get(where, 0):
                        left.remove(where)
                        consumer.incremental_unassign([vendor().TopicPartition(*where)])
                if any(record.error() is None for record in records):
                    deadline = time.monotonic() + self._seconds
                elif left and time.monotonic() > deadline:
                    topic, number = min(left)
                    why = f"no record within {self._seconds:g} seconds"
                    text = f"partition {number} of topic {topic} cannot be read: {why}"
                    raise IncompleteReadError(text, destination=topic)


def sent_ms(record: Any) -> int | None:
    kind, milliseconds = record.timestamp()
    return milliseconds if kind != vendor().TIMESTAMP_NOT_AVAILABLE else None


def _keep(problems: list[str], error: Any) -> None:
    if error.name() != "_ALL_BROKERS_DOWN":  # it follows the error that explains it
        problems[:] = [error.name()]


def _is_end(record: Any) -> bool:
    """Whether a message is the end of a partition, and no error that passes; raises any other error."""
    error, topic = record.error(), record.topic()
    if error.name() == "_PARTITION_EOF":
        return True
    if error.name() not in _PASSING:
        what = "the topics" if topic is None else f"partition {record.partition()} of topic {topic}"
        raise IncompleteReadError(f"{what} cannot be read: {error.str()}", destination=topic)
    return False


# Settings ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic that matter for payloads; times in seconds."""

    retention: float | None
    segment: float
    compacted: bool
    max_message_bytes: int | None

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> TopicSettings:
        """Parse the settings as the broker returns them."""
        retention = float(values.get("retention.ms") or -1)
        policy = values.get("cleanup.policy") or "delete"
        return cls(
            retention=retention / _MS if retention >= 0 and "delete" in policy else None,
            segment=float(values.get("segment.ms") or 0) / _MS,
            compacted="compact" in policy,
            max_message_bytes=int(values.get("max.message.bytes") or 0) or None,
        )


def topic_settings(admin: AdminClient, topic: str) -> TopicSettings:
    module = _admin_module()
    resource = module.ConfigResource(module.ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource], request_timeout=_REQUEST_SECONDS)[resource].result()
    return TopicSettings.of({name: entry.value for name, entry in entries.items()})


# Offsets and groups --------------------------------------------------------------------------------------------


def log_offsets(admin: Any, places: Iterable[Place], which: str) -> dict[Place, int]:
    """Return the ``earliest`` or ``latest`` offset of partitions."""
    spec = getattr(_admin_module().OffsetSpec, which)()
    requests = {vendor().TopicPartition(*each): spec for each in places}
    try:
        futures = admin.list_offsets(requests, request_timeout=_REQUEST_SECONDS).items() if requests else ()
        return {(place.topic, place.partition): future.result().offset for place, future in futures}
    except vendor().KafkaException as error:
        text = f"the offsets of the topics cannot be listed: {error.args[0].str()}"
        raise IncompleteReadError(text) from error


def groups_of(admin: Any, topic: str, names: Collection[str] = ()) -> dict[str, dict[Place, int]]:
    """Return the groups that have committed offsets of a topic, with these offsets."""
    by_group: dict[str, dict[Place, int]] = defaultdict(dict)
    for name, offsets in _committed(admin, names or _group_names(admin)).items():
        for place, offset in offsets.items():
            if place[0] == topic:
                by_group[name][place] = offset
    return dict(by_group)


def consumed_offsets(admin: Any, places: Collection[Place]) -> dict[Place, int]:
    """Return the offset of each partition below which every group has read everything."""
    try:
        _check_all_visible(admin)
        names = _group_names(admin)
        committed, assigned = _committed(admin, names), _assigned_topics(admin, names)
        ends = log_offsets(admin, places, "latest")
    except vendor().KafkaException as error:
        text = f"the committed offsets of all groups cannot be read: {error.args[0].str()}"
        raise TransportError(text) from error
    reads = {name: assigned[name] | {topic for topic, _ in committed[name]} for name in names}
    found = {
        place: min((committed[name].get(place, 0) for name in names if place[0] in reads[name]), default=0)
        for place in places
    }
    return {place: offset if offset <= ends[place] else 0 for place, offset in found.items()}


def _committed(admin: Any, groups: Iterable[str]) -> dict[str, dict[Place, int]]:
    requests = {name: vendor().ConsumerGroupTopicPartitions(name) for name in groups}
    ask = partial(admin.list_consumer_group_offsets, request_timeout=_REQUEST_SECONDS)
    futures = {name: ask([each])[name] for name, each in requests.items()}
    return {name: _offsets(future.result().topic_partitions) for name, future in futures.items()}


def _offsets(places: Iterable[Any]) -> dict[Place, int]:
    offsets: dict[Place, int] = {}
    for each in places:
        if each.error is not None:
            raise vendor().KafkaException(each.error)
        if each.offset >= 0:
            offsets[each.topic, each.partition] = each.offset
    return offsets


def _group_names(admin: Any) -> list[str]:
    listed = admin.list_consumer_groups(request_timeout=_REQUEST_SECONDS).result()
    if listed.errors:
        raise listed.errors[0]
    return sorted(each.group_id for each in listed.valid)


def _assigned_topics(admin: Any, groups: Collection[str]) -> dict[str, set[str]]:
    """Return the topics of which members of each group have partitions."""
    described = admin.describe_consumer_groups(list(groups), request_timeout=_REQUEST_SECONDS) if groups else {}
    members = {name: future.result().members for name, future in described.items()}
    return {
        name: {place.topic for member in each for place in member.assignment.topic_partitions}
        for name, each in members.items()
    }


def _check_all_visible(admin: Any) -> None:
    """Raise an error unless the broker lists all groups: it leaves out those that the user may not describe."""
    describe = _admin_module().AclOperation.DESCRIBE
    cluster = admin.describe_cluster(include_authorized_operations=True, request_timeout=_REQUEST_SECONDS).result()
    if describe not in (cluster.authorized_operations or ()):
        text = "groups that this user may not describe are not listed: grant DESCRIBE on the cluster to see all groups"
        raise TransportError(text)


def _admin_module() -> Any:
    return import_vendor("confluent_kafka.admin", extra="kafka")
