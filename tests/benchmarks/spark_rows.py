"""Spark: payloads in and out of DataFrames, against what people write by hand, on the same Redis in the same run."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import claimcheck
from claimcheck._wire.envelope import CHUNK_OVERHEAD_BYTES
from claimcheck.config import HEADER
from tests.benchmarks import spark_ways
from tests.benchmarks.lab import HERE, Lab
from tests.benchmarks.picture import Lines, draw_lines
from tests.benchmarks.rounds import MIB, Effort, Variant, compare, payload_of
from tests.benchmarks.rows import Findings, Row, Step, Target
from tests.benchmarks.series import times_as_fast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OURS = "claimcheck"
THREADS = (1, 4, 8, 16)
PARTITIONS = 2
SPARK_EFFORT = Effort(seconds=8, least=3, most=9)
_WARM_ROUNDS = 8  # until Java has compiled Spark's loops, as in any job of some gigabytes
_HAND = "the best of 1, 4, 8 and 16 threads by hand, which check nothing"


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    naive = [_naive(effort, ms, bound) for ms, bound in ((1, 4.0), (5, 10.0), (20, 25.0))]
    hand = [_by_hand(effort, ms, kib) for ms, kib in ((0, 1024), (1, 1024), (5, 1024), (20, 1024), (5, 64), (5, 8192))]
    return [*naive, *hand, _mapped(effort), _offloaded(effort), _reassembled(effort), *_memory(effort)]


# Reading -------------------------------------------------------------------------------------------------------


def _naive(effort: Effort, milliseconds: int, bound: float) -> Step:
    what = f"Spark resolve 1 MiB, round trip {milliseconds} ms, against a UDF with a client for each row"
    rows = {1: 512, 5: 512, 20: 256}[milliseconds] // (8 if effort.divisor > 1 else 1)
    return Step(
        (Target(f"spark-naive-{milliseconds}ms", what, bound),),
        partial(_measure_naive, milliseconds=milliseconds, rows=rows),
    )


def _measure_naive(lab: Lab, milliseconds: int, rows: int) -> Findings:
    with topic(lab, milliseconds, 1024, rows) as there:
        naive, ours = compare(
            _effort(lab), there.amount, there.variant("naive UDF", spark_ways.naive(there.url)), there.ours()
        )
    return Findings((times_as_fast(ours, naive),), (naive, ours), f"{rows} payloads in 2 partitions, to the JVM")


def _by_hand(effort: Effort, milliseconds: int, kib: int) -> Step:
    size = f"{kib // 1024} MiB" if kib >= 1024 else f"{kib} KiB"
    what = f"Spark resolve {size}, round trip {milliseconds} ms, against mapInArrow by hand"
    rows = {64: 2048, 1024: 256, 8192: 32}[kib] // (8 if effort.divisor > 1 else 1)
    return Step(
        (Target(f"spark-hand-{kib}k-{milliseconds}ms", what, 0.9),),
        partial(_measure_by_hand, milliseconds=milliseconds, kib=kib, rows=rows),
    )


def _measure_by_hand(lab: Lab, milliseconds: int, kib: int, rows: int) -> Findings:
    with topic(lab, milliseconds, kib, rows) as there:
        ways = [there.variant(f"by hand, {n} threads", spark_ways.by_hand(there.url, n)) for n in THREADS]
        *hand, ours = compare(_effort(lab), there.amount, *ways, there.ours())
    best = min(hand, key=lambda series: series.seconds.median)
    return Findings((times_as_fast(ours, best),), (*hand, ours), f"{rows} payloads in 2 partitions; {_HAND}")


def _mapped(effort: Effort) -> Step:
    what = "Spark map_payloads 1 MiB, against resolve and a function behind it"
    rows = 256 // (8 if effort.divisor > 1 else 1)
    return Step((Target("spark-map", what, 1.3),), partial(_measure_mapped, rows=rows))


def _measure_mapped(lab: Lab, rows: int) -> Findings:
    from claimcheck.spark import map_payloads, resolve

    def lengths(batches: Any) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            yield pa.RecordBatch.from_arrays([pc.binary_length(batch.column("payload"))], names=["size"])

    with topic(lab, 0, 1024, rows) as there:

        def resolved(df: DataFrame) -> DataFrame:
            return df.transform(resolve("value", config=there.config)).mapInArrow(lengths, "size int")

        mapped = map_payloads(len, "size int", column="value", config=there.config)
        behind, ours = compare(
            _effort(lab),
            there.amount,
            there.variant("resolve, then mapInArrow", resolved, ours=True),
            there.variant("map_payloads", mapped, ours=True),
        )
    return Findings((times_as_fast(ours, behind),), (behind, ours))


# Writing -------------------------------------------------------------------------------------------------------


def _offloaded(effort: Effort) -> Step:
    what = "Spark offload 1 MiB"
    targets = (
        Target("spark-offload", f"{what}, against a UDF that pickles", 4.0),
        Target("spark-offload-hand", f"{what}, against mapInArrow by hand, which checks nothing", 0.9),
    )
    return Step(targets, partial(_measure_offloaded, rows=512 // (8 if effort.divisor > 1 else 1)))


def _measure_offloaded(lab: Lab, rows: int) -> Findings:
    from pyspark.sql import functions as F  # noqa: N812

    from claimcheck.spark import offload

    spark, config = lab.spark, _config(lab.redis)
    payload = F.repeat(F.lpad(F.col("id").cast("string"), 16, "0"), MIB // 16).cast("binary")
    df = spark.range(0, rows, 1, PARTITIONS).select(payload.alias("payload"))

    def variant(name: str, made: Callable[[], Callable[[DataFrame], DataFrame]]) -> Variant:
        # made for each run: else the second run would find everything written
        return Variant(name, lambda: noop(df.transform(made())), lambda _: _flush(lab))

    dropped, pickled, hand, ours = series = compare(
        _effort(lab),
        rows * MIB,
        variant("taken out and dropped", lambda: spark_ways.dropped),
        variant("UDF that pickles", lambda: spark_ways.naive_write(lab.redis)),
        variant("mapInArrow by hand", lambda: spark_ways.written_by_hand(lab.redis)),
        variant(OURS, lambda: offload("payload", destination="bench", config=config)),
    )
    most = times_as_fast(dropped, pickled)
    note = f"{rows} payloads in 2 partitions, from the JVM; to drop them is {most:.2f} times as fast as the UDF"
    return Findings((times_as_fast(ours, pickled), times_as_fast(ours, hand)), series, note)


# Chunks --------------------------------------------------------------------------------------------------------


def _reassembled(effort: Effort) -> Step:
    what = "Spark reassemble, 64 payloads in 8 chunks of 1 MiB, shuffled, 64 duplicates"
    targets = (
        Target("spark-reassemble", what, 200, "MiB/s"),
        Target("spark-reassemble-hand", f"{what}, of by hand", 0.9),
    )
    return Step(targets, _measure_reassembled)


def _measure_reassembled(lab: Lab) -> Findings:
    from claimcheck.spark import reassemble

    payloads, folder = 64 // (8 if lab.effort.divisor > 1 else 1), lab.folder / "chunks"
    piece = payload_of(MIB - len(HEADER) - CHUNK_OVERHEAD_BYTES)  # its message has 1 MiB, as writers cut them
    spark_ways.write_chunks(folder, payloads=payloads, chunks=8, piece=piece)
    df = lab.spark.read.parquet(str(folder))

    def ours() -> None:  # to select the payload would copy it twice more in Spark, which by hand has no other column
        noop(df.select("value").transform(reassemble("value", config={"strategy": "chunking"})))

    variants = Variant("by hand, heads known", lambda: noop(spark_ways.joined_by_hand(df))), Variant(OURS, ours)
    for variant in variants * (_WARM_ROUNDS // lab.effort.divisor):
        variant.run()
    hand, made = compare(_effort(lab), payloads * 8 * len(piece), *variants)
    shutil.rmtree(folder)
    note = "from Parquet, to the JVM, in a warm JVM"
    return Findings((made.rate * 1e9 / MIB, times_as_fast(made, hand)), (hand, made), note)


# Memory --------------------------------------------------------------------------------------------------------


def _memory(effort: Effort) -> list[Step]:
    rows = 3000 // (30 if effort.divisor > 1 else 1)
    what = f"Spark worker's peak, {rows} payloads of 1 MiB in one partition"
    flat = "the same, of its peak with a tenth of the rows"
    targets = Target("spark-memory", what, 350, "MiB", at_most=True), Target("spark-flat", flat, 1.1, at_most=True)
    return [Step(targets, partial(_measure_memory, rows=rows))]


def _measure_memory(lab: Lab, rows: int) -> Findings:
    few, many = (_peak(lab, count) for count in (rows // 10, rows))
    return Findings((many / MIB, many / few), (), "VmHWM of a fresh worker, to the JVM")


def _peak(lab: Lab, rows: int) -> int:
    with topic(lab, 0, 1024, 16) as there:
        what = {"config": there.config, "messages": [bytes(value).hex() for _, value in there.messages], "rows": rows}
        done = subprocess.run(
            [sys.executable, HERE / "spark_child.py", json.dumps(what)], capture_output=True, text=True, check=True
        )
    return int(done.stdout.split()[-1])


# What is read --------------------------------------------------------------------------------------------------


class Topic:
    """Payloads in a Redis, once as we write them and once as one value each, and a DataFrame that names both."""

    def __init__(self, lab: Lab, url: str, kib: int, rows: int) -> None:
        self.url, self.config, self.amount = url, _config(url), kib * 1024 * rows
        self.messages = list(_written(lab, kib * 1024, min(rows, 64)))
        told = [self.messages[n % len(self.messages)] for n in range(rows)]
        rdd = lab.spark.sparkContext.parallelize(told, PARTITIONS)
        self.df = lab.spark.createDataFrame(rdd, "key string, value binary").cache()
        noop(self.df)

    def variant(self, name: str, transform: Callable[[Any], Any], *, ours: bool = False) -> Variant:
        """One way to read everything."""
        df = self.df.select("value") if ours else self.df.select("key")
        return Variant(name, lambda: noop(df.transform(transform)))

    def ours(self) -> Variant:
        """Our way."""
        from claimcheck.spark import resolve

        return self.variant(OURS, resolve("value", config=self.config), ours=True)


@contextlib.contextmanager
def topic(lab: Lab, milliseconds: float, kib: int, rows: int) -> Iterator[Topic]:
    """Open one; its Redis is so far away."""
    there = Topic(lab, lab.redis_afar(milliseconds) if milliseconds else lab.redis, kib, rows)
    try:
        yield there
    finally:
        there.df.unpersist()
        _flush(lab)


def noop(df: DataFrame) -> None:
    """Compute everything, and keep nothing."""
    df.write.format("noop").mode("overwrite").save()


def _written(lab: Lab, size: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Write payloads both ways."""
    import redis

    with claimcheck.from_dict(_config(lab.redis)) as cc, redis.Redis.from_url(lab.redis) as plain:
        for n in range(count):
            payload = payload_of(size)
            plain.set(f"by-hand-{n}", payload)
            with cc.outbound(payload, destination="bench") as out:
                (envelope,) = out.envelopes
            yield f"by-hand-{n}", bytes(envelope.data)


