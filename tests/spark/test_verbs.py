"""What the functions of `claimcheck.spark` have in common: columns, names, stores, paths; and `offload`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import claimcheck
from claimcheck._config_file import from_dict
from claimcheck.errors import ArgumentTypeError, ConfigError
from claimcheck.spark import (
    _columns,
    map_payloads,
    offload,
    pin,
    reassemble,
    repartition_by_payload,
    resolve,
    resolver,
)
from claimcheck.spark._columns import check_paths, is_one_machine
from tests.spark.rig import frame

VERBS: dict[str, Callable[..., Any]] = {
    "resolve": lambda column, config, **options: resolve(column, config=config, **options),
    "map_payloads": lambda column, config, **options: map_payloads(
        len, "size int", column=column, config=config, **options
    ),
    "offload": lambda column, config, **options: offload(column, destination="orders", config=config, **options),
    "reassemble": lambda column, config, **options: reassemble(column, config=config, **options),
    "repartition_by_payload": lambda column, config, **options: repartition_by_payload(
        column, config=config, **options
    ),
    "pin": lambda column, config, **options: lambda df: pin(df, column, config=config, store="disk", **options),
}
"""Each makes a function of a DataFrame."""

ALL = pytest.mark.parametrize("verb", VERBS)
RESULTS = [("resolve", "payload"), ("reassemble", "payload"), ("map_payloads", "size"), ("offload", "value")]


@ALL
def test_a_frame_of_pandas_is_refused_by_name(verb, config):
    pandas = pytest.importorskip("pandas")

    with pytest.raises(ArgumentTypeError, match="df: .*DataFrame of Spark"):
        VERBS[verb]("value", config)(pandas.DataFrame({"value": [b"x"]}))


@ALL
def test_columns_that_cannot_be_meant_are_refused_on_the_driver(spark, config, verb):
    """One that is not there, one of another type, and one that is there twice."""
    df = frame(spark, [b"x"])
    for column, words in (("valeu", "found 'valeu', expected exactly one column"), ("n", "of type int")):
        with pytest.raises(ConfigError, match=words):
            df.transform(VERBS[verb](column, config))
    with pytest.raises(ConfigError, match="'value' 2 times"):
        df.join(df, on="n").transform(VERBS[verb]("value", config))


@pytest.mark.parametrize(("verb", "taken"), [*RESULTS[:3], *((verb, "error") for verb, _ in RESULTS[:3]), RESULTS[3]])
def test_names_of_new_columns_that_are_taken_are_refused_on_the_driver(spark, config, verb, taken):
    column = "message" if verb == "offload" else "value"
    df = frame(spark, [b"x"]).withColumnRenamed("value", column).withColumnRenamed("n", taken)
    options = {"on_error": "null"} if verb in ("resolve", "map_payloads") else {}

    with pytest.raises(ConfigError, match=f"'{taken}', which is taken"):
        df.transform(VERBS[verb](column, config, **options))


@ALL
def test_columns_may_have_any_names(spark, config, send, verb):
    """Dots, spaces, backticks, duplicates, and a struct field with the path of another column."""
    from pyspark.sql import functions as F  # noqa: N812

    df = frame(spark, send(b"x" * 3000)).select(
        F.lit("dot").alias("a.b"), F.struct(F.lit("field").alias("b")).alias("a"), F.lit(1).alias("x y`z"),
        F.lit("one").alias("twin"), F.lit("two").alias("TWIN"), F.col("value").alias("kafka.value"),
    )  # fmt: skip

    [row] = df.transform(VERBS[verb]("kafka.value", config)).collect()

    assert row[:5] == ("dot", ("field",), 1, "one", "two")
    assert row[-1] == {"map_payloads": 3000, "resolve": b"x" * 3000}.get(verb, row[-1])


@pytest.mark.parametrize("verb", ["resolve", "map_payloads", "reassemble", "pin"])
def test_a_store_that_is_out_of_reach_fails_the_task_whatever_is_said_of_errors(spark, config, send, verb):
    """It never becomes a column of nulls."""
    messages = send(bytes(3000))
    shutil.rmtree(config["stores"]["disk"]["path"])
    options = {} if verb == "reassemble" else {"on_error": "null"}
    archive = {"type": "filesystem", "path": f"{config['stores']['disk']['path']}-2", "create": True}
    stores = {"disk": archive, "lost": config["stores"]["disk"]} if verb == "pin" else config["stores"]
    if verb == "pin":
        messages = [message.replace(b'"store":"disk"', b'"store":"lost"') for message in messages]

    with pytest.raises(Exception, match="StoreUnavailableError"):
        frame(spark, messages).transform(
            VERBS[verb]("value", config | {"stores": stores, "store": "disk"}, **options)
        ).collect()


@pytest.mark.parametrize("verb", ["resolve", "offload"])
def test_on_a_stream(spark, config, send, tmp_path, verb):
    frame(spark, send(b"s" * 3000) if verb == "resolve" else [b"s" * 3000]).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("n int, value binary").parquet(str(tmp_path / "in"))
    column = "value" if verb == "resolve" else "payload"
    done = stream.withColumnRenamed("value", column).transform(VERBS[verb](column, config))

    query = done.writeStream.format("memory").queryName(f"on_a_stream_{verb}").trigger(availableNow=True).start()
    query.awaitTermination()

    [row] = spark.table(f"on_a_stream_{verb}").collect()
    with claimcheck.from_dict(config) as cc:
        assert (bytes(row.payload) if verb == "resolve" else cc.resolve(bytes(row.value))) == b"s" * 3000


# Paths of stores -------------------------------------------------------------------------------------------------


def stores(path, **more):
    return from_dict({"store": "disk", "stores": {"disk": {"type": "filesystem", "path": path}} | more})


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "repartition_by_payload"])
def test_a_cluster_refuses_relative_paths_on_the_driver(spark, monkeypatch, tmp_path, verb):
    monkeypatch.setattr(_columns, "is_one_machine", lambda spark: False)
    df = frame(spark, [b"payload"]).withColumnRenamed("value", "message")

    with pytest.raises(ConfigError, match="an absolute path that driver and executors share"):
        df.transform(VERBS[verb]("message", stores("claims")))
    with pytest.raises(ConfigError, match="an absolute path that driver and executors share"):
        resolver(stores("claims"))
    df.transform(VERBS[verb]("message", stores(str(tmp_path))))
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    df.transform(VERBS[verb]("message", stores("claims")))  # one machine takes them


class Session:
    """A session that only knows its master."""

    def __init__(self, master):
        self.conf, self.master = self, master

    def get(self, name):
        if self.master is None:
            raise RuntimeError("not available")
        return self.master


@pytest.mark.parametrize(
    ("master", "one"),
    [
        ("local", True),
        ("local[4,2]", True),
        ("local-cluster[1,1,512]", False),
        ("yarn", False),
        ("spark://localhost:7077", False),
        (None, False),
    ],
)
def test_which_masters_are_one_machine(master, one):
    assert is_one_machine(Session(master)) is one


@pytest.mark.parametrize("path", ["claims", "./claims", "~/claims", "${CLAIMS:-claims}"])
@pytest.mark.parametrize("where", ["disk", "other"])
def test_paths_that_are_relative(monkeypatch, path, where):
    """Also of a store that only pointers name; and a default counts even if the variable is set here."""
    monkeypatch.setenv("CLAIMS", "/mnt/claims")
    entries = {"disk": "/mnt", where: path}
    other = {name: {"type": "filesystem", "path": each} for name, each in entries.items()}

    with pytest.raises(ConfigError, match="absolute|default of a variable") as caught:
        check_paths(stores("/mnt", **other), Session("yarn"))
    assert caught.value.path == f"stores.{where}.path"


@pytest.mark.parametrize("path", ["/mnt/claims", "${CLAIMS:-/mnt/claims}", "${ONLY_ON_EXECUTORS}"])
def test_paths_that_are_absolute(path):
    check_paths(stores(path), Session("yarn"))


# Payloads to messages ---------------------------------------------------------------------------------------------

OFFLOADED = [b"small", bytes(range(256)) * 20, b"", None, b"PRF_wdkafcli_header_\x02looks like one", b"z" * 5000]


def stored(config):
    return sorted(path.name for path in Path(config["stores"]["disk"]["path"]).rglob("*") if path.is_file())


def payloads_in(spark, payloads, schema="n int, payload binary", partitions=1):
    rows = [row if isinstance(row, tuple) else (n, row) for n, row in enumerate(payloads)]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), schema)


def headers_of(row):
    return {pair.key: bytes(pair.value) for pair in row.headers or []}


def test_back_come_the_same_payloads_in_order(spark, config):
    sent = payloads_in(spark, OFFLOADED, partitions=2).transform(
        offload("payload", destination="orders", config=config)
    )

    rows = sent.collect()
    back = spark.createDataFrame(rows, sent.schema).transform(resolve("value", config=config)).collect()

    assert sent.columns == ["n", "value", "headers"]
    assert [row.n for row in rows] == list(range(len(OFFLOADED)))
    assert [None if row.payload is None else bytes(row.payload) for row in back] == OFFLOADED
    assert all(row.value is None or len(row.value) < 1000 for row in rows)
    assert [headers_of(row).get("claimcheck-type") for row in rows] == [
        None, b"pointer", None, None, b"literal", b"pointer"
    ]  # fmt: skip


def test_keys_and_headers_go_along(spark, config):
    schema = "key string, payload binary, h array<struct<key:string,value:binary>>, topic string"
    rows = [("k", b"x" * 5000, [("a", b"1"), ("a", None)], "orders"), (None, b"s", None, "orders")]
    df = payloads_in(spark, [(*row,) for row in rows], schema)

    [large, small] = df.transform(
        offload("payload", destination="orders", config=config, key="key", headers="h")
    ).collect()

    assert large.asDict().keys() == {"topic", "value", "key", "h"}
    assert (large.key, large.topic, small.key, small.h) == ("k", "orders", None, None)
    assert [(pair.key, pair.value) for pair in large.h][:2] == [("a", b"1"), ("a", None)]
    assert {pair.key for pair in large.h[2:]} == {"claimcheck-type", "claimcheck-size"}


def test_chunks_are_rows_that_stay_together(spark, config):
    chunking = config | {"strategy": "chunking"}
    df = payloads_in(spark, [b"c" * 2500, b"s"])

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
    df = payloads_in(spark, [os.urandom(3000) for _ in range(6)], partitions=3)
    sent = df.transform(offload("payload", destination="orders", config=config))

    first, second = sent.collect(), sent.collect()

    cc = claimcheck.from_dict(config)
    assert len({cc.pointer(row.value).key for row in first + second}) == len(stored(config)) == 12
    assert [cc.resolve(row.value) for row in first] == [cc.resolve(row.value) for row in second]


def test_a_payload_over_the_limit_fails_the_task_and_names_its_row(spark, config):
    df = payloads_in(spark, [b"x" * 5000]).withColumnRenamed("n", "offset")
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
def test_mistakes_about_offload_are_told_on_the_driver(spark, config, arguments, words):
    given = {"column": "payload", "destination": "orders", "config": config} | arguments

    with pytest.raises(ConfigError, match=words):
        payloads_in(spark, []).transform(offload(**given))
