"""Rows that move: balanced by payload bytes, pinned in a long-lived store, and counted."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import claimcheck
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ConfigError
from claimcheck.spark import (
    Metrics,
    collect_garbage,
    map_payloads,
    offload,
    pin,
    progress,
    reassemble,
    repartition_by_payload,
    resolve,
)
from claimcheck.spark.sources import register
from claimcheck.transports.local import LocalBroker
from tests.spark.rig import frame, in_chunks, remove_stored

# repartition_by_payload --------------------------------------------------------------------------------------------


def pointing(config, sizes):
    """Return messages with pointers that declare these sizes, without payloads."""
    cc = claimcheck.from_dict(config)
    return [
        cc.seal(Pointer(key=f"orders-{n}", store="disk", size=size, checksum="crc32:0")) for n, size in enumerate(sizes)
    ]


def partitions_of(df):
    """Return the rows of each partition."""
    from pyspark.sql import functions as F  # noqa: N812

    found = {}
    for row in df.select("n", F.spark_partition_id().alias("at")).collect():
        found.setdefault(row["at"], []).append(row["n"])
    return found


@pytest.mark.parametrize("partitions", [1, 3])
def test_partitions_have_about_as_many_payload_bytes(spark, config, partitions):
    sizes = [100, 900, 50, 50, 4000, *[10] * 200, 700, 1000]
    df = frame(spark, pointing(config, sizes), partitions)

    spread = df.transform(repartition_by_payload("value", config=config, target_bytes=1000))
    found = partitions_of(spread)

    assert sorted(n for rows in found.values() for n in rows) == list(range(len(sizes)))
    assert spread.columns == ["n", "value"]
    for rows in found.values():
        assert sum(sizes[n] for n in rows) <= 1000 or len(rows) == 1
    assert len(found) >= 5
    assert max(len(rows) for rows in found.values()) < 150


def test_a_thousand_pointers_of_many_gigabytes(spark, config):
    df = frame(spark, pointing(config, [1 << 30] * 300))

    found = partitions_of(df.transform(repartition_by_payload("value", config=config, target_bytes=4 << 30)))

    assert {len(rows) for rows in found.values()} == {4}
    assert len(found) == 75


def test_plain_messages_nulls_and_damage_count_as_what_they_are(spark, config):
    messages = [
        b"x" * 800,
        None,
        b"PRF_wdkafcli_header_\x02\x02{",
        b"y" * 800,
        b"PRF_wdkafcli_header_\x02\x01\0\0\0\x01k",
    ]
    df = frame(spark, messages)

    found = partitions_of(df.transform(repartition_by_payload("value", config=config, target_bytes=700)))

    assert sorted(n for rows in found.values() for n in rows) == [0, 1, 2, 3, 4]
    assert not any({0, 3} <= set(rows) for rows in found.values())


def test_sizes_that_nobody_would_follow_count_for_nothing(spark, config):
    """Pointers are untrusted: one that declares 2**62 bytes must not create endless partitions."""
    df = frame(spark, pointing(config, [1 << 62, 10, 10]), 2)

    spread = df.transform(repartition_by_payload("value", config=config, target_bytes=100_000))

    assert spread.rdd.getNumPartitions() == 1
    assert spread.count() == 3


def test_there_are_never_more_partitions_than_rows(spark, config):
    df = frame(spark, pointing(config, [1 << 30] * 6), 2)

    spread = df.transform(repartition_by_payload("value", config=config, target_bytes=1))

    assert spread.rdd.getNumPartitions() == 6
    assert {len(rows) for rows in partitions_of(spread).values()} == {1}


def test_what_partitions_have_left_over_is_put_together(spark, config):
    df = frame(spark, pointing(config, [10] * 40), 8)

    assert len(partitions_of(df.transform(repartition_by_payload("value", config=config, target_bytes=250)))) == 2


def test_no_rows_are_no_error(spark, config):
    assert frame(spark, []).transform(repartition_by_payload("value", config=config)).count() == 0


def test_mistakes_are_told_on_the_driver(spark, config, tmp_path):
    stream = spark.readStream.schema("value binary").parquet(str(tmp_path))

    with pytest.raises(ConfigError, match="a stream"):
        stream.transform(repartition_by_payload("value", config=config))
    with pytest.raises(ConfigError, match="of type int"):
        frame(spark, []).transform(repartition_by_payload("n", config=config))
    with pytest.raises(ConfigError, match="target_bytes"):
        repartition_by_payload("value", config=config, target_bytes=0)


# pin ---------------------------------------------------------------------------------------------------------------


LARGE = b"large" * 1000
HUGE = bytes(range(256)) * (40 << 10)  # 10 MiB: through a temporary file


@pytest.fixture
def pinning(config, tmp_path):
    """The configuration with an archive."""
    archive = {"type": "filesystem", "path": str(tmp_path / "archive"), "create": True}
    return {**config, "store": "disk", "stores": {**config["stores"], "archive": archive}}


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_rows_resolve_with_the_archive_alone(spark, pinning, send, tmp_path):
    chunk = in_chunks(LARGE)[0]
    messages = [*send(LARGE), b"plain", None, *send(HUGE), *send(LARGE), chunk]
    df = frame(spark, messages, partitions=2).withColumnRenamed("value", "the message")

    pinned = pin(df, "the message", config=pinning)
    rows = sorted(pinned.collect(), key=lambda row: row.n)

    assert pinned.dtypes == df.dtypes
    assert [row[1] for row in rows[1:3]] + [rows[5][1]] == [b"plain", None, chunk]
    assert len(files(tmp_path / "archive")) == 3
    for path in files(tmp_path / "claims"):
        path.unlink()
    alone = {**pinning, "store": "archive", "stores": {"archive": pinning["stores"]["archive"]}}
    with claimcheck.from_dict(alone) as cc:
        assert [cc.resolve(rows[n][1]) for n in (0, 3, 4)] == [LARGE, HUGE, LARGE]


def test_pinned_rows_are_left_alone_and_other_work_is_repeated(spark, pinning, send, tmp_path):
    """As the retry of a task does; and a second job over rows of which some are pinned."""
    df = frame(spark, send(LARGE))

    first, again = (pin(df, config=pinning).collect() for _ in range(2))
    pinned = frame(spark, [first[0].value])
    twice = pin(pinned, config=pinning).collect()

    with claimcheck.from_dict(pinning) as cc:
        keys = {cc.pointer(rows[0].value).key for rows in (first, again, twice)}
    assert len(keys) == len(files(tmp_path / "archive")) == 2
    assert twice[0].value == first[0].value


def test_a_payload_that_is_gone_is_an_error_of_its_row(spark, pinning, send, tmp_path):
    messages = send(LARGE)
    for path in files(tmp_path / "claims"):
        path.unlink()
    df = frame(spark, [*messages, *send(LARGE)])

    with pytest.raises(Exception, match="PayloadNotFoundError"):
        pin(df, config=pinning).collect()
    rows = pin(df, config=pinning, on_error="null").sort("n").collect()

    assert (rows[0].value, rows[0].error.type, rows[1].error) == (None, "PayloadNotFoundError", None)


def test_a_store_that_fails_is_never_an_error_of_a_row(spark, pinning, send, tmp_path):
    (tmp_path / "archive").write_text("a file, not a directory")

    with pytest.raises(Exception, match="StoreError|StoreUnavailableError"):
        pin(frame(spark, send(LARGE)), config=pinning, on_error="null").collect()


@pytest.mark.parametrize("topic", ["orders", "pinned_orders"])
def test_garbage_collection_does_not_touch_what_is_pinned(spark, pinning, send, tmp_path, topic):
    """Though no topic and no table that it reads has a pointer to it, and the archive has a lifetime."""
    pinning["stores"]["archive"]["ttl_seconds"] = 10_000
    rows = pin(frame(spark, send(LARGE)), config=pinning).collect()
    with LocalBroker(tmp_path / "broker.sqlite") as broker:
        broker.create_topic(topic)
    topics = [{"format": "claimcheck_local", "path": str(tmp_path / "broker.sqlite"), "topic": topic}]

    register(spark)
    time.sleep(2)  # keys have whole seconds
    with collect_garbage(spark, config=pinning, topics=topics, grace_seconds=0) as report:
        report.delete(claim=True, force=True)
        assert (report.listed, report.candidates) == (2, 1 if topic == "orders" else 0)

    with claimcheck.from_dict(pinning) as cc:
        assert cc.resolve(rows[0].value) == LARGE


def test_arguments_are_checked_at_once(spark, config, pinning):
    df = frame(spark, [b"x"])

    with pytest.raises(ConfigError, match="store: found 'archive', expected one of the stores disk"):
        pin(df, config=config)
    with pytest.raises(ConfigError, match="column"):
        pin(df, "nothing", config=pinning)
    with pytest.raises(ConfigError, match="error: found 'error', which is taken"):
        pin(df.withColumnRenamed("n", "error"), config=pinning, on_error="null")


# Metrics and progress ----------------------------------------------------------------------------------------------


@pytest.fixture
def messages(config, send):
    gone = send(bytes(3000))
    remove_stored(config)
    return [*send(b"k" * 3000), *send(b"plain"), *gone, None, *send(b"m" * 2000)]


def test_tasks_count(spark, config, messages):
    metrics = Metrics(spark)

    df = frame(spark, messages, 2).transform(resolve("value", config=config, on_error="null", metrics=metrics))
    df.write.format("noop").mode("overwrite").save()

    assert (metrics.rows, metrics.payload_bytes) == (5, 5005)
    assert metrics.errors == {"PayloadNotFoundError": 1}
    assert metrics.store_bytes == {"disk": 5000}
    assert metrics.waiting_seconds > 0
    assert repr(metrics) == "<Metrics 5 rows, 5005 bytes, 1 errors>"


def test_the_other_verbs_count_too(spark, config):
    sending, using = Metrics(spark), Metrics(spark)
    df = spark.createDataFrame([(b"x" * 3000,), (b"s",), (None,)], "payload binary")

    sent = df.transform(offload("payload", destination="orders", config=config, metrics=sending))
    used = sent.transform(map_payloads(len, "size int", column="value", config=config, metrics=using))
    used.write.format("noop").mode("overwrite").save()

    assert (sending.rows, sending.payload_bytes, sending.store_bytes) == (3, 3001, {"disk": 3000})
    assert (using.rows, using.payload_bytes, using.store_bytes) == (3, 3001, {"disk": 3000})


def test_payloads_in_chunks_count_as_payloads(spark, config, send):
    metrics = Metrics(spark)
    whole, other = send(b"w" * 9000, strategy="chunking"), send(b"o" * 9000, strategy="chunking")
    df = frame(spark, [*whole, *other[1:], *send(b"plain"), *send(b"k" * 3000)], 2)

    done = df.transform(reassemble("value", config=config, metrics=metrics))
    done.write.format("noop").mode("overwrite").save()

    assert (metrics.rows, metrics.payload_bytes) == (4, 12_005)
    assert metrics.errors == {"IncompletePayloadError": 1}
    assert metrics.store_bytes == {"disk": 3000}


def test_progress_is_said_while_a_job_runs_and_at_its_end(spark, config, messages):
    metrics, lines, said = Metrics(spark), [], threading.Event()

    def say(line):
        lines.append(line)
        said.set()

    df = frame(spark, messages).transform(resolve("value", config=config, on_error="null", metrics=metrics))
    with progress(metrics, every_seconds=0.01, say=say):
        assert said.wait(30)
        assert ("0 payloads" in lines[0], "errors" in lines[0]) == (True, False)
        df.write.format("noop").mode("overwrite").save()

    assert "5 payloads, 4.89 KiB, " in lines[-1]
    assert "1 errors" in lines[-1]
    assert not any(thread.name == "claimcheck-progress" for thread in threading.enumerate())


def test_progress_is_that_of_the_block(spark, config, messages):
    metrics, lines = Metrics(spark), []
    df = frame(spark, messages).transform(resolve("value", config=config, on_error="null", metrics=metrics))
    df.write.format("noop").mode("overwrite").save()

    with progress(metrics, say=lines.append):
        pass
    with progress(metrics, say=lines.append):
        df.write.format("noop").mode("overwrite").save()

    assert [line.split(" payloads")[0] for line in lines] == ["0", "5"]
    assert metrics.rows == 10


def test_progress_goes_to_the_log_where_there_is_no_terminal(spark, caplog):
    with caplog.at_level("INFO", "claimcheck.spark._metrics"), progress(Metrics(spark)):
        pass

    assert "0 payloads" in caplog.text


def test_mistakes(spark):
    with pytest.raises(ConfigError, match="found a NoneType, expected a SparkSession with"):
        Metrics(None)
    with pytest.raises(ConfigError, match="every_seconds"), progress(Metrics(spark), every_seconds=0):
        pass
