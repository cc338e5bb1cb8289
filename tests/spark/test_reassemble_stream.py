"""``df.transform(reassemble(...))`` on a stream: micro-batches, restarts, and a driver that is killed."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame

from claimcheck._wire.envelope import Chunk, decode, encode_abort
from claimcheck.errors import ConfigError
from claimcheck.spark import Metrics, reassemble
from claimcheck.spark import _reassemble_stream as on_stream
from claimcheck.spark._worker import as_config, claim_check
from tests.spark.drivers import PROVIDER, ROCKSDB, Driver, plain, write_batches
from tests.spark.rig import SCHEMA, TopicFiles, in_chunks, staged, written


def put(topic: TopicFiles, messages: list[Any]) -> None:
    topic.put_values(*(("orders", 0, message) for message in messages))


def expiring(config: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {**config, "chunking": {"expire_after_seconds": seconds}}


def uuid_of(chunks: list[bytes]) -> str:
    chunk = decode(chunks[0])
    assert isinstance(chunk, Chunk)
    return chunk.uuid


@pytest.fixture
def run(stateful, config, topic, tmp_path):
    """Run one query with several reassemblies on the available data; pass it each batch, or return all rows."""

    def once(*expire_after_seconds: float, each: Callable[[DataFrame], None] | None = None, **options: Any) -> Any:
        rows = list[Any]()
        several = [
            topic.stream(stateful).transform(
                reassemble("value", config=expiring(config, seconds), expire_by="data", **options)
            )
            for seconds in expire_after_seconds
        ]
        writer = reduce(DataFrame.union, several).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.foreachBatch(lambda df, _: each(df) if each else rows.extend(df.collect()))
        assert query.trigger(availableNow=True).start().awaitTermination(300)
        return rows

    return once


# Micro-batches --------------------------------------------------------------------------------------------------


def test_the_data_expire_a_payload_once_and_only_for_the_reassembly_that_waits_no_longer(run, topic, send):
    """Messages of any kind move their time: otherwise a payload would stay incomplete in a topic without chunks."""
    chunks = in_chunks(b"1" * 3_000)
    put(topic, [chunks[1], chunks[3]])
    assert run(0.05, 3_600) == []
    put(topic, [b"plain", *send(b"stored" * 1_000), None])

    rows = run(0.05, 3_600)

    (expired,) = [row for row in rows if row.error is not None]
    assert (len(rows), expired.uuid, expired.error.type) == (7, uuid_of(chunks), "IncompletePayloadError")
    assert "only 2 of 5 chunks" in expired.error.message
    assert "missing 0, 2, 4: expire_after_seconds (0.05) passed" in expired.error.message
    put(topic, [*chunks[::2], b"next"])
    assert sorted(bytes(row.payload) for row in run(0.05, 3_600)) == [b"1" * 3_000, b"next", b"next"]


def test_the_clock_goes_on_while_nothing_comes(stateful, config, topic, tmp_path):
    put(topic, in_chunks(b"x" * 3_000)[:2])
    done = topic.stream(stateful).transform(reassemble("value", config=expiring(config, 0.5)))
    rows, said = list[Any](), threading.Event()

    def keep(df: Any, _: int) -> None:
        rows.extend(df.collect())
        if rows:
            said.set()

    query = done.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        assert said.wait(180)
    finally:
        query.stop()

    assert [row.error.type for row in rows] == ["IncompletePayloadError"]


def test_large_chunks_rest_in_the_store_and_are_kept_for_a_replay(run, topic, tmp_path, spark):
    """One that is gone is its payload's error; duplicates are stored once."""
    metrics, found, stored = Metrics(spark), list[Any](), list[set[str]]()
    small, large, gone = (in_chunks(letter * 2_000, size) for letter, size in ((b"s", 300), (b"l", 700), (b"g", 700)))

    def evaluate(df: DataFrame) -> None:
        """Evaluate the plan twice, as a replay does."""
        found.append([[row.error.type if row.error else bytes(row.payload) for row in df.collect()] for _ in "12"])
        chunks = [path for path in (tmp_path / "claims").rglob("chunk-*") if path.is_file()]
        stored.append({path.read_bytes()[-100:].decode() for path in chunks})
        if len(found) == 1:
            next(path for path in chunks if b"g" * 100 in path.read_bytes()).unlink()

    put(topic, [*small[:2], *large[:2], *large[:2], *gone[:2]])
    put(topic, [*small[2:], *large, *gone[2:]])
    run(60, each=evaluate, metrics=metrics)

    assert stored[0] == {"l" * 100, "g" * 100}  # not the small ones
    (first, again), *_ = [rows for rows in found if rows != [[], []]]
    assert sorted(first, key=str) == sorted(again, key=str)
    assert sorted(first, key=str) == sorted(["PayloadNotFoundError", b"s" * 2_000, b"l" * 2_000], key=str)
    assert (metrics.rows, metrics.payload_bytes, metrics.errors) == (6, 8_000, {"PayloadNotFoundError": 2})
    assert metrics.store_bytes == {"disk": 8_000}


