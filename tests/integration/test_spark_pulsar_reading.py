"""Spark reads topics of a real Pulsar: rows, limits, many partitions, and messages that it cannot read."""

import json
import subprocess
import time
from types import SimpleNamespace

import pulsar
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from claimcheck.spark.sources import DataLossError
from claimcheck.spark.sources._formats import PulsarSource
from claimcheck.spark.sources._pulsar_client import IN_PARALLEL
from claimcheck.spark.sources._pulsar_reader import check_readable
from tests import servers
from tests.spark.rig import batches_of, failure, stream, values

PULSAR = "claimcheck_pulsar"


def batch_of(spark, options):
    return spark.read.format(PULSAR).options(**options).load()


def test_a_batch_reads_every_message_with_all_that_belongs_to_it(spark_sources, spark_topic, pulsar_client):
    spark_topic.broker.create_partitioned(spark_topic.name, 2)
    spark_topic.send(range(20))
    spark_topic.send(range(20, 60), batched=True)
    producer = pulsar_client.create_producer(f"{spark_topic.full}-partition-1", producer_name=f"p-{spark_topic.name}")
    sent = producer.send(b"whole", {"a": "1", "ä": ""}, "k", event_timestamp=1_700_000_000_123)
    producer.send(None)
    producer.send(b"nanoseconds", event_timestamp=1_795_270_215_241_902_482)

    rows = batch_of(spark_sources, spark_topic.options(subscription=None)).collect()

    expected = [None, b"whole", b"nanoseconds", *(b"%d" % n for n in range(60))]
    assert sorted(map(str, (row.value and bytes(row.value) for row in rows))) == sorted(map(str, expected))
    whole = next(row for row in rows if row.value == b"whole")
    assert (whole.key, whole.properties, whole.producer_name) == ("k", {"a": "1", "ä": ""}, f"p-{spark_topic.name}")
    assert (whole.topic, whole.partition) == (spark_topic.full, 1)
    assert (whole.ledger_id, whole.entry_id) == (sent.ledger_id(), sent.entry_id())
    assert pulsar.MessageId.deserialize(bytes(whole.message_id)).entry_id() == sent.entry_id()
    assert whole.event_time.timestamp() == pytest.approx(1_700_000_000.123)
    assert [row.event_time for row in rows if row.value == b"nanoseconds"] == [None]  # too late for any calendar
    plain = next(row for row in rows if row.value == b"7")
    assert (plain.key, plain.properties, plain.event_time) == (None, {}, None)
    assert 0 <= whole.publish_time.timestamp() - plain.publish_time.timestamp() < 60
    assert {row.batch_index for row in rows if row.value in (b"20", b"21", b"22", b"23")} != {-1}


def test_topics_that_are_empty_and_topics_that_are_not_there(spark_sources, spark_topic):
    told = spark_topic.options(subscription=None, adminUrl=spark_topic.broker.admin_url)

    assert "which does not exist" in failure(batch_of(spark_sources, told).collect)
    spark_topic.broker.create_partitioned(spark_topic.name, 2)
    assert batch_of(spark_sources, told).collect() == []


def times(rows):
    return sorted({round(row.publish_time.timestamp() * 1000) for row in rows})


def numbers(df):
    return sorted(int(row.value) for row in df.collect())


