"""``df.transform(reassemble(...))`` on a batch: chunks from anywhere, in any order, one row for each payload."""

from __future__ import annotations

import datetime
import pickle
import random
import shutil
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from uuid import uuid4

import pytest

from claimcheck._wire.envelope import Abort, Chunk, decode, encode_abort, encode_chunk, encode_literal
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError, ConfigError
from claimcheck.spark import reassemble
from claimcheck.spark._reading import Reading
from claimcheck.spark._reassemble import ChunkGroup, _ReassembleStage
from claimcheck.spark._reassemble_common import ColumnIndexes, read_header
from claimcheck.spark._worker import as_config
from tests.spark.rig import in_chunks

CHUNKING = {"strategy": "chunking", "chunking": {"max_message_bytes": 1000}}
SCHEMA = "topic string, partition int, offset bigint, value binary"


def messages(spark, found, partitions=3):
    """Return a DataFrame of ``(topic, partition, message)``, numbered in order."""
    rows = [(topic, partition, n, message) for n, (topic, partition, message) in enumerate(found)]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), SCHEMA)


def whole(rows) -> list[bytes]:
    return sorted(bytes(row.payload) for row in rows if row.payload is not None)


# In Spark -------------------------------------------------------------------------------------------------------


def test_an_abort_envelope_and_chunks_of_another_key_do_not_count(spark):
    complete, incomplete = in_chunks(b"whole" * 500), in_chunks(b"gap" * 900)
    foreign = [encode_abort(decode(complete[0]).uuid), encode_abort(decode(incomplete[0]).uuid)]
    sent = [(b"k", message) for message in (*complete, *incomplete[:2])] + [(b"other", message) for message in foreign]
    sent.append((b"other", encode_chunk(decode(complete[0]).uuid, 1, len(complete), b"EVIL")))
    df = spark.createDataFrame(sent, "key binary, value binary")
    rows = df.transform(reassemble("value", config=CHUNKING)).collect()
    assert whole(rows) == [b"whole" * 500]
    assert [(bytes(row.key), row.error.type) for row in rows if row.error] == [(b"k", "IncompletePayloadError")]


def test_a_checksum_that_is_too_long_is_refused_and_not_kept(spark):
    headers = {"claimcheck-type": "chunk", "claimcheck-checksum": "x:" + "A" * 1_000_000}
    df = spark.createDataFrame([(in_chunks(b"x")[0], headers)], "value binary, properties map<string,string>")
    [row] = df.transform(reassemble("value", config=CHUNKING)).collect()
    assert row.error.type == "IntegrityError"
    assert len(row.error.message) < 300


def test_a_topic_of_all_kinds_in_any_order(spark, config, send, tmp_path):
    rng = random.Random(11)
    chunked = [rng.randbytes(rng.choice([1_500, 20_000, 90_000])) for _ in range(12)]
    lone = [b"", b"plain", HEADER + b"\x01 looks like one", rng.randbytes(5_000)]
    gap, conflict, aborted = (rng.randbytes(7_000) for _ in range(3))
    sent = [message for payload in chunked for message in send(payload, **CHUNKING)]
    sent += rng.sample(sent, 40)  # duplicates
    sent += [message for payload in lone for message in send(payload)]
    with_gap, with_conflict = in_chunks(gap), in_chunks(conflict)
    given_up = in_chunks(aborted)
    sent += with_gap[:3] + with_gap[4:7] + with_gap[8:]
    sent += [*with_conflict, with_conflict[4][:-1] + b"\xff"]
    sent += [*given_up[:5], encode_abort(decode(given_up[0]).uuid)]
    complete = in_chunks(b"c" * 2_000)
    sent += [*complete, encode_abort(decode(complete[0]).uuid)]  # an abort after all chunks
    sent += [HEADER + b"\x09?", HEADER + b"\x01short", None]
    rng.shuffle(sent)
    messages(spark, [("orders", 0, message) for message in sent], 4).write.parquet(str(tmp_path / "in"))

    df = spark.read.parquet(str(tmp_path / "in")).transform(reassemble("value", config=config))
    rows = df.collect()

    assert df.columns == ["topic", "partition", "offset", "value", "uuid", "payload", "error"]
    assert whole(rows) == sorted([*chunked, *lone, b"c" * 2_000])
    wrong = {row.error.type: row for row in rows if row.error is not None and row.uuid is not None}
    assert set(wrong) == {"IncompletePayloadError", "ChunkConflictError"}
    assert f"received only 8 of 10 chunks of {decode(with_gap[0]).uuid}, missing 3, 7:" in (
        wrong["IncompletePayloadError"].error.message
    )
    assert wrong["ChunkConflictError"].uuid == decode(with_conflict[0]).uuid
    assert sorted(row.error.message[:20] for row in rows if row.error is not None and row.uuid is None) == [
        "chunk cut short: 5 o",
        "unknown envelope typ",
    ]
    assert [row for row in rows if row.payload is None and row.error is None] == [
        row for row in rows if row.offset == sent.index(None)
    ]
    assert len(rows) == len(chunked) + len(lone) + 2 + 1 + 3


