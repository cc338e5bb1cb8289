"""The topics that a garbage collection reads: all their messages, and then what was appended meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import claimcheck.transports.kafka._queries as kafka
import claimcheck.transports.pulsar._queries as pulsar
from claimcheck.errors import ConfigError
from claimcheck.transports._common.topics import IncompleteReadError, TopicMessage, topics_to_read
from claimcheck.transports.local._broker import LocalBroker, local_cluster
from claimcheck.transports.pulsar._queries import full_name

_MESSAGES = 500
_DEFAULT = "persistent://public/default/"


class Topics(ABC):
    """The topics of one broker. Reading them changes nothing: no group is joined, nothing is acknowledged."""

    topics: tuple[str, ...]
    """The topics whose payloads are collected, as the broker calls them."""

    @abstractmethod
    def cluster(self) -> str:
        """Return the name of the broker's cluster, which no other one has."""

    @abstractmethod
    def known(self) -> list[str]:
        """Return all topics of the broker that can be listed."""

    def names(self, topic: str) -> list[str]:
        return [topic]

    @abstractmethod
    def read(self) -> Iterator[TopicMessage]:
        """Yield what was appended since the last call began, up to when this one begins; at first, everything."""


class KafkaTopics(Topics):
    """Topics of a Kafka cluster, and the topics that may have copies of their messages."""

    def __init__(self, target: kafka.KafkaTarget, *, consumed: bool = False) -> None:
        self.topics = target.topics
        self._cluster = target.cluster()
        self._next: dict[kafka.Place, int] = {}
        self._floors = kafka.consumed_offsets(self._cluster.admin, self._partitions()) if consumed else {}

    def cluster(self) -> str:
        return self._cluster.name()

    def known(self) -> list[str]:
        return sorted(self._cluster.topics())

    def read(self) -> Iterator[TopicMessage]:
        partitions, before = self._partitions(), self._next
        lows, ends = (kafka.log_offsets(self._cluster.admin, partitions, which) for which in ("earliest", "latest"))
        floors = {} if before else {each: max(lows[each], self._floors.get(each, 0)) for each in partitions}
        starts = {each: before.get(each, floors.get(each, 0)) for each in partitions}
        lost = {each for each in partitions if before and not lows[each] <= starts[each] <= ends[each]}
        lost |= before.keys() - set(partitions)
        if lost:
            topic, number = min(lost)
            raise _lost(f"partition {number} of topic {topic}", "messages that were appended", topic)
        for record in self._cluster.read(starts, ends, reset="error" if before else "earliest"):
            place = f"partition {record.partition()}, offset {record.offset()}"
            yield TopicMessage(record.topic(), place, record.value(), kafka.sent_ms(record))
        self._next = ends

    def _partitions(self) -> list[kafka.Place]:
        known = self._cluster.topics()
        return self._cluster.partitions(topics_to_read(self.topics, known), known)


class PulsarTopics(Topics):
    """Topics of a Pulsar cluster, and the topics that may have copies of their messages.

    Pulsar deletes whole ledgers, the oldest first: as long as a ledger exists, nothing that was appended to it or after
    it is gone.
    """

    def __init__(self, target: pulsar.PulsarTarget, *, consumed: bool = False) -> None:
        if target.url is None or target.admin_url is None:
            text = "both --pulsar and --admin-url are needed: only the web service knows which topics exist"
            raise ConfigError(text, path="--admin-url")
        self.topics = tuple(map(full_name, target.topics))
        for topic in self.topics:
            if not topic.startswith("persistent://"):
                raise ConfigError(f"{topic} is not persistent: its messages cannot be read again", path="--topic")
        self._target, self._admin = target, target.admin()
        self._ends: dict[str, pulsar.Entry] = {}
        self._ledgers: dict[str, int] = {}  # the last one of each partition when it was read last
        self._known = self.known()
        names = self._partitions() if consumed else ()
        self._floors = {name: pulsar.consumed_position(self._admin, name) for name in names}

    def cluster(self) -> str:
        return self._admin.cluster()

    def known(self) -> list[str]:
        return pulsar.topics_of(self._admin, ("/".join(topic.split("/")[2:4]) for topic in self.topics))

    def names(self, topic: str) -> list[str]:
        names = [topic, topic.removeprefix("persistent://")]
        return [*names, topic.removeprefix(_DEFAULT)] if topic.startswith(_DEFAULT) else names

    def read(self) -> Iterator[TopicMessage]:
        starts, before = self._ends or self._floors, self._ledgers
        self._known = self.known()
        stats = {name: pulsar.internal_stats(self._admin, name) for name in self._partitions()}
        self._ends = {name: pulsar.entry_of(each["lastConfirmedEntry"]) for name, each in stats.items()}
        self._ledgers = {name: _ledgers(each)[-1] for name, each in stats.items()}
        if missing := before.keys() - stats.keys():
            raise _lost(f"topic {min(missing)}", "messages, or a ledger,", min(missing))
        with closing(self._target.client()) as client:
            for name, end in self._ends.items():
                topic, where = self._place(name)
                start = starts.get(name, pulsar.NOTHING)
                for message in pulsar.read(client, self._admin, name, start, end):
                    place = f"ledger {message.message_id().ledger_id()}, entry {message.message_id().entry_id()}"
                    yield TopicMessage(topic, f"{where}{place}", message.data(), message.publish_timestamp())
                oldest = before.get(name, _ledgers(stats[name])[0])
                if before and oldest not in _ledgers(pulsar.internal_stats(self._admin, name)):
                    raise _lost(f"topic {name}", "messages, or a ledger,", name)

    def _partitions(self) -> list[str]:
        read = topics_to_read(self.topics, self._known)
        return [name for topic in read for name in pulsar.partitions_of(self._admin, topic)]

    def _place(self, name: str) -> tuple[str, str]:
        """Return the topic of a partition, and which one it is, for errors."""
        topic, number = pulsar.split_partition(name)
        return (topic, f"partition {number}, ") if topic != name and topic in self._known else (name, "")


class LocalTopics(Topics):
    """Topics of an embedded broker, and the topics that may have copies of their messages."""

    def __init__(self, broker: LocalBroker, topics: tuple[str, ...], *, consumed: bool = False) -> None:
        self.topics = topics
        self._broker = broker
        self._next: dict[tuple[str, int], int] = {}
        if consumed:
            self._next = {place: broker.consumed_offset(*place) for place in self._partitions()}

    def cluster(self) -> str:
        return local_cluster(self._broker.database)

    def known(self) -> list[str]:
        return self._broker.topics()

    def read(self) -> Iterator[TopicMessage]:
        ends = {place: self._broker.end_offset(*place) for place in self._partitions()}
        for (topic, partition), end in ends.items():
            offset = self._next.get((topic, partition), 0)
            while offset < end:
                messages = self._broker.fetch(topic, partition, offset, min(_MESSAGES, end - offset))
                for message in messages:
                    place, sent_ms = f"partition {partition}, offset {message.offset}", int(message.timestamp * 1000)
                    yield TopicMessage(topic, place, message.value, sent_ms)
                offset = messages[-1].offset + 1
        self._next = ends

    def _partitions(self) -> list[tuple[str, int]]:
        found = topics_to_read(self.topics, self.known())
        return [(name, number) for name in found for number in range(self._broker.partitions(name))]


def _ledgers(stats: Mapping[str, Any]) -> list[int]:
    return sorted(int(each["ledgerId"]) for each in stats["ledgers"]) or [-1]


def _lost(where: str, what: str, topic: str) -> IncompleteReadError:
    return IncompleteReadError(f"{where} lost {what} while it was read: run it again", destination=topic)
