"""``df.transform(reassemble(...))`` on a stream: micro-batches, restarts, and a driver that is killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame

from claimcheck._wire.envelope import decode, encode_abort
from claimcheck.errors import ConfigError
from claimcheck.spark import Metrics, reassemble
from claimcheck.spark import _reassemble_stream as on_stream
from claimcheck.spark._worker import as_config, claim_check
from tests.spark.rig import PROVIDER, ROCKSDB, SCHEMA, TopicFiles, in_chunks, stateful_session
from tests.spark.shipping_rig import staged

Message = tuple[str, int, bytes | None]


def orders(messages: list[Any]) -> list[Message]:
    return [("orders", 0, message) for message in messages]


@pytest.fixture
def stateful(spark) -> Iterator[Any]:
    with stateful_session(spark) as spark:
        yield spark


@pytest.fixture
def stored(config) -> dict[str, Any]:
    """A configuration that names the store for chunks."""
    config["stores"]["disk"]["ttl_seconds"] = 604_800
    return {**config, "store": "disk"}


@pytest.fixture
def topic(tmp_path) -> TopicFiles:
    return TopicFiles(tmp_path / "topic")


@pytest.fixture
def run(stateful, stored, topic, tmp_path):
    """Run a query on the available data, or several in one; returns the rows of its output."""

    def once(*, each: Any = None, expire_after_seconds: Any = 60, **options: Any) -> list[Any]:
        rows, seconds = list[Any](), expire_after_seconds
        source = stateful.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(topic.folder))
        several = [
            source.transform(reassemble("value", config=expiring(stored, each), expire_by="data", **options))
            for each in (seconds if isinstance(seconds, tuple) else [seconds])
        ]
        writer = reduce(DataFrame.union, several).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.foreachBatch(each or (lambda df, _: rows.extend(df.collect())))
        assert query.trigger(availableNow=True).start().awaitTermination(300)
        return sorted(rows, key=lambda row: row.offset)

    return once


def expiring(config: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {**config, "chunking": {**config.get("chunking", {}), "expire_after_seconds": seconds}}


def claims(tmp_path: Path) -> int:
    return len(list((tmp_path / "claims").rglob("chunk-*")))


# Micro-batches --------------------------------------------------------------------------------------------------


def test_what_is_missing_is_said_once_by_a_run_that_comes_later(run, topic, tmp_path):
    first, second = in_chunks(b"1" * 3_000), in_chunks(b"2" * 3_000)
    topic.put_values(*orders([first[1], first[3]]))
    assert run(expire_after_seconds=0.05) == []
    topic.put_values(*orders(second))

    rows = run(expire_after_seconds=0.05)

    assert [(row.uuid, row.error and row.error.type) for row in rows] == [
        (decode(first[0]).uuid, "IncompletePayloadError"),
        (decode(second[0]).uuid, None),
    ]
    assert "only 2 of 5 chunks" in rows[0].error.message
    assert "missing 0, 2, 4: expire_after_seconds (0.05) passed" in rows[0].error.message
    topic.put_values(*orders([first[0], b"next"]))
    assert [row.uuid for row in run(expire_after_seconds=0.05)] == [None]


def test_every_message_moves_the_time_of_the_data(run, topic, send, tmp_path):
    """Otherwise a payload stays incomplete for ever in a topic to which chunks are no longer sent."""
    incomplete = in_chunks(b"1" * 3_000)[1:]
    topic.put_values(*orders(incomplete))
    assert run(expire_after_seconds=0.05) == []
    topic.put_values(*orders([b"plain", *send(b"stored" * 1_000), None]))

    rows = run(expire_after_seconds=0.05)

    assert [row.error and row.error.type for row in rows] == ["IncompletePayloadError", None, None, None]
    assert rows[0].uuid == decode(incomplete[0]).uuid


def test_the_clock_goes_on_while_nothing_comes(stateful, stored, topic, tmp_path):
    topic.put_values(*orders(in_chunks(b"x" * 3_000)[:2]))
    source = stateful.readStream.schema(SCHEMA).parquet(str(topic.folder))
    done = source.transform(reassemble("value", config=expiring(stored, 0.5)))
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


def test_small_chunks_need_no_store_and_duplicates_change_nothing(run, topic, tmp_path, spark):
    metrics = Metrics(spark)
    small, large = in_chunks(b"s" * 900, size=300), in_chunks(b"l" * 2_000, size=1_000)
    topic.put_values(*orders([*small, *large, *large]))
    topic.put_values(*orders(large))

    rows = run(metrics=metrics)

    assert [len(row.payload) for row in sorted(rows, key=lambda row: row.offset)] == [900, 2_000]
    assert all("l" * 100 in path.read_text() for path in (tmp_path / "claims").rglob("chunk-*"))
    assert (metrics.rows, metrics.payload_bytes, metrics.store_bytes) == (2, 2_900, {"disk": 2_900})


def test_a_chunk_that_is_gone_is_the_payloads_error(run, topic, tmp_path):
    chunks = in_chunks(b"x" * 2_000)
    topic.put_values(*orders(chunks[:2]))
    assert run() == []
    next((tmp_path / "claims").rglob("chunk-*")).unlink()
    topic.put_values(*orders(chunks[2:]), *orders(in_chunks(b"y" * 2_000)))

    rows = run()

    assert [(row.error and (row.error.type, row.error.store)) for row in rows] == [
        ("PayloadNotFoundError", "disk"),
        None,
    ]


def test_chunks_are_kept_for_a_replay(run, topic, tmp_path):
    seen = list[Any]()

    def evaluate(df: Any, batch: int) -> None:
        """Evaluate the plan twice, as a replay does."""
        rows = [[bytes(row.payload) for row in df.collect()] for _ in range(2)]
        seen.append((rows, claims(tmp_path)))

    chunks = in_chunks(b"x" * 2_000)
    topic.put_values(*orders(chunks[:2]))
    topic.put_values(*orders(chunks[2:]))
    run(each=evaluate)

    assert seen[:2] == [([[], []], 2), ([[b"x" * 2_000]] * 2, 3)]


def test_two_in_one_query_do_not_affect_each_other(run, topic):
    """One gives up what the other one still waits for."""
    chunks = in_chunks(b"x" * 3_000)
    topic.put_values(*orders(chunks[:2]))
    topic.put_values(*orders(in_chunks(b"y" * 900)))
    topic.put_values(*orders(in_chunks(b"y" * 900)))
    topic.put_values(*orders(chunks[2:]))

    rows = run(expire_after_seconds=(0.01, 3_600))

    ended = [row.error.type if row.error else len(row.payload) for row in rows if row.uuid == decode(chunks[0]).uuid]
    assert sorted(ended, key=str) == [3_000, "IncompletePayloadError"]


# A killed driver --------------------------------------------------------------------------------------------------


def test_a_killed_driver_loses_nothing_and_repeats_its_batch_exactly(run, stored, topic, tmp_path):
    """``kill -9`` after the output of a batch; the process that plans the operator has no claimcheck."""
    rng = random.Random(23)
    payloads = [rng.randbytes(4_000) for _ in range(12)]
    sent = [chunk for payload in payloads for chunk in in_chunks(payload)]
    incomplete = [in_chunks(rng.randbytes(4_000)) for _ in range(3)]
    given_up, (first, *others) = in_chunks(rng.randbytes(3_000)), in_chunks(rng.randbytes(3_000))
    aborted = [*given_up[1:], encode_abort(decode(given_up[0]).uuid)]
    conflict = [first, first[:-1] + b"?", *others]
    everything = [*sent, *rng.sample(sent, 20), b"plain", *aborted, *conflict]
    rng.shuffle(everything)
    topic.put_values(*orders([chunk for chunks in incomplete for chunk in chunks[1:]]))
    assert run(expire_after_seconds=0.01) == []  # applies to the chunks of batch 0
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")) + 2
    for n in range(3):
        topic.put_values(*orders(everything[n::3]))

    assert killed_job(expiring(stored, 3_600), topic, tmp_path, last) == -signal.SIGKILL
    put_out = {int(path.stem): json.loads(path.read_text()) for path in (tmp_path / "output").iterdir()}
    later = dict[int, list[Any]]()

    def keep(df: Any, batch: int) -> None:
        later[batch] = [
            [row.uuid, row.payload and hashlib.sha256(row.payload).hexdigest(), row.error and row.error.type]
            for row in df.collect()
        ]

    run(each=keep, expire_after_seconds=3_600)

    assert (sorted(put_out), min(later)) == ([last - 1, last], last)
    assert sorted(put_out[last], key=str) == sorted(later[last], key=str)
    rows = [row for batch in (put_out | later).values() for row in batch]
    assert sorted(digest for _, digest, _ in rows if digest) == sorted(
        hashlib.sha256(payload).hexdigest() for payload in [*payloads, b"plain"]
    )
    expected = [(decode(chunks[0]).uuid, "IncompletePayloadError") for chunks in incomplete]
    expected.append((decode(first).uuid, "ChunkConflictError"))
    assert sorted((uuid, error) for uuid, _, error in rows if error) == sorted(expected)
    assert len(rows) == len(payloads) + 1 + len(expected)


def killed_job(config: dict[str, Any], topic: TopicFiles, tmp_path: Path, last: int) -> int:
    """Run reassemble_child.py until it dies."""
    shadow, output, path = tmp_path / "shadow" / "claimcheck", tmp_path / "output", tmp_path / "job.json"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise ImportError('not installed here')\n")
    output.mkdir()
    package = staged(tmp_path).parent  # with its stores, because an archive does not follow links
    package_zip = shutil.make_archive(str(tmp_path / "zipped"), "zip", package, "claimcheck")
    places = {"input": str(topic.folder), "checkpoint": str(tmp_path / "checkpoint"), "output": str(output)}
    path.write_text(json.dumps({"config": config, "schema": SCHEMA, "last": last, **places}))
    environ = os.environ | {"PYTHONPATH": str(shadow.parent)}
    environ.pop("PYTHONSAFEPATH", None)  # Spark inserts the zip after the first entry of sys.path
    command = [sys.executable, str(Path(__file__).with_name("reassemble_child.py")), package_zip, str(path)]
    with path.with_suffix(".log").open("wb") as log:
        child = subprocess.run(command, stdout=log, stderr=log, timeout=300, check=False, env=environ, cwd=tmp_path)
    return child.returncode


# Mistakes, raised on the driver ---------------------------------------------------------------------------------


@pytest.fixture
def source(stateful, topic):
    return stateful.readStream.schema(SCHEMA).parquet(str(topic.folder))


def test_another_state_store_or_an_older_pyspark(spark, source, stored, monkeypatch):
    spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")

    with pytest.raises(ConfigError, match=rf'expected spark.conf.set\("{PROVIDER}", "{ROCKSDB}"\)') as caught:
        source.transform(reassemble("value", config=stored))

    assert caught.value.path == PROVIDER
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")

    with pytest.raises(ConfigError, match=r"found version 4\.0\.5, expected 4\.1 or newer"):
        source.transform(reassemble("value", config=stored))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": "chunking", "stores": {}, "store": None}, "store: found none, expected the store for the chunks"),
        ({"stores": {"disk": {"type": "memory"}}}, "stores.disk.type: found 'memory', expected a store that every"),
    ],
)
def test_no_store_where_chunks_can_rest(source, stored, change, words):
    with pytest.raises(ConfigError, match=words):
        source.transform(reassemble("value", config=stored | change))


def test_a_store_that_forgets_too_soon(stored):
    stored["stores"]["disk"]["ttl_seconds"] = 60
    short, long = (as_config(expiring(stored, seconds)) for seconds in (59, 60))

    assert on_stream._store(claim_check(short)).ttl_seconds == 60
    with pytest.raises(ConfigError, match=r"stores.disk.ttl_seconds: found 60, expected well above"):
        on_stream._store(claim_check(long))
    del stored["stores"]["disk"]["ttl_seconds"]
    with pytest.raises(ConfigError, match=r"stores.disk.ttl_seconds: found nothing, expected well above"):
        on_stream._store(claim_check(as_config(stored)))
