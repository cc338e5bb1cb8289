"""A broker, configurations and consumers, closed when the test is done."""

from __future__ import annotations

from pathlib import Path

import pytest

import claimcheck
from claimcheck.transports.local import (
    LocalBroker,
    LocalConsumer,
)
from tests.clocks import Clock
from tests.local_rig import LIMIT


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(tmp_path: Path, clock: Clock):
    with LocalBroker(tmp_path / "broker.sqlite", max_message_bytes=LIMIT, clock=clock, sleep=clock.sleep) as broker:
        broker.create_topic("orders", partitions=1)
        broker.create_topic("wide", partitions=4)
        yield broker


@pytest.fixture
def configure(tmp_path: Path):
    opened = []

    def configure(strategy: str = "external", **more: object) -> claimcheck.ClaimCheck:
        stores = {"disk": {"type": "filesystem", "path": str(tmp_path / "store")}}
        opened.append(claimcheck.from_dict({"strategy": strategy, "stores": stores, **more}))
        return opened[-1]

    yield configure
    for cc in opened:
        cc.close()


@pytest.fixture
def consume(broker: LocalBroker, configure):
    opened = []

    def consume(*topics: str, cc: claimcheck.ClaimCheck | None = None, group: str = "g", **more) -> LocalConsumer:
        opened.append(LocalConsumer(broker, cc or configure(), topics=topics or ["orders"], group=group, **more))
        return opened[-1]

    yield consume
    for consumer in opened:
        consumer.close()
