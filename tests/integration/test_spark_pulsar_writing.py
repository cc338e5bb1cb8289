"""Spark writes to topics of a real Pulsar: rows unchanged, or offloaded."""

import pulsar
import pytest

import claimcheck
from tests.integration.pulsar_rig import LIMIT, content
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
