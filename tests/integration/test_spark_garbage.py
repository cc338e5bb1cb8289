"""Garbage collection on Spark over a real Pulsar and a real S3."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pulsar
import pytest

import claimcheck
from claimcheck._store.contract import StoreContext
from claimcheck._store.listing import CLAIM
from claimcheck.errors import ConfigError
from claimcheck.spark import collect_garbage
from tests.integration.spark_rig import Topic

DAY = 86_400


@pytest.fixture
def spark_topic(pulsar_broker, pulsar_client):
    """A topic with a short name: keys have the first 64 characters of its full name."""
    return Topic(pulsar_broker, pulsar_client, f"gc-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def config(s3_server, s3_bucket):
    stores = {"cold": {"type": "s3", "bucket": s3_bucket, "endpoint_url": s3_server.endpoint_url, "prefix": "claims"}}
    stores["cold"]["ttl_seconds"] = 30 * DAY
    return {"strategy": "external", "store": "cold", "stores": stores}


def test_pulsar_and_s3(spark_sources, spark_topic, pulsar_client, config, s3_resource, s3_bucket):
    """Acknowledged, delayed and dead-lettered messages keep their payloads; what was never sent goes."""
    spark_topic.broker.create_partitioned(spark_topic.name, 2)
    spark_topic.broker.create_partitioned(f"{spark_topic.name}-DLQ", 1)
    with claimcheck.from_dict(config) as cc:
        store = cc.store("cold")

        def write(days):
            store.context = StoreContext(name="cold", clock=lambda: time.time() - days * DAY)
            return store.write(b"payload", destination=spark_topic.full)

        kept, lost = [write(2 + n / 3) for n in range(20)], [write(2 + n / 3) for n in range(20)]
        young = write(0.5)
        producer = pulsar_client.create_producer(spark_topic.name)
        for pointer in kept[:15]:
            producer.send(cc.seal(pointer))
        producer.send(cc.seal(kept[15]), deliver_after=timedelta(hours=1))
        dead = pulsar_client.create_producer(f"{spark_topic.name}-DLQ")
        for pointer in kept[16:]:
            dead.send(cc.seal(pointer))
        earliest = pulsar.InitialPosition.Earliest
        consumer = pulsar_client.subscribe(spark_topic.name, "s", initial_position=earliest)
        producer.send(cc.seal(kept[0]))
        for _ in range(3):
            consumer.acknowledge(consumer.receive(10_000))

    names = f"{spark_topic.name},{spark_topic.name}-DLQ"
    options = {"serviceUrl": spark_topic.broker.service_url, "adminUrl": spark_topic.broker.admin_url, "topic": names}
    topics = [{"format": "claimcheck_pulsar", **options}]
    with pytest.raises(Exception, match="does not exist"):
        collect_garbage(spark_sources, config=config, topics=[{**topics[0], "topic": f"{spark_topic.name}-none"}])

    with collect_garbage(spark_sources, config=config, topics=topics) as report:
        report.delete(claim=True)
        assert (report.listed, report.candidates, report.count, report.pointers) == (41, 40, 20, 21)
        assert report.deletion is not None
        assert (report.deletion.deleted, report.deletion.failed) == (20, 0)

    everything = {found.key for found in s3_resource.Bucket(s3_bucket).objects.all()}
    left = {key for key in everything if not key.endswith(CLAIM)}
    assert len(everything - left) == 2
    assert left == {pointer.key for pointer in [*kept, young]}
    assert not left & {pointer.key for pointer in lost}


def test_a_topic_of_pulsar_with_the_same_beginning_has_to_be_named(spark_sources, spark_topic, config):
    long = f"{spark_topic.name}-{'x' * 40}"
    for name in (f"{long}-1", f"{long}-2"):
        spark_topic.broker.create_partitioned(name, 1)
    options = {"serviceUrl": spark_topic.broker.service_url, "adminUrl": spark_topic.broker.admin_url}
    topics = [{"format": "claimcheck_pulsar", **options, "topic": f"{long}-1"}]

    with pytest.raises(ConfigError, match=f"{long}-2.*name this topic, too"):
        collect_garbage(spark_sources, config=config, topics=topics)
