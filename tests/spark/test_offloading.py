"""``df.transform(offload(...))``: payloads to messages."""

from __future__ import annotations

import os
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


def test_a_task_that_is_run_again_writes_payloads_of_its_own(spark, config):
    """Each action runs the tasks again, as a retry does."""
    df = frame(spark, [os.urandom(3000) for _ in range(6)], partitions=3)
    sent = df.transform(offload("payload", destination="orders", config=config))

    first, second = sent.collect(), sent.collect()

    cc = claimcheck.from_dict(config)
    assert len({cc.pointer(row.value).key for row in first + second}) == len(stored(config)) == 12
    assert [cc.resolve(row.value) for row in first] == [cc.resolve(row.value) for row in second]


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
