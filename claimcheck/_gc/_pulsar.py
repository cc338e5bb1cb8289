"""Reads the topics of a Pulsar cluster for a garbage collection. Nothing is acknowledged.

The web service has the topics that exist, and where they end. Messages come from readers, which receive unacknowledged,
retained and delayed messages alike. Pulsar deletes whole ledgers, the oldest first: as long as a ledger exists, nothing
that was appended to it or after it is gone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from claimcheck._doctor._pulsar import admin_of, client_of
from claimcheck._doctor._topics import PulsarTarget
from claimcheck._gc._topics import IncompleteReadError, TopicMessage, topics_to_read
from claimcheck.errors import ConfigError
from claimcheck.transports.pulsar._admin import full_name, topic_path
from claimcheck.transports.pulsar._cursors import NOTHING, consumed_position, entry_of, partitions_of
from claimcheck.transports.pulsar._errors import vendor

_SECONDS = 30
_PAUSE_SECONDS = 0.5
_QUEUE = 100
_DEFAULT = "persistent://public/default/"
_PARTITION = re.compile(r"(.+)-partition-(\d+)")

_Position = tuple[int, int]  # ledger and entry


class PulsarTopics:
    """Topics of a cluster, and the topics that may have copies of their messages."""

    def __init__(self, target: PulsarTarget, *, consumed: bool = False) -> None:
        if target.url is None or target.admin_url is None:
            text = "both --pulsar and --admin-url are needed: only the web service knows which topics exist"
            raise ConfigError(text, path="--admin-url")
        self.topics = tuple(map(full_name, target.topics))
        for topic in self.topics:
            if not topic.startswith("persistent://"):
                raise ConfigError(f"{topic} is not persistent: its messages cannot be read again", path="--topic")
        self._target, self._url = target, target.url
        self._admin = admin_of(target, target.admin_url)
        self._ends: dict[str, _Position] = {}
        self._ledgers: dict[str, int] = {}  # the last one of each partition when it was read last
        self._known = self.known()
        self._floors = {name: consumed_position(self._admin, name) for name in self._partitions()} if consumed else {}

    def cluster(self) -> str:
        """Return the name of the cluster."""
        return self._admin.cluster()

    def known(self) -> list[str]:
        """Return all topics of the namespaces; one with partitions counts once."""
        found: set[str] = set()
        for namespace in sorted({"/".join(topic.split("/")[2:4]) for topic in self.topics}):
            partitioned = set(self._admin.get(f"persistent/{namespace}/partitioned") or ())
            single = self._admin.get(f"persistent/{namespace}") or ()
            found |= partitioned | {name for name in single if _topic_of(name) not in partitioned}
        return sorted(found)

    def names(self, topic: str) -> list[str]:
        """Return the full name of a topic, and its shorter forms."""
        names = [topic, topic.removeprefix("persistent://")]
        return [*names, topic.removeprefix(_DEFAULT)] if topic.startswith(_DEFAULT) else names

    def read(self) -> Iterator[TopicMessage]:
        """Yield what was appended since the last call began; see `Topics.read`."""
        starts, before = self._ends or self._floors, self._ledgers
        self._known = self.known()
        stats = {name: self._internal_stats(name) for name in self._partitions()}
        self._ends = {name: entry_of(each["lastConfirmedEntry"]) for name, each in stats.items()}
        self._ledgers = {name: _ledgers(each)[-1] for name, each in stats.items()}
        if not before.keys() <= stats.keys():
            raise _lost(min(before.keys() - stats.keys()))
        with closing(client_of(self._target, self._url)) as client:
            for name, end in self._ends.items():
                yield from self._messages(client, name, starts.get(name, NOTHING), end)
                oldest = before.get(name, _ledgers(stats[name])[0])
                if before and oldest not in _ledgers(self._internal_stats(name)):
                    raise _lost(name)

    # Metadata --------------------------------------------------------------------------------------------------

    def _partitions(self) -> list[str]:
        read = topics_to_read(self.topics, self._known)
        return [name for topic in read for name in partitions_of(self._admin, topic)]

    def _internal_stats(self, name: str) -> Mapping[str, Any]:
        stats: Mapping[str, Any] | None = self._admin.get(f"{topic_path(name)}/internalStats")
        if stats is None:
            raise IncompleteReadError(f"topic {name} cannot be read: it has no statistics", destination=name)
        return stats

    def _stats(self, name: str) -> Mapping[str, Any]:
        return self._admin.get(f"{topic_path(name)}/stats") or {}

    # Messages --------------------------------------------------------------------------------------------------

    def _messages(self, client: Any, name: str, start: _Position, end: _Position) -> Iterator[TopicMessage]:
        """Yield the messages of a partition after ``start`` up to ``end``."""
        at, (topic, where) = start, self._place(name)
        try:
            with closing(_reader(client, name, start)) as reader:
                deadline, is_last = time.monotonic() + _SECONDS, False
                while at < end:
                    while reader.has_message_available() and at <= end:
                        message = reader.read_next(_SECONDS * 1000)
                        at = message.message_id().ledger_id(), message.message_id().entry_id()
                        place, sent_ms = f"{where}ledger {at[0]}, entry {at[1]}", message.publish_timestamp()
                        yield TopicMessage(topic, place, message.data(), sent_ms)
                    if is_last:
                        return
                    is_last = self._is_quiet(name, deadline)
        except vendor().PulsarException as error:
            text = f"topic {name} cannot be read ({type(error).__name__})"
            raise IncompleteReadError(text, destination=name) from error

    def _place(self, name: str) -> tuple[str, str]:
        """Return the topic of a partition, and which one it is, for errors."""
        found = _PARTITION.fullmatch(name)
        return (found[1], f"partition {found[2]}, ") if found and found[1] in self._known else (name, "")

    def _is_quiet(self, name: str, deadline: float) -> bool:
        """Whether no transaction is open; until it ends, no reader receives what was appended after it began."""
        if not self._stats(name).get("ongoingTxnCount"):
            return True
        if time.monotonic() > deadline:
            text = f"topic {name} cannot be read to its end because of an open transaction: run it again"
            raise IncompleteReadError(text, destination=name)
        time.sleep(_PAUSE_SECONDS)
        return False


def _reader(client: Any, name: str, start: _Position) -> Any:
    found, earliest = _PARTITION.fullmatch(name), vendor().MessageId.earliest
    number = int(found[2]) if found else -1
    first = earliest if start[1] < 0 else vendor().MessageId(number, *start, -1)
    return client.create_reader(name, first, receiver_queue_size=_QUEUE)


def _topic_of(name: str) -> str:
    """Return the topic of a partition; any other name unchanged."""
    found = _PARTITION.fullmatch(name)
    return found[1] if found else name


def _ledgers(stats: Mapping[str, Any]) -> list[int]:
    return sorted(int(each["ledgerId"]) for each in stats["ledgers"]) or [-1]


def _lost(name: str) -> IncompleteReadError:
    text = f"topic {name} lost messages, or a ledger, while it was read: run it again"
    return IncompleteReadError(text, destination=name)