def test_the_row_is_that_of_the_first_chunk_and_messages_keep_theirs(spark, config):
    chunks = in_chunks(b"x" * 2_000)
    found = [("orders", 3, message) for message in (chunks[2], b"plain", chunks[0], chunks[1])]

    rows = messages(spark, found).transform(reassemble("value", config=config)).orderBy("offset").collect()

    assert [(row.offset, row.topic, row.partition, row.uuid is None) for row in rows] == [
        (1, "orders", 3, True),
        (2, "orders", 3, False),
    ]
    assert [row.value and bytes(row.value) for row in rows] == [b"plain", None]


def test_sources_never_mix(spark, config):
    uuid = str(uuid4())
    one, two = in_chunks(b"1" * 2_000, uuid=uuid), in_chunks(b"2" * 2_000, uuid=uuid)
    found = [("orders", n, chunk) for pair in zip(one, two, strict=True) for n, chunk in enumerate(pair)]
    df = messages(spark, found)

    kept = df.transform(reassemble("value", config=config)).collect()
    mixed = df.transform(reassemble("value", config=config, source=())).collect()
    by_topic = df.transform(reassemble("value", config=config, source=["Topic"])).collect()

    assert sorted((row.partition, bytes(row.payload)) for row in kept) == [(0, b"1" * 2_000), (1, b"2" * 2_000)]
    assert [row.error.type for row in mixed] == ["ChunkConflictError"] == [row.error.type for row in by_topic]


def test_limits_are_rows_and_a_declared_count_costs_nothing(spark, config):
    config |= {"chunking": {"max_payload_bytes": 5_000, "max_pending_bytes": 5_000, "max_chunks": 20}}
    found = [in_chunks(b"b" * 5_001), in_chunks(b"m" * 2_100, size=100), in_chunks(b"o" * 5_000)]
    found.append([encode_chunk(str(uuid4()), 7, 0x7FFFFFFF, b"piece")])
    df = messages(spark, [("orders", 0, message) for chunks in found for message in chunks])

    rows = {row.offset: row for row in df.transform(reassemble("value", config=config)).collect()}

    assert [rows[n].error and rows[n].error.type for n in sorted(rows)] == [
        "PayloadTooLargeError",
        "PayloadTooLargeError",
        None,
        "PayloadTooLargeError",
    ]
    assert "has 5001 bytes or more (chunking.max_payload_bytes), but the limit is 5000" in rows[0].error.message
    assert bytes(rows[29].payload) == b"o" * 5_000


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


def test_what_is_gone_is_a_row_and_a_store_out_of_reach_is_not(spark, config, send, tmp_path):
    gone = send(bytes(3_000))[0]
    for path in (tmp_path / "claims").rglob("*"):
        if path.is_file():
            path.unlink()
    df = messages(spark, [("orders", 0, gone), *(("orders", 0, chunk) for chunk in in_chunks(b"y" * 2_000))])

    rows = df.transform(reassemble("value", config=config)).orderBy("offset").collect()

    assert [row.error and (row.error.type, row.error.store) for row in rows] == [("PayloadNotFoundError", "disk"), None]
    shutil.rmtree(tmp_path / "claims")
    with pytest.raises(Exception, match="StoreUnavailableError"):
        df.transform(reassemble("value", config=config)).collect()


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


@pytest.mark.parametrize(
    ("chunks", "kind"),
    [
        ([(0, 2, b"a"), (1, 2, b"b"), (1, 2, b"b")], None),
        ([(0, 2, b"a"), (1, 3, b"b")], "ChunkConflictError"),
        ([(0, 2, b"a"), (0, 2, b"x"), (1, 2, b"b")], "ChunkConflictError"),
        ([(1, 2, b"b")], None),
        ([(0, 1, b"")], None),
    ],
)
def test_a_group_of_chunks(config, chunks, kind):
    uuid = str(uuid4())
    group = ChunkGroup(uuid, as_config(config))

    for position, count, piece in chunks:
        group.add(Chunk(uuid, position, count, memoryview(piece)))

    assert (group.error and type(group.error).__name__) == kind
    assert group.is_complete is (kind is None and chunks[0][0] == 0)
    assert b"".join(group.pieces) == (b"ab"[: len(chunks[0][2]) * 2] if group.is_complete else b"")
    assert type(group.incomplete()).__name__ == "IncompletePayloadError"


# Mistakes, raised on the driver ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "options", "words"),
    [
        ("valeu", {}, "found 'valeu', expected exactly one column"),
        ("offset", {}, "found 'offset' of type bigint, expected a column of type binary"),
        ("value", {"source": ["topic", "shard"]}, "source: found 'shard', expected exactly one column"),
        ("value", {"source": "topic"}, "source: found the text 'topic', expected a list"),
    ],
)
def test_wrong_columns(spark, config, column, options, words):
    df = messages(spark, [])

    with pytest.raises(ConfigError, match=words):
        df.transform(reassemble(column, config=config, **options))


@pytest.mark.parametrize("taken", ["payload", "error"])
def test_names_that_are_taken(spark, config, taken):
    df = messages(spark, []).withColumnRenamed("offset", taken)

    with pytest.raises(ConfigError, match=f"{taken}: found '{taken}', which is taken"):
        df.transform(reassemble("value", config=config))


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
