"""Signed and encrypted messages in Spark: the topic of a row, headers with signatures, what a stream writes."""

from __future__ import annotations

import base64
import zipfile
from dataclasses import replace

import pytest

import claimcheck
from claimcheck._wire.envelope import Kind, decode, encode_abort
from claimcheck.config import HEADER
from claimcheck.errors import ConfigError, PointerRejectedError
from claimcheck.spark import map_payloads, offload, pin, reassemble, repartition_by_payload, resolve, resolver
from tests.spark.rig import batches_of

SIGNING = {"key_id": "k1", "keys": {"k1": "a secret of ours"}}
PAYLOADS = [bytes([n]) * 5_000 for n in (1, 2)]
LITERAL = HEADER + b" and then some"
SCHEMA = "topic string, partition int, value binary, headers array<struct<key:string,value:binary>>"
MAP = "map_from_entries(transform(headers, h -> struct(h.key, cast(h.value as string))))"


@pytest.fixture
def config(config):
    return config | {"signing": SIGNING}


def envelopes(config, payload, *, destination="orders", **overrides):
    options = {"chunking": {"max_message_bytes": 2000}} | overrides
    with claimcheck.from_dict(config | options).outbound(payload, destination=destination, headers={}) as out:
        return list(out.envelopes), out.abort


def rows(found, topic="orders", partition=0):
    return [
        (topic, partition, bytearray(each.data), [(k, bytearray(v.encode())) for k, v in (each.headers or {}).items()])
        for each in found
    ]


def frame(spark, *found):
    return spark.createDataFrame([row for several in found for row in several], SCHEMA).coalesce(1)


def payloads_of(df):
    return [row.payload and bytes(row.payload) for row in df.collect()]


def test_the_topic_of_a_row_is_checked(spark, config):
    own, _ = envelopes(config, PAYLOADS[0])
    other, _ = envelopes(config, PAYLOADS[1], destination="salaries")
    escaped, _ = envelopes(config, LITERAL)
    df = frame(spark, rows(own), rows(other), rows(other, "persistent://public/default/salaries"), rows(escaped))

    resolved = df.transform(resolve("value", config=config, on_error="null")).collect()

    assert [row.payload and bytes(row.payload) for row in resolved] == [PAYLOADS[0], None, PAYLOADS[1], LITERAL]
    assert "was sent to 'salaries', but read from 'orders'" in resolved[1].error.message
    files = map_payloads(lambda file: len(file.read()), "size int", column="value", config=config, on_error="null",
                         as_file=True, max_inflight_bytes=1000)  # fmt: skip
    spread = df.transform(repartition_by_payload("value", config=config)).transform(files)
    assert sorted(row["size"] or 0 for row in spread.collect()) == [0, len(LITERAL), 5000, 5000]


def test_without_a_topic_it_must_be_given(spark, config):
    own, _ = envelopes(config, PAYLOADS[0])
    df = frame(spark, rows(own)).select("value")
    for function in (
        resolve("value", config=config),
        reassemble("value", config=config),
        map_payloads(len, "size int", column="value", config=config),
    ):
        with pytest.raises(ConfigError, match="destination: found nothing"):
            df.transform(function)
    with pytest.raises(ConfigError, match="destination"):
        resolver(config)
    assert payloads_of(df.transform(resolve("value", config=config, destination="orders"))) == [PAYLOADS[0]]
    messages = [each.data for each in own]
    assert list(resolver(config, destination="orders")(messages)) == [PAYLOADS[0]]
    assert list(resolver(config, destination="salaries", on_error="skip")(messages)) == []


def in_topics(df, *topics):
    """Return the rows once for each topic."""
    return df.crossJoin(df.sparkSession.createDataFrame([(topic,) for topic in topics], "topic string"))


def test_what_offload_signs_and_pin_moves_stays_bound_to_its_topic(spark, config, tmp_path):
    archive = {"type": "filesystem", "path": str(tmp_path / "archive"), "create": True}
    pinning = config | {"stores": config["stores"] | {"archive": archive}}
    given = spark.createDataFrame([(bytearray(each),) for each in PAYLOADS], "payload binary")
    sent = given.transform(offload("payload", destination="orders", config=config))
    sent = spark.createDataFrame([(row.value,) for row in sent.collect()], "value binary")
    moved = pin(in_topics(sent, "orders"), config=pinning).select("value")
    moved = spark.createDataFrame(moved.collect(), "value binary")

    for df in (sent, moved):
        got = in_topics(df, "orders", "salaries").transform(resolve("value", config=pinning, on_error="null"))
        found = sorted((row.topic, row.payload and bytes(row.payload)) for row in got.collect())
        assert found[:2] == sorted(("orders", payload) for payload in PAYLOADS)
        assert found[2:] == [("salaries", None)] * 2


