"""Kafka with Spark's own source and sink: what our producers send, Spark reads, and the other way round."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import pytest
import redis

import claimcheck
import claimcheck.spark
from claimcheck._store.contract import StoreContext
from tests.integration.kafka_rig import LIMIT, WITHIN_SECONDS, Rig, content, receive, rig
from tests.spark.shipping_rig import staged

PROGRAM = Path(__file__).with_name("spark_kafka_job.py")
OURS = "claimcheck-"


@pytest.fixture
def lab(kafka_broker, topic) -> Iterator[Rig]:
    with rig(kafka_broker, topic, partitions=2) as lab:
        yield lab


@pytest.fixture
def config(tmp_path) -> dict[str, Any]:
    return {
        "strategy": "external",
        "stores": {"disk": {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True}},
    }


@pytest.fixture
def cc(config) -> Iterator[claimcheck.ClaimCheck]:
    with claimcheck.from_dict(config) as cc:
        yield cc


@pytest.fixture(scope="module")
def python_path(tmp_path_factory) -> str:
    """Where Spark's workers find claimcheck, whatever is installed."""
    return str(staged(tmp_path_factory.mktemp("staged")).parent)


@pytest.fixture(scope="module")
def start(spark_kafka_jars, python_path, tmp_path_factory):
    """Start spark_kafka_job.py, which runs jobs one after the other, in a group of processes of its own."""
    folder = tmp_path_factory.mktemp("jobs")
    env = {**os.environ, "PYTHONPATH": python_path}
    conf = {"spark.jars": spark_kafka_jars, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    conf |= {"spark.sql.shuffle.partitions": "2", "spark.executorEnv.PYTHONPATH": python_path}

    @contextlib.contextmanager
    def start() -> Iterator[Jobs]:
        with (folder / "log").open("a+") as log:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(conf)],
                env=env, cwd=folder, text=True, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
            jobs = Jobs(process, folder / "log")
            try:
                yield jobs
            finally:
                jobs.kill()

    return start


@pytest.fixture(scope="module")
def jobs(start) -> Iterator[Jobs]:
    """One session for all jobs that are not killed."""
    with start() as jobs:
        yield jobs


@pytest.fixture
def given(lab, config) -> dict[str, Any]:
    """What every job is told."""
    servers = {"kafka.bootstrap.servers": lab.servers["bootstrap.servers"]}
    return {"kafka": servers, "config": config, "topic": lab.topic}


@pytest.fixture
def run(jobs, given):
    """Run a job to its end, and return what it found."""

    def run(name: str, **more: object) -> Any:
        jobs.begin(given | {"job": name} | more)
        return json.loads(jobs.line())

    return run


class Jobs:
    """A process of spark_kafka_job.py."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def begin(self, job: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Wait for the next line of its output."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()[-4000:]
        return line

    def kill(self) -> None:
        """Kill it and its Java at once, as a power cut does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def send(lab: Rig, cc: claimcheck.ClaimCheck, payloads: list[bytes | None], start: int = 0) -> None:
    """Alternating between two partitions."""
    producer = lab.producer(cc)
    for number, payload in enumerate(payloads, start):
        headers = [("n", str(number).encode())]
        producer.produce(lab.topic, payload, key=b"k%d" % number, partition=number % 2, headers=headers)
    assert producer.flush(WITHIN_SECONDS) == 0


def remove_stored(folder: Path, payload: bytes) -> None:
    (stored,) = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes() == payload]
    stored.unlink()


def digest(payload: bytes | None) -> str | None:
    return None if payload is None else hashlib.sha256(payload).hexdigest()


