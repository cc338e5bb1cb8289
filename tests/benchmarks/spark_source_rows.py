"""`claimcheck_pulsar`: small envelopes against the native client, and one partition that several tasks read."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator
from typing import Any

import claimcheck
from tests.benchmarks.lab import Lab
from tests.benchmarks.rounds import OURS, Variant, compare, times_as_fast
from tests.benchmarks.rows import Findings, Rows
from tests.benchmarks.spark_rows import effort_of, noop, store_config

ROWS = Rows()
_PARTITIONS = 2


def _count(lab: Lab) -> int:
    return 200_000 // (100 if lab.effort.is_quick else 1)


def _measure_read(lab: Lab, size: int, *, batched: bool) -> Findings:
    from claimcheck.spark.sources import register

    count, spark, topic = _count(lab), lab.spark, f"bench-{uuid.uuid4().hex[:8]}"
    register(spark)
    _fill(lab.pulsar_client, topic, count, batched=batched)
    options = {"serviceUrl": lab.pulsar_url, "topic": ",".join(_partitions(topic))}

    def read() -> None:
        noop(spark.read.format("claimcheck_pulsar").schema("value binary").options(**options).load())

    names = itertools.count()
    series = compare(
        effort_of(lab),
        count,
        Variant("receive, data", lambda: _receive(lab.pulsar_client, topic, count, f"s{next(names)}")),
        Variant(OURS, read),
        counts="operations",
    )
    loop, ours = series
    note = f"a batch query for the value, planning included, of {_PARTITIONS} topics; two tasks against one loop"
    return Findings((times_as_fast(ours, loop),), series, note)


for _kind in ("unbatched", "batched"):
    ROWS.findings(
        f"claimcheck_pulsar, 200,000 small envelopes, {_kind}, against a plain consumer loop",
        batched=_kind == "batched",
    )(_measure_read)


@ROWS.findings("claimcheck_pulsar, one partition of 8,000 pointers, resolved and decoded: four tasks against one")
def _measure_hot(lab: Lab, size: int) -> Findings:
    from claimcheck.spark import map_payloads
    from claimcheck.spark.sources import register

    count, spark, topic = _count(lab) // 25, lab.spark, f"bench-{uuid.uuid4().hex[:8]}"
    register(spark)
    config = _fill_with_pointers(lab, topic, count)
    decode = map_payloads(_decode, "records int", column="value", config=config)
    options = {"serviceUrl": lab.pulsar_url, "topic": topic}

    def read(tasks: int) -> None:
        df = spark.read.format("claimcheck_pulsar").schema("value binary").options(**options, minPartitions=tasks)
        noop(df.load().transform(decode))

    variants = Variant("one task", lambda: read(1)), Variant("claimcheck, four tasks", lambda: read(4))
    one, four = series = compare(effort_of(lab), count, *variants, counts="operations")
    return Findings((times_as_fast(four, one),), series, "minPartitions; JSON of 70 KiB from Redis; two cores for all")


def _decode(payload: bytes) -> int:
    return len(json.loads(payload))


def _fill_with_pointers(lab: Lab, topic: str, count: int) -> dict[str, Any]:
    """Send pointers to a few payloads, again and again; returns the configuration."""
    config = store_config(lab.redis)
    records = [{"id": n, "name": f"record {n}", "value": n / 7, "tags": ["a", "b"]} for n in range(900)]
    producer = lab.pulsar_client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    with claimcheck.from_dict(config) as cc:
        messages = [cc.seal(cc.store("hot").write(json.dumps(records).encode())) for _ in range(64)]
    for n in range(count):
        producer.send_async(messages[n % len(messages)], lambda result, message_id: None)
    producer.flush()
    producer.close()
    return config


def _partitions(topic: str) -> Iterator[str]:
    return (f"{topic}-{number}" for number in range(_PARTITIONS))


def _fill(client: Any, topic: str, count: int, *, batched: bool) -> None:
    envelope = b"PRF_wdkafcli_header_\x02\x02" + b"x" * 250
    for name in _partitions(topic):
        producer = client.create_producer(
            name, batching_enabled=batched, block_if_queue_full=True, batching_max_publish_delay_ms=10
        )
        for _ in range(count // _PARTITIONS):
            producer.send_async(envelope, lambda result, message_id: None)
        producer.flush()
        producer.close()


def _receive(client: Any, topic: str, count: int, subscription: str) -> None:
    import pulsar

    consumer = client.subscribe(
        list(_partitions(topic)), subscription, initial_position=pulsar.InitialPosition.Earliest
    )
    for _ in range(count):
        consumer.receive().data()
    consumer.close()
