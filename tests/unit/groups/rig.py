"""Helpers for the tests of group members."""

from __future__ import annotations

from claimcheck.transports.local import (
    LocalBroker,
)
from claimcheck.transports.local._groups import Delivery, GroupMember
from tests.clocks import Clock


def fill(broker: LocalBroker, count: int, topic: str = "orders") -> None:
    for number in range(count):
        broker.append(topic, b"%d" % number)


def take(member: GroupMember, limit: int = 100) -> list[Delivery]:
    return list(member.poll(limit=limit).deliveries)


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [delivery.message.offset for delivery in deliveries]


def settle(clock: Clock, *members: GroupMember) -> None:
    """Let members poll until the leases are balanced; discard the deliveries."""
    for _ in range(3):
        clock.now += 1
        for member in members:
            member.poll()


def rows(broker: LocalBroker, table: str) -> int:
    with broker.database.read() as connection:
        count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return count
