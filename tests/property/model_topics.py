"""A model of topics: transactions, groups, retention, messages that move, and a reader for garbage collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from claimcheck._operate.gc import Topics
from claimcheck.transports._common.topics import IncompleteReadError, TopicMessage, topics_to_read

Place = tuple[str, int]
GROUPS = ("fast", "slow")


@dataclass(eq=False)
class Message:
    value: bytes
    state: Literal["open", "committed", "aborted"] = "committed"


@dataclass
class Log:
    """One partition; any message can be deleted, as compaction, retention and acknowledgements do together."""

    messages: dict[int, Message] = field(default_factory=dict)
    end: int = 0
    committed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))

    def append(self, message: Message) -> None:
        self.messages[self.end] = message
        self.end += 1

    def consume(self, group: str) -> None:
        waiting = [offset for offset, message in self.messages.items() if message.state == "open"]
        self.committed[group] = max(self.committed[group], min(waiting, default=self.end))

    @property
    def floor(self) -> int:
        """Below it, every group has read everything."""
        return min(self.committed.values(), default=0)


class Broker:
    """Topics with partitions."""

    def __init__(self, **topics: int) -> None:
        self.logs = {(topic, number): Log() for topic, count in topics.items() for number in range(count)}

    def readable(self, *, consumed: bool) -> Iterator[bytes]:
        """Yield what a group can still read, or if not ``consumed``, any reader."""
        for log in self.logs.values():
            for offset, message in log.messages.items():
                if message.state == "committed" and (not consumed or offset >= log.floor):
                    yield message.value

    def move(self, origin: str, to: str) -> None:
        """Append a copy of the oldest message that the groups have not read, then delete the original."""
        for (topic, _), log in self.logs.items():
            left = [each for each in log.messages if each >= log.floor and log.messages[each].state == "committed"]
            if topic == origin and left:
                self.logs[to, 0].append(Message(log.messages[left[0]].value))
                del log.messages[left[0]]
                return


class ModelTopics(Topics):
    """Reads a model broker for a garbage collection; something else happens before each partition and message."""

    checks_tail = True

    def __init__(self, broker: Broker, topics: tuple[str, ...], *, consumed: bool, pause: Callable[[], None]) -> None:
        self.topics = topics
        self._broker, self._pause = broker, pause
        self._floors = {place: log.floor if consumed else 0 for place, log in broker.logs.items()}
        self._next: dict[Place, int] = {}

    def cluster(self) -> str:
        return "model"

    def known(self) -> list[str]:
        return sorted({topic for topic, _ in self._broker.logs})

    def names(self, topic: str) -> list[str]:
        return [topic]

    def read(self) -> Iterator[TopicMessage]:
        read = topics_to_read(self.topics, self.known())
        logs = {place: log for place, log in self._broker.logs.items() if place[0] in read}
        starts, ends = self._next, {place: log.end for place, log in logs.items()}
        for place, log in logs.items():
            self._pause()
            for offset in range(starts.get(place, self._floors[place]), ends[place]):
                self._pause()
                message = log.messages.get(offset)
                if message is not None:
                    yield TopicMessage(place[0], f"offset {offset}", message.value)
                elif starts and self.checks_tail:
                    raise IncompleteReadError(f"{place}: offset {offset} was deleted before it was read")
        self._next = ends
