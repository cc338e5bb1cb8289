"""A broker, configurations and consumers, closed after each test."""

from __future__ import annotations

from pathlib import Path

import pytest

import claimcheck
from claimcheck.transports.local import LocalBroker, LocalConsumer
from tests.clocks import Clock
from tests.integration.pulsar_rig import Topic, rig
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
        stores = {"disk": {"type": "filesystem", "path": str(tmp_path / "store"), "create": True}}
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


@pytest.fixture
def spark_topic(pulsar_broker, pulsar_client, topic):
    """A topic that is not partitioned, unless the test creates it with partitions."""
    return Topic(pulsar_broker, pulsar_client, topic)


@pytest.fixture
def lab(pulsar_broker, pulsar_client, topic):
    """A topic of a real Pulsar, with wrapped clients; modules about other brokers override this."""
    with rig(pulsar_broker, pulsar_client, topic) as lab:
        yield lab


@pytest.fixture
def spark_sources(spark):
    """A Spark session with the sources registered."""
    from claimcheck.spark.sources import register

    register(spark)
    return spark


@pytest.fixture(scope="module")
def secure_kafka(own_kafka_jars):
    """A Kafka of the module's own, with passwords, tokens, TLS and ACLs."""
    from tests import servers
    from tests.integration.kafka_rig import PASSWORD

    with servers.kafka(password=PASSWORD) as broker:
        yield broker
