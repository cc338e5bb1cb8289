"""`map_payloads`, results of a function; `repartition_by_payload`, `pin`, `Metrics` and `progress`."""

from __future__ import annotations

import datetime
import gc
import threading
import time
import weakref
from collections import namedtuple
from pathlib import Path

import pytest

import claimcheck
from claimcheck._operate.garbage import Candidates
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ConfigError
from claimcheck.spark import (
    DeadLetter,
    Metrics,
    map_payloads,
    offload,
    pin,
    progress,
    reassemble,
    repartition_by_payload,
    resolve,
)
from claimcheck.spark import _resolve as mapping
from claimcheck.spark._reading import Reading
from claimcheck.spark._worker import as_config, claim_check
from tests.spark.rig import batch_of, frame, in_chunks, remove_stored


def rows_of(df, *names):
    return [tuple(row[name] for name in names) for row in df.collect()]


def test_results_of_every_shape_become_columns(spark, config, send):
    """One value, a mapping, and tuples, whose places go by their names if they have any; of nulls comes a null.

    Only workers exempt modules from garbage collection: the process that builds the query is the user's.
    """
    from pyspark.sql import Row

    before = gc.get_freeze_count()
    moment = datetime.datetime(2020, 5, 17, 12, 30, tzinfo=datetime.UTC)  # the session has another time zone
    size = namedtuple("Size", "h w")
    stages = {
        "size long": len,
        "first binary, sizes array<int>": lambda payload: {"first": payload[:1], "sizes": [len(payload)]},
        "a int, b string": lambda payload: (None, payload.decode()) if payload == b"bb" else None,
        "width int, height int": lambda payload: Row(height=1, width=len(payload)),
        "w int, h int": lambda payload: size(1, len(payload)),
        "frozen boolean": lambda _: gc.get_freeze_count() > 10_000,
        "zone timestamp, none timestamp": lambda payload: (moment, moment.replace(tzinfo=None)),
    }
    df = frame(spark, [*send(b"a" * 3000), *send(b"bb"), None])
    for schema, look in stages.items():
        df = df.transform(map_payloads(look, schema, column="value", config=config))
    seconds = int(moment.timestamp())

    assert df.columns == [
        "n",
        "value",
        "size",
        "first",
        "sizes",
        *"ab",
        "width",
        "height",
        *"wh",
        "frozen",
        "zone",
        "none",
    ]
    claim_check(as_config(config))
    assert gc.get_freeze_count() == before
    assert [tuple(row) for row in df.selectExpr("*", "unix_seconds(zone)", "unix_seconds(none)").drop(
        "value", "zone", "none"
    ).collect()] == [
        (0, 3000, b"a", [3000], None, None, 3000, 1, 3000, 1, True, seconds, seconds),
        (1, 2, b"b", [2], None, "bb", 2, 1, 2, 1, True, seconds, seconds),
        (2, *(None,) * 12),
    ]  # fmt: skip


def test_files_of_any_size_and_the_row_beside_them(spark, config, send):
    """The first payload is fetched ahead; the second is too large and is read while it is used."""
    messages = [*send(b"s" * 3000), *send(b"l" * 50_000)]

    def look(file, row):
        return type(file).__name__, row["n"], len(file.read(10)), len(file.read())

    stage = map_payloads(
        look, "kind string, number int, head int, rest int",
        column="value", config=config, as_file=True, with_row=True, max_inflight_bytes=20_000,
    )  # fmt: skip
    df = frame(spark, messages)

    assert rows_of(df.transform(stage), "kind", "number", "head", "rest") == [
        ("BytesIO", 0, 10, 2990), ("BufferedReader", 1, 10, 49_990)
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="with_row: found several columns 'n'"):
        df.selectExpr("n", "n", "value").transform(stage)


