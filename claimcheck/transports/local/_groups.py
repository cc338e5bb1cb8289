"""Consumer groups of the embedded broker: members that lease whole partitions and acknowledge single messages.

A partition belongs to one member at a time, so the chunks of a payload stay together. Acknowledgements are kept one by
one, and as a single number, the *floor*, where they have no gaps. Delivery is at least once: what was not acknowledged
when a partition changes hands comes again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from claimcheck._validation import check_int, check_seconds
from claimcheck.transports.local._broker import MESSAGE_COLUMNS, LocalBroker, check_offset, count_partitions, to_message
from claimcheck.transports.local._errors import (
    BrokerArgumentError,
    BrokerClosedError,
    StaleDeliveryError,
    checking_arguments,
)
from claimcheck.transports.local._messages import LocalMessage, check_name

__all__ = [
    "acknowledge",
    "Delivery",
    "fair_share",
    "give_back",
    "GroupMember",
    "held_leases",
    "is_epoch",
    "Lease",
    "leave",
    "Place",
    "POLL_SECONDS",
    "Polled",
    "renew",
    "rows_after",
    "rows_due",
    "seek",
    "take_due",
]

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


POLL_SECONDS = 0.05
"""How long a blocking poll sleeps before it looks into the file again."""

_RENEW_SECONDS = 1.0  # or a tenth of the lease, where that is less

_Rows = Callable[[sqlite3.Connection, tuple[str, int], int], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message, handed to one member once.

    Attributes:
        message: The message.
        epoch: Which lease of the partition it was delivered under; acknowledging needs the same one.
        redelivery_count: How often the group has given it back with ``nack``, from 0.
    """

    message: LocalMessage
    epoch: int
    redelivery_count: int


@dataclass(frozen=True, slots=True)
class Polled:
    """What a poll found.

    Attributes:
        deliveries: Messages; those of one partition in order, but for those that come again.
        lost: Topic and partition of leases that are over, or were sought by another member: forget what came from
            them *before* looking at ``deliveries``, for a partition may be back at once, from an earlier offset.
    """

    deliveries: tuple[Delivery, ...]
    lost: tuple[tuple[str, int], ...]


