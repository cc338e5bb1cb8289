"""What `reassemble` makes of the messages of a topic: cases on a batch and on a stream, headers of chunks, state."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import Abort, Chunk, decode, encode_abort, encode_chunk, encode_literal
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError
from claimcheck.spark import reassemble
from claimcheck.spark._reassemble_common import read_header
from tests.spark.rig import SCHEMA, batches_of, in_chunks

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
    "a checksum of an unknown kind": Case(CHUNKS, [WHOLE], checksum="sha999:00"),
    "a checksum that is too long": Case(CHUNKS, errors=["IntegrityError"], checksum="x:" + "A" * 100_000),
}  # fmt: skip
"""What no other partition may change."""


@pytest.fixture
def configured(config) -> dict[str, Any]:
    return {**config, "chunking": LIMITS}


def rows_of(case: Case, partition: int) -> list[tuple[Any, ...]]:
    """Return the rows of a case; `offset` counts from 0 in each partition, and headers without a checksum vary."""
    empty = (None, [], [("a", b"\0")])[partition % 3]
    headers = empty if case.checksum is None else [("claimcheck-checksum", case.checksum.encode())]
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
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, 4), SCHEMA).selectExpr("*", "'x' AS properties")

    done = df.transform(reassemble("value", config=configured))
    found = done.collect()

    error = "struct<type:string,message:string,store:string,key:string>"
    assert done.dtypes == [*df.dtypes, ("uuid", "string"), ("payload", "binary"), ("error", error)]
    check(found, is_over=True)
    (gap,) = [row for row in found if row.partition == list(CASES).index("a chunk that never comes")]
    assert "received only 5 of 6 chunks" in gap.error.message
    assert "missing 3:" in gap.error.message


def test_on_a_stream_of_several_batches_and_after_a_restart(stateful, configured, topic, tmp_path):
    """The messages of each case come in three micro-batches; the last one also has duplicates, which change nothing."""
    parts: list[list[Any]] = [[], [], []]
    for number, case in enumerate(CASES.values()):
        rows = rows_of(case, number)
        parts[0] += rows[: len(rows) // 3]
        parts[1] += rows[len(rows) // 3 : len(rows) // 2]
        parts[2] += rows[len(rows) // 2 :]
    parts[2] += [row for row in parts[0] + parts[1] if position_of(row[4]) is not None]
    done = topic.stream(stateful).transform(reassemble("value", config=configured, expire_by="data"))
    for part in parts[:2]:
        topic.put(part)

    found = batches_of(done, tmp_path / "checkpoint")
    topic.put(parts[2])
    found |= batches_of(done, tmp_path / "checkpoint")

    check([row for rows in found.values() for row in rows], is_over=False)


# The headers of chunks, and rows that are none --------------------------------------------------------------------


def test_a_source_without_the_partition_mixes_partitions(spark, config):
    one, two = (in_chunks(letter * 2_000, uuid=UUID) for letter in (b"1", b"2"))
    rows = [("orders", n, chunk) for pair in zip(one, two, strict=True) for n, chunk in enumerate(pair)]
    df = spark.createDataFrame(rows, "topic string, partition int, value binary")

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


def test_rows_that_are_no_chunks_spread(spark, config):
    from pyspark.sql import functions as F  # noqa: N812

    plain = spark.createDataFrame([(n, b"%d" % n) for n in range(200)], "offset bigint, value binary")
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")  # partitions are small
    try:
        spread = plain.transform(reassemble("value", config=config)).groupBy(F.spark_partition_id()).count().collect()
    finally:
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")

    assert len(spread) == 2
    assert min(row["count"] for row in spread) > 50


# The stateful operator in Spark's own tester: no processes, and the test controls time ----------------------------

KEY = json.dumps(["orders", 3, UUID])
START = 1_700_000_000_000


class Operator:
    """Feeds micro-batches to the operator; time is in seconds after the start."""

    def __init__(self, *, behind_ms: int = 0, expire_ms: int = 60_000) -> None:
        from pyspark.sql.streaming.tws_tester import TwsTester

        from claimcheck.spark._reassemble_state import Limits, Reassembler

        limits = Limits(max_chunks=10, max_bytes=100, expire_ms=expire_ms, remember_ms=600_000, behind_ms=behind_ms)
        self.behind, self.now = behind_ms, START
        mode = "EventTime" if behind_ms else "ProcessingTime"
        arrived = (lambda row: row.arrived) if behind_ms else None
        self.tester = TwsTester(Reassembler(limits), timeMode=mode, eventTimeExtractor=arrived)
        self.at(0)

    def at(self, seconds: float) -> list[Any]:
        """Advance the time; return the rows that timers emit."""
        self.now = START + int(seconds * 1000)
        if self.behind:
            return self.tester.setWatermark(self.now - self.behind)
        return self.tester.setProcessingTime(self.now)

    def feed(self, count: int, *positions: int) -> list[Any]:
        """Process chunks of a payload of `count` chunks."""
        return self.tester.test(KEY, [self.chunk(position, count) for position in positions])

    def micro_batch(self, seconds: float, count: int, *positions: int) -> list[Any]:
        """Process chunks, and then the timers, at a new time, as Spark does; return all rows."""
        from pyspark.sql.streaming.stateful_processor import TimerValues

        now = START + int(seconds * 1000)
        self.tester.handle.setGroupingKey(KEY)
        rows = iter([self.chunk(position, count) for position in positions])
        values = TimerValues(now, now - self.behind)
        return [*self.tester.processor.handleInputRows((KEY,), rows, values), *self.at(seconds)]

    def chunk(self, position: int, count: int) -> Any:
        from pyspark.sql import Row

        return Row(
            key=KEY,
            position=position,
            total=count,
            size=2,
            digest=b"digest of %d" % position,
            reference=b"to %d" % position,
            row=b"row of %d" % position,
            declared=None,
            arrived=self.now,
        )

    @property
    def noted(self) -> dict[Any, Any]:
        return self.tester.handle.map_states["chunks"].state

    @property
    def timers(self) -> list[int]:
        known = self.tester.handle._timers._key_to_timers.values()
        return sorted((each + self.behind - START) // 1000 for timers in known for each in timers)


@pytest.fixture(params=[0, 3_600_000], ids=["clock", "data"])
def tester(request) -> Operator:
    return Operator(behind_ms=request.param)


def test_chunks_over_several_batches_and_late_duplicates_while_the_payload_is_remembered(tester):
    assert tester.feed(4, 3, 1) == []
    assert tester.timers == [60]
    tester.at(20)
    assert tester.feed(4, 1, 0) == []
    assert tester.timers == [60]
    [row] = tester.micro_batch(20.5, 4, 2)

    assert (row.pieces, row.row) == ([b"to 0", b"to 1", b"to 2", b"to 3"], b"row of 0")
    assert (tester.noted, tester.timers) == ({}, [620])
    tester.at(619)
    assert tester.feed(4, 0, 1, 2, 3) == []
    tester.at(621)
    assert len(tester.feed(4, 0, 1, 2, 3)) == 1


def test_what_waits_too_long_is_said_once(tester):
    tester.feed(6, 4, 2)

    assert tester.at(59) == []
    [row] = tester.at(60.001)
    assert (row.uuid, row.row, row.pieces, row.error_type) == (UUID, b"row of 2", [], "IncompletePayloadError")
    assert f"received only 2 of 6 chunks of {UUID}, missing 0-1, 3, 5: expire_after_seconds (60)" in row.error_message
    assert tester.noted == {}
    assert tester.feed(6, 0) == []  # too late
    assert tester.at(901) == []
    assert tester.timers == []

    forever = Operator(expire_ms=0)
    forever.feed(2, 0)
    assert (forever.at(10**6), len(forever.feed(2, 1))) == ([], 1)