def test_times_message_ids_and_patterns_select_messages(spark_sources, spark_topic, pulsar_client, topic, tmp_path):
    """Also where the first one begins a ledger; an entry of several messages is read as a whole."""
    spark_topic.broker.create_partitioned(spark_topic.name, 2)
    spark_topic.keep()
    parts = [f"{spark_topic.full}-partition-{number}" for number in (0, 1)]
    senders = [pulsar_client.create_producer(part, batching_enabled=False) for part in parts]
    told = spark_topic.options(subscription=None, adminUrl=spark_topic.broker.admin_url)

    def send(*values):
        return [sender.send(b"%d" % value) for sender in senders for value in values]

    def read(**options):
        return numbers(batch_of(spark_sources, told | {k: str(v) for k, v in options.items()}))

    def later(**options):
        options = told | {"subscription": f"s{len(list(tmp_path.iterdir()))}"} | options
        return stream(spark_sources, PULSAR, options), tmp_path / options["subscription"]

    first = send(1, 2)
    servers.wait_until(
        lambda: time.time() * 1000 > times(batch_of(spark_sources, told).collect())[-1] + 2, "the clock moves on"
    )
    spark_topic.roll()
    ids = send(3, 4)
    rows = batch_of(spark_sources, told).collect()
    begin = times([row for row in rows if int(row.value) == 3])[0]
    assert first[0].ledger_id() != ids[0].ledger_id()
    assert ids[0].entry_id() == 0

    assert read(startingTime=begin) == [3, 3, 4, 4]
    assert read(startingTime=begin - 1, endingTime=begin) == []
    assert read(endingTime=begin) == [1, 1, 2, 2]
    assert read(startingTime=times(rows)[-1] + 1) == []
    assert read(startingTime=0, endingTime=times(rows)[-1] + 1) == [1, 1, 2, 2, 3, 3, 4, 4]
    both = {name: list(each.serialize()) for name, each in zip(parts, (ids[0], ids[2]), strict=True)}
    assert read(startingOffsets=json.dumps(both)) == [3, 3, 4, 4]
    assert read(endingOffsets=json.dumps(both)) == [1, 1, 2, 2, 3, 3]
    assert read(startingOffsets=json.dumps(both), endingOffsets=json.dumps(both)) == [3, 3]
    one = json.dumps({f"{spark_topic.name}-partition-1": list(ids[3].serialize())})
    assert read(startingOffsets=one) == [1, 2, 3, 4, 4]
    pattern = {"topic": None, "topicsPattern": f"{topic[:-1]}."}
    assert spark_topic.name == topic
    told = {name: value for name, value in (told | pattern).items() if value is not None}
    assert read(startingTime=begin) == [3, 3, 4, 4]
    assert read(topicsPattern="nothing-like-it.*") == []
    begun = [b"3", b"3", b"4", b"4"]
    sender = pulsar_client.create_producer(parts[0])
    for options in ({"startingTime": str(begin)}, {"startingOffsets": json.dumps(both)}, {"startingOffsets": "latest"}):
        df, checkpoint = later(**options)
        assert values(batches_of(df, checkpoint)) == ([] if options.get("startingOffsets") == "latest" else begun)
        sender.send(b"9")
        spark_topic.roll()
        assert values(batches_of(df, checkpoint)) == [b"9"]
        begun.append(b"9")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"topicsPattern": "a.*"}, "topicsPattern: found topic, too"),
        ({"topic": None, "topicsPattern": "a.*"}, "adminUrl: found nothing"),
        ({"topic": None, "topicsPattern": "a(", "adminUrl": "http://127.0.0.1:1"}, "unterminated subpattern"),
        ({"startingTime": "1", "startingOffsets": "latest"}, "startingOffsets: found startingTime, too"),
        ({"startingTime": "yesterday"}, "startingTime: found 'yesterday'"),
        ({"startingOffsets": '{"t": [1, 2]}'}, "the bytes of message ids"),
        ({"endingOffsets": "earliest"}, "endingOffsets: found 'earliest'"),
        ({"serviceUrll": "x"}, "did you mean 'serviceUrl'"),
        ({"serviceUrl": None}, "serviceUrl: found nothing"),
        ({"serviceUrl": "http://user:secret@host"}, "serviceUrl: found text, expected pulsar://"),
        ({"serviceUrl": "pulsar://user:secret@127.0.0.1:1"}, "without a user"),
        ({"serviceUrl": "pulsar://127.0.0.1:99999"}, "pulsar://host:port"),
        ({"adminUrl": "http://user:secret@host"}, "without a user"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: found 'maybe'"),
        ({"receiverQueueSize": "99999999999999999999"}, "at most 2147483647"),
        ({"topic": "t,t-partition-1"}, "a partition of a topic that is named, too"),
        ({"topic": "non-persistent://public/default/t"}, "persistent://tenant/namespace/topic"),
    ],
)
def test_mistakes_are_told_at_once(spark_sources, changed, words):
    options = {"serviceUrl": "pulsar://127.0.0.1:1", "topic": "t"} | changed
    given = {name: value for name, value in options.items() if value is not None}

    text = failure(lambda: stream(spark_sources, PULSAR, given).schema)

    assert words in text
    assert "secret" not in text


