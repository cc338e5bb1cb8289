"""What `reassemble` makes of the messages of a topic: one list of cases, on a batch and on a stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import Chunk, decode, encode_abort, encode_chunk
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError
from claimcheck.spark import reassemble
from tests.spark.rig import in_chunks
from tests.spark.topic_files import SCHEMA, TopicFiles, stateful_session

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
