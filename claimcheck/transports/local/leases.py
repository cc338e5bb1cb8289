"""Who holds which partition in a consumer group; each function works inside a transaction that the caller has begun.

There is no coordinator. Each member, now and then, makes itself known, strikes out those whose time is over, and gives
up or takes partitions until it has its fair share. As all of this happens in one transaction on one file, two members
never hold the same partition. Each taking of a partition, and each seek, gives it a new *epoch*, so that whatever was
delivered before can be told apart.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from claimcheck.transports.local.topics import count_partitions

__all__ = ["Lease", "fair_share", "held_leases", "leave", "renew"]


@dataclass(frozen=True, slots=True)
class Lease:
    """A partition that is held: since which epoch, and from which offset on something is left to acknowledge."""

    epoch: int
    floor: int


def renew(
    connection: sqlite3.Connection, group: str, member: str, topics: Iterable[str], now: float, lease_seconds: float
) -> None:
    """Make a member known until ``now + lease_seconds`` and bring what it holds to its fair share.

    Raises:
        UnknownTopicError: Nobody has created one of the topics.
    """
    for topic in topics:
        _enrol(connection, group, topic, member, now + lease_seconds)
    _strike_out_expired(connection, group, now)
    for topic in topics:
        _balance(connection, group, topic, member)


def leave(connection: sqlite3.Connection, group: str, member: str) -> None:
    """Give up everything that a member holds, at once."""
    connection.execute("DELETE FROM members WHERE grp = ? AND member = ?", (group, member))
    connection.execute("UPDATE leases SET member = NULL WHERE grp = ? AND member = ?", (group, member))


def held_leases(connection: sqlite3.Connection, group: str, member: str) -> dict[tuple[str, int], Lease]:
    """Give what a member holds, by topic and partition, in this order."""
    query = "SELECT topic, partition, epoch, floor FROM leases WHERE grp = ? AND member = ? ORDER BY topic, partition"
    rows = connection.execute(query, (group, member))
    return {(topic, partition): Lease(epoch, floor) for topic, partition, epoch, floor in rows}


def fair_share(partitions: int, members: int, rank: int, *, dealt_before: int) -> int:
    """Say how many partitions of a topic a member should hold, as if the group's partitions were dealt out like cards.

    Args:
        partitions: How many the topic has.
        members: How many members share the topic, from 1.
        rank: The member's place among them, from 0.
        dealt_before: Partitions of the group's earlier topics; without it the first member would get the odd one of
            every topic.
    """
    return sum(card % members == rank for card in range(dealt_before, dealt_before + partitions))


def _enrol(connection: sqlite3.Connection, group: str, topic: str, member: str, expires_at: float) -> None:
    connection.execute(
        "INSERT INTO members (grp, topic, member, expires_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (grp, topic, member) DO UPDATE SET expires_at = excluded.expires_at",
        (group, topic, member, expires_at),
    )
    rows = ((group, topic, partition) for partition in range(count_partitions(connection, topic)))
    connection.executemany("INSERT OR IGNORE INTO leases (grp, topic, partition) VALUES (?, ?, ?)", rows)


def _strike_out_expired(connection: sqlite3.Connection, group: str, now: float) -> None:
    connection.execute("DELETE FROM members WHERE grp = ? AND expires_at <= ?", (group, now))
    connection.execute(
        "UPDATE leases SET member = NULL WHERE grp = ? AND member NOT IN (SELECT member FROM members WHERE grp = ?)",
        (group, group),
    )


def _balance(connection: sqlite3.Connection, group: str, topic: str, member: str) -> None:
    held = _partitions_of(connection, group, topic, member)
    share = _share(connection, group, topic, member)
    for partition in held[share:]:
        _assign(connection, group, topic, partition, None)
    if len(held) < share:
        for partition in _partitions_of(connection, group, topic, None)[: share - len(held)]:
            _assign(connection, group, topic, partition, member)


def _partitions_of(connection: sqlite3.Connection, group: str, topic: str, member: str | None) -> list[int]:
    query = "SELECT partition FROM leases WHERE grp = ? AND topic = ? AND member IS ? ORDER BY partition"
    return [partition for (partition,) in connection.execute(query, (group, topic, member))]


def _share(connection: sqlite3.Connection, group: str, topic: str, member: str) -> int:
    query = "SELECT member FROM members WHERE grp = ? AND topic = ? ORDER BY id"
    members = [name for (name,) in connection.execute(query, (group, topic))]
    query = """SELECT coalesce(sum(partitions), 0) FROM topics
        WHERE topic < ? AND topic IN (SELECT topic FROM members WHERE grp = ?)"""
    (dealt_before,) = connection.execute(query, (topic, group)).fetchone()
    partitions = count_partitions(connection, topic)
    return fair_share(partitions, len(members), members.index(member), dealt_before=dealt_before)


def _assign(connection: sqlite3.Connection, group: str, topic: str, partition: int, member: str | None) -> None:
    where = (group, topic, partition)
    connection.execute(
        "UPDATE leases SET member = ?, epoch = epoch + 1 WHERE grp = ? AND topic = ? AND partition = ?",
        (member, *where),
    )
    # A new holder reads everything from the floor on, so nothing has to be brought back in addition.
    connection.execute("UPDATE redeliveries SET due_at = NULL WHERE grp = ? AND topic = ? AND partition = ?", where)