def test_dead_letters_leave_and_are_handed_over_with_all_they_had(spark, config, send, tmp_path):
    def bury(letter: DeadLetter) -> None:
        (tmp_path / f"{letter.row['n']}").write_text(f"{type(letter.error).__name__} {letter.row['value']!r}")

    messages = [*send(b"1"), *send(b"x"), *send(b"y"), *send(b"2")]
    stage = map_payloads(int, "number int", column="value", config=config, on_error=bury)

    assert rows_of(frame(spark, messages).transform(stage), "n", "number") == [(0, 1), (3, 2)]
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == {
        "1": "ValueError b'x'",
        "2": "ValueError b'y'",
    }


def test_a_result_that_does_not_fit_fails_the_task_or_is_an_error_of_its_row(spark, config):
    misfits = {
        b"good": ({"size": 1}, None),
        b"unknown": ({"nonsense": 1, "size": 2}, "nonsense"),
        b"long": ((1, 2, 3), "a tuple, expected"),
        b"text": ({"size": "many", "more": 1}, "does not fit column 'size'"),
        b"fraction": ({"size": 1.5}, "does not fit column 'size'"),
        b"also good": ((2, 3), None),
    }
    results = {payload: result for payload, (result, _) in misfits.items()}
    df, schema = frame(spark, [*misfits, b"?"]).withColumnRenamed("n", "offset"), "size int, more int"

    stage = map_payloads(results.__getitem__, schema, column="value", config=config, on_error="null")
    rows = df.transform(stage).collect()

    assert [(row.size, row.more) for row in rows] == [(1, None), *[(None, None)] * 4, (2, 3), (None, None)]
    for row, (_, words) in zip(rows, misfits.values(), strict=False):
        assert (row.error is None) == (words is None)
        assert words is None or (row.error.type, words in row.error.message) == ("ResultError", True)
    assert rows[-1].error.type == "KeyError"
    with pytest.raises(Exception, match="nonsense") as caught:
        df.transform(map_payloads(results.__getitem__, schema, column="value", config=config)).collect()
    assert "Row: offset 1" in str(caught.value)


# The stage, without Spark ---------------------------------------------------------------------------------------


def stage_of(config, fn, *, as_file=False):
    """Return the stage of `map_payloads` for one column."""
    from pyspark.sql.types import IntegerType, StructField, StructType

    reading = Reading(config=as_config(config), concurrency=1, max_inflight_bytes=1 << 20, out_batch_bytes=1 << 20)
    schema = StructType([StructField("size", IntegerType())])
    return mapping.MapStage(reading, 0, ("value",), schema, fn, as_file, with_row=False)


def test_payloads_are_let_go_one_after_the_other(config, send):
    """Results are small: payloads must not stay in memory until the batch is full."""

    class Kept(bytearray):
        pass

    alive, refs = [], []

    def look(payload):
        kept = Kept(payload)
        alive.append(sum(ref() is not None for ref in refs))
        refs.append(weakref.ref(kept))
        return len(kept)

    [batch] = stage_of(config, look)([batch_of([send(bytes(5000))[0] for _ in range(20)])])

    assert batch.column("a0").to_pylist() == [5000] * 20
    assert max(alive) <= 1


def test_what_a_function_leaves_unread_costs_nothing_more(config, send):
    """Closing a file before its end is not an error."""
    stage = stage_of(config | {"limits": {"max_payload_bytes": 1 << 22}}, lambda file: len(file.read(4)), as_file=True)

    assert [batch.column("a0").to_pylist() for batch in stage([batch_of(send(bytes(3 << 20)))])] == [[4]]


# Partitions with equal payload bytes -------------------------------------------------------------------------------


def pointing(config, sizes):
    """Return messages with pointers that declare these sizes, without payloads."""
    cc = claimcheck.from_dict(config)
    return [
        cc.seal(Pointer(key=f"orders-{n}", store="disk", size=size, checksum="crc32:0")) for n, size in enumerate(sizes)
    ]


def partitions_of(df, config, target_bytes):
    """Return the rows of each partition, which no step may lose."""
    from pyspark.sql import functions as F  # noqa: N812

    spread = df.transform(repartition_by_payload("value", config=config, target_bytes=target_bytes))
    assert spread.columns == df.columns
    found = {}
    for row in spread.select("n", F.spark_partition_id().alias("at")).collect():
        found.setdefault(row["at"], []).append(row["n"])
    return list(found.values())


