"""``df.transform(reassemble(...))`` on a batch: columns, headers, sources and memory; see also the cases."""

from __future__ import annotations

import datetime
import pickle
import random
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from uuid import uuid4

import pytest

import claimcheck
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import Abort, Chunk, decode, encode_abort, encode_chunk, encode_literal
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError, ConfigError, IntegrityError
from claimcheck.spark import offload, reassemble
from claimcheck.spark._reading import Reading
from claimcheck.spark._reassemble import _ReassembleStage
from claimcheck.spark._reassemble_common import ColumnIndexes, joined, read_header
from claimcheck.spark._worker import as_config
from tests.spark.rig import in_chunks

SCHEMA = "topic string, partition int, offset bigint, value binary"


def messages(spark, found, partitions=3):
    """Return a DataFrame of ``(topic, partition, message)``, numbered in order."""
    rows = [(topic, partition, n, message) for n, (topic, partition, message) in enumerate(found)]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), SCHEMA)


# In Spark -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [(), ["Topic"]])
def test_a_source_without_the_partition_mixes_partitions(spark, config, source):
    uuid = str(uuid4())
    one, two = in_chunks(b"1" * 2_000, uuid=uuid), in_chunks(b"2" * 2_000, uuid=uuid)
    df = messages(spark, [("orders", n, chunk) for pair in zip(one, two, strict=True) for n, chunk in enumerate(pair)])

    (row,) = df.transform(reassemble("value", config=config, source=source)).collect()

    assert row.error.type == "ChunkConflictError"


def test_spark_and_the_decoder_read_heads_alike(spark):
    """Damage every byte of the header: Spark and the decoder must agree on what is a chunk."""
    rng, header = random.Random(3), b"custom:"
    chunk = encode_chunk(str(uuid4()), 3, 9, b"piece", header=header)
    sent = [chunk, encode_abort(str(uuid4()), header=header), encode_literal(b"x", header=header), b"", header]
    sent += [chunk[:length] for length in range(len(header), len(chunk))]
    sent += [encode_abort(str(uuid4()), header=header) + b"\n", chunk[:8] + chunk[8:44].upper() + chunk[44:]]
    for place in range(len(header) + 45):
        sent += [chunk[:place] + bytes([rng.randrange(256)]) + chunk[place + 1 :] for _ in range(3)]
    for numbers in [
        (0, 0),
        (0, 1),
        (1, 1),
        (0x7FFFFFFE, 0x7FFFFFFF),
        (0, 0x80000000),
        (0xFFFFFFFF, 5),
        (5, 0xFFFFFFFF),
    ]:
        sent.append(chunk[:44] + b"".join(n.to_bytes(4, "big") for n in numbers))
    df = spark.createDataFrame([(message,) for message in sent], "value binary")
    uuid, position = read_header(df.value, header)

    rows = df.select(uuid.alias("uuid"), position.alias("position")).collect()

    assert [(row.uuid, row.position) for row in rows] == [decoded(message, header) for message in sent]


def decoded(message: bytes, header: bytes) -> tuple[str | None, int | None]:
    try:
        envelope = decode(message, header=header)
    except ClaimCheckError:
        return None, None
    if isinstance(envelope, Chunk):
        return envelope.uuid, envelope.position
    return (envelope.uuid, -1) if isinstance(envelope, Abort) else (None, None)


def test_columns_of_every_kind_and_name(spark, config):
    schema = (
        "`a.b` int, d decimal(10,2), t timestamp, l array<int>, m map<string,double>, "
        "st struct<b: boolean, n: bigint>, value binary, nothing string, `the ``last``` date"
    )
    first, *others = in_chunks(b"x" * 2_000)
    row = (
        1,
        Decimal("12.50"),
        datetime.datetime(2024, 2, 29, 12, 30, 15, 123456),  # noqa: DTZ001 - Spark's own are without a zone
        [1, 2],
        {"a": 1.5},
        (True, None),
        first,
        None,
        datetime.date(1970, 1, 1),
    )
    plain = (*row[:6], b"plain", *row[7:])
    before = spark.createDataFrame(
        [row, plain, *((None,) * 6 + (chunk, None, None) for chunk in others)], schema
    ).withColumnRenamed("nothing", "A.B")  # Spark allows ambiguous names that are not used

    after = before.transform(reassemble("value", config=config)).collect()

    expected = [(*row[:6], None, *row[7:]), plain]
    assert sorted((tuple(each)[:-3] for each in after), key=str) == sorted(expected, key=str)
    assert sorted(bytes(each.payload) for each in after) == [b"plain", b"x" * 2_000]


def test_nothing_comes_of_nothing(spark, config):
    df = messages(spark, []).transform(reassemble("value", config=config))

    assert df.collect() == []
    assert [field.dataType.simpleString() for field in df.schema[-3:]] == [
        "string",
        "binary",
        "struct<type:string,message:string,store:string,key:string>",
    ]


def test_rows_that_are_no_chunks_spread(spark, config):
    from pyspark.sql import functions as F  # noqa: N812

    plain = messages(spark, [("orders", 0, b"%d" % n) for n in range(200)])
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")  # partitions are small
    try:
        spread = plain.transform(reassemble("value", config=config)).groupBy(F.spark_partition_id()).count().collect()
    finally:
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")

    assert len(spread) == 2
    assert min(row["count"] for row in spread) > 50


# The stage, without Spark ---------------------------------------------------------------------------------------


