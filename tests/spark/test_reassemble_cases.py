"""What `reassemble` makes of the messages of a topic: cases on a batch and on a stream, columns, memory, state."""

from __future__ import annotations

import datetime
import itertools
import json
import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import claimcheck
from claimcheck._receive.chunk_rules import missing_positions
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import Abort, Chunk, decode, encode_abort, encode_chunk, encode_literal
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError, ConfigError, IntegrityError
from claimcheck.spark import offload, reassemble
from claimcheck.spark._reading import Reading
from claimcheck.spark._reassemble import _ReassembleStage
from claimcheck.spark._reassemble_common import ColumnIndexes, joined, read_header
from claimcheck.spark._worker import as_config
from tests.spark.rig import SCHEMA, TopicFiles, in_chunks, stateful_session

LIMITS = {"max_payload_bytes": 5000, "max_pending_bytes": 5000, "max_chunks": 20, "expire_after_seconds": 3600}
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
WHOLE = b"whole" * 500
CHUNKS = in_chunks(WHOLE)
TWIN = in_chunks(b"twin" * 500, uuid=UUID)
GAP = in_chunks(b"gap" * 1200)
CONFLICT = in_chunks(b"conflict" * 300)
OTHER_KEY = b"other"

INCOMPLETE = "IncompletePayloadError"


@dataclass(frozen=True)
class Case:
    """Messages of one partition, in order, and what becomes of them.

    Attributes:
        sent: Messages; those of another writer as pairs of key and message.
        payloads: The payloads that are returned; ``None`` for a null.
        errors: The types of errors.
        at_the_end: Errors on a batch only: on a stream the rest may still come.
        checksum: A header of every message.
    """

    sent: list[Any]
    payloads: list[bytes | None] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    at_the_end: list[str] = field(default_factory=list)
    checksum: str | None = None


def aborted(chunks: list[bytes]) -> bytes:
    chunk = decode(chunks[0])
    assert isinstance(chunk, Chunk)
    return encode_abort(chunk.uuid)


CASES = {
    "all chunks in order": Case(CHUNKS, [WHOLE]),
    "in any order": Case(CHUNKS[::-1], [WHOLE]),
    "every chunk twice": Case([*CHUNKS, *CHUNKS], [WHOLE]),
    "two payloads, interleaved": Case([m for pair in zip(CHUNKS, GAP, strict=False) for m in pair] + GAP[len(CHUNKS) :],
                                      [WHOLE, b"gap" * 1200]),
    "a uuid": Case(TWIN, [b"twin" * 500]),
    "the same uuid in another partition": Case(in_chunks(b"else" * 600, uuid=UUID), [b"else" * 600]),
    "messages that are no chunks": Case([b"plain", b"", None, HEADER + b"\x00" + HEADER + b"\x01 looks like one"],
                                        [b"plain", b"", None, HEADER + b"\x01 looks like one"]),
    "damaged messages beside good ones": Case([HEADER + b"\x09?", b"good", HEADER + b"\x01short"], [b"good"],
                                              ["EnvelopeError", "EnvelopeError"]),
    "a chunk that never comes": Case([*GAP[:3], *GAP[4:]], at_the_end=[INCOMPLETE]),
    "other bytes in one position": Case([*CONFLICT, CONFLICT[1][:-1] + b"?"], errors=["ChunkConflictError"]),
    "another number of chunks": Case([CHUNKS[0], encode_chunk(UUID, 1, 3, b"x"), encode_chunk(UUID, 0, 2, b"x")],
                                     errors=["ChunkConflictError"], at_the_end=[INCOMPLETE]),
    "an abort in the middle": Case([*CHUNKS[:2], aborted(CHUNKS), CHUNKS[2]]),
    "an abort after all chunks": Case([*CHUNKS, aborted(CHUNKS)], [WHOLE]),
    "an abort of another writer": Case([CHUNKS[0], (OTHER_KEY, aborted(CHUNKS)), *CHUNKS[1:]], [WHOLE]),
    "a chunk of another writer": Case([CHUNKS[0], (OTHER_KEY, CHUNKS[1][:-1] + b"?"), *CHUNKS[1:]], [WHOLE],
                                      at_the_end=[INCOMPLETE]),
    "a payload at the limit": Case(in_chunks(b"o" * 5000), [b"o" * 5000]),
    "a payload over the limit": Case(in_chunks(b"b" * 5001), errors=["PayloadTooLargeError"]),
    "too many chunks": Case(in_chunks(b"m" * 2100, size=100), errors=["PayloadTooLargeError"]),
    "a declared number of chunks": Case([encode_chunk(UUID, 7, 0x7FFFFFFF, b"piece")], errors=["PayloadTooLargeError"]),
    "a checksum that is right": Case(CHUNKS, [WHOLE], checksum=digest_of(WHOLE)),
    "a checksum that is wrong": Case(CHUNKS, errors=["IntegrityError"], checksum=digest_of(b"other")),
    "a checksum that is too long": Case(CHUNKS, errors=["IntegrityError"], checksum="x:" + "A" * 100_000),
}  # fmt: skip
"""What no other partition may change."""


