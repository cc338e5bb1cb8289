"""What the functions of `claimcheck.spark` have in common: columns, names, mistakes, stores, paths; and `offload`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import claimcheck
from claimcheck._config_file import from_dict
from claimcheck.errors import ArgumentTypeError, ConfigError
from claimcheck.spark import _columns, map_payloads, offload, pin, reassemble, repartition_by_payload, resolve, resolver
from claimcheck.spark._columns import is_one_machine, name_python, prepare
from tests.spark.rig import frame

VERBS: dict[str, Callable[..., Any]] = {
    "resolve": resolve,
    "map_payloads": lambda column, **more: map_payloads(**{"fn": len, "schema": "size int", "column": column, **more}),
    "offload": lambda column, **more: offload(column, **{"destination": "orders", **more}),
    "reassemble": reassemble,
    "repartition_by_payload": repartition_by_payload,
    "pin": lambda column, **more: lambda df: pin(df, column, **{"store": "disk", **more}),
}
"""Each makes a function of a DataFrame."""

ALL = pytest.mark.parametrize("verb", VERBS)
RESULTS = [("resolve", "payload"), ("reassemble", "payload"), ("map_payloads", "size"), ("offload", "value")]


@ALL
def test_a_frame_of_pandas_is_refused_by_name(verb, config):
    pandas = pytest.importorskip("pandas")

    with pytest.raises(ArgumentTypeError, match="df: .*DataFrame of Spark"):
        VERBS[verb]("value", config=config)(pandas.DataFrame({"value": [b"x"]}))


@ALL
def test_columns_that_cannot_be_meant_are_refused_on_the_driver(spark, config, verb):
    """One that is not there, one of another type, and one that is there twice."""
    df = spark.createDataFrame([], "n int, value binary")
    for column, words in (("valeu", "found 'valeu', expected exactly one column"), ("n", "of type int")):
        with pytest.raises(ConfigError, match=words):
            df.transform(VERBS[verb](column, config=config))
    with pytest.raises(ConfigError, match="'value' 2 times"):
        df.join(df, on="n").transform(VERBS[verb]("value", config=config))


@pytest.mark.parametrize(
    ("verb", "taken"), [*RESULTS[:3], *((verb, "error") for verb, _ in RESULTS[:3]), RESULTS[3], ("pin", "error")]
)
def test_names_of_new_columns_that_are_taken_are_refused_on_the_driver(spark, config, verb, taken):
    column = "message" if verb == "offload" else "value"
    df = spark.createDataFrame([], f"`{taken}` int, {column} binary")
    options = {"on_error": "null"} if verb in ("resolve", "map_payloads", "pin") else {}

    with pytest.raises(ConfigError, match=f"'{taken}', which is taken"):
        df.transform(VERBS[verb](column, config=config, **options))


MEMORY = {"stores": {"m": {"type": "memory"}}}


@pytest.mark.parametrize(
    ("verb", "given", "words"),
    [
        ("resolve", {"on_error": "skip"}, "on_error"),
        ("resolve", {"metrics": 5}, "metrics"),
        ("resolve", {"column": None}, "as text"),
        ("reassemble", {"expire_by": "watermark"}, "expire_by"),
        ("reassemble", {"max_inflight_bytes": 0}, "max_inflight_bytes"),
        ("reassemble", {"source": ["topic"]}, "'topic' of type array<string>, expected a column of type string or"),
        ("map_payloads", {"fn": "len"}, "fn"),
        ("map_payloads", {"schema": "n int"}, "'n', which is taken"),
        ("map_payloads", {"schema": " "}, "schema"),
        ("map_payloads", {"schema": 5}, "schema"),
        ("map_payloads", {"schema": "a int, a int"}, "each once"),
        ("map_payloads", {"schema": "error int", "on_error": "null"}, "'error', which is taken"),
        ("map_payloads", {"max_inflight_bytes": 0}, "max_inflight_bytes"),
        ("repartition_by_payload", {"target_bytes": 0}, "target_bytes"),
        ("pin", {"store": "archive"}, "store: found 'archive', expected one of the stores disk"),
        ("offload", {"key": "n"}, "of type int, expected a column of type binary or string"),
        ("offload", {"headers": "value"}, "of type binary"),
        ("offload", {"destination": ""}, "destination"),
        ("offload", {"max_message_bytes": 0}, "max_message_bytes"),
        ("offload", {"config": MEMORY}, "stores.m.type: found 'memory'"),
    ],
)
def test_mistakes_are_told_on_the_driver(spark, config, verb, given, words):
    df = spark.createDataFrame([], "n int, value binary, topic array<string>")

    with pytest.raises(ConfigError, match=words):
        df.transform(VERBS[verb](**{"column": "value", "config": config, **given}))


KINDS = (
    "12.50BD", "timestamp'2024-02-29 12:30:15.123456'", "date'1970-01-01'", "array(1, 2)", "map('a', 1.5D)",
    "named_struct('b', true, 'n', null)", "interval '1' day", "cast(null as string)",
)  # fmt: skip


@ALL
def test_columns_of_any_kind_and_name_pass_through(spark, config, send, verb):
    """Dots, spaces, backticks, duplicates, another case, and a struct field with the path of another column."""
    from pyspark.sql import functions as F  # noqa: N812

    df = spark.createDataFrame([(send(b"x" * 3000)[0],)], "value binary").select(
        F.lit("dot").alias("a.b"), F.struct(F.lit("field").alias("b")).alias("a"), F.lit(1).alias("x y`z"),
        F.lit("one").alias("twin"), F.lit("two").alias("TWIN"),
        *(F.expr(kind).alias(f"k{n}") for n, kind in enumerate(KINDS)), F.col("value").alias("Kafka.value"),
    )  # fmt: skip
    kept = len(df.columns) - 1

    after = df.transform(VERBS[verb]("kafka.VALUE", config=config))
    [row] = after.collect()

    assert row[:kept] == df.first()[:kept]
    assert after.schema.fields[:kept] == df.schema.fields[:kept]
    assert {"map_payloads": 3000, "resolve": b"x" * 3000}.get(verb, row[-1]) == row[-1]


@pytest.mark.parametrize("verb", ["map_payloads", "reassemble", "pin"])
def test_a_store_that_is_out_of_reach_fails_the_task_whatever_is_said_of_errors(spark, config, send, verb):
    """It never becomes a column of nulls."""
    messages = send(bytes(3000))
    shutil.rmtree(config["stores"]["disk"]["path"])
    options = {} if verb == "reassemble" else {"on_error": "null"}
    archive = {"type": "filesystem", "path": f"{config['stores']['disk']['path']}-2", "create": True}
    if verb == "pin":
        config["stores"] = {"disk": archive, "lost": config["stores"]["disk"]}
        messages = [message.replace(b'"store":"disk"', b'"store":"lost"') for message in messages]

    with pytest.raises(Exception, match="StoreUnavailableError"):
        frame(spark, messages).transform(VERBS[verb]("value", config=config, **options)).collect()


def test_a_stream_is_offloaded_and_resolved(spark, config, tmp_path):
    frame(spark, [b"s" * 3000]).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("n int, value binary").parquet(str(tmp_path / "in"))
    sent = stream.withColumnRenamed("value", "given").transform(VERBS["offload"]("given", config=config))
    done = sent.transform(resolve("value", config=config))

    query = done.writeStream.format("memory").queryName("on_a_stream").trigger(availableNow=True).start()
    query.awaitTermination()

    [row] = spark.table("on_a_stream").collect()
    assert (len(row.value) < 1000, bytes(row.payload)) == (True, b"s" * 3000)


# Paths of stores -------------------------------------------------------------------------------------------------


def stores(path, **more):
    return from_dict({"store": "disk", "stores": {"disk": {"type": "filesystem", "path": path}} | more})


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "repartition_by_payload"])
def test_a_cluster_refuses_relative_paths_on_the_driver(spark, monkeypatch, tmp_path, verb):
    monkeypatch.setattr(_columns, "is_one_machine", lambda spark: False)
    df = spark.createDataFrame([], "n int, message binary")

    with pytest.raises(ConfigError, match="an absolute path that driver and executors share"):
        df.transform(VERBS[verb]("message", config=stores("claims")))
    with pytest.raises(ConfigError, match="an absolute path that driver and executors share"):
        resolver(stores("claims"))
    df.transform(VERBS[verb]("message", config=stores(str(tmp_path))))
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    df.transform(VERBS[verb]("message", config=stores("claims")))  # one machine takes them


def session(master):
    """Return a session that only knows its master."""
    return SimpleNamespace(conf={"spark.master": master})


def test_which_masters_are_one_machine():
    masters = ["local", "local[4,2]", "local-cluster[1,1,512]", "yarn", "spark://localhost:7077"]

    assert [is_one_machine(session(master)) for master in masters] == [True, True, False, False, False]
    assert not is_one_machine(SimpleNamespace())  # it may not be available


@pytest.mark.parametrize(
    ("conf", "python"),
    [({"spark.master": "local"}, sys.executable), ({"spark.pyspark.python": "/named"}, "/named"), ({}, "python3")],
)
def test_workers_run_the_python_that_is_named_or_locally_this_one(monkeypatch, conf, python):
    """Unless a variable names one, as Spark itself does."""
    spark = SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(pythonExec="python3"), _jsparkSession=None)
    monkeypatch.setenv("PYSPARK_PYTHON", "/of a variable")
    name_python(spark)
    assert spark.sparkContext.pythonExec == "python3"
    monkeypatch.delenv("PYSPARK_PYTHON")
    name_python(spark)
    assert spark.sparkContext.pythonExec == python


@pytest.mark.parametrize("where", ["disk", "other"])
def test_paths_that_are_relative(monkeypatch, where):
    """Also of a store that only pointers name; and a default counts even if the variable is set here."""
    monkeypatch.setenv("CLAIMS", "/mnt/claims")
    for path in ("claims", "./claims", "~/claims", "${CLAIMS:-claims}"):
        entries = {"disk": "/mnt", where: path}
        other = {name: {"type": "filesystem", "path": each} for name, each in entries.items()}
        with pytest.raises(ConfigError, match="absolute|default of a variable") as caught:
            prepare(stores("/mnt", **other), session("yarn"))
        assert caught.value.path == f"stores.{where}.path"
    for path in ("/mnt/claims", "${CLAIMS:-/mnt/claims}", "${ONLY_ON_EXECUTORS}"):
        prepare(stores(path), session("yarn"))


# Payloads to messages ---------------------------------------------------------------------------------------------

OFFLOADED = [b"small", bytes(range(256)) * 20, b"", None, b"PRF_wdkafcli_header_\x02looks like one", b"z" * 5000]


def stored(config):
    return sorted(path.name for path in Path(config["stores"]["disk"]["path"]).rglob("*") if path.is_file())


def headers_of(row):
    return {pair.key: bytes(pair.value) for pair in row.headers or []}


def test_back_come_the_same_payloads_in_order_and_a_task_that_runs_again_writes_its_own(spark, config):
    """Each action runs the tasks again, as a retry does."""
    df = frame(spark, OFFLOADED, 2).withColumnRenamed("value", "payload")
    sent = df.transform(offload("payload", destination="orders", config=config))

    rows, again = sent.collect(), sent.collect()
    back = spark.createDataFrame(rows, sent.schema).transform(resolve("value", config=config)).collect()

    assert sent.columns == ["n", "value", "headers"]
    assert [row.n for row in rows] == list(range(len(OFFLOADED)))
    assert [None if row.payload is None else bytes(row.payload) for row in back] == OFFLOADED
    assert all(row.value is None or len(row.value) < 1000 for row in rows)
    assert [headers_of(row).get("claimcheck-type") for row in rows] == [
        None, b"pointer", None, None, b"literal", b"pointer"
    ]  # fmt: skip
    with claimcheck.from_dict(config) as cc:
        assert len({cc.pointer(row.value).key for row in rows + again if row.n in (1, 5)}) == len(stored(config)) == 4
        assert [cc.resolve(row.value) for row in again if row.n in (1, 5)] == [OFFLOADED[1], OFFLOADED[5]]


def test_keys_and_headers_go_along(spark, config):
    schema = "key string, payload binary, h array<struct<key:string,value:binary>>, topic string"
    rows = [("k", b"x" * 5000, [("a", b"1"), ("a", None)], "orders"), (None, b"s", None, "orders")]
    df = spark.createDataFrame(rows, schema)

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

    rows = df.transform(offload("value", destination="orders", config=chunking)).collect()

    assert [row.n for row in rows] == [0] * (len(rows) - 1) + [1]
    assert len(rows) >= 4
    assert {bytes(row.key) for row in rows[:-1]} == {bytes(rows[0].key)}
    assert rows[-1].key is None
    resolver = claimcheck.from_dict(chunking).resolver()
    outcomes = [found for at, row in enumerate(rows) for found in resolver.feed("s", at, bytes(row.value))]
    assert [bytes(outcome.payload) for outcome in outcomes] == [b"c" * 2500, b"s"]


def test_a_payload_over_the_limit_fails_the_task_and_names_its_row(spark, config):
    df = frame(spark, [b"x" * 5000]).withColumnRenamed("n", "offset")
    limited = config | {"limits": {"max_payload_bytes": 4000}}

    with pytest.raises(Exception, match="PayloadTooLargeError") as caught:
        df.transform(offload("value", destination="orders", config=limited)).collect()

    assert "Row: offset 0" in str(caught.value)
    assert stored(config) == []
