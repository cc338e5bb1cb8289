"""A broker that is killed and started again while Spark reads."""

import logging
import os
import threading

import pulsar
import pytest

from tests import servers
from tests.integration.spark_rig import Topic
from tests.spark.sources_rig import stream, values

ROWS = 30_000


@pytest.fixture(scope="module")
def broker(pulsar_jars):
    """One of our own, to be killed."""
    if servers.PULSAR_JARS not in os.environ:
        pytest.skip("no jars to start a broker of one's own")
    with servers.pulsar(durable=True) as broker:
        yield broker


@pytest.fixture
def own_topic(broker, topic):
    logger = logging.getLogger("pulsar-client-of-a-killed-broker")
    logger.setLevel(logging.CRITICAL)
    client = pulsar.Client(broker.service_url, logger=logger)
    yield Topic(broker, client, topic)
    client.close()


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}], ids=["now", "for ever"])
def test_a_broker_that_is_killed_while_it_is_read(spark_sources, own_topic, tmp_path, trigger):
    own_topic.broker.create_partitioned(own_topic.name, 2)
    sent = own_topic.send(range(ROWS))
    seen, reading, complete = {}, threading.Event(), threading.Event()

    def keep(batch, number):
        seen[number] = batch.collect()
        reading.set()
        if len(values(seen)) >= ROWS:
            complete.set()

    df = stream(spark_sources, "claimcheck_pulsar", own_topic.options(maxRowsPerTrigger=ROWS // 6)).select("value")
    writer = df.writeStream.option("checkpointLocation", str(tmp_path / "c")).foreachBatch(keep)
    query = writer.trigger(**trigger).start()
    try:
        assert reading.wait(90)
        own_topic.broker.server.kill()
        own_topic.broker.server.start()
        assert complete.wait(120), query.exception()
        if "availableNow" in trigger:
            assert query.awaitTermination(120)
    finally:
        query.stop()

    assert query.exception() is None
    assert values(seen) == sorted(sent)
