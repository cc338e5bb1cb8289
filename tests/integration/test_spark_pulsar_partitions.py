"""Topics of a real Pulsar with many partitions, and partitions that are divided among tasks: every row once."""

import pulsar
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

import claimcheck
from claimcheck.spark import reassemble
from claimcheck.spark.sources import DataLossError, ForeignMessageError, SubscriptionBusyError
from claimcheck.spark.sources._formats import PulsarSource
from claimcheck.spark.sources._pulsar_client import IN_PARALLEL
from claimcheck.transports.pulsar import PulsarProducer
from tests import servers
from tests.integration.pulsar_rig import LIMIT, content

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("ledger_id", LongType()),
        StructField("entry_id", LongType()),
        StructField("batch_index", IntegerType()),
    ]
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


def fill(topic, *, ledgers, of):
    """Send 40 numbers to each ledger; ``of`` numbers share an entry."""
    topic.keep()
    sent = []
    for ledger in range(ledgers):
        if ledger:
            topic.roll()
        for first in range(ledger * 40, (ledger + 1) * 40, of if of > 1 else 40):
            sent += topic.send(range(first, first + (of if of > 1 else 40)), batched=of > 1)
    return sent


# Many partitions ----------------------------------------------------------------------------------------------------


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


def test_an_error_names_the_one_partition_that_fails(spark_topic, opened):
    spark_topic.broker.create_partitioned(spark_topic.name, 3)
    busy = f"{spark_topic.full}-partition-2"
    holder = spark_topic.client.subscribe(busy, "spark", consumer_type=pulsar.ConsumerType.Exclusive)

    with pytest.raises(SubscriptionBusyError, match="another query") as caught:
        opened().initialOffset()

    holder.close()
    assert caught.value.destination == busy


# Divided partitions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ledgers", "of"), [(1, 1), (3, 4)], ids=["one ledger", "several, with batches"])
def test_a_divided_partition_has_every_row_once(spark_topic, opened, ledgers, of):
    sent = fill(spark_topic, ledgers=ledgers, of=of)
    admin = spark_topic.broker.admin_url

    whole = batch(spark_topic, adminUrl=admin, minPartitions=4)
    sizes = check_rows(whole, whole.partitions(), sent)
    blind = batch(spark_topic, minPartitions=4)
    check_rows(blind, blind.partitions(), sent)
    reader = opened(adminUrl=admin, minPartitions=3, maxRowsPerTrigger=len(sent) - 10)
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(len(sent) - 10))
    end = reader.latestOffset(middle, ReadAllAvailable())
    parts = [*reader.partitions(start, middle), *reader.partitions(middle, end)]
    check_rows(reader, parts, sent)

    assert len(sizes) == 4
    assert max(sizes) <= 2 * min(sizes)
    assert len(parts) >= 5


def test_a_ledger_that_is_deleted_before_its_part_is_read_is_noticed(spark_topic):
    sent = spark_topic.send(range(20))
    lost = spark_topic.ledgers()[-1]
    spark_topic.roll()
    sent += spark_topic.send(range(20, 40))
    reader = batch(spark_topic, minPartitions=4, adminUrl=spark_topic.broker.admin_url)
    parts = reader.partitions()
    rows_of(reader, parts[1])

    # Nothing keeps the first ledger: no subscription, and no retention.
    servers.wait_until(
        lambda: spark_topic.broker.trim(spark_topic.name) or lost not in spark_topic.ledgers(), "the ledger is gone"
    )

    inner = [part for part in parts if part.start[0] == lost]
    assert inner
    for part in inner:
        with pytest.raises(DataLossError, match=spark_topic.name):
            rows_of(reader, part)


def test_a_cut_through_chunks_of_the_client_is_an_error_and_no_gap(spark_topic):
    producer = spark_topic.client.create_producer(spark_topic.full, chunking_enabled=True, batching_enabled=False)
    before = [b"%d" % number for number in range(3)]
    for value in before:
        producer.send(value)
    producer.send(content(5 * LIMIT))
    producer.send(b"after")
    reader = batch(spark_topic, minPartitions=100)
    parts = reader.partitions()
    seen, errors = [], 0
    for part in parts:
        try:
            seen += [row[0] for row in rows_of(reader, part)]
        except (ForeignMessageError, DataLossError):
            errors += 1

    assert len(parts) > 5
    assert errors
    assert set(seen) <= {*before, b"after"}


def test_chunks_in_several_parts_become_their_payload(spark_sources, spark_topic):
    chunking = {"strategy": "chunking", "threshold_bytes": 1000, "chunking": {"max_message_bytes": LIMIT // 2}}
    payloads = [content(4 * LIMIT, seed) for seed in range(3)]
    native = spark_topic.client.create_producer(spark_topic.full)
    with claimcheck.from_dict(chunking) as cc, PulsarProducer(native, cc) as producer:
        for payload in payloads:
            producer.send(payload)
    told = spark_topic.options(subscription=None, minPartitions=5)
    df = spark_sources.read.format("claimcheck_pulsar").options(**told).load()

    rows = df.transform(reassemble("value", config=chunking)).collect()

    assert df.rdd.getNumPartitions() == 5
    assert sorted(bytes(row.payload) for row in rows) == sorted(payloads)