def numbered(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By the numbers under which they were sent."""
    found = {int(row["key"].removeprefix("k")): row for row in rows}
    assert len(found) == len(rows)
    return found


def test_what_producers_send_is_what_spark_reads(lab, cc, run, tmp_path):
    """And a row that cannot be read says why, beside the columns that say where it is."""
    payloads = [content(20_000), b"plain", None, b"", content(LIMIT * 8, 1), content(300, 2), content(20_000, 3)]
    send(lab, cc, payloads)
    remove_stored(tmp_path / "claims", content(20_000, 3))
    lab.send_raw(cc.config.header + b"\x09nonsense", partition=1, key=b"k7", headers=[("n", b"7")])

    rows = numbered(run("batch"))

    assert [rows[n]["digest"] for n in range(8)] == [*(digest(payload) for payload in payloads[:6]), None, None]
    assert [rows[n]["error"] for n in range(6)] == [None] * 6
    assert [(rows[n]["partition"], rows[n]["offset"]) for n in range(8)] == [(n % 2, n // 2) for n in range(8)]
    assert {row["topic"] for row in rows.values()} == {lab.topic}
    for number, row in rows.items():
        assert [header for header in row["headers"] if not header.startswith(OURS)] == [f"n={number}"]
    assert [rows[n]["error"]["type"] for n in (6, 7)] == ["PayloadNotFoundError", "EnvelopeError"]
    assert rows[6]["error"]["store"] == "disk"


def test_a_stream_whose_driver_is_killed_goes_on_where_it_was(lab, cc, given, start, run, tmp_path):
    """At least once for a batch, and exactly the same rows under its id, though the topic has grown meanwhile."""
    payloads = [content(LIMIT + n if n % 3 else 40, n) for n in range(40)]
    send(lab, cc, payloads[:30])
    target = tmp_path / "target"
    target.mkdir()
    told = {"target": str(target), "checkpoint": str(tmp_path / "checkpoint"), "rows_per_batch": 7}

    with start() as jobs:
        jobs.begin(given | told | {"job": "stream", "run": 1, "stop_in": 2})
        assert jobs.line() == "stopped\n"
    send(lab, cc, payloads[30:], start=30)
    run("stream", **told, run=2, stop_in=None)

    first, second = (json.loads((target / f"attempt-{run}-2.json").read_text()) for run in (1, 2))
    assert first == second
    assert not (target / "attempt-2-1.json").exists()  # what was committed is not done again
    batches = [json.loads(path.read_text()) for path in target.glob("batch-*.json")]
    assert len(batches) >= 6
    rows = numbered([row for batch in batches for row in batch])
    assert {n: row["digest"] for n, row in rows.items()} == {n: digest(p) for n, p in enumerate(payloads)}


def test_what_spark_sends_is_what_consumers_read(lab, cc, run):
    payloads = [content(20_000), b"plain", None, content(LIMIT * 200, 1)]
    send(lab, cc, payloads)
    into = lab.create(2, f"{lab.topic}-into")

    rows = numbered(run("sink", into=into))

    messages = receive(lab.consumer(into, cc=cc), len(payloads))
    assert {m.key(): m.value() for m in messages} == {b"k%d" % n: payload for n, payload in enumerate(payloads)}
    assert {n: row["digest"] for n, row in rows.items()} == {n: digest(p) for n, p in enumerate(payloads)}
    for message in messages:
        assert [value for name, value in message.headers() if name == "n"] == [message.key()[1:]]


def test_garbage_in_redis(lab, run, redis_url):
    """A message of an open transaction, and one of a topic with a similar name, keep their payloads, too."""
    prefix, day = f"{lab.topic}:", 86_400
    stores = {"hot": {"type": "redis", "url": redis_url, "key_prefix": prefix, "ttl_seconds": 30 * day}}
    config = {"strategy": "external", "store": "hot", "stores": stores}
    similar, empty = lab.create(1, f".{lab.topic}"), lab.create(1, f"{lab.topic}-dlq")
    with claimcheck.from_dict(config) as cc, redis.Redis.from_url(redis_url) as client:
        store = cc.store("hot")
        store.context = StoreContext(name="hot", clock=lambda: time.time() - 3 * day)
        kept, lost = ([store.write(content(100, n), destination=lab.topic) for n in range(20)] for _ in range(2))
        for n, pointer in enumerate(kept[:18]):
            lab.send_raw(cc.seal(pointer), partition=n % 2)
        producer = kafka.Producer({**lab.servers, "transactional.id": lab.topic, "transaction.timeout.ms": 600_000})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(lab.topic, cc.seal(kept[18]), partition=0)
        producer.produce(similar, cc.seal(kept[19]))
        producer.flush()

        found = run("garbage", config=config, topics=[lab.topic, similar, empty])

        producer.abort_transaction()
        names = {name.decode().removesuffix("-0") for name in client.scan_iter(f"{prefix}*", count=1000)}
        left = {name for name in names if not name.endswith(".gc-owner")}
        for pointer in kept:
            store.rollback(pointer)
    assert (found["pointers"], found["deleted"], found["failed"]) == (20, 20, 0)
    assert left == {pointer.key for pointer in kept}
    assert not left & {pointer.key for pointer in lost}
