"""Streams of a real Pulsar that are killed, whose broker is killed, or whose data or subscription is lost."""

import contextlib
import logging
import os

import pulsar
import pytest

from tests import servers
from tests.integration.pulsar_rig import Topic
from tests.spark.drivers import STOPPED, Driver, write_batches
from tests.spark.rig import batches_of, failure, stream, values, written

PULSAR = "claimcheck_pulsar"
quiet = logging.getLogger("pulsar-client-of-a-killed-broker")
quiet.setLevel(logging.CRITICAL)


@contextlib.contextmanager
def running(df, checkpoint, **trigger):
    """Run a query in the background; gives it, and its rows by batch."""
    seen = {}
    keep = df.writeStream.option("checkpointLocation", str(checkpoint)).trigger(**trigger)
    query = keep.foreachBatch(lambda batch, number: seen.update({number: batch.collect()})).start()
    try:
        yield query, seen
    finally:
        query.stop()


@pytest.mark.parametrize("added", [["-partition-2"], ["-partition-2", "-and-another"]], ids=["topic", "topicsPattern"])
def test_partitions_and_topics_that_are_added_while_it_runs(spark_sources, spark_topic, tmp_path, added):
    spark_topic.broker.create_partitioned(spark_topic.name, 1)
    sent = spark_topic.send(range(10))
    pattern = {"topic": None, "topicsPattern": f"{spark_topic.name}.*", "adminUrl": spark_topic.broker.admin_url}
    df = stream(spark_sources, PULSAR, spark_topic.options(**(pattern if len(added) > 1 else {})))
    with running(df, tmp_path / "c", processingTime="200 milliseconds") as (_, seen):
        servers.wait_until(lambda: values(seen) == sent, "the first rows are there", 60)
        spark_topic.broker.request("POST", f"persistent/public/default/{spark_topic.name}/partitions", 3)
        for name in added:
            spark_topic.client.create_producer(spark_topic.full + name).send(name.encode())
            sent = sorted([*sent, name.encode()])
            servers.wait_until(lambda: values(seen) == sent, f"{name} is read", 60)  # noqa: B023


def test_what_is_not_committed_is_kept_and_what_is_may_go_where_each_ledger_has_one_entry(
    spark_sources, spark_topic, tmp_path
):
    df = stream(spark_sources, PULSAR, spark_topic.options())
    batches_of(df, tmp_path / "c")
    for number in range(3):  # as a job that runs rarely, on a topic with few messages
        sent = spark_topic.send([number])
        spark_topic.roll()
        spark_topic.broker.trim(spark_topic.name)
        assert values(batches_of(df, tmp_path / "c")) == sent
        if not number:
            first = spark_topic.ledgers()[0]
    servers.wait_until(lambda: _trimmed(spark_topic, first), "the ledger is gone")
    spark_topic.send([3])
    assert values(batches_of(df, tmp_path / "c")) == [b"3"]  # and the proof is still there


def test_data_that_is_lost_under_the_checkpoint_is_noticed(spark_sources, spark_topic, tmp_path):
    spark_topic.send(range(5))
    df = stream(spark_sources, PULSAR, spark_topic.options())
    batches_of(df, tmp_path / "c")
    spark_topic.send(range(5, 10))
    _forget(spark_topic)
    later = spark_topic.send(range(10, 15))
    careless = stream(spark_sources, PULSAR, spark_topic.options(failOnDataLoss=False))
    text = failure(lambda: batches_of(df, tmp_path / "c"))
    seen = batches_of(careless, tmp_path / "c")
    assert "DataLossError" in text
    assert spark_topic.full in text
    assert values(seen) == later


def _forget(topic):
    """Have the broker delete all messages: without the subscription nothing is kept."""
    topic.broker.request("DELETE", f"persistent/public/default/{topic.name}/subscription/spark?force=true")
    old = topic.ledgers()
    topic.roll()
    topic.send([])  # loads it again, with a new ledger
    servers.wait_until(lambda: _trimmed(topic, old[-1]), "everything is gone")


def _trimmed(topic, ledger):
    topic.broker.trim(topic.name)
    return ledger not in topic.ledgers()


def test_two_queries_with_one_subscription(spark_sources, spark_topic, tmp_path):
    sent = spark_topic.send(range(5))
    df = stream(spark_sources, PULSAR, spark_topic.options())
    with running(df, tmp_path / "c", processingTime="200 milliseconds") as (_, seen):
        servers.wait_until(lambda: values(seen) == sent, "the first rows are there", 60)
        text = failure(lambda: batches_of(df, tmp_path / "rival"))
        sent += spark_topic.send(range(5, 10))
        servers.wait_until(lambda: values(seen) == sorted(sent), "the query goes on", 60)
    assert "SubscriptionBusyError" in text
    assert spark_topic.full in text
    assert "Each query needs a subscription of its own" in text


# A JVM that is killed under its driver -----------------------------------------------------------------------------


def consumers(topic):
    """Return the consumers of the query's subscription."""
    partitions = topic.broker.request(
        "GET", f"persistent/public/default/{topic.name}/partitioned-stats?perPartition=true"
    )
    found = [part["subscriptions"].get("spark", {}) for part in partitions["partitions"].values()]
    return [consumer for each in found for consumer in each.get("consumers", ())]


def test_a_jvm_that_is_killed_loses_nothing(worker_env, spark_sources, spark_topic, tmp_path):
    spark_topic.broker.create_partitioned(spark_topic.name, 3)
    spark_topic.send(range(100))
    spark_topic.send(range(100, 150), batched=True)
    told = spark_topic.options(maxRowsPerTrigger=40)
    with Driver({}, tmp_path, os.environ | worker_env) as driver:
        driver.begin("stream", form=PULSAR, options=told, folder=str(tmp_path), stop_in=2, kill="jvm")
        assert driver.line() == STOPPED
        servers.wait_until(lambda: not consumers(spark_topic), "nobody of the first run is left", 60)
    spark_topic.send(range(150, 170), batched=True)
    write_batches(stream(spark_sources, PULSAR, told), tmp_path)
    attempts = written(tmp_path)
    assert [len(attempts[number]) for number in (0, 1, 2)] == [1, 1, 2]  # 2 was written, but not committed
    assert attempts[2][0] == attempts[2][1]
    assert sorted(row["value"] for each in attempts.values() for row in each[-1]) == sorted(map(str, range(170)))


# A broker that is killed and started again -------------------------------------------------------------------------


ROWS = 12_000


def test_a_broker_that_is_killed_while_it_is_read(own_pulsar_jars, spark_sources, topic, tmp_path):
    with servers.pulsar(durable=True) as broker:
        client = pulsar.Client(broker.service_url, logger=quiet)
        own_topic = Topic(broker, client, topic)
        broker.create_partitioned(topic, 2)
        sent = own_topic.send(range(ROWS))
        df = stream(spark_sources, PULSAR, own_topic.options(maxRowsPerTrigger=ROWS // 6)).select("value")
        with running(df, tmp_path / "c", availableNow=True) as (query, seen):
            servers.wait_until(lambda: seen, "a batch is read", 90)
            broker.server.kill()
            broker.server.start()
            assert query.awaitTermination(120)
        client.close()
    assert query.exception() is None
    assert values(seen) == sorted(sent)
