"""`resolve` adds a column and changes nothing else; `resolver` is for RDDs."""

from __future__ import annotations

import datetime
import os
import pickle
import shutil
from decimal import Decimal

import pytest
import yaml

import claimcheck
from claimcheck import from_dict
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    ChunkError,
    ConfigError,
    EnvelopeError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.spark import resolve, resolver
from claimcheck.spark._columns import MAX_COLUMN_BYTES
from claimcheck.spark._reading import Reading, ResolveStage, reject_oversized
from claimcheck.stores import filesystem
from tests.spark.rig import batch_of, frame, remove_stored


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
    before = spark.createDataFrame([row], schema).selectExpr("*", "interval '1' day AS length")

    after = before.transform(resolve("value", config=config))

    assert after.drop("payload").collect() == before.collect()
    assert after.drop("payload").schema == before.schema
    assert bytes(after.first().payload) == b"p" * 2000


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

    [batch] = run_stage(config, [batch_of([b"x"], type=pa.large_binary()), batch_of([])])

    assert batch.schema.field("a0").type == pa.large_binary()


def test_a_payload_that_fits_no_column_is_refused_before_any_io():
    with pytest.raises(PayloadTooLargeError, match="map_payloads") as caught:
        reject_oversized(Pointer(key="k", store="disk", size=2 << 30))

    assert (caught.value.size, caught.value.limit) == (2 << 30, MAX_COLUMN_BYTES)


# Mistakes, raised on the driver ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "skip"},
        {"metrics": 5},
    ],
)
def test_wrong_options(config, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        resolve("value", config=config, **options)


def test_names_are_text(spark, config):
    with pytest.raises(ConfigError, match="as text"):
        frame(spark, []).transform(resolve(None, config=config))


# RDDs: rdd.mapPartitions(resolver(...)), with Spark where processes matter, otherwise without ---------------------

CHUNKING = {"strategy": "chunking", "chunking": {"max_message_bytes": 1000}}


# In Spark -------------------------------------------------------------------------------------------------------


def test_pairs_keep_what_stands_beside_the_message(sc, config, send):
    pairs = [(n, send(bytes([n]) * 3000)[0]) for n in range(10)]

    got = sc.parallelize(pairs, 2).mapPartitions(resolver(config, keyed=True)).mapValues(lambda p: (p[0], len(p)))

    assert got.collect() == [(n, (n, 3000)) for n in range(10)]


def test_the_placeholders_of_a_file_are_resolved_in_the_worker(sc, config, send, tmp_path):
    message = send(b"x" * 5000)[0]
    config["stores"]["disk"]["path"] = f"${{CLAIMS_OF_NOBODY:-{tmp_path / 'claims'}}}"
    path = tmp_path / "claimcheck.yaml"
    path.write_text(yaml.safe_dump(config))
    resolve = resolver(path)
    path.unlink()  # the file is read once, here

    assert sc.parallelize([message], 1).mapPartitions(resolve).collect() == [b"x" * 5000]
    assert b"CLAIMS_OF_NOBODY" in pickle.dumps(resolve)


def test_take_fetches_little_more_than_it_shows(sc, config, send):
    messages = [send(bytes(2000))[0] for _ in range(200)]
    fetched = sc.accumulator(0)

    def count(elements):
        for element in elements:
            fetched.add(1)
            yield element

    rdd = sc.parallelize(messages, 1).mapPartitions(count).mapPartitions(resolver(config))

    assert rdd.take(1) == [bytes(2000)]
    assert fetched.value <= 2


# The callable ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dict, claimcheck.from_dict, lambda raw: claimcheck.from_dict(raw).config])
def test_a_configuration_in_any_form(make, config, send):
    assert list(resolver(make(config))([*send(bytes(3000)), None])) == [bytes(3000), None]
    assert list(resolver(make(config), keyed=True)([("k", None)])) == [("k", None)]


def test_bytearrays_as_older_sparks_hand_them_out(config, send):
    got = list(resolver(config)([bytearray(b"plain"), bytearray(send(bytes(3000))[0])]))

    assert got == [b"plain", bytes(3000)]
    assert [type(payload) for payload in got] == [bytes, bytes]


def test_it_pickles_as_names_and_stays_small(config):
    resolve = pickle.loads(pickle.dumps(resolver(config)))

    assert resolve == resolver(config)
    assert len(pickle.dumps(resolve)) < 3000


def test_skipping_leaves_out_what_is_gone_or_damaged(config, send, caplog):
    gone, damaged, chunk = send(bytes(3000)), b"PRF_wdkafcli_header_\x09", send(bytes(3000), **CHUNKING)[0]
    remove_stored(config)

    skipping = resolver(config, on_error="skip", keyed=True)
    assert list(skipping(enumerate([b"small", *gone, damaged]))) == [(0, b"small")]
    assert "EnvelopeError" in caplog.text
    for message, error in ((gone[0], PayloadNotFoundError), (damaged, EnvelopeError), (chunk, ChunkError)):
        with pytest.raises(error) as caught:
            list(resolver(config)([message]))
        assert error is not ChunkError or "claimcheck.spark.reassemble" in str(caught.value)


def test_a_store_that_is_out_of_reach_is_never_skipped(config, send):
    messages = send(bytes(3000))
    shutil.rmtree(config["stores"]["disk"]["path"])

    with pytest.raises(StoreUnavailableError):
        list(resolver(config, on_error="skip")(messages))


def test_elements_that_are_no_messages_or_no_pairs(config):
    for element in ("text", ("key", b"value")):
        with pytest.raises(PayloadTypeError):
            list(resolver(config)([element]))
    for element in (b"xy", (1, 2, 3), None):
        with pytest.raises((PayloadTypeError, TypeError, ValueError)):
            list(resolver(config, keyed=True)([element]))


# Options --------------------------------------------------------------------------------------------------------


def test_a_wrong_configuration_or_option_is_refused_on_the_driver(config, tmp_path):
    for options in ({"on_error": "null"}, {"max_inflight_bytes": 0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            resolver(config, **options)
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        resolver(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="strategy"):
        resolver(config | {"strategy": "telepathy"})


def test_a_store_that_may_not_be_read_fails_the_task(config, send, monkeypatch):
    messages = send(bytes(3000))

    def refused(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(filesystem, "open_without_links", lambda *_: None)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StoreError, match="Permission denied"):
        list(resolver(config, on_error="skip")(messages))


# A side topic of a real Pulsar -------------------------------------------------------------------------------------


def test_workers_read_the_side_topic(spark, pulsar_broker, pulsar_client, topic):
    pulsar_client.create_producer(topic).close()
    pulsar_broker.set_policy(topic, "retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    side = {"type": "pulsar-topic", "url": pulsar_broker.service_url, "topic": topic, "segment_bytes": 50_000}
    raw = {"strategy": "external", "stores": {"side": side}}
    payloads = [bytes([i]) * 200_000 for i in range(6)]
    with from_dict(raw) as cc:
        messages = [cc.seal(cc.store("side").write(payload)) for payload in payloads]

    got = spark.sparkContext.parallelize(messages, 3).mapPartitions(resolver(raw)).map(bytes).collect()

    assert got == payloads