def test_partitions_have_about_as_many_payload_bytes(spark, config):
    """Plain messages count as what they are, nulls and damaged ones for nothing."""
    sizes = [100, 900, 50, 50, 4000, *[10] * 200, 700, 1000]
    plain = [b"x" * 800, None, b"PRF_wdkafcli_header_\x02\x02{", b"y" * 800, b"PRF_wdkafcli_header_\x02\x01\0\0\0\x01k"]
    df = frame(spark, [*pointing(config, sizes), *plain], 3)

    found = partitions_of(df, config, 1000)

    sizes += [800, 0, 0, 800, 0]
    assert sorted(n for rows in found for n in rows) == list(range(len(sizes)))
    for rows in found:
        assert sum(sizes[n] for n in rows) <= 1000 or len(rows) == 1
    assert len(found) >= 5
    assert max(map(len, found)) < 150


def test_what_partitions_have_left_over_is_put_together(spark, config):
    """And a size that nobody would follow counts for nothing: one of 2**62 must not create endless partitions."""
    df = frame(spark, pointing(config, [10] * 40), 8)

    assert len(partitions_of(df, config, 250)) == 2
    assert {len(rows) for rows in partitions_of(df, config, 1)} == {1}  # never more partitions than rows
    assert len(partitions_of(frame(spark, pointing(config, [1 << 62, 10, 10]), 2), config, 100_000)) == 1
    assert partitions_of(df.limit(0), config, 1) == []


def test_a_stream_has_limits_of_its_own(spark, config, tmp_path):
    stream = spark.readStream.schema("value binary").parquet(str(tmp_path))

    with pytest.raises(ConfigError, match="a stream"):
        stream.transform(repartition_by_payload("value", config=config))


# pin ---------------------------------------------------------------------------------------------------------------


LARGE = b"large" * 1000
HUGE = bytes(range(256)) * (40 << 10)  # 10 MiB: through a temporary file


@pytest.fixture
def pinning(config, tmp_path):
    """The configuration with an archive."""
    archive = {"type": "filesystem", "path": str(tmp_path / "archive"), "create": True, "ttl_seconds": 10_000}
    return {**config, "stores": {**config["stores"], "archive": archive}}


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_rows_resolve_with_the_archive_alone(spark, config, pinning, send, tmp_path):
    """And no garbage collection of their topic takes what is there, though no message points at it."""
    chunk = in_chunks(LARGE)[0]
    messages = [*send(LARGE), b"plain", None, *send(HUGE), *send(LARGE), chunk]
    df = frame(spark, messages, partitions=2).withColumnRenamed("value", "the message")

    pinned = pin(df, "the message", config=pinning)
    rows = sorted(pinned.collect(), key=lambda row: row.n)

    assert pinned.dtypes == df.dtypes
    assert [row[1] for row in rows[1:3]] + [rows[5][1]] == [b"plain", None, chunk]
    assert len(files(tmp_path / "archive")) == 3
    later = Candidates.of({"orders": ("orders",)}, now=time.time() + 60, grace_seconds=0)
    with claimcheck.from_dict(pinning) as cc:
        verdicts = {name: {later.verdict(each) for each in cc.store(name).scan()} for name in ("disk", "archive")}
    assert verdicts == {"disk": {"candidate"}, "archive": {"other"}}
    remove_stored(config)
    alone = {**pinning, "store": "archive", "stores": {"archive": pinning["stores"]["archive"]}}
    with claimcheck.from_dict(alone) as cc:
        assert [cc.resolve(rows[n][1]) for n in (0, 3, 4)] == [LARGE, HUGE, LARGE]


def test_pinned_rows_are_left_alone_and_other_work_is_repeated(spark, pinning, send, tmp_path):
    """As the retry of a task does; and a second job over rows of which some are pinned."""
    messages = send(LARGE)

    [first] = pin(frame(spark, messages), config=pinning).collect()
    [again, twice] = pin(frame(spark, [*messages, first.value]), config=pinning).collect()

    assert twice.value == first.value != again.value
    assert len(files(tmp_path / "archive")) == 2


