"""Kafka with Spark's own source and sink: what our producers send, Spark reads, and the other way round.

Jobs run in a process of their own: the jars are chosen before Java starts. A reader that is killed is one of the
random faults (tests/fault).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import pytest
import redis

import claimcheck
from claimcheck._store.contract import StoreContext
from tests.integration.kafka_rig import LIMIT, WITHIN_SECONDS, Rig, content, receive, rig
from tests.spark.drivers import Driver, plain


@pytest.fixture
def lab(kafka_broker, topic) -> Iterator[Rig]:
    with rig(kafka_broker, topic, partitions=2) as lab:
        yield lab


@pytest.fixture
def config(tmp_path) -> dict[str, Any]:
    disk = {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True}
    return {"strategy": "external", "stores": {"disk": disk}}


@pytest.fixture
def cc(config) -> Iterator[claimcheck.ClaimCheck]:
    with claimcheck.from_dict(config) as cc:
        yield cc


@pytest.fixture(scope="module")
def jobs(spark_kafka_jars, worker_env, tmp_path_factory) -> Iterator[Driver]:
    """One session with Spark's client of Kafka."""
    with Driver({"spark.jars": spark_kafka_jars}, tmp_path_factory.mktemp("jobs"), os.environ | worker_env) as jobs:
        yield jobs


@pytest.fixture
def options(lab) -> dict[str, str]:
    """The options of Spark's source for all messages of the topic."""
    servers = {"kafka.bootstrap.servers": lab.servers["bootstrap.servers"], "subscribe": lab.topic}
    return {**servers, "startingOffsets": "earliest", "includeHeaders": "true"}


def send(lab: Rig, cc: claimcheck.ClaimCheck, payloads: list[bytes | None]) -> None:
    """Alternating between two partitions."""
    producer = lab.producer(cc)
    for number, payload in enumerate(payloads):
        headers = [("n", str(number).encode())]
        producer.produce(lab.topic, payload, key=b"k%d" % number, partition=number % 2, headers=headers)
    assert producer.flush(WITHIN_SECONDS) == 0


def remove_stored(folder: Path, payload: bytes) -> None:
    (stored,) = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes() == payload]
    stored.unlink()


def numbered(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By the numbers under which they were sent."""
    found = {int(row["key"].removeprefix("k")): row for row in rows}
    assert len(found) == len(rows)
    return found


def test_what_producers_send_is_what_spark_reads(lab, cc, config, options, jobs, tmp_path):
    """And a row that cannot be read says why, beside the columns that say where it is."""
    payloads = [content(20_000), b"plain", None, b"", content(LIMIT * 8, 1), content(300, 2), content(20_000, 3)]
    send(lab, cc, payloads)
    remove_stored(tmp_path / "claims", content(20_000, 3))
    lab.send_raw(cc.config.header + b"\x09nonsense", partition=1, key=b"k7", headers=[("n", b"7")])
    rows = numbered(jobs.run("kafka", options=options, config=config))
    assert [rows[n]["payload"] for n in range(8)] == [*map(plain, payloads[:6]), None, None]
    assert [rows[n]["error"] for n in range(6)] == [None] * 6
    assert [(rows[n]["partition"], rows[n]["offset"]) for n in range(8)] == [(n % 2, n // 2) for n in range(8)]
    for number, row in rows.items():
        ours = [(header["key"], header["value"]) for header in row["headers"] if "claimcheck" not in header["key"]]
        assert (row["topic"], ours) == (lab.topic, [("n", str(number))])
    assert [rows[n]["error"]["type"] for n in (6, 7)] == ["PayloadNotFoundError", "EnvelopeError"]
    assert rows[6]["error"]["store"] == "disk"


def test_what_spark_sends_is_what_consumers_read(lab, cc, config, options, jobs):
    payloads = [content(20_000), b"plain", None, content(LIMIT * 200, 1)]
    send(lab, cc, payloads)
    into = lab.create(2, f"{lab.topic}-into")
    rows = numbered(jobs.run("kafka", options=options, config=config, into=into))
    messages = receive(lab.consumer(into, cc=cc), len(payloads))
    assert {m.key(): m.value() for m in messages} == {b"k%d" % n: payload for n, payload in enumerate(payloads)}
    assert {n: row["payload"] for n, row in rows.items()} == {n: plain(p) for n, p in enumerate(payloads)}
    for message in messages:
        assert [value for name, value in message.headers() if name == "n"] == [message.key()[1:]]


def test_garbage_in_redis(lab, jobs, redis_url):
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
        server = {"format": "kafka", "kafka.bootstrap.servers": lab.servers["bootstrap.servers"]}
        topics = [{**server, "subscribe": name} for name in (lab.topic, similar, empty)]
        found = jobs.run("garbage", config=config, topics=topics)
        producer.abort_transaction()
        names = {name.decode().removesuffix("-0") for name in client.scan_iter(f"{prefix}*", count=1000)}
        left = {name for name in names if not name.endswith(".gc-owner")}
        for pointer in kept:
            store.rollback(pointer)
    assert (found["pointers"], found["deleted"], found["failed"]) == (20, 20, 0)
    assert left == {pointer.key for pointer in kept}
    assert not left & {pointer.key for pointer in lost}
