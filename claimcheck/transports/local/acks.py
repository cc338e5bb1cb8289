"""What a consumer group has done with a partition's messages: acknowledged, given back, or sought away from.

Each function works inside a transaction that the caller has begun. A *place* is group, topic and partition. Offsets
below the floor of a place are acknowledged, offsets in the table ``acks`` too; the rest is still to be delivered, or is
with the member that holds the partition.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from claimcheck.transports.local.topics import MESSAGE_COLUMNS

__all__ = ["Place", "acknowledge", "give_back", "is_epoch", "rows_after", "rows_due", "seek", "take_due"]

Place = tuple[str, str, int]
"""Group, topic, partition."""

_AT = "grp = ? AND topic = ? AND partition = ?"
_REDELIVERY = "ON r.grp = ? AND r.topic = m.topic AND r.partition = m.partition AND r.offset = m.offset"


def is_epoch(connection: sqlite3.Connection, place: Place, member: str, epoch: int) -> bool:
    """Say whether the member still holds the place under the lease that began with this epoch."""
    row = connection.execute(f"SELECT member, epoch FROM leases WHERE {_AT}", place).fetchone()
    return bool(row == (member, epoch))


def acknowledge(connection: sqlite3.Connection, place: Place, offsets: Iterable[int]) -> None:
    """Never deliver these offsets to the group again; doing it twice is harmless."""
    floor = _floor(connection, place)
    rows = [(*place, offset) for offset in offsets if offset >= floor]
    connection.executemany("INSERT OR IGNORE INTO acks (grp, topic, partition, offset) VALUES (?, ?, ?, ?)", rows)
    connection.executemany(f"DELETE FROM redeliveries WHERE {_AT} AND offset = ?", rows)
    _raise_floor(connection, place, floor)


def give_back(connection: sqlite3.Connection, place: Place, offsets: Iterable[int], due_at: float) -> None:
    """Deliver these offsets again at ``due_at``, counted; those that are acknowledged already are left alone."""
    floor = _floor(connection, place)
    acked = f"SELECT 1 FROM acks WHERE {_AT} AND offset = ?"
    open_offsets = (o for o in offsets if o >= floor and not connection.execute(acked, (*place, o)).fetchone())
    for offset in open_offsets:
        connection.execute(
            "INSERT INTO redeliveries (grp, topic, partition, offset, count, due_at) VALUES (?, ?, ?, ?, 1, ?)"
            " ON CONFLICT (grp, topic, partition, offset) DO UPDATE SET count = count + 1, due_at = excluded.due_at",
            (*place, offset, due_at),
        )


def seek(connection: sqlite3.Connection, place: Place, offset: int) -> None:
    """Begin again at ``offset``: everything before counts as acknowledged, nothing from there on does."""
    connection.execute(
        "INSERT INTO leases (grp, topic, partition, epoch, floor) VALUES (?, ?, ?, 1, ?)"
        " ON CONFLICT (grp, topic, partition) DO UPDATE SET epoch = epoch + 1, floor = excluded.floor",
        (*place, offset),
    )
    connection.execute(f"DELETE FROM acks WHERE {_AT}", place)
    connection.execute(f"DELETE FROM redeliveries WHERE {_AT}", place)


def rows_after(connection: sqlite3.Connection, place: Place, offset: int, limit: int) -> list[tuple[Any, ...]]:
    """Give unacknowledged messages from ``offset`` on: `MESSAGE_COLUMNS`, then how often each was given back."""
    query = f"""SELECT {MESSAGE_COLUMNS}, coalesce(r.count, 0) FROM messages m LEFT JOIN redeliveries r {_REDELIVERY}
        WHERE m.topic = ? AND m.partition = ? AND m.offset >= ? AND NOT EXISTS (SELECT 1 FROM acks a
            WHERE a.grp = ? AND a.topic = m.topic AND a.partition = m.partition AND a.offset = m.offset)
        ORDER BY m.offset LIMIT ?"""
    group, topic, partition = place
    return connection.execute(query, (group, topic, partition, offset, group, limit)).fetchall()


def rows_due(connection: sqlite3.Connection, place: Place, now: float, limit: int) -> list[tuple[Any, ...]]:
    """Give messages that were given back and whose time has come, as `rows_after` does."""
    query = f"""SELECT {MESSAGE_COLUMNS}, r.count FROM redeliveries r JOIN messages m {_REDELIVERY}
        WHERE r.grp = ? AND r.topic = ? AND r.partition = ? AND r.due_at <= ? ORDER BY r.offset LIMIT ?"""
    return connection.execute(query, (place[0], *place, now, limit)).fetchall()


def take_due(connection: sqlite3.Connection, place: Place, offsets: Iterable[int]) -> None:
    """Note that messages that were given back are with the member again."""
    rows = ((*place, offset) for offset in offsets)
    connection.executemany(f"UPDATE redeliveries SET due_at = NULL WHERE {_AT} AND offset = ?", rows)


def _floor(connection: sqlite3.Connection, place: Place) -> int:
    floor: int = connection.execute(f"SELECT floor FROM leases WHERE {_AT}", place).fetchone()[0]
    return floor


def _raise_floor(connection: sqlite3.Connection, place: Place, floor: int) -> None:
    raised = floor
    for (offset,) in connection.execute(f"SELECT offset FROM acks WHERE {_AT} ORDER BY offset", place):
        if offset != raised:
            break
        raised += 1
    if raised > floor:
        connection.execute(f"UPDATE leases SET floor = ? WHERE {_AT}", (raised, *place))
        connection.execute(f"DELETE FROM acks WHERE {_AT} AND offset < ?", (*place, raised))