@pytest.fixture
def configured(config) -> dict[str, Any]:
    config["stores"]["disk"]["ttl_seconds"] = 604_800
    return {**config, "store": "disk", "chunking": LIMITS}


def rows_of(case: Case, partition: int) -> list[tuple[Any, ...]]:
    """Return the rows of a case; `offset` counts from 0 in each partition."""
    headers = [] if case.checksum is None else [("claimcheck-checksum", case.checksum.encode())]
    pairs = [sent if isinstance(sent, tuple) else (b"k", sent) for sent in case.sent]
    return [("orders", partition, offset, key, value, headers) for offset, (key, value) in enumerate(pairs)]


def check(found: list[Any], *, is_over: bool) -> None:
    """Compare all rows with the cases."""
    for partition, (name, case) in enumerate(CASES.items()):
        rows = [row for row in found if row.partition == partition]
        payloads = [None if row.payload is None else bytes(row.payload) for row in rows if row.error is None]
        assert sorted(payloads, key=str) == sorted(case.payloads, key=str), name
        errors = sorted(row.error.type for row in rows if row.error is not None)
        assert errors == sorted(case.errors + (case.at_the_end if is_over else [])), name
        assert all(len(row.error.message) < 500 for row in rows if row.error is not None), name
        for row in rows:
            check_row(case, row)


def check_row(case: Case, row: Any) -> None:
    """A payload of chunks has the columns of its first chunk; any other row keeps its message."""
    message = case.sent[row.offset]
    if row.uuid is None:
        assert row.value == message
    else:
        assert row.value is None
        if row.error is None:
            assert position_of(message) == 0


def position_of(message: Any) -> int | None:
    try:
        envelope = decode(message)
    except ClaimCheckError:
        return None
    return envelope.position if isinstance(envelope, Chunk) else None


def test_on_a_batch(spark, configured):
    """Whichever rows are next to each other."""
    rows = [row for number, case in enumerate(CASES.values()) for row in rows_of(case, number)]
    random.Random(5).shuffle(rows)
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, 4), SCHEMA)

    done = df.transform(reassemble("value", config=configured))

    assert done.columns == [*df.columns, "uuid", "payload", "error"]
    check(done.collect(), is_over=True)
    (gap,) = [row for row in done.collect() if row.partition == list(CASES).index("a chunk that never comes")]
    assert "received only 5 of 6 chunks" in gap.error.message
    assert "missing 3:" in gap.error.message


@pytest.fixture
def stateful(spark) -> Iterator[Any]:
    with stateful_session(spark) as spark:
        yield spark


