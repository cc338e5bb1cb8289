"""The checksum of a payload in chunks is verified if the DataFrame has headers."""

from __future__ import annotations

from uuid import uuid4

import pytest

import claimcheck
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import Chunk
from claimcheck.errors import IntegrityError
from claimcheck.spark import offload, reassemble
from claimcheck.spark._reassemble import ChunkGroup
from claimcheck.spark._reassemble_common import joined
from claimcheck.spark._worker import as_config

CHUNKING = {"strategy": "chunking", "threshold_bytes": 1000, "chunking": {"max_message_bytes": 1000}}
PAYLOADS = [bytes([n]) * 5_000 for n in (1, 2, 3)]
KAFKAS, MAP = "headers", "map_from_entries(transform(headers, h -> struct(h.key, cast(h.value as string))))"


@pytest.fixture
def chunks(spark):
    """Rows of chunks with headers, in the form of Spark's Kafka sink."""
    df = spark.createDataFrame([(bytearray(payload),) for payload in PAYLOADS], "payload binary")
    return df.coalesce(1).transform(offload("payload", destination="orders", config=CHUNKING)).cache()


def damaged(df):
    """Change a byte inside a chunk of the second payload."""
    from pyspark.sql import functions as F  # noqa: N812

    piece = F.hex("value").contains("02" * 100)
    changed = F.expr("concat(substring(value, 1, 100), X'FF', substring(value, 102))")
    return df.withColumn("value", F.when(piece, changed).otherwise(F.col("value")))


@pytest.mark.parametrize(
    ("form", "name"), [(KAFKAS, "headers"), (MAP, "properties"), (KAFKAS, "Properties"), (MAP, "Headers")]
)
def test_another_byte_is_an_error_of_that_payload(chunks, form, name):
    df = damaged(chunks).selectExpr("value", f"{form} AS {name}")

    rows = df.transform(reassemble("value", config=CHUNKING)).collect()

    assert sorted(bytes(row.payload) for row in rows if row.payload is not None) == [PAYLOADS[0], PAYLOADS[2]]
    (error,) = [row.error for row in rows if row.error is not None]
    assert error.type == "IntegrityError"
    assert error.message.startswith(f"the header claimcheck-checksum declares {digest_of(PAYLOADS[1])}")


@pytest.mark.parametrize("form", [KAFKAS, MAP])
def test_what_was_not_changed_is_whole(chunks, form):
    rows = chunks.selectExpr("value", f"{form} AS headers").transform(reassemble("value", config=CHUNKING))
    assert sorted(bytes(row.payload) for row in rows.collect()) == PAYLOADS


@pytest.mark.parametrize("headers", ["array()", "NULL", "array(named_struct('key', 'a', 'value', X'00'))"])
def test_headers_that_say_nothing(chunks, headers):
    df = chunks.selectExpr("value", f"CAST({headers} AS array<struct<key:string,value:binary>>) AS headers")

    rows = df.transform(reassemble("value", config=CHUNKING)).collect()

    assert sorted(bytes(row.payload) for row in rows) == PAYLOADS


def test_columns_of_the_usual_names_and_another_type_are_no_headers(chunks):
    rows = chunks.selectExpr("value", "1 AS headers", "'text' AS properties").transform(
        reassemble("value", config=CHUNKING)
    )
    assert sorted(bytes(row.payload) for row in rows.collect()) == PAYLOADS


@pytest.mark.parametrize(
    ("declared", "wrong"),
    [(digest_of(b"ab"), False), ("crc32:00000000", True), ("sha256:00", True), ("sha999:00", False), (None, False)],
)
def test_the_checksum_of_a_payload_in_chunks(config, declared, wrong):
    with claimcheck.from_dict(config) as cc:
        found = joined(cc, str(uuid4()), [b"a", b"b"], declared, None)

    assert isinstance(found.error, IntegrityError) is wrong
    assert found.pieces == (None if wrong else [b"a", b"b"])


def test_a_group_knows_its_checksum_whichever_chunk_has_it(config):
    for place in (0, 1):
        group = ChunkGroup(str(uuid4()), as_config(config))
        for position, piece in enumerate((b"a", b"b")):
            group.add(Chunk("uuid", position, 2, memoryview(piece)), "crc32:00000000" if position == place else None)

        assert group.declared == "crc32:00000000"
