"""Streams of a real Pulsar that are killed, or whose data or subscription is lost: every row once, or an error."""

import json
import time

import pulsar

from tests import servers
from tests.spark.sources_child import read
from tests.spark.sources_rig import batches_of, failure, run_child, stream, values, written

PULSAR = "claimcheck_pulsar"


def test_a_driver_that_is_killed_begins_again_exactly(worker_env, spark_sources, spark_topic, tmp_path):
    spark_topic.broker.create_partitioned(spark_topic.name, 3)
    spark_topic.send(range(100))
    spark_topic.send(range(100, 150), batched=True)
    told = spark_topic.options(maxRowsPerTrigger=40)

    run_child(worker_env, "read", tmp_path, PULSAR, json.dumps(told), stop="after 2")
    spark_topic.send(range(150, 170), batched=True)
    read(stream(spark_sources, PULSAR, told), tmp_path)

    attempts = written(tmp_path)
    assert [len(attempts[number]) for number in (0, 1, 2)] == [1, 1, 2]  # 2 was written, but not committed
    assert attempts[2][0] == attempts[2][1]
    assert sorted(v for each in attempts.values() for v in each[-1]) == sorted(map(str, range(170)))


def test_partitions_that_are_added_while_it_runs(spark_sources, spark_topic, tmp_path):
    spark_topic.broker.create_partitioned(spark_topic.name, 1)
    sent = spark_topic.send(range(10))
    seen = {}
    df = stream(spark_sources, PULSAR, spark_topic.options())
    keep = df.writeStream.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="200 milliseconds")
    query = keep.foreachBatch(lambda batch, number: seen.update({number: batch.collect()})).start()
    try:
        servers.wait_until(lambda: values(seen) == sent, "the first rows are there", 60)
        spark_topic.broker.request("POST", f"persistent/public/default/{spark_topic.name}/partitions", 3)
        producer = spark_topic.client.create_producer(f"{spark_topic.full}-partition-2")
        producer.send(b"added")
        servers.wait_until(lambda: values(seen) == sorted([*sent, b"added"]), "the new partition is read", 60)
    finally:
        query.stop()


def test_what_is_not_committed_is_kept_and_what_is_may_go(spark_sources, spark_topic, tmp_path):
    df = stream(spark_sources, PULSAR, spark_topic.options())
    batches_of(df, tmp_path / "c")
    first = spark_topic.send(range(5))
    spark_topic.roll()
    spark_topic.send(range(5, 10))
    spark_topic.roll()
    spark_topic.broker.trim(spark_topic.name)
    kept = spark_topic.ledgers()

    seen = batches_of(df, tmp_path / "c")
    sent = spark_topic.send(range(10, 15))
    more = batches_of(df, tmp_path / "c")
    spark_topic.send(range(15, 16))
    batches_of(df, tmp_path / "c")  # commits the batch before

    assert values(seen) == sorted([*first, *(b"%d" % n for n in range(5, 10))])
    assert values(more) == sent
    servers.wait_until(lambda: _trimmed(spark_topic, kept[0]), "the oldest ledger is gone")


def test_a_topic_that_forgot_everything_goes_on(spark_sources, spark_topic, tmp_path):
    sent = spark_topic.send(range(5))
    df = stream(spark_sources, PULSAR, spark_topic.options())
    seen = batches_of(df, tmp_path / "c")
    _forget(spark_topic)

    nothing = batches_of(df, tmp_path / "c")

    assert (values(seen), values(nothing)) == (sent, [])


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


def test_a_subscription_that_somebody_else_has(spark_sources, spark_topic, tmp_path):
    sent = spark_topic.send(range(3))
    holder = spark_topic.client.subscribe(spark_topic.full, "spark", initial_position=pulsar.InitialPosition.Earliest)
    df = stream(spark_sources, PULSAR, spark_topic.options())

    begun = time.monotonic()
    text = failure(lambda: batches_of(df, tmp_path / "c"))
    took = time.monotonic() - begun
    holder.close()
    seen = batches_of(df, tmp_path / "c")

    assert "SubscriptionBusyError" in text
    assert "Each query needs a subscription of its own" in text
    assert took >= 10
    assert values(seen) == sent


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