def run_stage(config, batches, *, out_batch_bytes=1 << 20):
    reading = Reading(
        config=as_config(config),
        concurrency=1,
        max_inflight_bytes=1 << 20,
        out_batch_bytes=out_batch_bytes,
        on_error="null",
    )
    stage = _ReassembleStage(reading, ColumnIndexes(0, ()))
    return pickle.loads(pickle.dumps(stage))(batches)


def arrow(found: list[bytes], kind: str = "binary"):
    """Return a batch as Spark passes it to the stage, with chunk headers read."""
    import pyarrow as pa

    heads = [decoded(message, HEADER) for message in found]
    value = pa.array(found, type=getattr(pa, kind)())
    uuids, positions = pa.array([uuid for uuid, _ in heads], pa.string()), pa.array([p for _, p in heads], pa.int32())
    columns = {"value": value, "uuid": uuids, "position": positions, "declared": pa.nulls(len(found), pa.string())}
    return pa.RecordBatch.from_pydict(columns)


def test_batches_are_cut_by_bytes(config):
    payloads = [b"1" * 4_000, b"2" * 4_000, b"3" * 4_000, b"4" * 20_000, b"5" * 10]
    chunks = [message for payload in payloads for message in in_chunks(payload)]

    got = list(run_stage(config, [arrow(chunks[:9]), arrow(chunks[9:])], out_batch_bytes=10_000))

    assert [[len(p.as_py()) for p in batch.column("payload")] for batch in got] == [[4000, 4000], [4000], [20000], [10]]
    assert b"".join(p.as_py() for batch in got for p in batch.column("payload")) == b"".join(payloads)


def test_large_binary_stays_large_binary(config):
    import pyarrow as pa

    [batch] = run_stage(config, [arrow([b"plain", *in_chunks(b"x" * 1_000)], "large_binary")])

    assert batch.schema.field("payload").type == batch.schema.field("value").type == pa.large_binary()
    assert batch.column("payload").to_pylist() == [b"plain", b"x" * 1_000]


def test_a_payload_over_its_limit_is_let_go_while_its_chunks_still_come(config):
    """With 64 MiB of chunks and a limit of 1 MiB, only a few chunks are in memory at a time."""
    config |= {"chunking": {"max_payload_bytes": 1 << 20, "max_pending_bytes": 1 << 20}}
    uuid = str(uuid4())

    def batches() -> Iterator[object]:
        for n in range(64):
            yield arrow([encode_chunk(uuid, n, 64, bytes(1 << 20))])

    import pyarrow as pa

    before, most = pa.total_allocated_bytes(), 0
    tracemalloc.start()

    def watched() -> Iterator[object]:
        nonlocal most
        for batch in batches():
            most = max(most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])
            yield batch

    try:
        [batch] = run_stage(config, watched())
    finally:
        tracemalloc.stop()
    assert batch.column("error").to_pylist()[0]["type"] == "PayloadTooLargeError"
    assert most < 12 << 20


# Mistakes, raised on the driver ---------------------------------------------------------------------------------


def test_a_source_of_a_kind_that_is_none(spark, config):
    df = spark.createDataFrame([], "value binary, topic array<string>")

    df.transform(reassemble("value", config=config))  # not used by default
    with pytest.raises(ConfigError, match=r"'topic' of type array<string>, expected a column of type string or"):
        df.transform(reassemble("value", config=config, source=["topic"]))


@pytest.mark.parametrize(
    "options",
    [
        {"expire_by": "watermark"},
        {"max_inflight_bytes": 0},
    ],
)
def test_wrong_options(config, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        reassemble("value", config=config, **options)


# Checksums in headers ----------------------------------------------------------------------------------------------


CHECKED = {"strategy": "chunking", "threshold_bytes": 1000, "chunking": {"max_message_bytes": 1000}}
PAYLOADS = [bytes([n]) * 5_000 for n in (1, 2, 3)]
KAFKAS, MAP = "headers", "map_from_entries(transform(headers, h -> struct(h.key, cast(h.value as string))))"


@pytest.fixture
def chunks(spark):
    """Rows of chunks with headers, in the form of Spark's Kafka sink."""
    df = spark.createDataFrame([(bytearray(payload),) for payload in PAYLOADS], "payload binary")
    return df.coalesce(1).transform(offload("payload", destination="orders", config=CHECKED)).cache()


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

    rows = df.transform(reassemble("value", config=CHECKED)).collect()

    assert sorted(bytes(row.payload) for row in rows if row.payload is not None) == [PAYLOADS[0], PAYLOADS[2]]
    (error,) = [row.error for row in rows if row.error is not None]
    assert error.type == "IntegrityError"
    assert error.message.startswith(f"the header claimcheck-checksum declares {digest_of(PAYLOADS[1])}")


@pytest.mark.parametrize("headers", ["array()", "NULL", "array(named_struct('key', 'a', 'value', X'00'))"])
def test_headers_that_say_nothing(chunks, headers):
    df = chunks.selectExpr("value", f"CAST({headers} AS array<struct<key:string,value:binary>>) AS headers")

    rows = df.transform(reassemble("value", config=CHECKED)).collect()

    assert sorted(bytes(row.payload) for row in rows) == PAYLOADS


def test_columns_of_the_usual_names_and_another_type_are_no_headers(chunks):
    rows = chunks.selectExpr("value", "1 AS headers", "'text' AS properties").transform(
        reassemble("value", config=CHECKED)
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