class GroupMember:
    """One member of a consumer group; it joins when it is made. For one thread at a time.

    A new group begins at offset 0 of every partition. Members share partitions fairly; what a member holds changes only
    while it polls, and changes of the group are noticed within a second of polling. Who does not poll for
    ``lease_seconds`` loses its partitions to members that do.

    Args:
        broker: The broker; it stays open when the member closes.
        group: 1 to 249 of ``A-Z a-z 0-9 . _ / : -``.
        topics: Topics that were created, at least one.
        lease_seconds: How long the others wait for a member that is silent, more than 0.

    Raises:
        BrokerArgumentError: The name, the topics or the time cannot be used.
        UnknownTopicError: Nobody has created one of the topics.
    """

    def __init__(self, broker: LocalBroker, group: str, topics: Iterable[str], *, lease_seconds: float = 30.0) -> None:
        self.group = group
        self.topics = _checked(group, topics, lease_seconds)
        self.name = uuid.uuid4().hex
        self._broker = broker
        self._lease_seconds = lease_seconds
        self._leases: dict[tuple[str, int], Lease] = {}
        self._next: dict[tuple[str, int], int] = {}
        self._turn = 0
        self._closed = False
        self._renew()

    def poll(self, *, limit: int = 1, timeout: float = 0.0) -> Polled:
        """Take messages that nobody in the group has been given, and those that come again.

        Looks into the file, and if there is nothing sleeps for `POLL_SECONDS` and looks again.

        Args:
            limit: How many messages at most, from 1. All of them are in memory at once.
            timeout: Seconds to sleep in all, 0 to look once. Ends earlier when there is something to give or to lose.

        Raises:
            BrokerClosedError: The member or the broker was closed.
            BrokerStorageError: The file cannot be used; nothing was taken.
        """
        slept = 0.0
        polled = self._look(limit)
        while not (polled.deliveries or polled.lost) and slept < timeout:
            pause = min(POLL_SECONDS, timeout - slept)
            self._broker.sleep(pause)
            slept += pause
            polled = self._look(limit)
        return polled

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge all of the deliveries together; acknowledging again is harmless.

        Raises:
            StaleDeliveryError: One of them was delivered under a lease that is over, or before a seek: it comes again.
                None of them was acknowledged.
            BrokerClosedError: The member or the broker was closed; nothing was acknowledged.
        """
        with self._changing() as connection:
            for place, epoch, offsets in self._by_lease(deliveries):
                if not is_epoch(connection, place, self.name, epoch):
                    raise _stale(place, min(offsets))
                acknowledge(connection, place, offsets)

    def nack(self, deliveries: Iterable[Delivery], *, delay_seconds: float = 0.0) -> None:
        """Give deliveries back: they come again, counted, to whoever holds the partition then.

        Deliveries that are stale (see `ack`) come again anyhow, acknowledged ones never do: both are passed over.

        Args:
            deliveries: Any number of them.
            delay_seconds: How long until they are redelivered, from 0; less if the partition changes hands.

        Raises:
            BrokerArgumentError: The delay is not a number of seconds from 0.
            BrokerClosedError: The member or the broker was closed; unacknowledged messages come again anyhow.
        """
        with checking_arguments():
            check_seconds("delay_seconds", delay_seconds, allow_zero=True)
        with self._changing() as connection:
            for place, epoch, offsets in self._by_lease(deliveries):
                if is_epoch(connection, place, self.name, epoch):
                    give_back(connection, place, offsets, self._broker.clock() + delay_seconds)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Make the whole group begin again at an offset, whoever holds the partition.

        Everything before counts as acknowledged, nothing from there on does, redelivery counts start at 0, and earlier
        deliveries of the partition are stale. Another member that holds it finds it among `Polled.lost`.

        Args:
            topic: A topic of this member.
            partition: From 0.
            offset: From 0 to the partition's end, ``broker.end_offset(topic, partition)``.

        Raises:
            BrokerArgumentError: The member did not join for this topic.
            UnknownPartitionError: The topic has no such partition.
            OffsetOutOfRangeError: The partition has no such offset.
        """
        if topic not in self.topics:
            text = f"group {self.group} cannot seek in {topic}: this member joined for {', '.join(self.topics)}"
            raise BrokerArgumentError(text, destination=topic)
        with self._changing() as connection:
            check_offset(connection, topic, partition, offset)
            seek(connection, (self.group, topic, partition), offset)
        self._leases.pop((topic, partition), None)

    def assignment(self) -> list[tuple[str, int]]:
        """Give topic and partition of what this member held when it last polled, sorted."""
        return sorted(self._leases)

    def close(self) -> None:
        """Leave the group: others take the partitions within a second, and what was not acknowledged comes again.

        Closing twice is harmless. When the broker was closed before, the leases end by themselves.
        """
        if not self._closed:
            with contextlib.suppress(BrokerClosedError), self._broker.database.write() as connection:
                leave(connection, self.group, self.name)
        self._closed = True
        self._leases = {}

    def _look(self, limit: int) -> Polled:
        self._check_open()
        with checking_arguments():
            check_int("limit", limit, minimum=1)
        if self._broker.clock() >= self._renew_at:
            self._renew()
        with self._broker.database.read() as connection:
            lost = self._update_leases(connection)
            if self._turn % 2:  # else a message that is given back at once, again and again, would starve all others
                fresh = self._collect(connection, limit, self._fresh)
                again = self._collect(connection, limit - len(fresh), self._due)
            else:
                again = self._collect(connection, limit, self._due)
                fresh = self._collect(connection, limit - len(again), self._fresh)
        self._turn += 1
        self._take(again)
        for delivery in fresh:
            self._next[delivery.message.topic, delivery.message.partition] = delivery.message.offset + 1
        return Polled(tuple(again + fresh), lost)

    def _renew(self) -> None:
        now = self._broker.clock()
        with self._broker.database.write() as connection:
            renew(connection, self.group, self.name, self.topics, now, self._lease_seconds)
        self._renew_at = now + min(_RENEW_SECONDS, self._lease_seconds / 10)

    def _update_leases(self, connection: sqlite3.Connection) -> tuple[tuple[str, int], ...]:
        held, known = held_leases(connection, self.group, self.name), self._leases
        for where, lease in held.items():
            kept = where in known and known[where].epoch == lease.epoch
            # Acknowledgements can carry the floor past what was read under this lease: below it nothing is left.
            self._next[where] = max(lease.floor, self._next[where]) if kept else lease.floor
        self._leases = held
        return tuple(where for where, lease in known.items() if where not in held or held[where].epoch != lease.epoch)

    def _due(self, connection: sqlite3.Connection, where: tuple[str, int], limit: int) -> list[tuple[Any, ...]]:
        return rows_due(connection, (self.group, *where), self._broker.clock(), limit)

    def _fresh(self, connection: sqlite3.Connection, where: tuple[str, int], limit: int) -> list[tuple[Any, ...]]:
        return rows_after(connection, (self.group, *where), self._next[where], limit)

    def _collect(self, connection: sqlite3.Connection, limit: int, rows: _Rows) -> list[Delivery]:
        found: list[Delivery] = []
        for where in self._in_turn():
            if len(found) < limit:
                epoch = self._leases[where].epoch
                found += [Delivery(to_message(r), epoch, r[-1]) for r in rows(connection, where, limit - len(found))]
        return found

    def _in_turn(self) -> list[tuple[str, int]]:
        # Begin with another partition each time, or a busy one would keep the others waiting.
        places = list(self._leases)
        first = self._turn % max(len(places), 1)
        return places[first:] + places[:first]

    def _take(self, again: list[Delivery]) -> None:
        if again:
            with self._broker.database.write() as connection:
                for place, epoch, offsets in self._by_lease(again):
                    if is_epoch(connection, place, self.name, epoch):  # else another member may have given them back
                        take_due(connection, place, offsets)

    def _by_lease(self, deliveries: Iterable[Delivery]) -> list[tuple[Place, int, list[int]]]:
        groups: dict[tuple[str, int, int], list[int]] = {}
        for delivery in deliveries:
            message = delivery.message
            groups.setdefault((message.topic, message.partition, delivery.epoch), []).append(message.offset)
        return [((self.group, topic, partition), epoch, found) for (topic, partition, epoch), found in groups.items()]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        self._check_open()
        with self._broker.database.write() as connection:
            yield connection

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerClosedError(f"this member of group {self.group} was closed; make a new one to go on")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._leases)} partitions"
        return f"<GroupMember of {self.group} on {', '.join(self.topics)}: {state}>"


def _checked(group: str, topics: Iterable[str], lease_seconds: float) -> tuple[str, ...]:
    check_name("group", group)
    if isinstance(topics, str):
        raise BrokerArgumentError(f"group {group} needs a list of topics, not the str {topics!r}")
    names = tuple(dict.fromkeys(topics))
    for name in names:
        check_name("topic", name)
    if not names:
        raise BrokerArgumentError(f"group {group} needs at least one topic")
    with checking_arguments():
        check_seconds("lease_seconds", lease_seconds)
    return names


def _stale(place: Place, offset: int) -> StaleDeliveryError:
    group, topic, partition = place
    text = (
        f"offset {offset} of partition {partition} of {topic} is no longer with this member of group {group}: the"
        " partition was leased anew or sought since, and the message comes again; poll more often or lease for longer"
    )
    return StaleDeliveryError(text, destination=topic, partition=partition, offset=offset)
