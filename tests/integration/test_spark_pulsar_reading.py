"""Spark reads topics of a real Pulsar: the rows, and the limits of streams."""

import os

import pulsar
import pytest

import claimcheck
from claimcheck.spark import resolve
from claimcheck.transports.pulsar import PulsarProducer
from tests.integration.pulsar_rig import content
from tests.spark.sources_rig import batches_of, failure, stream, values

PULSAR = "claimcheck_pulsar"


def batch(spark, options):
    return spark.read.format(PULSAR).options(**options).load()


def test_a_batch_reads_every_message_with_all_that_belongs_to_it(spark_sources, spark_topic, pulsar_client):
    spark_topic.broker.create_partitioned(spark_topic.name, 2)
    spark_topic.send(range(20))
    spark_topic.send(range(20, 60), batched=True)
    producer = pulsar_client.create_producer(f"{spark_topic.full}-partition-1", producer_name=f"p-{spark_topic.name}")
    sent = producer.send(b"whole", {"a": "1", "ä": ""}, "k", event_timestamp=1_700_000_000_123)
    producer.send(None)

    rows = batch(spark_sources, spark_topic.options(subscription=None)).collect()

    expected = [None, b"whole", *(b"%d" % n for n in range(60))]
    assert sorted(map(str, (row.value and bytes(row.value) for row in rows))) == sorted(map(str, expected))
    whole = next(row for row in rows if row.value == b"whole")
    assert (whole.key, whole.properties, whole.producer_name) == ("k", {"a": "1", "ä": ""}, f"p-{spark_topic.name}")
    assert (whole.topic, whole.partition) == (spark_topic.full, 1)
    assert (whole.ledger_id, whole.entry_id) == (sent.ledger_id(), sent.entry_id())
    assert pulsar.MessageId.deserialize(bytes(whole.message_id)).entry_id() == sent.entry_id()
    assert whole.event_time.timestamp() == pytest.approx(1_700_000_000.123)
    plain = next(row for row in rows if row.value == b"7")
    assert (plain.key, plain.properties, plain.event_time) == (None, {}, None)
    assert 0 <= whole.publish_time.timestamp() - plain.publish_time.timestamp() < 60
    assert {row.batch_index for row in rows if row.value in (b"20", b"21", b"22", b"23")} != {-1}


def test_only_the_columns_that_a_schema_asks_for(spark_sources, spark_topic):
    sent = spark_topic.send(range(5))
    reader = spark_sources.read.format(PULSAR).options(**spark_topic.options(subscription=None))

    rows = reader.schema("value binary, partition int").load().collect()

    assert (sorted(bytes(row.value) for row in rows), {row.partition for row in rows}) == (sent, {-1})


def test_topics_that_are_empty_and_topics_that_are_not_there(spark_sources, spark_topic):
    told = spark_topic.options(subscription=None, adminUrl=spark_topic.broker.admin_url)

    assert "which does not exist" in failure(batch(spark_sources, told).collect)
    spark_topic.broker.create_partitioned(spark_topic.name, 2)
    assert batch(spark_sources, told).collect() == []


def test_several_topics(spark_sources, spark_topic):
    spark_topic.send(range(3))
    other = type(spark_topic)(spark_topic.broker, spark_topic.client, f"{spark_topic.name}-2")
    other.send(range(3, 6))

    told = spark_topic.options(subscription=None, topic=f"{spark_topic.name}, {other.full}")
    rows = batch(spark_sources, told).collect()

    assert sorted((row.topic, bytes(row.value)) for row in rows) == [
        *((spark_topic.full, b"%d" % n) for n in range(3)),
        *((other.full, b"%d" % n) for n in range(3, 6)),
    ]


