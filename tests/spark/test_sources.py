"""The embedded broker as a source of Spark, and how triggers of the Pulsar source end, without a server."""

import pytest

import claimcheck
from claimcheck.errors import ConfigError
from claimcheck.spark import max_offsets
from claimcheck.spark._columns import older_pyspark
from claimcheck.spark.sources import register
from claimcheck.spark.sources._pulsar_reader import end_within, share
from claimcheck.spark.sources._source import OffsetRange
from claimcheck.transports.local import LocalBroker, LocalProducer
from tests.spark.rig import batches_of, failure, stream, values

SMALL, LARGE = b"small", b"large" * 1000


@pytest.fixture
def sources(spark):
    register(spark)
    register(spark)
    return spark


@pytest.fixture
def broker(tmp_path):
    with LocalBroker(tmp_path / "broker.sqlite") as broker:
        broker.create_topic("orders", partitions=3)
        yield broker


def options(broker, topic="orders", **more):
    return {"path": broker.database.path, "topic": topic, **{name: str(value) for name, value in more.items()}}


def fill(broker, count, *, start=0):
    for number in range(start, start + count):
        broker.append("orders", b"%d" % number, key=b"k%d" % number, headers=[("n", b"%d" % number), ("n", b"\xff")])


def test_a_batch_reads_everything_as_it_is(sources, broker):
    fill(broker, 20)
    broker.append("orders", None, key=None)

    rows = sources.read.format("claimcheck_local").options(**options(broker)).load().collect()

    assert len(rows) == 21
    row = next(row for row in rows if row.value == b"7")
    there = broker.fetch("orders", row.partition, row.offset, 1)[0]
    assert (row.key, row.topic, there.value) == (b"k7", "orders", b"7")
    assert [(h.key, bytes(h.value)) for h in row.headers] == [("n", b"7"), ("n", b"\xff")]
    assert row.timestamp.timestamp() == pytest.approx(there.timestamp, abs=1e-3)
    assert [row.key for row in rows if row.value is None] == [None]
    reader = sources.read.format("claimcheck_local").options(**options(broker))
    df = reader.schema("value binary, offset bigint").load()
    assert (df.columns, df.count()) == (["value", "offset"], 21)
    assert "some of these columns" in failure(lambda: reader.schema("value string").load().collect())


def test_a_stream_stops_at_a_limit_of_rows_goes_on_where_it_was_and_may_begin_at_the_end(sources, broker, tmp_path):
    fill(broker, 50)
    df = stream(sources, "claimcheck_local", options(broker, maxRowsPerTrigger=12))
    late = stream(sources, "claimcheck_local", options(broker, startingOffsets="latest"))

    seen, nothing = batches_of(df, tmp_path / "c"), batches_of(late, tmp_path / "late")
    fill(broker, 5, start=50)
    more, end = batches_of(df, tmp_path / "c"), batches_of(late, tmp_path / "late")

    assert max(map(len, seen.values())) == 12
    assert values(seen) == sorted(b"%d" % n for n in range(50))
    assert values(more) == values(end) == sorted(b"%d" % n for n in range(50, 55))
    assert not any(nothing.values())


def test_a_file_that_was_replaced_is_noticed(sources, broker, tmp_path):
    fill(broker, 30)
    df = stream(sources, "claimcheck_local", options(broker))
    batches_of(df, tmp_path / "c")
    broker.close()
    for path in tmp_path.glob("broker.sqlite*"):
        path.unlink()
    with LocalBroker(tmp_path / "broker.sqlite") as fresh:
        fresh.create_topic("orders", partitions=3)
        fill(fresh, 60)

    text = failure(lambda: batches_of(df, tmp_path / "c"))

    assert "DataLossError" in text
    assert "is not the file that this query has read" in text


def test_wrong_options_are_told_at_once_and_what_a_batch_cannot_do(sources, broker, tmp_path):
    def load(**more):
        return failure(lambda: stream(sources, "claimcheck_local", {**options(broker), **more}).schema)

    def read(**told):
        return failure(lambda: sources.read.format("claimcheck_local").options(**told).load().collect())

    assert "did you mean 'maxRowsPerTrigger'" in load(maxRowPerTrigger="5")
    assert "maxRowsPerTrigger: found 0, expected an integer of at least 1" in load(maxRowsPerTrigger="0")
    assert "startingOffsets" in load(startingOffsets="middle")
    assert "which is not a file" in load(path=str(tmp_path / "other.sqlite"))
    assert "topic: found" in load(topic="")
    assert "a batch query" in read(**options(broker, maxRowsPerTrigger=1))
    assert "UnknownTopicError" in read(**options(broker, "nothing"))
    writer = sources.createDataFrame([(b"1",)], "value binary").write.format("claimcheck_local")
    text = failure(writer.options(**options(broker)).mode("append").save)
    assert "expected a read: send with a producer of the transport" in text


def test_an_old_pyspark_is_refused_with_what_to_do(spark, monkeypatch):
    for version, older in (("3.5.9", True), ("4.1.4", True), ("4.2.0.dev1", False), ("10.0", False)):
        monkeypatch.setattr("pyspark.__version__", version)
        assert older_pyspark((4, 2)) == (version if older else None)
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(ConfigError, match=r"found version 4\.1\.4, expected 4\.2 or newer"):
        register(spark)


def test_the_limit_for_kafka_counts_payloads(sources, broker, config):
    cc = claimcheck.from_dict(config)
    for payload in (LARGE, LARGE, LARGE, SMALL, None):
        LocalProducer(broker, cc).send("orders", payload)
    sample = sources.read.format("claimcheck_local").options(**options(broker)).load()

    assert max_offsets(sample, payload_bytes=10 * (3 * len(LARGE) + len(SMALL))) == 50
    assert max_offsets(sample, payload_bytes=1) == 1
    assert max_offsets(sample.limit(0), payload_bytes=7) == 7


# Planning of the Pulsar source, without a broker -------------------------------------------------------------------


def unknown(partition):
    return {}


def test_a_share_takes_whole_entries_and_at_first_at_least_one():
    entries = [((1, number), 10) for number in range(5)]

    def within(limit, *, is_first):
        return end_within(entries, OffsetRange("p", (0, 0), (1, 4)), limit, unknown, sample=1000, is_first=is_first)

    assert within(25, is_first=True) == within(25, is_first=False) == ((1, 1), 20)
    assert within(1, is_first=True) == within(9, is_first=True) == ((1, 0), 10)
    assert within(1, is_first=False) == ((0, 0), 0)


def test_what_small_partitions_leave_is_for_large_ones():
    last, rounds = {"a": 3, "b": 9, "c": 200, "d": 200}, []

    def end_of(name, begin, limit):
        rounds.append(name)
        end = min(last[name], begin + limit)
        return end, end - begin

    def within(rows):
        rounds.clear()
        return share(dict.fromkeys(last, 0), last, rows, end_of)

    assert within(61) == {"a": 3, "b": 9, "c": 24, "d": 24}
    assert rounds == [*"abcd", *"cd"]  # finished partitions are not read again
    assert within(1) == dict.fromkeys(last, 1)  # every partition makes progress, once