# A killed driver --------------------------------------------------------------------------------------------------


def test_a_killed_driver_loses_nothing_and_repeats_its_batch_exactly(run, stateful, config, topic, tmp_path):
    """``kill -9`` after the output of a batch; the process that plans the operator has no claimcheck."""
    rng = random.Random(23)
    payloads = [rng.randbytes(4_000) for _ in range(8)]
    sent = [chunk for payload in payloads for chunk in in_chunks(payload)]
    incomplete = [in_chunks(rng.randbytes(4_000)) for _ in range(3)]
    given_up, (first, *others) = in_chunks(rng.randbytes(3_000)), in_chunks(rng.randbytes(3_000))
    aborted = [*given_up[1:], encode_abort(uuid_of(given_up))]
    everything = [*sent, *rng.sample(sent, 20), b"plain", *aborted]
    rng.shuffle(everything)
    put(topic, [chunk for chunks in incomplete for chunk in chunks[1:]])
    assert run(0.01) == []  # applies to the chunks of batch 0
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")) + 2
    put(topic, [*everything[::2], first])
    put(topic, [first[:-1] + b"?", *everything[1::2], *others])
    later = expiring(config, 3_600)

    with Driver(*shadowed(tmp_path)) as driver:
        given = {"form": "parquet", "options": {"path": str(topic.folder), "maxFilesPerTrigger": "1"}, "schema": SCHEMA}
        driver.die_in(last, folder=str(tmp_path), reassemble=later, **given)
    write_batches(topic.stream(stateful).transform(reassemble("value", config=later, expire_by="data")), tmp_path)

    attempts = written(tmp_path)
    assert [len(attempts[number]) for number in (last - 1, last)] == [1, 2]
    assert attempts[last][0] == attempts[last][1]
    rows = [row for several in attempts.values() for row in several[-1]]
    assert sorted(row["payload"] for row in rows if row["error"] is None) == sorted(map(plain, [*payloads, b"plain"]))
    expected = [(uuid_of(chunks), "IncompletePayloadError") for chunks in incomplete]
    expected.append((uuid_of([first]), "ChunkConflictError"))
    assert sorted((row["uuid"], row["error"]["type"]) for row in rows if row["error"]) == sorted(expected)


def shadowed(folder: Path) -> tuple[dict[str, str], Path, dict[str, str]]:
    """Return what a driver needs to have claimcheck as a zip for its workers, and none beside them."""
    shadow = folder / "shadow" / "claimcheck"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise ImportError('not installed here')\n")
    package = staged(folder).parent  # with its stores, because an archive does not follow links
    packed = shutil.make_archive(str(folder / "zipped"), "zip", package, "claimcheck")
    environ = os.environ | {"PYTHONPATH": str(shadow.parent)}
    environ.pop("PYTHONSAFEPATH", None)  # Spark inserts the zip after the first entry of sys.path
    return {"spark.submit.pyFiles": packed}, folder, environ


# Mistakes, raised on the driver ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": "chunking", "stores": {}, "store": None}, "store: found none, expected the store for the chunks"),
        ({"stores": {"disk": {"type": "memory"}}}, "stores.disk.type: found 'memory', expected a store that every"),
    ],
)
def test_no_store_where_chunks_can_rest(stateful, topic, config, change, words):
    with pytest.raises(ConfigError, match=words):
        topic.stream(stateful).transform(reassemble("value", config=config | change))


def test_another_state_store_or_an_older_pyspark(stateful, topic, config, monkeypatch):
    source, made = topic.stream(stateful), reassemble("value", config=config)
    stateful.conf.set(PROVIDER, ROCKSDB.replace("RocksDB", "HDFSBacked"))
    with pytest.raises(ConfigError, match=rf'expected spark.conf.set\("{PROVIDER}", "{ROCKSDB}"\)'):
        source.transform(made)
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    with pytest.raises(ConfigError, match=r"found version 4\.0\.5, expected 4\.1 or newer"):
        source.transform(made)


@pytest.mark.parametrize(("ttl_seconds", "found"), [(60, "60"), (None, "nothing"), (61, "")])
def test_a_store_that_forgets_too_soon(config, ttl_seconds, found):
    config["stores"]["disk"]["ttl_seconds"] = ttl_seconds
    cc = claim_check(as_config(expiring(config, 60)))

    if found:
        with pytest.raises(ConfigError, match=rf"stores.disk.ttl_seconds: found {found}, expected well above"):
            on_stream._store(cc)
    else:
        assert on_stream._store(cc).ttl_seconds == ttl_seconds
