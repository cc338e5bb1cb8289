"""Spark workers resolve payloads stored in a topic of a real Pulsar."""

from claimcheck import from_dict
from claimcheck.spark import resolver


def test_workers_read_the_side_topic(spark, pulsar_broker, pulsar_client, topic):
    pulsar_client.create_producer(topic).close()
    pulsar_broker.set_policy(topic, "retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    side = {"type": "pulsar-topic", "url": pulsar_broker.service_url, "topic": topic, "segment_bytes": 50_000}
    raw = {"strategy": "external", "stores": {"side": side}}
    payloads = [bytes([i]) * 200_000 for i in range(6)]
    with from_dict(raw) as cc:
        messages = [cc.seal(cc.store("side").write(payload)) for payload in payloads]

    got = spark.sparkContext.parallelize(messages, 3).mapPartitions(resolver(raw)).map(bytes).collect()

    assert got == payloads
