"""The cursors of a topic's subscriptions, as the web service of the broker reports them."""

from __future__ import annotations

import urllib.parse

from claimcheck.transports.pulsar._admin import AdminClient, AdminError, topic_path

_Entry = tuple[int, int]

NOTHING: _Entry = -1, -1
"""Before the first entry of any topic."""


def partitions_of(admin: AdminClient, topic: str) -> list[str]:
    """Return the names of a topic's partitions; the topic itself if it has none."""
    count = (admin.get(f"{topic_path(topic)}/partitions") or {}).get("partitions") or 0
    return [f"{topic}-partition-{number}" for number in range(count)] or [topic]


def consumed_position(admin: AdminClient, name: str) -> _Entry:
    """Return the position up to which every durable subscription has acknowledged everything."""
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