def test_on_a_stream_of_several_batches_and_after_a_restart(stateful, configured, tmp_path):
    """The messages of each case come in three micro-batches; a second run adds duplicates, which change nothing."""
    topic, found = TopicFiles(tmp_path / "topic"), list[Any]()
    parts: list[list[Any]] = [[], [], []]
    for number, case in enumerate(CASES.values()):
        rows = rows_of(case, number)
        for part, some in enumerate((rows[: len(rows) // 3], rows[len(rows) // 3 : len(rows) // 2])):
            parts[part] += some
        parts[2] += rows[len(rows) // 2 :]

    def run() -> None:
        source = stateful.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(topic.folder))
        done = source.transform(reassemble("value", config=configured, expire_by="data"))
        writer = done.writeStream.foreachBatch(lambda df, _: found.extend(df.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(300)

    for part in parts:
        topic.put(part)
    run()
    check(found, is_over=False)

    chunks = [row for row in parts[0] + parts[1] if position_of(row[4]) is not None]
    topic.put([*chunks, ("orders", 99, 0, b"k", b"next", [])])
    run()
    check([row for row in found if row.partition != 99], is_over=False)
    assert [bytes(row.payload) for row in found if row.partition == 99] == [b"next"]


# A batch: columns, headers, sources and memory --------------------------------------------------------------------

ORDERED = "topic string, partition int, offset bigint, value binary"


def in_order(spark, found, partitions=3):
    """Return a DataFrame of ``(topic, partition, message)``, numbered in order."""
    rows = [(topic, partition, n, message) for n, (topic, partition, message) in enumerate(found)]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), ORDERED)


# In Spark -------------------------------------------------------------------------------------------------------


def test_a_source_without_the_partition_mixes_partitions(spark, config):
    uuid = str(uuid4())
    one, two = in_chunks(b"1" * 2_000, uuid=uuid), in_chunks(b"2" * 2_000, uuid=uuid)
    df = in_order(spark, [("orders", n, chunk) for pair in zip(one, two, strict=True) for n, chunk in enumerate(pair)])

    (row,) = df.transform(reassemble("value", config=config, source=["Topic"])).collect()

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
    edges = (0, 1, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
    for numbers in itertools.product(edges, edges):
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
    df = in_order(spark, []).transform(reassemble("value", config=config))

    assert df.collect() == []
    assert [field.dataType.simpleString() for field in df.schema[-3:]] == [
        "string",
        "binary",
        "struct<type:string,message:string,store:string,key:string>",
    ]


def test_rows_that_are_no_chunks_spread(spark, config):
    from pyspark.sql import functions as F  # noqa: N812

    plain = in_order(spark, [("orders", 0, b"%d" % n) for n in range(200)])
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
    heads = [decoded(message, HEADER) for message in found]
    value = pa.array(found, type=getattr(pa, kind)())
    uuids, positions = pa.array([uuid for uuid, _ in heads], pa.string()), pa.array([p for _, p in heads], pa.int32())
    columns = {"value": value, "uuid": uuids, "position": positions, "declared": pa.nulls(len(found), pa.string())}
    return pa.RecordBatch.from_pydict(columns)


def test_batches_are_cut_by_bytes(config):
    payloads = [b"1" * 4_000, b"2" * 4_000, b"3" * 4_000, b"4" * 20_000, b"5" * 10]
    chunks = [message for payload in payloads for message in in_chunks(payload)]

    batches = [arrow(some, "large_binary") for some in (chunks[:9], chunks[9:])]
    got = list(run_stage(config, batches, out_batch_bytes=10_000))

    assert [[len(p.as_py()) for p in batch.column("payload")] for batch in got] == [[4000, 4000], [4000], [20000], [10]]
    assert {batch.schema.field(name).type for batch in got for name in ("payload", "value")} == {pa.large_binary()}
    assert b"".join(p.as_py() for batch in got for p in batch.column("payload")) == b"".join(payloads)


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
CHECKED_PAYLOADS = [bytes([n]) * 5_000 for n in (1, 2, 3)]
KAFKAS, MAP = "headers", "map_from_entries(transform(headers, h -> struct(h.key, cast(h.value as string))))"


@pytest.fixture
def checked_chunks(spark):
    """Rows of chunks with headers, in the form of Spark's Kafka sink."""
    df = spark.createDataFrame([(bytearray(payload),) for payload in CHECKED_PAYLOADS], "payload binary")
    return df.coalesce(1).transform(offload("payload", destination="orders", config=CHECKED)).cache()


def damaged(df):
    """Change a byte inside a chunk of the second payload."""
    from pyspark.sql import functions as F  # noqa: N812

    piece = F.hex("value").contains("02" * 100)
    changed = F.expr("concat(substring(value, 1, 100), X'FF', substring(value, 102))")
    return df.withColumn("value", F.when(piece, changed).otherwise(F.col("value")))


@pytest.mark.parametrize(("form", "name"), [(KAFKAS, "Properties"), (MAP, "headers")])
def test_another_byte_is_an_error_of_that_payload(checked_chunks, form, name):
    df = damaged(checked_chunks).selectExpr("value", f"{form} AS {name}")

    rows = df.transform(reassemble("value", config=CHECKED)).collect()

    assert sorted(bytes(row.payload) for row in rows if row.payload is not None) == [
        CHECKED_PAYLOADS[0],
        CHECKED_PAYLOADS[2],
    ]
    (error,) = [row.error for row in rows if row.error is not None]
    assert error.type == "IntegrityError"
    assert error.message.startswith(f"the header claimcheck-checksum declares {digest_of(CHECKED_PAYLOADS[1])}")


@pytest.mark.parametrize("headers", ["array()", "NULL", "array(named_struct('key', 'a', 'value', X'00'))"])
def test_headers_that_say_nothing(checked_chunks, headers):
    """Also a column of the usual name and another type."""
    cast = f"CAST({headers} AS array<struct<key:string,value:binary>>) AS headers"
    df = checked_chunks.selectExpr("value", cast, "'text' AS properties")

    rows = df.transform(reassemble("value", config=CHECKED)).collect()

    assert sorted(bytes(row.payload) for row in rows) == CHECKED_PAYLOADS


@pytest.mark.parametrize(
    ("declared", "wrong"),
    [(digest_of(b"ab"), False), ("crc32:00000000", True), ("sha256:00", True), ("sha999:00", False), (None, False)],
)
def test_the_checksum_of_a_payload_in_chunks(config, declared, wrong):
    with claimcheck.from_dict(config) as cc:
        found = joined(cc, str(uuid4()), [b"a", b"b"], declared, None)

    assert isinstance(found.error, IntegrityError) is wrong
    assert found.pieces == (None if wrong else [b"a", b"b"])


# The stateful operator in Spark's own tester: no processes, and the test controls time ----------------------------

STATE_UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
KEY = json.dumps(["orders", 3, STATE_UUID])
START = 1_700_000_000_000


class Operator:
    """Feeds micro-batches to the operator."""

    def __init__(self, **limits: Any) -> None:
        from pyspark.sql.streaming.tws_tester import TwsTester

        from claimcheck.spark._reassemble_state import Limits, Reassembler

        known: dict[str, Any] = {"max_chunks": 10, "max_bytes": 100, "expire_ms": 60_000, "remember_ms": 600_000}
        known |= limits
        self.behind = known.get("behind_ms", 0)
        mode = "EventTime" if self.behind else "ProcessingTime"
        arrived = (lambda row: row.arrived) if self.behind else None
        self.tester = TwsTester(Reassembler(Limits(**known)), timeMode=mode, eventTimeExtractor=arrived)
        self.now = START
        self.at(0)

    def at(self, seconds: float) -> list[Any]:
        """Advance the time; return the rows that timers emit."""
        self.now = START + int(seconds * 1000)
        if self.behind:
            return self.tester.setWatermark(self.now - self.behind)
        return self.tester.setProcessingTime(self.now)

    def feed(self, *rows: Any) -> list[Any]:
        return self.tester.test(KEY, list(rows))

    def micro_batch(self, seconds: float, *rows: Any) -> list[Any]:
        """Process rows, and then the timers, at a new time, as Spark does; return all rows."""
        from pyspark.sql.streaming.stateful_processor import TimerValues

        now = START + int(seconds * 1000)
        self.tester.handle.setGroupingKey(KEY)
        values = TimerValues(now, now - self.behind)
        return [*self.tester.processor.handleInputRows((KEY,), iter(rows), values), *self.at(seconds)]

    def chunk(
        self, position: int, total: int, piece: bytes = b"pp", *, said: bytes | None = None, declared: str | None = None
    ) -> Any:
        from pyspark.sql import Row

        return Row(
            key=KEY,
            position=position,
            total=total,
            size=len(piece),
            digest=b"digest of %d " % position + piece,
            reference=None if position < 0 else b"to %d" % position if said is None else said,
            row=b"row of %d" % position,
            declared=declared,
            arrived=self.now,
        )

    @property
    def noted(self) -> dict[Any, Any]:
        return self.tester.handle.map_states["chunks"].state

    @property
    def timers(self) -> list[int]:
        """The timers, in seconds after the start."""
        known = self.tester.handle._timers._key_to_timers.values()
        return sorted((each + self.behind - START) // 1000 for timers in known for each in timers)


@pytest.fixture(params=[0, 3_600_000], ids=["clock", "data"])
def tester(request) -> Operator:
    return Operator(behind_ms=request.param)


def test_all_chunks_in_one_batch_touch_no_state_of_chunks(tester, monkeypatch):
    states = tester.tester.handle.map_states["chunks"]
    monkeypatch.setattr(states, "updateValue", None)
    monkeypatch.setattr(states, "getValue", None)

    rows = tester.chunk(2, 3), tester.chunk(0, 3), tester.chunk(1, 3), tester.chunk(0, 3)
    [row] = tester.micro_batch(1, *rows)

    assert row.asDict() == {
        "uuid": STATE_UUID,
        "row": b"row of 0",
        "pieces": [b"to 0", b"to 1", b"to 2"],
        "error_type": None,
        "error_message": None,
        "declared": None,
    }
    assert tester.at(2) == []
    assert tester.timers == [600]


def test_chunks_over_several_batches(tester):
    assert tester.feed(tester.chunk(3, 4), tester.chunk(1, 4)) == []
    assert tester.timers == [60]
    tester.at(20)
    assert tester.feed(tester.chunk(1, 4), tester.chunk(0, 4)) == []
    assert tester.timers == [60]
    [row] = tester.micro_batch(20.5, tester.chunk(2, 4))

    assert (row.pieces, row.row) == ([b"to 0", b"to 1", b"to 2", b"to 3"], b"row of 0")
    assert tester.noted == {}
    assert tester.timers == [620]


def test_late_duplicates_are_dropped_as_long_as_the_payload_is_remembered(tester):
    [_] = tester.feed(tester.chunk(0, 2), tester.chunk(1, 2))

    tester.at(599)
    assert tester.feed(tester.chunk(0, 2), tester.chunk(1, 2)) == []
    tester.at(601)
    assert len(tester.feed(tester.chunk(0, 2), tester.chunk(1, 2))) == 1


def test_what_waits_too_long_is_said_once(tester):
    tester.feed(tester.chunk(4, 6), tester.chunk(2, 6))

    forever = Operator(expire_ms=0)
    forever.feed(forever.chunk(0, 2))
    assert (forever.at(10**6), len(forever.feed(forever.chunk(1, 2)))) == ([], 1)

    assert tester.at(59) == []
    [row] = tester.at(60.001)
    assert (row.uuid, row.row, row.pieces, row.error_type) == (STATE_UUID, b"row of 2", [], "IncompletePayloadError")
    assert row.error_message == (
        f"received only 2 of 6 chunks of {STATE_UUID}, missing 0-1, 3, 5: expire_after_seconds (60) passed"
    )
    assert tester.noted == {}
    assert tester.feed(tester.chunk(0, 6)) == []  # too late
    assert tester.at(901) == []
    assert tester.timers == []


@pytest.mark.parametrize(
    ("positions", "count", "text"),
    [
        ([0, 1], 2, ""),
        ([], 1, "0"),
        ([1, 4], 2**31 - 1, "0, 2-3, 5-2147483646"),
        (range(0, 40, 2), 40, "1, 3, 5, 7, 9, 11, 13, 15 and 12 more"),
    ],
)
def test_what_is_missing(positions, count, text):
    assert missing_positions(positions, count) == text
