"""``df.transform(reassemble(...))`` on a stream: micro-batches, restarts, and drivers that are killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claimcheck._wire.envelope import decode, encode_abort
from claimcheck.errors import ConfigError
from claimcheck.spark import Metrics, reassemble
from claimcheck.spark import _reassemble_stream as on_stream
from claimcheck.spark._worker import as_config, claim_check
from tests.spark.rig import in_chunks
from tests.spark.shipping_rig import staged
from tests.spark.topic_files import PROVIDER, ROCKSDB, SCHEMA, TopicFiles, stateful_session

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
    """Run a query on the available data; returns the rows of its output."""

    def once(*, each: Any = None, expire_after_seconds: float = 60, **options: Any) -> list[Any]:
        rows = list[Any]()
        source = stateful.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(topic.folder))
        config = expiring(stored, expire_after_seconds)
        done = source.transform(reassemble("value", config=config, expire_by="data", **options))
        query = (
            done.writeStream.foreachBatch(each or (lambda df, _: rows.extend(df.collect())))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
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
    topic.put_values(*orders([b"next"]))
    run(expire_after_seconds=0.05)


def test_the_clock_goes_on_while_nothing_comes(stateful, stored, topic, tmp_path):
    topic.put_values(*orders(in_chunks(b"x" * 3_000)[:2]))
    source = stateful.readStream.schema(SCHEMA).parquet(str(topic.folder))
    done = source.transform(reassemble("value", config=expiring(stored, 0.5)))
    query = (
        done.writeStream.format("memory")
        .queryName("expired")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    rows: list[Any] = []
    try:
        deadline = time.monotonic() + 180
        while query.isActive and time.monotonic() < deadline:
            rows = stateful.table("expired").collect()
            if rows:
                break
            query.awaitTermination(0.1)
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


def test_two_in_one_query_do_not_affect_each_other(stateful, stored, topic, tmp_path):
    """One gives up what the other one still waits for."""
    rows, chunks = list[Any](), in_chunks(b"x" * 3_000)
    topic.put_values(*orders(chunks[:2]))
    topic.put_values(*orders(in_chunks(b"y" * 900)))
    topic.put_values(*orders(in_chunks(b"y" * 900)))
    topic.put_values(*orders(chunks[2:]))
    source = stateful.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(topic.folder))
    both = [
        source.transform(reassemble("value", config=expiring(stored, seconds), expire_by="data"))
        for seconds in (0.01, 3_600)
    ]
    query = (
        both[0]
        .union(both[1])
        .writeStream.foreachBatch(lambda df, _: rows.extend(df.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)

    ended = [row.error.type if row.error else len(row.payload) for row in rows if row.uuid == decode(chunks[0]).uuid]
    assert ended == ["IncompletePayloadError", 3_000]


# Killed drivers -------------------------------------------------------------------------------------------------


def test_killed_drivers_lose_nothing(run, stored, topic, tmp_path):
    """``kill -9`` before and after the output of a batch; the process that plans the operator has no claimcheck."""
    rng = random.Random(23)
    payloads = [rng.randbytes(4_000) for _ in range(12)]
    sent = [chunk for payload in payloads for chunk in in_chunks(payload)]
    incomplete = [in_chunks(rng.randbytes(4_000)) for _ in range(3)]
    lost = [chunk for chunks in incomplete for chunk in chunks[1:]]
    everything = [*sent, *rng.sample(sent, 20), b"plain"]
    rng.shuffle(everything)
    topic.put_values(*orders(lost))
    assert run(expire_after_seconds=0.01) == []  # applies to the chunks of batch 0
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    for n in range(3):
        topic.put_values(*orders(everything[n::3]))
    job = Job(stored, topic, tmp_path)

    assert job.run(die=["before", last + 1]) == -signal.SIGKILL
    assert job.batches() == {}
    assert job.run(die=["after", last + 2]) == -signal.SIGKILL
    assert job.batches() == {last + 1: 1, last + 2: 1}
    assert job.run() == 0
    assert job.batches() == {last + 1: 1, last + 2: 2, last + 3: 1} | {
        number: 1 for number in job.batches() if number > last + 3
    }
    first, again = job.attempts(last + 2)
    assert first == again  # of the same batch
    assert len(first) >= 3

    rows = job.rows()
    assert sorted(row["digest"] for row in rows if row["digest"]) == sorted(
        hashlib.sha256(payload).hexdigest() for payload in [*payloads, b"plain"]
    )
    assert sorted((row["uuid"], row["error"]) for row in rows if row["error"]) == sorted(
        (decode(chunks[0]).uuid, "IncompletePayloadError") for chunks in incomplete
    )
    assert len(rows) == len(payloads) + 1 + len(incomplete)


def test_drivers_killed_at_any_point_miss_no_chunk(stored, topic, tmp_path):
    """While chunks are written and fetched, and before and after commits."""
    rng = random.Random(29)
    payloads = [rng.randbytes(3_000) for _ in range(12)]
    sent = [chunk for payload in payloads for chunk in in_chunks(payload)]
    given_up = in_chunks(rng.randbytes(3_000))
    first, *others = in_chunks(rng.randbytes(3_000))
    conflict = [first, first[:-1] + b"?", *others]
    everything = [*sent, *rng.sample(sent, 30), *given_up[1:], encode_abort(decode(given_up[0]).uuid), *conflict]
    rng.shuffle(everything)
    for n in range(6):
        topic.put_values(*orders(everything[n::6]))
    job = Job(stored, topic, tmp_path)

    for batch in (1, 4):
        job.run(die=["within", batch, rng.uniform(0, 2)])
    topic.put_values(*orders([b"quiet"]))
    assert job.run() == 0

    for batch in job.batches():
        first_attempt, *replays = [
            [(row["uuid"], row["digest"], row["error"]) for row in attempt] for attempt in job.attempts(batch)
        ]
        assert all(sorted(replay, key=str) == sorted(first_attempt, key=str) for replay in replays)
    rows = job.rows()
    assert sorted(row["digest"] for row in rows if row["digest"]) == sorted(
        hashlib.sha256(payload).hexdigest() for payload in [*payloads, b"quiet"]
    )
    assert [(row["uuid"], row["error"]) for row in rows if row["error"]] == [(decode(first).uuid, "ChunkConflictError")]


class Job:
    """Runs reassemble_child.py and reads its results."""

    def __init__(self, config: dict[str, Any], topic: TopicFiles, tmp_path: Path) -> None:

        self._output, self._path = tmp_path / "output", tmp_path / "job.json"
        self._output.mkdir()
        self._folder, self._shadow = tmp_path, tmp_path / "shadow"
        (self._shadow / "claimcheck").mkdir(parents=True)
        (self._shadow / "claimcheck" / "__init__.py").write_text("raise ImportError('not installed here')\n")
        package = staged(tmp_path).parent  # with its stores, because an archive does not follow links
        self._zip = shutil.make_archive(str(tmp_path / "zipped"), "zip", package, "claimcheck")
        self._job = {
            "config": config,
            "schema": SCHEMA,
            "input": str(topic.folder),
            "checkpoint": str(tmp_path / "checkpoint"),
            "output": str(self._output),
        }

    def run(self, die: list[object] | None = None) -> int:
        self._path.write_text(json.dumps(self._job | {"die": die}))
        program = Path(__file__).with_name("reassemble_child.py")
        environ = os.environ | {"PYTHONPATH": str(self._shadow)}
        environ.pop("PYTHONSAFEPATH", None)  # Spark inserts the zip after the first entry of sys.path
        with self._path.with_suffix(".log").open("ab") as log:
            command = [sys.executable, str(program), self._zip, str(self._path)]
            child = subprocess.run(
                command, stdout=log, stderr=log, timeout=300, check=False, env=environ, cwd=self._folder
            )
        return child.returncode

    def batches(self) -> dict[int, int]:
        """Return the number of attempts at each batch."""
        numbers = [int(path.stem.split("-")[0]) for path in self._output.glob("*.json")]
        return {number: numbers.count(number) for number in sorted(numbers)}

    def attempts(self, batch: int) -> list[Any]:
        """Return the output of each attempt at a batch."""
        paths = sorted(self._output.glob(f"{batch}-*.json"))
        return [sorted(json.loads(path.read_text()), key=str) for path in paths]

    def rows(self) -> list[Any]:
        """Return the output of a sink that ignores repeated batches."""
        return [row for batch in self.batches() for row in self.attempts(batch)[-1]]


# Mistakes, raised on the driver ---------------------------------------------------------------------------------


@pytest.fixture
def source(stateful, topic):
    return stateful.readStream.schema(SCHEMA).parquet(str(topic.folder))


def test_another_state_store(spark, source, stored):
    spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")

    with pytest.raises(ConfigError, match=rf'expected spark.conf.set\("{PROVIDER}", "{ROCKSDB}"\)') as caught:
        source.transform(reassemble("value", config=stored))

    assert caught.value.path == PROVIDER


def test_an_older_pyspark(source, stored, monkeypatch):
    import pyspark

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
