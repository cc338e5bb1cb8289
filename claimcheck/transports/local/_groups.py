"""Consumer groups of the embedded broker: members that lease whole partitions and acknowledge single messages.

A partition belongs to one member at a time, so the chunks of a payload stay together. Delivery is at least once: what
was not acknowledged when a partition moves to another member is delivered again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from claimcheck._validation import check_int, check_seconds
from claimcheck.transports.local import _database as sql
from claimcheck.transports.local._broker import LocalBroker, LocalMessage, check_name, to_message
from claimcheck.transports.local._errors import (
    BrokerArgumentError,
    BrokerClosedError,
    StaleDeliveryError,
    checking_arguments,
)

__all__ = ["POLL_SECONDS", "Delivery", "GroupMember", "Polled"]

POLL_SECONDS = 0.05
"""The pause of a blocking poll between two reads of the file."""

_RENEW_SECONDS = 1.0  # or a tenth of the lease, where that is less

_Partition = tuple[str, int]  # topic and number


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of one message to one member.

    Attributes:
        message: The message.
        epoch: The lease of the partition under which it was delivered; acknowledging needs the same one.
        redelivery_count: How often the group has negatively acknowledged it, from 0.
    """

    message: LocalMessage
    epoch: int
    redelivery_count: int


@dataclass(frozen=True, slots=True)
class Polled:
    """The result of a poll.

    Attributes:
        deliveries: Messages; those of one partition in order, except redeliveries.
        lost: Topic and partition of leases that have ended, or were sought by another member. Discard what came from
            them *before* you process ``deliveries``: a partition may be back at once, from an earlier offset.
    """

    deliveries: tuple[Delivery, ...]
    lost: tuple[tuple[str, int], ...]