def test_a_stream_needs_a_subscription(spark_sources, spark_topic, tmp_path):
    query = stream(spark_sources, PULSAR, spark_topic.options(subscription=None))

    assert "subscription: found nothing" in failure(lambda: batches_of(query, tmp_path / "c"))


# Messages of other clients, which are errors and never skipped -----------------------------------------------------


@pytest.fixture
def options(spark_topic):
    return spark_topic.options(readTimeoutSeconds=5)


@pytest.fixture
def keys(tmp_path):
    """A pair of keys for encryption."""
    for command in ("genrsa -out private.pem 2048", "rsa -in private.pem -pubout -out public.pem"):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, check=True, capture_output=True, timeout=20)
    return pulsar.CryptoKeyReader(str(tmp_path / "public.pem"), str(tmp_path / "private.pem"))


@pytest.mark.parametrize(("after", "batched"), [([], True), ([2], False)], ids=["at the end", "in the middle"])
def test_what_is_encrypted(spark_sources, spark_topic, pulsar_client, keys, options, tmp_path, after, batched):
    spark_topic.send([1])
    sender = pulsar_client.create_producer(
        spark_topic.name, encryption_key="k", crypto_key_reader=keys, batching_enabled=batched
    )
    for _ in range(2):
        sender.send_async(b"secret", lambda *_: None)
    sender.flush()
    spark_topic.send(after)

    text = failure(lambda: batches_of(stream(spark_sources, PULSAR, options), tmp_path / "c"))
    assert "is encrypted, and this source has no keys" in text
    options.pop("subscription")
    assert "ForeignMessageError" in failure(batch_of(spark_sources, options).count)


def test_chunks_of_the_client_itself(spark_sources, spark_topic, pulsar_client, options, tmp_path):
    df = stream(spark_sources, PULSAR, options)
    sender = pulsar_client.create_producer(spark_topic.name, chunking_enabled=True, batching_enabled=False)
    sender.send(b"before")
    assert values(batches_of(df, tmp_path / "c")) == [b"before"]
    sender.send(b"c" * 12_000_000)
    sender.send(b"after")

    text = failure(lambda: batches_of(df, tmp_path / "c"))

    assert "in chunks of the client's own" in text
    assert "DataLossError" not in text


def test_a_topic_that_is_read_no_more_is_left_alone(spark_sources, spark_topic, pulsar_client, options, tmp_path):
    other = f"{spark_topic.name}-other"
    sender = pulsar_client.create_producer(other)
    sender.send(b"other")
    both = stream(spark_sources, PULSAR, options | {"topic": f"{spark_topic.name},{other}"})
    spark_topic.send([1])
    assert values(batches_of(both, tmp_path / "c")) == [b"1", b"other"]
    sender.close()
    spark_topic.broker.request("DELETE", f"persistent/public/default/{other}?force=true")
    spark_topic.send([2])

    assert values(batches_of(stream(spark_sources, PULSAR, options), tmp_path / "c")) == [b"2"]

    assert not any(other in name for name in spark_topic.broker.request("GET", "persistent/public/default"))


def test_one_partition_of_a_topic_is_let_go_of_as_it_is_read(spark_sources, spark_topic, options, tmp_path):
    spark_topic.broker.create_partitioned(spark_topic.name, 1)
    name = f"{spark_topic.name}-partition-0"
    df = stream(spark_sources, PULSAR, options | {"topic": name})
    for number in range(3):
        spark_topic.send([number])
        assert values(batches_of(df, tmp_path / "c")) == [b"%d" % number]

    assert spark_topic.broker.stats(name)["subscriptions"]["spark"]["msgBacklog"] < 3


def test_a_broker_that_is_not_there_or_another_port(spark_sources, pulsar_broker):
    def said(url):
        options = {"serviceUrl": url, "topic": "t", "readTimeoutSeconds": "1", "operationTimeoutSeconds": "2"}
        return failure(batch_of(spark_sources, options).count)

    nobody = said("pulsar://127.0.0.1:1")
    assert "Is a broker running at 127.0.0.1:1, can this machine reach it, does it accept the token" in nobody
    other = said(pulsar_broker.service_url.replace("pulsar://", "pulsar+ssl://"))
    assert "one port for pulsar://, one for pulsar+ssl:// and one for its web service" in other


