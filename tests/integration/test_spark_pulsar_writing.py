"""Spark writes to topics of a real Pulsar, and collects the garbage of topics over a real S3."""

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
from tests.integration.pulsar_rig import LIMIT, content
from tests.integration.spark_rig import Topic
from tests.spark.sources_rig import failure, stream

PULSAR = "claimcheck_pulsar"
HEADERS = "headers array<struct<key:string,value:binary>>"


def save(df, to, **more):
    df.write.format(PULSAR).mode("append").options(**to.options(subscription=None, **more)).save()


def messages(topic, count):
    """Return the messages of a topic, in order."""
    reader = topic.client.create_reader(topic.full, pulsar.MessageId.earliest)
    try:
        found = [reader.read_next(10_000) for _ in range(count)]
        assert not reader.has_message_available()
        return found
    finally:
        reader.close()


def stored(tmp_path):
    return [path for path in (tmp_path / "claims").rglob("*") if path.is_file()]


def test_rows_go_as_they_are(spark_sources, spark_topic):
    rows = [(b"1", "k", {"a": "1"}, [("b", b"2")]), (b"", None, None, None), (None, "k", {}, [])]
    df = spark_sources.createDataFrame(rows, f"value binary, key string, properties map<string,string>, {HEADERS}")

    save(df.coalesce(1), spark_topic)

    first, empty, tombstone = messages(spark_topic, 3)
    assert (first.data(), first.partition_key(), first.properties()) == (b"1", "k", {"a": "1", "b": "2"})
    assert (empty.data(), empty.has_null_value(), empty.partition_key()) == (b"", False, "")
    assert tombstone.has_null_value()


def test_many_rows_are_batched_and_all_of_them_arrive(spark_sources, spark_topic):
    df = spark_sources.range(5000).selectExpr("binary(string(id)) value", "string(id % 7) key")

    save(df, spark_topic)

    found = messages(spark_topic, 5000)
    assert sorted(int(message.data()) for message in found) == list(range(5000))
    assert len({message.message_id().entry_id() for message in found}) < 2500


def test_a_batch_keeps_to_the_limit_that_the_broker_tells(spark_sources, spark_topic, pulsar_broker):
    rows = [(content(9_000, n),) for n in range(100)]

    save(spark_sources.createDataFrame(rows, "value binary").coalesce(1), spark_topic, adminUrl=pulsar_broker.admin_url)

    assert sorted(message.data() for message in messages(spark_topic, 100)) == sorted(row[0] for row in rows)


def test_a_batch_that_is_too_large_is_told_from_a_message(spark_sources, spark_topic):
    rows = [(content(9_000, n),) for n in range(100)]

    text = failure(lambda: save(spark_sources.createDataFrame(rows, "value binary").coalesce(1), spark_topic))

    assert "MessageTooBig (9000 bytes, perhaps in a batch)" in text
    assert "maxMessageBytes" in text


def test_a_topic_of_each_row(spark_sources, spark_topic):
    other = type(spark_topic)(spark_topic.broker, spark_topic.client, f"{spark_topic.name}-2")
    df = spark_sources.createDataFrame([(spark_topic.name, b"1"), (other.full, b"2")], "topic string, value binary")

    save(df, spark_topic, topic=None)

    assert [message.data() for message in messages(spark_topic, 1) + messages(other, 1)] == [b"1", b"2"]


def test_with_a_configuration_large_payloads_are_offloaded(spark_sources, spark_topic, claims, config_file, tmp_path):
    payloads = [content(10), content(LIMIT * 3), content(5000)]
    df = spark_sources.createDataFrame([(payload,) for payload in payloads], "value binary").coalesce(1)

    save(df, spark_topic, config=config_file, maxMessageBytes=LIMIT)

    found = messages(spark_topic, 3)
    with claimcheck.from_dict(claims) as cc:
        assert [cc.resolve(message.data()) for message in found] == payloads
    assert [message.properties().get("claimcheck-type") for message in found] == [None, "pointer", "pointer"]
    assert len(stored(tmp_path)) == 2


def test_envelopes_pass_untouched(spark_sources, spark_topic, claims, config_file):
    with claimcheck.from_dict(claims) as cc, cc.outbound(content(5000), destination="t") as out:
        [envelope] = out.envelopes
    rows = [(envelope.data, [(name, value.encode()) for name, value in envelope.headers.items()])]
    df = spark_sources.createDataFrame(rows, f"value binary, {HEADERS}")

    save(df, spark_topic)
    save(df, spark_topic, config=config_file)

    found = messages(spark_topic, 2)
    assert {message.data() for message in found} == {envelope.data}
    assert [message.properties() for message in found] == [envelope.headers] * 2


def test_a_row_that_is_too_large_is_named(spark_sources, spark_topic):
    rows = [(b"1",), (b"2",), (content(LIMIT * 2),)]

    text = failure(lambda: save(spark_sources.createDataFrame(rows, "value binary").coalesce(1), spark_topic))

    assert "RowSendError" in text
    assert "row 2 of this task was not sent: MessageTooBig" in text
    assert spark_topic.name in text