class GroupMember:
    """One member of a consumer group; it joins when it is created. For one thread at a time.

    A new group begins at offset 0 of every partition. Members share partitions fairly; a member's partitions change
    only while it polls, and it notices changes of the group within a second of polling. A member that does not poll for
    ``lease_seconds`` loses its partitions to members that do.

    Args:
        broker: The broker; it stays open when the member closes.
        group: 1 to 249 of ``A-Z a-z 0-9 . _ / : -``.
        topics: Existing topics, at least one.
        lease_seconds: How long the others wait for a member that does not poll, more than 0.

    Raises:
        BrokerArgumentError: The name, the topics or the time is invalid.
        UnknownTopicError: One of the topics does not exist.
    """

    def __init__(self, broker: LocalBroker, group: str, topics: Iterable[str], *, lease_seconds: float = 30.0) -> None:
        self.group = group
        self.topics = _checked(group, topics, lease_seconds)
        self.name = uuid.uuid4().hex
        self._broker = broker
        self._lease_seconds = lease_seconds
        self._leases: dict[_Partition, sql.Lease] = {}
        self._next: dict[_Partition, int] = {}
        self._turn = 0
        self._closed = False
        self._renew()

    def poll(self, *, limit: int = 1, timeout: float = 0.0) -> Polled:
        """Return messages that no member of the group has received, and those whose redelivery is due.

        Reads the file, and while there is nothing sleeps for `POLL_SECONDS` and reads again.

        Args:
            limit: The largest number of messages, from 1. All of them are in memory at once.
            timeout: Seconds to sleep in all, 0 to read once. Ends earlier when there are messages or lost partitions.

        Raises:
            BrokerClosedError: The member or the broker was closed.
            BrokerStorageError: The file cannot be used; nothing was delivered.
        """
        slept = 0.0
        polled = self._poll_once(limit)
        while not (polled.deliveries or polled.lost) and slept < timeout:
            pause = min(POLL_SECONDS, timeout - slept)
            self._broker.sleep(pause)
            slept += pause
            polled = self._poll_once(limit)
        return polled

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge all of the deliveries together; acknowledging again is harmless.

        Raises:
            StaleDeliveryError: One of them was delivered under a lease that has ended, or before a seek, and is
                redelivered. None of them was acknowledged.
            BrokerClosedError: The member or the broker was closed; nothing was acknowledged.
        """
        with self._write() as db:
            for place, epoch, offsets in self._by_lease(deliveries):
                if not sql.holds_lease(db, place, self.name, epoch):
                    raise _stale(place, min(offsets))
                sql.acknowledge(db, place, offsets)

    def nack(self, deliveries: Iterable[Delivery], *, delay_seconds: float = 0.0) -> None:
        """Negatively acknowledge deliveries: they are redelivered and counted, to the holder of the partition then.

        Stale deliveries (see `ack`) are redelivered in any case, acknowledged ones never: both are skipped.

        Args:
            deliveries: Any number of them.
            delay_seconds: The time until they are redelivered, from 0; less if the partition moves to another member.

        Raises:
            BrokerArgumentError: The delay is not a number of seconds from 0.
            BrokerClosedError: The member or the broker was closed; unacknowledged messages are redelivered anyway.
        """
        with checking_arguments():
            check_seconds("delay_seconds", delay_seconds, allow_zero=True)
        with self._write() as db:
            for place, epoch, offsets in self._by_lease(deliveries):
                if sql.holds_lease(db, place, self.name, epoch):
                    sql.redeliver(db, place, offsets, self._broker.clock() + delay_seconds)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Move the position of the whole group, whichever member holds the partition.

        Everything before counts as acknowledged, nothing from there on does, redelivery counts start at 0, and earlier
        deliveries of the partition are stale. Another member that holds it finds it in `Polled.lost`.

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
        with self._write() as db:
            sql.check_offset(db, topic, partition, offset)
            sql.seek(db, (self.group, topic, partition), offset)
        self._leases.pop((topic, partition), None)

    def assignment(self) -> list[tuple[str, int]]:
        """Return topic and partition of what this member held when it last polled, sorted."""
        return sorted(self._leases)

    def close(self) -> None:
        """Leave the group: others take the partitions within a second, and what was not acknowledged is redelivered.

        Closing twice is harmless. When the broker was closed before, the leases expire.
        """
        if not self._closed:
            with contextlib.suppress(BrokerClosedError), self._broker.database.write() as db:
                sql.leave(db, self.group, self.name)
        self._closed = True
        self._leases = {}

    def _poll_once(self, limit: int) -> Polled:
        self._check_open()
        with checking_arguments():
            check_int("limit", limit, minimum=1)
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

    def _renew(self) -> None:
        now = self._broker.clock()
        with self._broker.database.write() as db:
            sql.renew(db, self.group, self.name, self.topics, now, self._lease_seconds)
        self._renew_at = now + min(_RENEW_SECONDS, self._lease_seconds / 10)

    def _update_leases(self, db: sqlite3.Connection) -> tuple[_Partition, ...]:
        held, known = sql.held_leases(db, self.group, self.name), self._leases
        for where, lease in held.items():
            kept = where in known and known[where].epoch == lease.epoch
            # Acknowledgements can move the floor past what was read under this lease: nothing below it is left.
            self._next[where] = max(lease.floor, self._next[where]) if kept else lease.floor
        self._leases = held
        return tuple(where for where, lease in known.items() if where not in held or held[where].epoch != lease.epoch)

    def _collect(self, db: sqlite3.Connection, limit: int, *, due: bool) -> list[Delivery]:
        found: list[Delivery] = []
        places = list(self._leases)
        first = self._turn % max(len(places), 1)  # another partition each time: a busy one must not delay the others
        for where in places[first:] + places[:first]:
            place, epoch, left = (self.group, *where), self._leases[where].epoch, limit - len(found)
            if not left:
                break
            if due:
                rows = sql.rows_due(db, place, self._broker.clock(), left)
            else:
                rows = sql.rows_after(db, place, self._next[where], left)
            found += [Delivery(to_message(row), epoch, row[-1]) for row in rows]
        return found

    def _mark_redelivered(self, again: list[Delivery]) -> None:
        if again:
            with self._broker.database.write() as db:
                for place, epoch, offsets in self._by_lease(again):
                    if sql.holds_lease(db, place, self.name, epoch):  # else its redeliveries are another member's
                        sql.mark_redelivered(db, place, offsets)

    def _by_lease(self, deliveries: Iterable[Delivery]) -> list[tuple[sql.Place, int, list[int]]]:
        leases: dict[tuple[str, int, int], list[int]] = {}
        for delivery in deliveries:
            message = delivery.message
            leases.setdefault((message.topic, message.partition, delivery.epoch), []).append(message.offset)
        return [((self.group, topic, partition), epoch, each) for (topic, partition, epoch), each in leases.items()]

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        self._check_open()
        with self._broker.database.write() as db:
            yield db

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerClosedError(f"this member of group {self.group} was closed; create a new one to continue")

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


def _stale(place: sql.Place, offset: int) -> StaleDeliveryError:
    group, topic, partition = place
    text = (
        f"offset {offset} of partition {partition} of {topic} is no longer with this member of group {group}: the"
        " partition was leased anew or sought since, and the message is redelivered; poll more often, or use a longer"
        " lease"
    )
    return StaleDeliveryError(text, destination=topic, partition=partition, offset=offset)
