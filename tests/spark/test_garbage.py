"""Garbage collection on Spark: what is an orphan, what is never deleted, and deletions that are repeated."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import claimcheck
from claimcheck._operate.garbage import check_claims, claims_of
from claimcheck._store.contract import StoreContext
from claimcheck._wire.envelope import encode_pointer
from claimcheck._wire.pointer import encode
from claimcheck.errors import ConfigError, ScanNotSupportedError, TransportError, UnknownVersionError
from claimcheck.spark import collect_garbage
from claimcheck.spark._garbage_topics import WholeTopics, release
from claimcheck.spark.sources import register
from claimcheck.transports.local import LocalBroker
from claimcheck.transports.local._broker import local_cluster

DAY = 86_400
PAYLOAD = b"payload" * 1000


class Rig:
    """A folder of payloads and an embedded broker."""

    def __init__(self, spark, folder: Path, config: Mapping[str, object]) -> None:
        self.spark, self.folder, self.config = spark, folder, config
        register(spark)
        self.broker = LocalBroker(folder / "broker.sqlite")
        self.cc = claimcheck.from_dict(config)
        for topic in ("orders", "orders.dlq", "bills"):
            self.broker.create_topic(topic, partitions=2)

    def write(self, topic: str = "orders", *, days: float = 3):
        """Store a payload that was written some days ago; return its pointer."""
        store = self.cc.store("disk")
        store.context = StoreContext(name="disk", clock=lambda: time.time() - days * DAY)
        return store.write(PAYLOAD, destination=topic)

    def send(self, pointer, topic: str = "orders", key: bytes = b"k"):
        """Append a message with a pointer; return the pointer."""
        self.broker.append(topic, self.cc.seal(pointer), key=key)
        return pointer

    def topics(self, *names: str):
        return [{"format": "claimcheck_local", "path": self.broker.database.path, "topic": name} for name in names]

    def collect(self, *, topics=("orders", "orders.dlq"), **more):
        return collect_garbage(self.spark, config=self.config, topics=self.topics(*topics), **more)

    def readable(self, *pointers) -> list[bool]:
        store = self.cc.store("disk")
        return [(self.folder / "claims" / pointer.key).exists() and bool(store.read(pointer)) for pointer in pointers]

    def move(self, source: str, target: str) -> None:
        """Copy all messages to another topic, and delete the originals, as retention does."""
        for partition in range(2):
            for message in self.broker.fetch(source, partition, 0, 1000):
                self.broker.append(target, message.value, key=message.key)
        self.clear(source)

    def clear(self, topic: str) -> None:
        """Delete all messages of a topic."""
        with self.broker.database.write() as db:
            db.execute("DELETE FROM messages WHERE topic = ?", (topic,))


@pytest.fixture
def rig(spark, tmp_path, config):
    """Also checks that nothing stays in Spark's cache."""
    rig = Rig(spark, tmp_path, {**config, "stores": {"disk": {**config["stores"]["disk"], "ttl_seconds": 30 * DAY}}})
    topics = [(name, [name], local_cluster(rig.broker.database)) for name in ("orders", "orders.dlq", "bills")]
    check_claims(rig.cc.store("disk"), claims_of(topics), delete=True, claim=True)
    cached = spark.sparkContext._jsc.getPersistentRDDs().size()
    yield rig
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == cached
    rig.broker.close()
    rig.cc.close()


def keys(rows) -> list[str]:
    return sorted(row.key for row in rows.select("key").collect())