def _config(url: str) -> dict[str, Any]:
    store = {"type": "redis", "url": url, "ttl_seconds": 3600}
    return {"strategy": "external", "threshold_bytes": 1000, "stores": {"hot": store}}


def _flush(lab: Lab) -> None:
    import redis

    with redis.Redis.from_url(lab.redis) as plain:
        plain.flushall()


def _effort(lab: Lab) -> Effort:
    return lab.effort if lab.effort.divisor > 1 else SPARK_EFFORT


# The picture ---------------------------------------------------------------------------------------------------


def draw_ways(rows: Sequence[Row], path: Path) -> bool:
    """Draw MB/s by the distance to the store for payloads of 1 MiB; returns whether there are any."""
    rates: dict[str, dict[int, float]] = {}
    for row in rows:
        found = re.fullmatch(r"spark-(hand-1024k|naive)-(\d+)ms", row.target.key)
        for series in row.series if found else ():
            if found and (found[1] != "naive" or series.name != OURS):  # ours from the runs against code by hand
                rates.setdefault(series.name, {})[int(found[2])] = series.rate * 1000
    if rates:
        draw_distances(rates, path)
    return bool(rates)


def draw_distances(rates: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Draw MB/s by round trip in milliseconds."""
    panel = Lines.of("MB of payload per second, by the round trip to the store", rates, lambda at: f"{at:g} ms")
    draw_lines([panel], path, "Reading 1 MiB payloads from Redis in Spark, on one 2-core machine", columns=1)
