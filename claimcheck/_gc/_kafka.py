"""Reads the topics of a Kafka cluster for a garbage collection. No group is joined, and no offset is committed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from claimcheck._doctor._topics import KafkaTarget
from claimcheck._gc._topics import IncompleteReadError, TopicMessage, topics_to_read
from claimcheck.transports.kafka._client import vendor
from claimcheck.transports.kafka._cluster import Cluster
from claimcheck.transports.kafka._groups import NO_GROUP, consumed_offsets, log_offsets

_SECONDS = 30.0
_MESSAGES = 500
_OWN = {
    "group.id": "claimcheck-gc",  # the client requires one; it is never joined
    "enable.auto.commit": False,
    "enable.partition.eof": True,  # sent where only the markers of transactions are left
    "isolation.level": "read_uncommitted",  # messages of open transactions may be committed later
    "queued.max.messages.kbytes": 16_384,
    "receive.message.max.bytes": 1_000_000_000,  # a larger record is fetched again and again
}
_PASSING = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", NO_GROUP}
_quiet = logging.getLogger(__name__)

_Partition = tuple[str, int]


class KafkaTopics:
    """Topics of a cluster, and the topics that may have copies of their messages."""

    def __init__(self, target: KafkaTarget, *, consumed: bool = False) -> None:
        self.topics = target.topics
        self._settings: dict[str, Any] = {**target.options, "bootstrap.servers": target.servers}
        self._next: dict[_Partition, int] = {}
        self._cluster = Cluster(self._settings, path="the file of --kafka-config")
        self._floors = consumed_offsets(self._cluster.admin, self._partitions()) if consumed else {}

    def cluster(self) -> str:
        """Return the id of the cluster."""
        return self._cluster.name(timeout=_SECONDS)

    def known(self) -> list[str]:
        """Return all topics of the cluster that may be described."""
        return sorted(self._metadata())

    def names(self, topic: str) -> list[str]:
        """Return the name of a topic."""
        return [topic]

    def read(self) -> Iterator[TopicMessage]:
        """Yield what was appended since the last call began; see `Topics.read`."""
        partitions, again = self._partitions(), bool(self._next)
        lows, ends = self._offsets(partitions, "earliest"), self._offsets(partitions, "latest")
        starts = {}
        for each in partitions:
            first = 0 if again else max(lows[each], self._floors.get(each, 0))
            starts[each] = self._next.get(each, first)
            if again and not lows[each] <= starts[each] <= ends[each]:
                raise _lost(each)
        if not self._next.keys() <= set(partitions):
            raise _lost(min(self._next.keys() - set(partitions)))
        yield from self._records(starts, ends, "error" if again else "earliest")
        self._next = ends

    # Metadata --------------------------------------------------------------------------------------------------

    def _metadata(self) -> Mapping[str, Any]:
        topics: Mapping[str, Any] = self._cluster.metadata(timeout=_SECONDS).topics
        return topics

    def _partitions(self) -> list[_Partition]:
        found, known = [], self._metadata()
        for topic in topics_to_read(self.topics, known):
            metadata = known[topic]
            if metadata.error is not None:
                raise IncompleteReadError(f"topic {topic} cannot be read: {metadata.error.str()}", destination=topic)
            found += [(topic, number) for number in metadata.partitions]
        return sorted(found)

    def _offsets(self, partitions: Sequence[_Partition], which: str) -> dict[_Partition, int]:
        try:
            return log_offsets(self._cluster.admin, partitions, which)
        except vendor().KafkaException as error:
            text = f"the offsets of the topics cannot be listed: {error.args[0].str()}"
            raise IncompleteReadError(text) from error

    # Records ---------------------------------------------------------------------------------------------------

    def _records(
        self, starts: Mapping[_Partition, int], ends: Mapping[_Partition, int], reset: str
    ) -> Iterator[TopicMessage]:
        """Yield the records from ``starts`` up to ``ends``."""
        left = {each for each in ends if starts[each] < ends[each]}
        if not left:
            return
        settings = {**self._settings, **_OWN, "auto.offset.reset": reset}
        with closing(vendor().Consumer(settings, logger=_quiet)) as consumer:
            consumer.assign([vendor().TopicPartition(*each, starts[each]) for each in sorted(left)])
            deadline = time.monotonic() + _SECONDS
            while left:
                messages = consumer.consume(_MESSAGES, timeout=1.0)
                for message in messages:
                    yield from self._record(message, ends, left, consumer)
                if any(message.error() is None for message in messages):
                    deadline = time.monotonic() + _SECONDS
                elif time.monotonic() > deadline:
                    topic, number = min(left)
                    text = f"partition {number} of topic {topic} cannot be read: no record within {_SECONDS:g} seconds"
                    raise IncompleteReadError(text, destination=topic)

    def _record(
        self, message: Any, ends: Mapping[_Partition, int], left: set[_Partition], consumer: Any
    ) -> Iterator[TopicMessage]:
        error, where = message.error(), (message.topic(), message.partition())
        if error is not None and error.code() != vendor().KafkaError._PARTITION_EOF:
            if error.name() in _PASSING:
                return
            what = "the topics" if where[0] is None else f"partition {where[1]} of topic {where[0]}"
            text = f"{what} cannot be read: {error.str()}"
            raise IncompleteReadError(text, destination=where[0])
        offset = message.offset() if error is not None else message.offset() + 1
        if error is None and where in left and message.offset() < ends[where]:
            kind, sent_ms = message.timestamp()
            known = sent_ms if kind != vendor().TIMESTAMP_NOT_AVAILABLE else None
            yield TopicMessage(where[0], f"partition {where[1]}, offset {message.offset()}", message.value(), known)
        if where in left and offset >= ends[where]:
            left.remove(where)
            consumer.incremental_unassign([vendor().TopicPartition(*where)])


def _lost(partition: _Partition) -> IncompleteReadError:
    topic, number = partition
    text = f"partition {number} of topic {topic} lost messages that were appended while it was read: run it again"
    return IncompleteReadError(text, destination=topic)