def test_orphans_are_reported_and_then_deleted(rig):
    """Several pages of each: sent, dead-lettered, never sent, of another topic, younger than the grace period.

    The messages may be of version 1, and call the store differently from the collector's configuration.
    """
    sent, old, renamed = [rig.send(rig.write()) for _ in range(20)], rig.write(), rig.write()
    dead = [rig.send(rig.write(), "orders.dlq") for _ in range(5)]
    lost = [rig.write(days=days) for days in (2, 10, 40) for _ in range(4)]
    other, young = rig.write("bills"), rig.write(days=0.5)
    rig.broker.append("orders", encode_pointer(b"\x01\0\0\0\1" + old.key.encode()))
    rig.broker.append("orders", encode_pointer(encode(replace(renamed, store="elsewhere"))))
    rig.broker.append("orders", b"plain")
    rig.broker.append("orders", None, key=b"k")
    rig.broker.append("orders", rig.cc.seal(lost[0])[:-9])

    with rig.collect() as report:
        assert keys(report.orphans) == sorted(pointer.key for pointer in lost)
        assert all(rig.readable(*lost))
        assert (report.listed, report.candidates, report.count, report.pointers) == (41, 39, 12, 27)
        assert report.damaged == 1  # and ignored
        rows = report.orphans.collect()
        (row,) = [row for row in rows if row.key == lost[0].key]
        assert (row.store, row.topic, row.size) == ("disk", "orders", len(PAYLOAD))
        assert row.age_seconds == pytest.approx(2 * DAY, abs=600)
        assert sum(each.size for each in rows) == 12 * len(PAYLOAD)

        first, again = report.delete(), report.delete()

    assert (first.deleted, first.kept, first.failed) == (12, 0, 0)
    assert (again.deleted, again.gone) == (0, 12)
    assert not any(rig.readable(*lost))
    assert all(rig.readable(*sent, *dead, old, renamed, other, young))


def test_a_topic_that_no_cluster_has_claimed_is_only_reported(rig):
    (rig.folder / "claims" / "gc-orders.gc-owner").unlink()
    lost = rig.write()
    rig.send(rig.write())

    with rig.collect() as report:
        assert report.count == 1
        with pytest.raises(ConfigError, match="no cluster has claimed orders in store 'disk'.* with claim=True"):
            report.delete()
        assert rig.readable(lost) == [True]
        assert report.delete(claim=True).deleted == 1


def test_a_message_that_moves_while_topics_are_read_keeps_its_payload(rig, monkeypatch):
    """From a topic that has not been read yet to one that has: the first pass sees it nowhere, the second one does."""
    moved, lost = rig.send(rig.write(), "orders.dlq"), rig.write()
    rig.send(rig.write())
    read, calls = WholeTopics.read, []

    def read_and_move(topics, spark):
        df = read(topics, spark)
        if topics.names == ("orders",) and not calls:
            calls.append(1)
            df = rig.spark.createDataFrame(df.collect(), df.schema)
            rig.move("orders.dlq", "orders")
        return df

    monkeypatch.setattr(WholeTopics, "read", read_and_move)

    with rig.collect() as report:
        assert keys(report.orphans) == sorted((moved.key, lost.key)), "the planted fault has no effect"
        deletion = report.delete()

    assert (deletion.deleted, deletion.kept) == (1, 1)
    assert rig.readable(moved, lost) == [True, False]


def test_a_topic_that_loses_messages_is_read_until_nothing_moves_before_anything_is_deleted(rig, monkeypatch):
    """Otherwise a message could have moved twice, each time just before it was read."""
    lost, passes, losing = rig.write(), [], []
    rig.send(rig.write())
    read = WholeTopics.read

    def read_and_lose(topics, *rest):
        passes.append(topics.names)
        df = read(topics, *rest)
        if losing:
            df = rig.spark.createDataFrame(df.collect(), df.schema)
            rig.clear("orders")
        return df

    monkeypatch.setattr(WholeTopics, "read", read_and_lose)
    with rig.collect(topics=("orders",)) as report:
        rig.clear("orders")
        rig.send(rig.write())
        losing.append(True)
        with pytest.raises(TransportError, match="Try again later"):
            report.delete()
        assert rig.readable(lost) == [True]
        losing.clear()
        passes.clear()
        rig.send(rig.write())
        deletion = report.delete()

    assert (deletion.deleted, len(passes)) == (1, 2)
    assert rig.readable(lost) == [False]


