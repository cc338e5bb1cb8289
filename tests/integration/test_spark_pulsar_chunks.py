"""Chunks on a real Pulsar, read by Spark: the hints of their sender are checked."""

import pytest

import claimcheck
from claimcheck.spark import reassemble
from tests.integration.pulsar_rig import LIMIT, content

PULSAR = "claimcheck_pulsar"
CHUNKING = {"strategy": "chunking", "threshold_bytes": 1000, "chunking": {"max_message_bytes": LIMIT // 2}}
PAYLOAD = content(5 * LIMIT)


@pytest.fixture
def chunks():
    """The messages of a payload: data, properties, key."""
    with claimcheck.from_dict(CHUNKING) as cc, cc.outbound(PAYLOAD, destination="t", key="k", headers={}) as out:
        return [(bytes(each.data), each.headers, each.key) for each in out.envelopes]


@pytest.mark.parametrize("place", [None, 0, 4, -1])
def test_a_byte_that_was_changed_on_its_way(spark_sources, spark_topic, chunks, place):
    if place is not None:
        data, properties, key = chunks[place]
        chunks[place] = data[:-1] + bytes([data[-1] ^ 1]), properties, key
    producer = spark_topic.client.create_producer(spark_topic.full)
    for data, properties, key in chunks:
        producer.send(data, properties=properties, partition_key=key)
    df = spark_sources.read.format(PULSAR).options(**spark_topic.options(subscription=None)).load()

    (row,) = df.transform(reassemble("value", config=CHUNKING)).collect()

    if place is None:
        assert bytes(row.payload) == PAYLOAD
    else:
        assert (row.payload, row.error.type) == (None, "IntegrityError")
        assert "claimcheck-checksum" in row.error.message