def test_what_was_stored_for_a_send_that_fails_is_removed(spark_sources, spark_topic, config_file, tmp_path):
    spark_topic.send(range(1))
    spark_topic.broker.request("POST", f"persistent/public/default/{spark_topic.name}/terminate")
    df = spark_sources.createDataFrame([(content(5000, n),) for n in range(3)], "value binary").coalesce(1)

    text = failure(lambda: save(df, spark_topic, config=config_file))

    assert "TopicTerminated" in text
    assert stored(tmp_path) == []


def test_a_key_that_is_no_text_is_refused(spark_sources, spark_topic):
    df = spark_sources.createDataFrame([(b"1", b"\xff")], "value binary, key binary")

    assert "the key is not UTF-8" in failure(lambda: save(df, spark_topic))


def test_a_stream_from_topic_to_topic(spark_sources, spark_topic, tmp_path):
    other = type(spark_topic)(spark_topic.broker, spark_topic.client, f"{spark_topic.name}-2")
    sent = spark_topic.send(range(30), properties={"a": "b"})
    df = stream(spark_sources, PULSAR, spark_topic.options(maxRowsPerTrigger=12)).drop("topic")

    told = other.options(subscription=None, checkpointLocation=tmp_path / "c")
    df.writeStream.format(PULSAR).options(**told).trigger(availableNow=True).start().awaitTermination()

    found = messages(other, 30)
    assert sorted(message.data() for message in found) == sorted(sent)
    assert {message.properties()["a"] for message in found} == {"b"}


@pytest.mark.parametrize("missing", ["value", "topic"])
def test_columns_that_are_missing_are_told(spark_sources, spark_topic, missing):
    df = spark_sources.createDataFrame([("1", b"1")], "topic string, value binary").drop(missing)

    assert f"{missing}: found nothing" in failure(lambda: save(df, spark_topic, topic=None))


# Garbage collection ------------------------------------------------------------------------------------------------


DAY = 86_400


@pytest.fixture
def short_topic(pulsar_broker, pulsar_client):
    """A topic with a short name: keys have the first 64 characters of its full name."""
    return Topic(pulsar_broker, pulsar_client, f"gc-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def config(s3_server, s3_bucket):
    stores = {"cold": {"type": "s3", "bucket": s3_bucket, "endpoint_url": s3_server.endpoint_url, "prefix": "claims"}}
    stores["cold"]["ttl_seconds"] = 30 * DAY
    return {"strategy": "external", "store": "cold", "stores": stores}


def test_pulsar_and_s3(spark_sources, short_topic, pulsar_client, config, s3_resource, s3_bucket):
    """Acknowledged, delayed and dead-lettered messages keep their payloads; what was never sent goes."""
    short_topic.broker.create_partitioned(short_topic.name, 2)
    short_topic.broker.create_partitioned(f"{short_topic.name}-DLQ", 1)
    with claimcheck.from_dict(config) as cc:
        store = cc.store("cold")

        def write(days):
            store.context = StoreContext(name="cold", clock=lambda: time.time() - days * DAY)
            return store.write(b"payload", destination=short_topic.full)

        kept, lost = [write(2 + n / 3) for n in range(20)], [write(2 + n / 3) for n in range(20)]
        young = write(0.5)
        producer = pulsar_client.create_producer(short_topic.name)
        for pointer in kept[:15]:
            producer.send(cc.seal(pointer))
        producer.send(cc.seal(kept[15]), deliver_after=timedelta(hours=1))
        dead = pulsar_client.create_producer(f"{short_topic.name}-DLQ")
        for pointer in kept[16:]:
            dead.send(cc.seal(pointer))
        earliest = pulsar.InitialPosition.Earliest
        consumer = pulsar_client.subscribe(short_topic.name, "s", initial_position=earliest)
        producer.send(cc.seal(kept[0]))
        for _ in range(3):
            consumer.acknowledge(consumer.receive(10_000))

    names = f"{short_topic.name},{short_topic.name}-DLQ"
    options = {"serviceUrl": short_topic.broker.service_url, "adminUrl": short_topic.broker.admin_url, "topic": names}
    topics = [{"format": "claimcheck_pulsar", **options}]
    with pytest.raises(Exception, match="does not exist"):
        collect_garbage(spark_sources, config=config, topics=[{**topics[0], "topic": f"{short_topic.name}-none"}])

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


def test_a_topic_of_pulsar_with_the_same_beginning_has_to_be_named(spark_sources, short_topic, config):
    long = f"{short_topic.name}-{'x' * 40}"
    for name in (f"{long}-1", f"{long}-2"):
        short_topic.broker.create_partitioned(name, 1)
    options = {"serviceUrl": short_topic.broker.service_url, "adminUrl": short_topic.broker.admin_url}
    topics = [{"format": "claimcheck_pulsar", **options, "topic": f"{long}-1"}]

    with pytest.raises(ConfigError, match=f"{long}-2.*name this topic, too"):
        collect_garbage(spark_sources, config=config, topics=topics)