@pytest.mark.parametrize("name", ["kafka.security.protocol", "kafka.sasl.jaas.config"])
def test_a_secure_kafka_needs_settings_of_its_own(name):
    """Those of Spark's client, which Java runs, are not understood; without them the cluster could not be asked."""
    topics = {"format": "kafka", "kafka.bootstrap.servers": "127.0.0.1:1", name: "secret", "subscribe": "a"}
    with pytest.raises(ConfigError, match=r"topics\[0\].admin: .*librdkafka") as caught:
        WholeTopics.of(topics, path="topics[0]").cluster()
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"the Kafka client refuses its settings: check topics\[0\].admin"):
        WholeTopics.of({**topics, "admin": {"no.such.setting": "secret"}}, path="topics[0]").cluster()


def test_nothing_is_deleted_without_any_pointer_unless_forced(rig):
    """It may be the wrong broker. A payload that cannot be deleted is counted and keeps no other."""
    stuck, lost = rig.write(days=2), rig.write(days=3)
    rig.broker.append("orders", b"plain")

    with rig.collect() as report:
        with pytest.raises(ConfigError, match="force=True"):
            report.delete()
        assert rig.readable(lost) == [True]
        (rig.folder / "claims" / stuck.key).unlink()
        (rig.folder / "claims" / stuck.key).mkdir()
        deletion = report.delete(force=True)

    assert (deletion.deleted, deletion.failed) == (1, 1)
    assert deletion.error is not None
    assert rig.readable(lost) == [False]


@pytest.mark.parametrize("late_in", [("files", "the pointer"), ("catalog", "value")])
def test_tables_keep_their_payloads_and_those_of_messages_that_others_append(rig, tmp_path, late_in):
    """The files of a table are listed again, each time that it is read."""
    first, second, late, lost = (rig.write() for _ in range(4))
    files, catalog = tmp_path / "files", tmp_path / "catalog"
    for path, name in ((files, "the pointer"), (catalog, "value")):
        rig.spark.createDataFrame([(1, None)], f"n int, `{name}` binary").write.parquet(str(path))
    rig.spark.sql("DROP TABLE IF EXISTS appended")
    rig.spark.sql(f"CREATE TABLE appended USING parquet LOCATION '{catalog}'")
    tables = [(rig.spark.read.parquet(str(files)).where("n > 0"), "the pointer"), "appended"]

    def append(folder: str, name: str, pointer) -> None:
        """Add a message, as a job in another process does."""
        messages = pa.array([bytes(rig.cc.seal(pointer))], pa.binary())
        columns = {"n": pa.array([1], pa.int32()), name: messages}
        pq.write_table(pa.table(columns), tmp_path / folder / f"part-{uuid.uuid4()}.parquet")

    append("files", "the pointer", first)
    append("catalog", "value", second)
    with rig.collect(keep=tables) as report:
        assert (report.count, report.pointers) == (2, 2)
        append(*late_in, late)
        deletion = report.delete()

    assert (deletion.deleted, deletion.kept) == (1, 1)
    assert rig.readable(first, second, late, lost) == [True, True, True, False]
    cached = rig.spark.table("appended").persist()
    checkpoint = cached.localCheckpoint()
    try:
        for fixed in (cached, checkpoint):
            with pytest.raises(ConfigError, match=r"keep\[0\]: found a DataFrame of fixed rows.*unpersist"):
                rig.collect(keep=[fixed.where("value IS NOT NULL")])
    finally:
        cached.unpersist()
        release(checkpoint)


