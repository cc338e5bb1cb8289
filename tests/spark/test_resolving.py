"""``df.transform(resolve(...))`` adds a column and changes nothing else."""

from __future__ import annotations

import datetime
import hashlib
import pickle
import random
from decimal import Decimal

import pytest

from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ConfigError, PayloadTooLargeError
from claimcheck.spark import resolve
from claimcheck.spark._columns import MAX_COLUMN_BYTES
from claimcheck.spark._reading import Reading, ResolveStage, reject_oversized
from tests.spark.rig import batch_of, frame, remove_stored


@pytest.mark.smoke
def test_payloads_in_a_column_more_rows_in_order(spark, config, send):
    rng = random.Random(5)
    wanted = [b"", b"small", *(rng.randbytes(rng.choice([999, 1500, 300_000])) for _ in range(30))]
    messages = [message for payload in wanted for message in send(payload)]

    df = frame(spark, messages, 3).transform(resolve("value", config=config))
    rows = df.collect()

    assert df.columns == ["n", "value", "payload"]
    assert [row.n for row in rows] == list(range(len(wanted)))
    assert [bytes(row.value) for row in rows] == messages
    assert [bytes(row.payload) for row in rows] == wanted


def test_payloads_can_be_used_by_spark_itself(spark, config, send):
    payload = bytes(range(256)) * 4000
    df = frame(spark, send(payload)).transform(resolve("value", config=config))

    [row] = df.selectExpr("sha2(payload, 256) AS digest", "length(payload) AS size").collect()

    assert (row.digest, row.size) == (hashlib.sha256(payload).hexdigest(), len(payload))


def test_columns_of_every_kind_pass_through(spark, config, send):
    row = (
        1,
        "text",
        Decimal("12.50"),
        datetime.datetime(2024, 2, 29, 12, 30, 15, 123456),  # noqa: DTZ001 - Spark's own are without a zone
        datetime.date(1970, 1, 1),
        [1, 2],
        {"a": 1.5},
        (True, None),
        send(b"p" * 2000)[0],
        None,
    )
    schema = (
        "i int, s string, d decimal(10,2), t timestamp, day date, l array<int>, m map<string,double>, "
        "st struct<b: boolean, n: bigint>, value binary, nothing string"
    )
    before = spark.createDataFrame([row], schema)

    after = before.transform(resolve("value", config=config))

    assert after.drop("payload").collect() == before.collect()
    assert after.drop("payload").schema == before.schema
    assert bytes(after.first().payload) == b"p" * 2000


def test_nulls_and_empty_partitions(spark, config):
    df = frame(spark, [None, b"x", None], 5).transform(resolve("value", config=config))

    assert [row.payload for row in df.collect()] == [None, b"x", None]
    assert frame(spark, []).transform(resolve("value", config=config)).collect() == []


def test_errors_in_a_column_of_their_own(spark, config, send):
    gone = send(bytes(3000))[0]
    remove_stored(config)
    kept = send(b"k" * 3000)[0]
    messages = [kept, gone, b"PRF_wdkafcli_header_\x09", b"plain", None]

    df = frame(spark, messages).transform(resolve("value", config=config, on_error="null"))
    rows = df.collect()

    assert df.columns == ["n", "value", "payload", "error"]
    assert [None if row.payload is None else bytes(row.payload) for row in rows] == [
        b"k" * 3000,
        None,
        None,
        b"plain",
        None,
    ]
    assert [row.error and row.error.type for row in rows] == [
        None,
        "PayloadNotFoundError",
        "EnvelopeError",
        None,
        None,
    ]


def test_a_column_is_found_whatever_its_case(spark, config, send):
    df = spark.createDataFrame([(send(bytes(3000))[0],)], "Body binary")

    [row] = df.transform(resolve("body", config=config, on_error="null")).collect()

    assert (len(row.payload), row.error) == (3000, None)


# The stage, without Spark ---------------------------------------------------------------------------------------


def run_stage(config, batches, *, out_batch_bytes=1 << 20):
    from claimcheck.spark._worker import as_config

    reading = Reading(
        config=as_config(config),
        concurrency=1,
        max_inflight_bytes=1 << 20,
        out_batch_bytes=out_batch_bytes,
    )
    stage = ResolveStage(reading, 0, ("value",))
    return list(pickle.loads(pickle.dumps(stage))(batches))


def test_batches_are_cut_by_bytes(config, send):
    sizes = [4000, 4000, 4000, 20_000, 10, 10, 4000]
    batches = [batch_of([send(bytes(size))[0] for size in sizes]), batch_of([b"next"])]

    got = run_stage(config, batches, out_batch_bytes=10_000)

    assert [[len(p.as_py()) for p in batch.column(1)] for batch in got] == [
        [4000, 4000],
        [4000],
        [20_000],
        [10, 10, 4000],
        [4],
    ]


def test_large_binary_stays_large_binary(config):
    import pyarrow as pa

    [batch] = run_stage(config, [batch_of([b"x"], type=pa.large_binary())])

    assert batch.schema.field("a0").type == pa.large_binary()


def test_a_batch_without_rows_gives_none(config):
    assert run_stage(config, [batch_of([])]) == []


def test_a_payload_that_fits_no_column_is_refused_before_any_io():
    with pytest.raises(PayloadTooLargeError, match="map_payloads") as caught:
        reject_oversized(Pointer(key="k", store="disk", size=2 << 30))

    assert (caught.value.size, caught.value.limit) == (2 << 30, MAX_COLUMN_BYTES)


# Mistakes, raised on the driver ---------------------------------------------------------------------------------


def test_durations_pass(spark, config):
    df = frame(spark, [b"x"]).selectExpr("value", "interval '1' day AS length", "named_struct('interval', 1) AS s")

    assert df.transform(resolve("value", config=config)).first().length == datetime.timedelta(days=1)


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "skip"},
        {"max_inflight_bytes": -1},
        {"on_error": "dead_letter"},
        {"metrics": 5},
    ],
)
def test_wrong_options(config, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        resolve("value", config=config, **options)


def test_names_are_text(spark, config):
    with pytest.raises(ConfigError, match="as text"):
        frame(spark, []).transform(resolve(None, config=config))
