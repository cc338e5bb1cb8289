"""Retention by subscription, and two queries with one subscription: one is refused, or reports its losses."""

import pytest

from tests import servers
from tests.spark.sources_rig import batches_of, failure, stream, values

PULSAR = "claimcheck_pulsar"


@pytest.fixture
def rival(spark_sources, spark_topic, tmp_path):
    """A second query with a checkpoint of its own, and the same subscription."""

    def run(**more):
        return batches_of(stream(spark_sources, PULSAR, spark_topic.options(**more)), tmp_path / "rival")

    return run


def forget_what_was_read(topic, rival, ledger):
    """Let the rival read until the broker deletes a ledger."""

    def gone():
        topic.send([1000, 1001])  # in two entries; the second is kept as proof
        rival()
        topic.roll()
        topic.broker.trim(topic.name)
        return ledger not in topic.ledgers()

    servers.wait_until(gone, "the ledger is gone", 60)


def test_what_is_committed_may_go_where_each_ledger_has_one_entry(spark_sources, spark_topic, tmp_path):
    df = stream(spark_sources, PULSAR, spark_topic.options())
    for number in range(3):  # as a job that runs rarely, on a topic with few messages
        sent = spark_topic.send([number])
        assert values(batches_of(df, tmp_path / "c")) == sent
        if not number:
            first = spark_topic.ledgers()[0]
        spark_topic.roll()

    servers.wait_until(lambda: spark_topic.broker.trim(spark_topic.name) or first not in spark_topic.ledgers(), "gone")
    spark_topic.send([3])
    assert values(batches_of(df, tmp_path / "c")) == [b"3"]  # and the proof is still there


def test_both_at_the_same_time(spark_sources, spark_topic, rival, tmp_path):
    sent, seen = spark_topic.send(range(5)), {}
    df = stream(spark_sources, PULSAR, spark_topic.options())
    keep = df.writeStream.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="200 milliseconds")
    query = keep.foreachBatch(lambda batch, number: seen.update({number: batch.collect()})).start()
    try:
        servers.wait_until(lambda: values(seen) == sent, "the first rows are there", 60)
        text = failure(rival)
        sent += spark_topic.send(range(5, 10))
        servers.wait_until(lambda: values(seen) == sorted(sent), "the query goes on", 60)
    finally:
        query.stop()

    assert "SubscriptionBusyError" in text
    assert "Each query needs a subscription of its own" in text


def test_one_after_the_other_while_everything_is_there(spark_sources, spark_topic, rival, tmp_path):
    first = spark_topic.send(range(5))
    df = stream(spark_sources, PULSAR, spark_topic.options())
    mine = [batches_of(df, tmp_path / "c")]
    second = spark_topic.send(range(5, 10))
    theirs = [rival()]
    third = spark_topic.send(range(10, 15))
    theirs.append(rival())
    mine.append(batches_of(df, tmp_path / "c"))

    assert [values(seen) for seen in theirs] == [sorted(first + second), third]
    assert [values(seen) for seen in mine] == [first, sorted(second + third)]


@pytest.mark.parametrize("position", ["earliest", "latest"])
def test_what_the_other_has_let_go_of_is_missed(spark_sources, spark_topic, rival, tmp_path, position):
    spark_topic.send(range(5))
    df = stream(spark_sources, PULSAR, spark_topic.options())
    batches_of(df, tmp_path / "c")
    spark_topic.roll()
    spark_topic.send(range(5, 10))
    lost = spark_topic.ledgers()[-1]
    spark_topic.roll()
    rival(startingPosition=position)

    forget_what_was_read(spark_topic, rival, lost)

    text = failure(lambda: batches_of(df, tmp_path / "c"))
    assert "DataLossError" in text
    assert "subscription" in text


def test_what_was_never_read_is_missed_too(spark_sources, spark_topic, rival, tmp_path):
    df = stream(spark_sources, PULSAR, spark_topic.options())
    assert values(batches_of(df, tmp_path / "c")) == []
    spark_topic.send(range(5))
    lost = spark_topic.ledgers()[-1]
    spark_topic.roll()
    rival()

    forget_what_was_read(spark_topic, rival, lost)

    text = failure(lambda: batches_of(df, tmp_path / "c"))
    assert "DataLossError" in text