def test_nothing_but_what_the_report_lists_is_deleted_although_tables_lose_rows_meanwhile(rig):
    kept, lost = [rig.write() for _ in range(3)], rig.write()
    table = rig.spark.createDataFrame([(bytes(rig.cc.seal(pointer)),) for pointer in kept], "value binary")
    table.write.saveAsTable("lossy", mode="overwrite")
    rig.send(rig.write())

    with rig.collect(keep="lossy") as report:
        assert report.count == 1
        table.limit(1).write.saveAsTable("lossy", mode="overwrite")
        rig.spark.catalog.clearCache()
        assert report.delete().deleted == 1
        assert keys(report.orphans) == [lost.key]
        rig.spark.sql("TRUNCATE TABLE lossy")
        with pytest.raises(ConfigError, match=r"keep\[0\]: found no pointer in it.*force=True"):
            report.delete()
        assert report.delete(force=True).gone == 1
    with pytest.raises(ConfigError, match="report: found a closed one"):
        report.delete()
    assert rig.readable(*kept, lost) == [True, True, True, False]


def test_what_a_newer_version_wrote_may_point_at_anything(rig):
    lost = rig.write()
    rig.broker.append("orders.dlq", rig.cc.config.header + b"\x02\x03{}", key=b"k")

    with pytest.raises(UnknownVersionError, match=r"topic orders\.dlq, partition \d, position 0"):
        rig.collect()

    assert rig.readable(lost) == [True]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"format": "parquet", "path": "x"}, "one of kafka"),
        ({"format": "claimcheck_local", "path": "x"}, "the names of topics"),
        ({"format": "claimcheck_local", "path": "x", "topic": "a"}, "found 'x', expected the file"),
        ({"format": "claimcheck_local", "path": "x", "topic": "a", "maxRowsPerTrigger": 5}, "all messages are read"),
        ({"format": "kafka", "subscribe": "a", "startingOffsets": "latest"}, "all messages are read"),
        ({"format": "kafka", "subscribe": "a", "failOnDataLoss": False}, "all messages are read"),
        ({"format": "kafka", "subscribe": "a", "kafka.isolation.level": "read_committed"}, "all messages are read"),
        ({"format": "kafka", "subscribePattern": "a.*"}, "the names of topics|all messages are read"),
        ({"format": "claimcheck-pulsar", "serviceUrl": "pulsar://h", "topic": "a"}, "adminUrl"),
        ({"format": "claimcheck_pulsar", "topic": "a", "subscription": "s", "adminUrl": "http://h"}, "does not take"),
        (
            {"format": "claimcheck_pulsar", "topic": "a", "startingOffsets": "latest", "adminUrl": "x"},
            "all messages are",
        ),
    ],
)
def test_options_that_leave_messages_out_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        WholeTopics.of(options, path="topics[0]")


def test_arguments_are_checked_first(rig):
    """Among them similar topics, whose keys begin alike: a message of the other topic would not be seen."""
    with pytest.raises(ConfigError, match="at least one"):
        rig.collect(topics=())
    with pytest.raises(ConfigError, match="grace_seconds"):
        rig.collect(grace_seconds=-1)
    frame, listed = rig.spark.range(1), "expected a list of tables"
    for keep, text in (
        ([frame], r"keep\[0\]: found 'value'"),
        (frame, f"keep: found a DataFrame, {listed}"),
        ({"appended": "value"}, f"keep: found a dict, {listed}"),
        (None, f"keep: found a NoneType, {listed}"),
        (["no_such_table"], r"keep\[0\]: found 'no_such_table', expected the name"),
        ([("a", "b", "c")], r"keep\[0\]: found a tuple, expected a table's name"),
    ):
        with pytest.raises(ConfigError, match=text):
            rig.collect(keep=keep)
    with pytest.raises(ConfigError, match="every process can reach"):
        stores = {"disk": {"type": "memory"}}
        collect_garbage(rig.spark, config={**rig.config, "stores": stores}, topics=rig.topics("orders"))
    with pytest.raises(ScanNotSupportedError):
        stores = {"old": {"type": "redis", "url": "redis://127.0.0.1:1", "pointer_version": 1}}
        collect_garbage(rig.spark, config={**rig.config, "store": "old", "stores": stores}, topics=rig.topics("orders"))
    rig.broker.create_topic("orders.")
    with pytest.raises(ConfigError, match=r"name this topic, too"):
        rig.collect()