def test_what_merely_looks_like_chunks():
    plain = SimpleNamespace(encryption_context=lambda: None)

    for index in (-1, 58):  # 58 marks chunks elsewhere in an id
        message_id = pulsar.MessageId(0, 58, 58, index)
        assert b":" in message_id.serialize()
        check_readable(plain, message_id, "t")


# Topics with many partitions, and partitions that are divided among tasks -----------------------------------------

SCHEMA = (
    StructType().add("value", "binary").add("ledger_id", "long").add("entry_id", "long").add("batch_index", "integer")
)
MANY = IN_PARALLEL + 5


@pytest.fixture
def opened(spark_topic):
    """A function that opens the reader of a stream; stops them at the end."""
    readers = []

    def open_(**more):
        readers.append(PulsarSource(spark_topic.options(**more)).streamReader(SCHEMA))
        return readers[-1]

    yield open_
    for each in readers:
        each.stop()


def batch(topic, **more):
    """The reader of a batch query."""
    return PulsarSource(topic.options(subscription=None, **more)).reader(SCHEMA)


def rows_of(reader, part):
    return [tuple(row.values()) for each in reader.read(part) for row in each.to_pylist()]


def check_rows(reader, parts, sent):
    """Return the number of rows in each part; they are in order, and each message is there once."""
    rows = [rows_of(reader, part) for part in parts]
    for part in rows:
        assert [row[1:] for row in part] == sorted(row[1:] for row in part)
    assert sorted(row[0] for part in rows for row in part) == sorted(sent)
    return [len(part) for part in rows]


def test_many_partitions_begin_and_go_on_where_they_were(spark_topic, opened):
    """More than are asked for at once."""
    many = spark_topic
    many.broker.create_partitioned(many.name, MANY)
    first = many.send(range(3 * MANY))

    reader = opened(maxRowsPerTrigger=2 * MANY)
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(2 * MANY))
    end = reader.latestOffset(middle, ReadMaxRows(2 * MANY))
    check_rows(reader, reader.partitions(start, middle), first[: 2 * MANY])  # each partition has contributed two
    reader.commit(middle)
    reader.stop()
    again = opened()
    second = many.send(range(3 * MANY, 4 * MANY))

    assert start == {}
    check_rows(again, again.partitions(middle, end), first[2 * MANY :])
    check_rows(again, again.partitions(end, again.latestOffset(end, ReadAllAvailable())), second)
    assert len(batch(many).partitions()) == MANY
    again.stop()
    for producer in many._producers.values():  # it would create its partition again
        producer.close()
    many.broker.request("DELETE", f"persistent/public/default/{many.name}/partitions?force=true")


def test_a_subscription_that_is_moved_in_a_new_topic_is_noticed(spark_topic, opened):
    reader = opened()
    start = reader.initialOffset()
    spark_topic.send(range(3))
    second = {"ledgerId": spark_topic.ledgers()[-1], "entryId": 1, "partitionIndex": -1}

    path = f"persistent/public/default/{spark_topic.name}/subscription/spark/resetcursor"
    spark_topic.broker.request("POST", path, second)

    with pytest.raises(DataLossError, match="nothing of it was read yet"):
        reader.latestOffset(start, ReadAllAvailable())


def fill(topic, ledgers, *, of=1):
    """Send 40 numbers to each ledger; ``of`` numbers share an entry."""
    topic.keep()
    sent = []
    for ledger in range(ledgers):
        if ledger:
            topic.roll()
        for first in range(ledger * 40, (ledger + 1) * 40, of if of > 1 else 40):
            sent += topic.send(range(first, first + (of if of > 1 else 40)), batched=of > 1)
    return sent


@pytest.mark.parametrize(("ledgers", "of"), [(1, 1), (3, 4)], ids=["one ledger", "several, with batches"])
def test_triggers_have_every_row_once(spark_topic, opened, ledgers, of):
    sent = fill(spark_topic, ledgers, of=of)
    reader = opened(adminUrl=spark_topic.broker.admin_url, maxRowsPerTrigger=len(sent) - 10)
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(len(sent) - 10))
    end = reader.latestOffset(middle, ReadAllAvailable())
    first = reader.partitions(start, middle)
    check_rows(reader, [*first, *reader.partitions(middle, end)], sent)
    assert sum(len(rows_of(reader, part)) for part in first) <= len(sent) - 10
