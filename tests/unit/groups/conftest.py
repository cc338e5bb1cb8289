"""A broker whose time is injected, and members of its groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from claimcheck.transports.local import (
    LocalBroker,
)
from claimcheck.transports.local._groups import GroupMember
from tests.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(tmp_path: Path, clock: Clock):
    with LocalBroker(tmp_path / "broker.sqlite", clock=clock, sleep=clock.sleep) as broker:
        broker.create_topic("orders", partitions=1)
        broker.create_topic("wide", partitions=4)
        yield broker


@pytest.fixture
def join(broker: LocalBroker):
    def join(*topics: str, group: str = "g", lease_seconds: float = 30.0) -> GroupMember:
        return GroupMember(broker, group, topics or ["orders"], lease_seconds=lease_seconds)

    return join