def test_a_payload_that_is_gone_is_an_error_of_its_row_and_an_archive_that_fails_never_is(
    spark, config, pinning, send, tmp_path
):
    messages = send(LARGE)
    remove_stored(config)
    df = frame(spark, [*messages, *send(LARGE)])

    with pytest.raises(Exception, match="PayloadNotFoundError"):
        pin(df, config=pinning).collect()
    rows = pin(df, config=pinning, on_error="null").sort("n").collect()

    assert (rows[0].value, rows[0].error.type, rows[1].error) == (None, "PayloadNotFoundError", None)
    pinning["stores"]["archive"]["path"] = str(tmp_path / "file")
    (tmp_path / "file").write_text("a file, not a directory")
    with pytest.raises(Exception, match="StoreError|StoreUnavailableError"):
        pin(df, config=pinning, on_error="null").collect()


# Metrics and progress ----------------------------------------------------------------------------------------------


def test_tasks_count_and_progress_is_said_while_a_job_runs_and_at_its_end(spark, config, send):
    """And counts what was done in its own block."""
    gone = send(bytes(3000))
    remove_stored(config)
    messages = [*send(b"k" * 3000), *send(b"plain"), *gone, None, *send(b"m" * 2000)]
    metrics, lines, said = Metrics(spark), [], threading.Event()

    def say(line):
        lines.append(line)
        said.set()

    df = frame(spark, messages, 2).transform(resolve("value", config=config, on_error="null", metrics=metrics))
    df.write.format("noop").mode("overwrite").save()
    assert (metrics.rows, metrics.payload_bytes) == (5, 5005)
    assert metrics.errors == {"PayloadNotFoundError": 1}
    assert metrics.store_bytes == {"disk": 5000}
    assert metrics.waiting_seconds > 0
    with progress(metrics, every_seconds=0.01, say=say):
        assert said.wait(30)
        assert ("0 payloads" in lines[0], "errors" in lines[0]) == (True, False)
        df.write.format("noop").mode("overwrite").save()

    assert "5 payloads, 4.89 KiB, " in lines[-1]
    assert "1 errors" in lines[-1]
    assert metrics.rows == 10
    assert not any(thread.name == "claimcheck-progress" for thread in threading.enumerate())


def test_the_other_verbs_count_too(spark, config, send):
    sending, using, joining = (Metrics(spark) for _ in range(3))
    payloads = spark.createDataFrame([(b"x" * 3000,), (b"s",), (None,)], "payload binary")
    sent = payloads.transform(offload("payload", destination="orders", config=config, metrics=sending))
    used = sent.transform(map_payloads(len, "size int", column="value", config=config, metrics=using))
    used.write.format("noop").mode("overwrite").save()

    whole, other = send(b"w" * 9000, strategy="chunking"), send(b"o" * 9000, strategy="chunking")
    df = frame(spark, [*whole, *other[1:], *send(b"plain"), *send(b"k" * 3000)], 2)
    done = df.transform(reassemble("value", config=config, metrics=joining))
    done.write.format("noop").mode("overwrite").save()

    for metrics in (sending, using):
        assert (metrics.rows, metrics.payload_bytes, metrics.store_bytes) == (3, 3001, {"disk": 3000})
    assert (joining.rows, joining.payload_bytes, joining.store_bytes) == (4, 12_005, {"disk": 3000})
    assert joining.errors == {"IncompletePayloadError": 1}


def test_progress_goes_to_the_log_where_there_is_no_terminal(spark, caplog):
    with caplog.at_level("INFO", "claimcheck.spark._metrics"), progress(Metrics(spark)):
        pass

    assert "0 payloads" in caplog.text


def test_mistakes_about_metrics(spark):
    with pytest.raises(ConfigError, match="found a NoneType, expected a SparkSession with"):
        Metrics(None)
    with pytest.raises(ConfigError, match="every_seconds"), progress(Metrics(spark), every_seconds=0):
        pass
