"""Reads the topics of the embedded broker for a garbage collection."""

from __future__ import annotations

from collections.abc import Iterator

from claimcheck._gc._topics import TopicMessage, topics_to_read
from claimcheck.transports.local._broker import LocalBroker
from claimcheck.transports.local._database import local_cluster

_MESSAGES = 500


class LocalTopics:
    """Topics of an embedded broker, and the topics that may have copies of their messages."""

    def __init__(self, broker: LocalBroker, topics: tuple[str, ...], *, consumed: bool = False) -> None:
        self.topics = topics
        self._broker = broker
        self._next: dict[tuple[str, int], int] = {}
        if consumed:
            self._next = {place: broker.consumed_offset(*place) for place in self._partitions()}

    def cluster(self) -> str:
        """Return the name of the broker."""
        return local_cluster(self._broker.database)

    def known(self) -> list[str]:
        """Return all topics."""
        return self._broker.topics()

    def names(self, topic: str) -> list[str]:
        """Return the name of a topic."""
        return [topic]

    def read(self) -> Iterator[TopicMessage]:
        """Yield what was appended since the last call began; see `Topics.read`."""
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
