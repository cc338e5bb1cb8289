"""Consumer groups of the embedded broker: members that lease whole partitions and acknowledge single messages.

A partition belongs to one member at a time, so the chunks of a payload stay together. Delivery is at least once:
messages that are not acknowledged when a partition moves to another member are delivered again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from claimcheck._validation import check_int, check_seconds, fail
from claimcheck.transports.local._broker import (
    MESSAGE_COLUMNS,
    LocalBroker,
    LocalMessage,
    check_name,
    count_partitions,
    end_offset,
    to_message,
)
from claimcheck.transports.local._errors import BrokerClosedError, OffsetOutOfRangeError, StaleDeliveryError

POLL_SECONDS = 0.05
"""The pause of a blocking poll between two reads of the file."""

_RENEW_SECONDS = 1.0  # or a tenth of the lease, where that is less

_Partition = tuple[str, int]  # topic and number
_Place = tuple[str, str, int]  # group, topic, number


class Delivery(NamedTuple):
    """A message, the epoch of the lease under which it was delivered, and how often it was negatively acknowledged."""

    message: LocalMessage
    epoch: int
    redelivery_count: int


class Polled(NamedTuple):
    """Messages, those of one partition in order except redeliveries, and the partitions that were lost."""

    deliveries: tuple[Delivery, ...]
    lost: tuple[_Partition, ...]


class _Lease(NamedTuple):
    epoch: int
    floor: int  # the lowest offset that is not acknowledged


class GroupMember:
    """One member of a consumer group; it joins when it is created. For one thread at a time."""

    def __init__(self, broker: LocalBroker, group: str, topics: Iterable[str], *, lease_seconds: float = 30.0) -> None:
        check_name("group", group)
        check_seconds("lease_seconds", lease_seconds)
        self.group = group
        self.topics = _checked_topics(topics)
        self.name = uuid.uuid4().hex
        self._broker = broker
        self._lease_seconds = lease_seconds
        self._leases: dict[_Partition, _Lease] = {}
        self._next: dict[_Partition, int] = {}
        self._turn = 0
        self._closed = False
        self._renew()

    def poll(self, *, limit: int = 1, timeout: float = 0.0) -> Polled:
        """Return messages that no member of the group has received, and those whose redelivery is due."""
        check_int("limit", limit, minimum=1)
        slept = 0.0
        polled = self._poll_once(limit)
        while not (polled.deliveries or polled.lost) and slept < timeout:
            pause = min(POLL_SECONDS, timeout - slept)
            self._broker.sleep(pause)
            slept += pause
            polled = self._poll_once(limit)
        return polled

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge all of the deliveries together; acknowledging again is harmless."""
        with self._write() as db:
            for place, epoch, offsets in self._by_lease(deliveries):
                if not self._holds(db, place, epoch):
                    raise _stale(place, min(offsets))
                acknowledge(db, place, offsets)

    def nack(self, deliveries: Iterable[Delivery], *, delay_seconds: float = 0.0) -> None:
        """Redeliver deliveries after a delay, or earlier if the partition moves to another member, and count that."""
        check_seconds("delay_seconds", delay_seconds, allow_zero=True)
        with self._write() as db:
            for place, epoch, offsets in self._by_lease(deliveries):
                if self._holds(db, place, epoch):
                    _redeliver(db, place, offsets, self._broker.clock() + delay_seconds)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Move the position of the whole group, whichever member holds the partition."""
        if topic not in self.topics:
            fail("topic", found=repr(topic), expected=f"one that this member joined for: {', '.join(self.topics)}")
        with self._write() as db:
            end = end_offset(db, topic, partition)
            if not 0 <= offset <= end:
                text = f"partition {partition} of {topic} has no offset {offset}, only 0 to {end}, its end"
                raise OffsetOutOfRangeError(text, destination=topic, partition=partition, offset=offset, end=end)
            place = (self.group, topic, partition)
            db.execute(f"UPDATE leases SET epoch = epoch + 1, floor = ? WHERE {_AT}", (offset, *place))
            db.execute(f"DELETE FROM acks WHERE {_AT}", place)
            db.execute(f"DELETE FROM redeliveries WHERE {_AT}", place)
        self._leases.pop((topic, partition), None)

    def assignment(self) -> list[tuple[str, int]]:
        """Return the partitions that this member held when it last polled, sorted."""
        return sorted(self._leases)

    def close(self) -> None:
        """Leave the group: others take the partitions within a second. If the broker is closed, the leases expire."""
        if not self._closed:
            with contextlib.suppress(BrokerClosedError), self._write() as db:
                db.execute("DELETE FROM members WHERE grp = ? AND member = ?", (self.group, self.name))
                db.execute("UPDATE leases SET member = NULL WHERE grp = ? AND member = ?", (self.group, self.name))
        self._closed = True
        self._leases = {}

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._leases)} partitions"
        return f"<GroupMember of {self.group} on {', '.join(self.topics)}: {state}>"

    # Reading ---------------------------------------------------------------------------------------------------

    def _poll_once(self, limit: int) -> Polled:
        self._check_open()
        if self._broker.clock() >= self._renew_at:
            self._renew()
        with self._broker.database.read() as db:
            lost = self._update_leases(db)
            if self._turn % 2:  # else a message that is rejected at once, again and again, would starve all others
                fresh = self._collect(db, limit, due=False)
                again = self._collect(db, limit - len(fresh), due=True)
            else:
                again = self._collect(db, limit, due=True)
                fresh = self._collect(db, limit - len(again), due=False)
        self._turn += 1
        self._mark_redelivered(again)
        for delivery in fresh:
            self._next[delivery.message.topic, delivery.message.partition] = delivery.message.offset + 1
        return Polled(tuple(again + fresh), lost)

    def _update_leases(self, db: sqlite3.Connection) -> tuple[_Partition, ...]:
        """Read the leases that this member holds; return those that it has lost."""
        query = "SELECT topic, partition, epoch, floor FROM leases WHERE grp = ? AND member = ?"
        rows = db.execute(f"{query} ORDER BY topic, partition", (self.group, self.name))
        known, held = self._leases, {(topic, number): _Lease(*lease) for topic, number, *lease in rows}
        lost = {where for where, lease in known.items() if where not in held or held[where].epoch != lease.epoch}
        for where, lease in held.items():
            kept = where in known and where not in lost
            # Acknowledgements can move the floor past what was read under this lease: nothing below it is left.
            self._next[where] = max(lease.floor, self._next[where]) if kept else lease.floor
        self._leases = held
        return tuple(where for where in known if where in lost)

    def _collect(self, db: sqlite3.Connection, limit: int, *, due: bool) -> list[Delivery]:
        deliveries: list[Delivery] = []
        places = list(self._leases)
        first = self._turn % max(len(places), 1)  # another partition each time: a busy one must not delay the others
        for topic, partition in places[first:] + places[:first]:
            room = limit - len(deliveries)
            if not room:
                break
            beginning = self._broker.clock() if due else self._next[topic, partition]
            place = {"grp": self.group, "topic": topic, "partition": partition, "begin": beginning, "room": room}
            for *row, count in db.execute(_DUE if due else _FRESH, place).fetchall():
                deliveries.append(Delivery(to_message(row), self._leases[topic, partition].epoch, count))
        return deliveries

    def _mark_redelivered(self, again: list[Delivery]) -> None:
        if again:
            with self._broker.database.write() as db:
                for place, epoch, offsets in self._by_lease(again):
                    if self._holds(db, place, epoch):  # else its redeliveries are another member's
                        rows = ((*place, offset) for offset in offsets)
                        db.executemany(f"UPDATE redeliveries SET due_at = NULL WHERE {_AT} AND offset = ?", rows)

    # Leases ----------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Register this member until its lease ends, end the leases that have expired, and adjust its own."""
        now = self._broker.clock()
        with self._broker.database.write() as db:
            for topic in self.topics:
                count_partitions(db, topic)  # raises where there is no such topic
                db.execute(
                    "INSERT INTO members (grp, topic, member, expires_at) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (grp, topic, member) DO UPDATE SET expires_at = excluded.expires_at",
                    (self.group, topic, self.name, now + self._lease_seconds),
                )
                new = "SELECT ?, topic, partition FROM partitions WHERE topic = ?"
                db.execute(f"INSERT OR IGNORE INTO leases (grp, topic, partition) {new}", (self.group, topic))
            db.execute("DELETE FROM members WHERE grp = ? AND expires_at <= ?", (self.group, now))
            expired = "member NOT IN (SELECT member FROM members WHERE grp = ?)"
            db.execute(f"UPDATE leases SET member = NULL WHERE grp = ? AND {expired}", (self.group, self.group))
            self._balance(db)
        self._renew_at = now + min(_RENEW_SECONDS, self._lease_seconds / 10)

    def _balance(self, db: sqlite3.Connection) -> None:
        """Release the partitions that are assigned to other members, and take those of its own that are free."""
        members: dict[str, list[str]] = {}
        query = "SELECT topic, member FROM members WHERE grp = ? ORDER BY id"
        for topic, name in db.execute(query, (self.group,)):
            members.setdefault(topic, []).append(name)
        query = "SELECT topic, partition, member FROM leases WHERE grp = ? ORDER BY topic, partition"
        # One round for all topics: with one for each, the first member would receive the odd partition of every topic.
        for turn, (topic, partition, holder) in enumerate(db.execute(query, (self.group,)).fetchall()):
            names = members.get(topic, [""])
            owner = names[turn % len(names)]
            if owner != holder and (holder == self.name or (holder is None and owner == self.name)):
                place = (self.group, topic, partition)
                new = None if holder else owner
                db.execute(f"UPDATE leases SET member = ?, epoch = epoch + 1 WHERE {_AT}", (new, *place))
                # A new holder reads everything from the floor on, so nothing has to be redelivered in addition.
                db.execute(f"UPDATE redeliveries SET due_at = NULL WHERE {_AT}", place)

    def _holds(self, db: sqlite3.Connection, place: _Place, epoch: int) -> bool:
        row = db.execute(f"SELECT member, epoch FROM leases WHERE {_AT}", place).fetchone()
        return bool(row == (self.name, epoch))

    def _by_lease(self, deliveries: Iterable[Delivery]) -> list[tuple[_Place, int, list[int]]]:
        leases: dict[tuple[str, int, int], list[int]] = {}
        for delivery in deliveries:
            message = delivery.message
            leases.setdefault((message.topic, message.partition, delivery.epoch), []).append(message.offset)
        return [((self.group, topic, partition), epoch, each) for (topic, partition, epoch), each in leases.items()]

    def _write(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        self._check_open()
        return self._broker.database.write()

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerClosedError(f"this member of group {self.group} was closed; create a new one to continue")


# Statements ---------------------------------------------------------------------------------------------------------

_AT = "grp = ? AND topic = ? AND partition = ?"
_REDELIVERY = "r.grp = :grp AND r.topic = m.topic AND r.partition = m.partition AND r.offset = m.offset"

_FRESH = f"""SELECT {MESSAGE_COLUMNS}, coalesce(r.count, 0) FROM messages m LEFT JOIN redeliveries r ON {_REDELIVERY}
    WHERE m.topic = :topic AND m.partition = :partition AND m.offset >= :begin AND NOT EXISTS (SELECT 1 FROM acks a
        WHERE a.grp = :grp AND a.topic = m.topic AND a.partition = m.partition AND a.offset = m.offset)
    ORDER BY m.offset LIMIT :room"""
_DUE = f"""SELECT {MESSAGE_COLUMNS}, r.count FROM redeliveries r JOIN messages m ON {_REDELIVERY}
    WHERE r.grp = :grp AND r.topic = :topic AND r.partition = :partition AND r.due_at <= :begin
    ORDER BY r.offset LIMIT :room"""


def acknowledge(db: sqlite3.Connection, place: _Place, offsets: Iterable[int]) -> None:
    """Never deliver these offsets to the group again; idempotent. Offsets without a gap become the new floor."""
    floor = end = _floor(db, place)
    rows = [(*place, offset) for offset in offsets if offset >= floor]
    db.executemany("INSERT OR IGNORE INTO acks (grp, topic, partition, offset) VALUES (?, ?, ?, ?)", rows)
    db.executemany(f"DELETE FROM redeliveries WHERE {_AT} AND offset = ?", rows)
    for (offset,) in db.execute(f"SELECT offset FROM acks WHERE {_AT} ORDER BY offset", place):
        if offset != end:
            break
        end += 1
    if end > floor:
        db.execute(f"UPDATE leases SET floor = ? WHERE {_AT}", (end, *place))
        db.execute(f"DELETE FROM acks WHERE {_AT} AND offset < ?", (*place, end))


def members(broker: LocalBroker, group: str, topic: str) -> int:
    """Return the number of a group's members that read a topic and whose leases have not expired."""
    query = "SELECT count(*) FROM members WHERE grp = ? AND topic = ? AND expires_at > ?"
    with broker.database.read() as db:
        return int(db.execute(query, (group, topic, broker.clock())).fetchone()[0])


def consumed_offset(db: sqlite3.Connection, topic: str, partition: int) -> int:
    """Return the offset below which every group has acknowledged everything; 0 without groups."""
    query = "SELECT min(floor) FROM leases WHERE topic = ? AND partition = ?"
    offset: int | None = db.execute(query, (topic, partition)).fetchone()[0]
    return offset or 0


def _redeliver(db: sqlite3.Connection, place: _Place, offsets: Iterable[int], due_at: float) -> None:
    floor = _floor(db, place)
    acked = f"SELECT 1 FROM acks WHERE {_AT} AND offset = ?"
    for offset in offsets:
        if offset >= floor and not db.execute(acked, (*place, offset)).fetchone():
            db.execute(
                "INSERT INTO redeliveries (grp, topic, partition, offset, count, due_at) VALUES (?, ?, ?, ?, 1, ?)"
                " ON CONFLICT (grp, topic, partition, offset)"
                " DO UPDATE SET count = count + 1, due_at = excluded.due_at",
                (*place, offset, due_at),
            )


def _floor(db: sqlite3.Connection, place: _Place) -> int:
    floor: int = db.execute(f"SELECT floor FROM leases WHERE {_AT}", place).fetchone()[0]
    return floor


def _checked_topics(topics: Iterable[str]) -> tuple[str, ...]:
    names = () if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not names:
        fail("topics", found="a str" if isinstance(topics, str) else "none", expected="a list of topics, at least one")
    for name in names:
        check_name("topic", name)
    return names


def _stale(place: _Place, offset: int) -> StaleDeliveryError:
    group, topic, partition = place
    text = (
        f"offset {offset} of partition {partition} of {topic} is no longer held by this member of group {group}: the"
        " partition was leased again, or a seek moved its position, and the message is redelivered; poll more often, or"
        " use a longer lease"
    )
    return StaleDeliveryError(text, destination=topic, partition=partition, offset=offset)
