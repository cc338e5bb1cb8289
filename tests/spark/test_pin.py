"""`pin`: payloads in a long-lived store, and rows that need no other store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import claimcheck
from claimcheck.errors import ConfigError
from claimcheck.spark import collect_garbage, pin
from claimcheck.spark.sources import register
from claimcheck.transports.local import LocalBroker
from tests.spark.rig import frame, in_chunks

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
