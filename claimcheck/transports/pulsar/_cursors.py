"""The cursors of a topic's subscriptions, as the web service of the broker reports them."""

from __future__ import annotations

import time
import urllib.parse
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from claimcheck.transports.pulsar._admin import AdminClient, AdminError, topic_path
from claimcheck.transports.pulsar._message import partitioned_topic

__all__ = ["NOTHING", "Cursors", "consumed_position", "entry_of", "partitions_of"]

# A broker that crashes forgets recent acknowledgements: managedLedgerCursorPositionFlushSeconds, 60 by default.
_PERSISTED_SECONDS = 65.0
_NO_READERS = {"pulsar.dedup"}  # cursors that read no payloads

_Entry = tuple[int, int]

NOTHING: _Entry = -1, -1
"""Before the first entry of any topic."""


def partitions_of(admin: AdminClient, topic: str) -> list[str]:
    """Return the names of a topic's partitions; the topic itself if it has none.

    Raises:
        AdminError: The web service did not answer.
    """
    count = (admin.get(f"{topic_path(topic)}/partitions") or {}).get("partitions") or 0
    return [f"{topic}-partition-{number}" for number in range(count)] or [topic]


def consumed_position(admin: AdminClient, name: str) -> _Entry:
    """Return the position up to which every durable subscription has acknowledged everything.

    Args:
        admin: The web service.
        name: The full name of a partition, or of a topic without partitions.

    Raises:
        AdminError: The web service did not answer, or does not know the subscriptions.
    """
    path = topic_path(name)
    known = (admin.get(f"{path}/stats") or {}).get("subscriptions", {})
    stats = admin.get(f"{path}/internalStats")
    if stats is None:
        raise AdminError(f"the subscriptions of {name} cannot be read: it has no statistics")
    marks = [
        entry_of(cursor["markDeletePosition"])
        for subscription, cursor in stats.get("cursors", {}).items()
        if known.get(urllib.parse.unquote(subscription), {}).get("durable", True)
    ]
    return min(marks, default=NOTHING)


def entry_of(text: str) -> _Entry:
    """Return ledger and entry of a position as the web service writes it."""
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)


class Cursors:
    """What one subscription has acknowledged, and which others there are; for `PayloadDeletion`.

    A source is the full name of a topic, with its partition; a position is the beginning of a `Position`. An
    acknowledgement counts as confirmed once the broker has reported it for so long that it is on disk.

    Args:
        admin: The web service.
        subscription: The subscription's name.
        clock: Seconds, monotonic.
    """

    def __init__(self, admin: AdminClient, subscription: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._subscription = subscription
        self._clock = clock
        self._marks: dict[Hashable, deque[tuple[float, _Entry]]] = defaultdict(deque)

    def topic(self, source: Any) -> str:
        return str(source)

    def destination(self, source: Any) -> str:
        return partitioned_topic(source)

    def partitions(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions, or the topic if it has none; empty if it is not one topic.

        Raises:
            AdminError: The web service did not answer.
        """
        names = partitions_of(self._admin, topic)
        return names if names != [topic] or self._cursors(topic) is not None else []

    def groups(self, topic: str) -> set[str]:
        """Return all subscriptions, replicators and connected readers of a topic or partition.

        Raises:
            AdminError: The web service did not answer.
        """
        return {self._subscription, *self._existing(topic)} - _NO_READERS

    def confirmed(self, sources: Collection[Hashable]) -> Mapping[Hashable, _Entry]:
        """Return the first entry of each topic that may not be acknowledged on disk. Raises as `groups`."""
        found: dict[Hashable, _Entry] = {}
        for source in sources:
            ledger, entry = entry_of(self._existing(str(source))[self._subscription]["markDeletePosition"])
            if (mark := self._persisted(source, (ledger, entry + 1))) is not None:
                found[source] = mark
        return found

    def _persisted(self, source: Hashable, mark: _Entry) -> _Entry | None:
        """Note a position, and return the last one that was reported long enough ago."""
        marks, now = self._marks[source], self._clock()
        if marks and mark < marks[-1][1]:  # the broker crashed, or the subscription was moved back
            marks.clear()
        marks.append((now, mark))
        while len(marks) > 1 and marks[1][0] <= now - _PERSISTED_SECONDS:
            marks.popleft()
        since, persisted = marks[0]
        return persisted if since <= now - _PERSISTED_SECONDS else None

    def _existing(self, topic: str) -> dict[str, Any]:
        cursors = self._cursors(topic)
        if cursors is None or self._subscription not in cursors:
            raise AdminError(f"there is no subscription {self._subscription} of {topic}")
        return cursors

    def _cursors(self, topic: str) -> dict[str, Any] | None:
        stats = self._admin.get(f"{topic_path(topic)}/internalStats")
        return None if stats is None else stats["cursors"]