def forgeries(config):
    """Return the rows of payloads in chunks, each in a partition of its own, and what becomes of each."""
    chunked = {"strategy": "chunking"}
    good, _ = envelopes(config, PAYLOADS[0], **chunked)
    uuid = decode(good[0].data).uuid
    forged_abort = claimcheck.Envelope(encode_abort(uuid), {}, None, Kind.ABORT)
    unsigned, _ = envelopes(config, PAYLOADS[1], **chunked, signing={})
    other, _ = envelopes(config, PAYLOADS[1], destination="salaries", **chunked)
    changed, _ = envelopes(config, PAYLOADS[1], **chunked)
    changed[0] = replace(changed[0], data=changed[0].data[:-1] + bytes([changed[0].data[-1] ^ 1]))
    ended, genuine = envelopes(config, PAYLOADS[1], **chunked)
    return [
        rows([good[0], forged_abort, *good[1:]], partition=0),
        rows(unsigned, partition=1),
        rows(other, partition=2),
        rows(changed, partition=3),
        rows([ended[0], genuine], partition=4),
    ]


def check_forgeries(found):
    outcomes = [row.error.type if row.error is not None else bytes(row.payload) for row in found]
    texts = " ".join(row.error.message for row in found if row.error is not None)
    assert sorted(map(str, outcomes)) == sorted(map(str, ["PointerRejectedError"] * 3 + [PAYLOADS[0]]))
    for text in ("is not signed", "was sent to 'salaries'", "differs from what was signed"):
        assert text in texts


@pytest.mark.parametrize("headers", ["headers", f"{MAP} AS properties"])
def test_chunks_are_authenticated_on_a_batch(spark, config, headers):
    df = frame(spark, *forgeries(config)).selectExpr("topic", "partition", "value", headers)
    check_forgeries(df.transform(reassemble("value", config=config)).collect())


def test_chunks_without_their_headers_are_refused(spark, config):
    good, _ = envelopes(config, PAYLOADS[0], strategy="chunking")
    df = frame(spark, rows(good)).drop("headers")
    (row,) = df.transform(reassemble("value", config=config)).collect()
    assert "is not signed" in row.error.message
    lenient = config | {"signing": SIGNING | {"require": False}}
    (row,) = df.transform(reassemble("value", config=lenient)).collect()
    assert bytes(row.payload) == PAYLOADS[0]


def contents(folder):
    """Yield the files of a folder, unpacked."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                yield from (packed.read(name) for name in packed.namelist())


def test_chunks_are_authenticated_on_a_stream_that_writes_neither_keys_nor_plaintexts(
    stateful, config, topic, tmp_path
):
    key = base64.b64encode(b"k" * 32)
    config["encryption"] = {"key_id": "e1", "keys": {"e1": key.decode()}, "inline": True}
    several = forgeries(config)
    every = [row for each in several for row in each]
    small, _ = envelopes(config, PAYLOADS[0], strategy="chunking", chunking={"max_message_bytes": 1000})
    for some in (every[::2], several[0][1::2], [*every, *rows(small, partition=9)]):
        topic.put([(name, part, 0, None, bytes(value), headers) for name, part, value, headers in some])
    done = topic.stream(stateful).transform(reassemble("value", config=config, expire_by="data"))

    found = [row for batch in batches_of(done, tmp_path / "checkpoint").values() for row in batch]

    assert [bytes(row.payload) for row in found if row.partition == 9] == [PAYLOADS[0]]
    check_forgeries([row for row in found if row.partition != 9])
    written = [*contents(tmp_path / "checkpoint"), *contents(tmp_path / "claims")]
    assert len(written) > 10
    for secret in (key, b"k" * 32, *(payload[:50] for payload in PAYLOADS)):
        assert not any(secret in text for text in written)


def test_errors_about_signatures_are_those_of_one_row():
    from claimcheck.spark._columns import is_bad_message

    for reason in ("signature", "destination", "age", "envelope"):
        assert is_bad_message(PointerRejectedError("x", reason=reason), claimcheck._config_file.from_dict({}))
