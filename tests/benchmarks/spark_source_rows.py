"""`claimcheck_pulsar`: a topic of small envelopes read by Spark, against a loop that only receives."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.benchmarks.lab import Lab
from tests.benchmarks.rounds import Effort, Variant, compare
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast
from tests.benchmarks.spark_rows import OURS, noop

_PARTITIONS = 2
_EFFORT = Effort(seconds=5, least=3, most=5)


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    count = 200_000 // (100 if effort.divisor > 1 else 1)
    return [_read(count, batched=False, bound=2.0), _read(count, batched=True, bound=0.2)]


def _read(count: int, *, batched: bool, bound: float) -> Step:
    kind = "batched" if batched else "unbatched"
    what = f"claimcheck_pulsar, {count:,} small envelopes, {kind}, against a plain consumer loop"
    return Step((Target(f"spark-source-{kind}", what, bound),), partial(_measure_read, count=count, batched=batched))


def _measure_read(lab: Lab, count: int, *, batched: bool) -> Findings:
    from claimcheck.spark.sources import register

    spark, topic = lab.spark, f"bench-{uuid.uuid4().hex[:8]}"
    register(spark)
    _fill(lab.pulsar_client, topic, count, batched=batched)
    options = {"serviceUrl": lab.pulsar_url, "topic": ",".join(_partitions(topic))}

    def read() -> None:
        noop(spark.read.format("claimcheck_pulsar").schema("value binary").options(**options).load())

    names = itertools.count()
    series = compare(
        lab.effort if lab.effort.divisor > 1 else _EFFORT,
        count,
        Variant("receive, data", lambda: _receive(lab.pulsar_client, topic, count, f"s{next(names)}")),
        Variant(OURS, read),
        counts="operations",
    )
    loop, ours = series
    note = f"a batch query for the value, planning included, of {_PARTITIONS} topics; two tasks against one loop"
    return Findings((times_as_fast(ours, loop),), series, note)


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
