"""``df.transform(offload(...))``: payloads to messages; rerunning tasks stores nothing twice."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

import claimcheck
from claimcheck.errors import ConfigError
from claimcheck.spark import offload, resolve

PAYLOADS = [b"small", bytes(range(256)) * 20, b"", None, b"PRF_wdkafcli_header_\x02looks like one", b"z" * 5000]


def stored(config):
    return sorted(path.name for path in Path(config["stores"]["disk"]["path"]).rglob("*") if path.is_file())


def frame(spark, payloads, schema="n int, payload binary", partitions=1):
    rows = [row if isinstance(row, tuple) else (n, row) for n, row in enumerate(payloads)]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), schema)


def headers_of(row):
    return {pair.key: bytes(pair.value) for pair in row.headers or []}


def test_back_come_the_same_payloads_in_order(spark, config):
    sent = frame(spark, PAYLOADS, partitions=2).transform(offload("payload", destination="orders", config=config))

    rows = sent.collect()
    back = spark.createDataFrame(rows, sent.schema).transform(resolve("value", config=config)).collect()

    assert sent.columns == ["n", "value", "headers"]
    assert [row.n for row in rows] == list(range(len(PAYLOADS)))
    assert [None if row.payload is None else bytes(row.payload) for row in back] == PAYLOADS
    assert all(row.value is None or len(row.value) < 1000 for row in rows)
    assert [headers_of(row).get("claimcheck-type") for row in rows] == [
        None, b"pointer", None, None, b"literal", b"pointer"
    ]  # fmt: skip


def test_keys_and_headers_go_along(spark, config):
    schema = "key string, payload binary, h array<struct<key:string,value:binary>>, topic string"
    rows = [("k", b"x" * 5000, [("a", b"1"), ("a", None)], "orders"), (None, b"s", None, "orders")]
    df = frame(spark, [(*row,) for row in rows], schema)

    [large, small] = df.transform(
        offload("payload", destination="orders", config=config, key="key", headers="h")
    ).collect()

    assert large.asDict().keys() == {"topic", "value", "key", "h"}
    assert (large.key, large.topic, small.key, small.h) == ("k", "orders", None, None)
    assert [(pair.key, pair.value) for pair in large.h][:2] == [("a", b"1"), ("a", None)]
    assert {pair.key for pair in large.h[2:]} == {"claimcheck-type", "claimcheck-size"}


def test_chunks_are_rows_that_stay_together(spark, config):
    chunking = config | {"strategy": "chunking"}
    df = frame(spark, [b"c" * 2500, b"s"])

    rows = df.transform(offload("payload", destination="orders", config=chunking)).collect()

    assert [row.n for row in rows] == [0] * (len(rows) - 1) + [1]
    assert len(rows) >= 4
    assert {bytes(row.key) for row in rows[:-1]} == {bytes(rows[0].key)}
    assert rows[-1].key is None
    resolver = claimcheck.from_dict(chunking).resolver()
    outcomes = [found for at, row in enumerate(rows) for found in resolver.feed("s", at, bytes(row.value))]
    assert [bytes(outcome.payload) for outcome in outcomes] == [b"c" * 2500, b"s"]


def test_a_task_that_is_run_again_writes_nothing_twice(spark, config):
    """Each action runs the tasks again, as a retry does."""
    df = frame(spark, [os.urandom(3000) for _ in range(6)], partitions=3)
    sent = df.transform(offload("payload", destination="orders", config=config))

    first, second = sent.collect(), sent.collect()

    assert len(stored(config)) == 6
    assert pointers(config, first) == pointers(config, second)
    assert df.transform(offload("payload", destination="orders", config=config)).count() == 6
    assert len(stored(config)) == 12, "another run has names of its own"


def test_a_task_that_fails_half_way_leaves_what_its_next_attempt_uses(config):
    stage, rows = stage_of(config), [batch_of([os.urandom(3000) for _ in range(5)])]
    with pytest.raises(RuntimeError):
        list(stage_rows(stage, ("", 3), [*rows, RuntimeError("the node is gone")]))
    left = stored(config)

    messages = list(stage_rows(stage, ("", 3), rows))

    assert (len(left), len(messages)) == (5, 5)
    assert stored(config) == left


def test_other_rows_in_the_same_place_never_overwrite(config):
    """If the order of rows changes between attempts, payloads of the first attempt must stay unchanged."""
    stage = stage_of(config)
    first = list(stage_rows(stage, ("", 0), [batch_of([b"a" * 3000, b"b" * 3000])]))
    second = list(stage_rows(stage, ("", 0), [batch_of([b"b" * 3000, b"a" * 3000])]))

    cc = claimcheck.from_dict(config)
    assert [cc.resolve(bytes(value)) for value in first + second] == [
        b"a" * 3000, b"b" * 3000, b"b" * 3000, b"a" * 3000
    ]  # fmt: skip
    assert len(stored(config)) == 4


def test_micro_batches_are_known_by_query_and_number(config):
    """After a restart the run is new, but the query and its micro-batch are the same."""
    rows = [batch_of([b"a" * 3000])]

    one = list(stage_rows(stage_of(config), ("query/7", 0), rows))
    again = list(stage_rows(stage_of(config), ("query/7", 0), rows))
    other = list(stage_rows(stage_of(config), ("query/8", 0), rows))

    assert len(stored(config)) == 2
    assert keys_of(config, one) == keys_of(config, again) != keys_of(config, other)


def test_what_fails_removes_nothing_that_another_attempt_may_have_made_known(config, monkeypatch):
    stage = stage_of(config)
    [known] = stage_rows(stage, ("", 0), [batch_of([b"a" * 3000])])

    def broken(self, pointer, source):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("claimcheck.stores.filesystem.FilesystemStore._write", broken)
        with pytest.raises(claimcheck.StoreError):
            list(stage_rows(stage, ("", 0), [batch_of([b"a" * 3000])]))

    assert claimcheck.from_dict(config).resolve(bytes(known)) == b"a" * 3000


def test_on_a_stream(spark, config, tmp_path):
    frame(spark, [b"s" * 3000]).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("n int, payload binary").parquet(str(tmp_path / "in"))
    sent = stream.transform(offload("payload", destination="orders", config=config))

    query = sent.writeStream.format("memory").queryName("offloaded").trigger(availableNow=True).start()
    query.awaitTermination()

    [row] = spark.table("offloaded").collect()
    assert claimcheck.from_dict(config).resolve(bytes(row.value)) == b"s" * 3000


def test_a_payload_over_the_limit_fails_the_task_and_names_its_row(spark, config):
    df = frame(spark, [b"x" * 5000]).withColumnRenamed("n", "offset")
    limited = config | {"limits": {"max_payload_bytes": 4000}}

    with pytest.raises(Exception, match="PayloadTooLargeError") as caught:
        df.transform(offload("payload", destination="orders", config=limited)).collect()

    assert "Row: offset 0" in str(caught.value)
    assert stored(config) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"column": "n"}, "of type int"),
        ({"key": "n"}, "of type int, expected a column of type binary or string"),
        ({"headers": "payload"}, "of type binary"),
        ({"destination": ""}, "destination"),
        ({"max_message_bytes": 0}, "max_message_bytes"),
        ({"metrics": "all"}, "metrics"),
        ({"config": {"stores": {"m": {"type": "memory"}}}}, "stores.m.type: found 'memory'"),
    ],
)
def test_mistakes_are_told_on_the_driver(spark, config, arguments, words):
    given = {"column": "payload", "destination": "orders", "config": config} | arguments

    with pytest.raises(ConfigError, match=words):
        frame(spark, []).transform(offload(**given))


# The stage, without Spark ---------------------------------------------------------------------------------------


def batch_of(payloads):
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(payloads, type=pa.binary())], names=["payload"])


def stage_of(config):
    from claimcheck.spark import _offload as offloading
    from claimcheck.spark._reading import Reading
    from claimcheck.spark._worker import as_config

    reading = Reading(config=as_config(config), concurrency=1, max_inflight_bytes=1 << 20)
    columns = offloading._Columns(
        payload=0,
        key=None,
        headers=None,
        kept=(),
        names=("value", "headers"),
        text_key=False,
        all_names=("payload",),
    )
    return offloading._OffloadStage(reading, uuid.uuid4().bytes, columns, "orders", None)


def stage_rows(stage, place, batches):
    """Yield the messages of a task; an exception among the batches is raised."""

    def coming():
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("claimcheck.spark._offload.task_id", lambda: place)
        for batch in stage(coming()):
            yield from batch.column("a0").to_pylist()


def keys_of(config, values):
    cc = claimcheck.from_dict(config)
    return [cc.pointer(bytes(value)).key for value in values]


def pointers(config, rows):
    return keys_of(config, [row.value for row in rows])