def test_payloads_of_any_size_come_out_of_a_stream(spark_sources, spark_topic, claims, tmp_path):
    payloads = [content(size, size) for size in (10, 2000, 300_000)]
    with (
        claimcheck.from_dict(claims) as cc,
        PulsarProducer(spark_topic.client.create_producer(spark_topic.name), cc) as producer,
    ):
        for payload in payloads:
            producer.send(payload)

    df = stream(spark_sources, PULSAR, spark_topic.options()).transform(resolve("value", config=claims))
    seen = batches_of(df, tmp_path / "c")

    assert sorted(bytes(row.payload) for rows in seen.values() for row in rows) == sorted(payloads)


def test_a_stream_stops_at_rows_and_takes_entries_whole(spark_sources, spark_topic, tmp_path):
    spark_topic.broker.create_partitioned(spark_topic.name, 3)
    spark_topic.send(range(100))
    spark_topic.send(range(100, 150), batched=True)
    df = stream(spark_sources, PULSAR, spark_topic.options(maxRowsPerTrigger=40))

    seen = batches_of(df, tmp_path / "c")
    spark_topic.send(range(150, 160), batched=True)
    more = batches_of(df, tmp_path / "c")

    assert values(seen) == sorted(b"%d" % n for n in range(150))
    assert values(more) == sorted(b"%d" % n for n in range(150, 160))
    assert len(seen) >= 4
    assert max(map(len, seen.values())) <= 60  # 40, or one entry that alone has more
    entries = [(row.partition, row.ledger_id, row.entry_id) for rows in seen.values() for row in rows]
    where = [{(r.partition, r.ledger_id, r.entry_id) for r in rows} for rows in seen.values()]
    assert sum(map(len, where)) == len(set(entries))  # no entry is in two batches


def test_a_large_limit_is_estimated_from_a_sample(spark_sources, spark_topic, tmp_path):
    spark_topic.send(range(6000))
    df = stream(spark_sources, PULSAR, spark_topic.options(maxRowsPerTrigger=2500))

    seen = batches_of(df.select("value"), tmp_path / "c")

    assert [len(seen[number]) for number in sorted(seen)] == [2500, 2500, 1000]
    assert values(seen) == sorted(b"%d" % n for n in range(6000))


def test_a_stream_may_begin_at_the_end(spark_sources, spark_topic, tmp_path):
    spark_topic.send(range(10))
    df = stream(spark_sources, PULSAR, spark_topic.options(startingPosition="latest"))

    nothing = batches_of(df, tmp_path / "c")
    sent = spark_topic.send(range(10, 13))
    seen = batches_of(df, tmp_path / "c")

    assert (values(nothing), values(seen)) == ([], sent)


def test_wrong_options_are_told(spark_sources, spark_topic, tmp_path):
    def load(**more):
        return failure(lambda: stream(spark_sources, PULSAR, spark_topic.options(**more)).schema)

    assert "did you mean 'serviceUrl'" in load(serviceUrll="x")
    assert "serviceUrl: found nothing" in load(serviceUrl=None)
    assert "serviceUrl: found text, expected pulsar://" in load(serviceUrl="http://user:hunter2@host")
    assert "failOnDataLoss: found 'maybe'" in load(failOnDataLoss="maybe")
    query = stream(spark_sources, PULSAR, spark_topic.options(subscription=None))
    assert "subscription: found nothing" in failure(lambda: batches_of(query, tmp_path / "c"))


def test_secrets_travel_by_name_only(spark_sources, spark_topic, tmp_path):
    name = "AWS_SECRET_ACCESS_KEY"  # in the environment of all processes
    sent = spark_topic.send(range(3))
    unreachable = {"serviceUrl": "pulsar://127.0.0.1:1", "readTimeoutSeconds": 1}

    def read(variable, **more):
        return batch(spark_sources, spark_topic.options(subscription=None, authTokenEnv=variable, **more))

    df = read(name)
    plan = df._jdf.queryExecution().toString()
    error = failure(read("NOBODY_SET_THIS").collect)
    broken = failure(read(name, **unreachable).collect)

    assert sorted(bytes(row.value) for row in df.collect()) == sent
    assert "NOBODY_SET_THIS" in error
    assert "TransportError" in broken
    assert not any(os.environ[name] in text for text in (plan, error, broken))
