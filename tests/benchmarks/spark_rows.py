"""Spark: payloads in and out of DataFrames, against what people write by hand, on the same Redis in the same run."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import struct
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import redis
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import claimcheck
from claimcheck.config import HEADER
from claimcheck.spark import map_payloads, offload, reassemble, resolve
from claimcheck.spark.sources import register
from tests.benchmarks.lab import Lab
from tests.benchmarks.rounds import MIB, OURS, Effort, Variant, compare, payload_of, size_text, times_as_fast
from tests.benchmarks.rows import Findings, Rows

THREADS = (1, 4, 8, 16)
PARTITIONS = 2
_EFFORT = Effort(seconds=8, least=3, most=9)
ROWS, SOURCE = Rows(_EFFORT), Rows(_EFFORT)
_WARM_ROUNDS = 8  # until Java has compiled Spark's loops, as in any job of some gigabytes
_HAND = "the best of 1, 4, 8 and 16 threads by hand, which check nothing"
CHUNK = struct.Struct(">s36sii")  # what is between header and piece: older versions have the function elsewhere
_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",  # as the guide recommends
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",  # as the README recommends; the default is 64m
    "spark.sql.shuffle.partitions": "8",
}
_BATCH_BYTES = 16 << 20
_clients: dict[str, Any] = {}


# Reading -------------------------------------------------------------------------------------------------------


def _resolved(lab: Lab, size: int, milliseconds: int, kib: int, *, naive: bool) -> Findings:
    there = Topic(lab, milliseconds, kib * 1024, size)
    ways = [there.variant(f"by hand, {n} threads", by_hand(there.url, n)) for n in THREADS]
    if naive:
        ways.append(there.variant("naive UDF", naive_read(there.url)))
    ways.append(there.variant(OURS, resolve("value", config=there.config), column="value"))
    *others, ours = series = compare(lab.effort if lab.effort.is_quick else _EFFORT, size, *ways)
    best = min(others[: len(THREADS)], key=lambda series: series.seconds.median)
    bases = [best, *others[len(THREADS) :]]
    return Findings(tuple(times_as_fast(ours, base) for base in bases), series, f"in 2 partitions; {_HAND}")


for _ms, _kib, _mib in ((0, 1024, 256), (1, 1024, 256), (5, 1024, 256), (20, 1024, 256), (5, 64, 128), (5, 8192, 256)):
    _what, _is_naive = f"Spark resolve {size_text(_kib * 1024)}, round trip {_ms} ms, against", _kib == 1024 and _ms > 0
    _against = ["mapInArrow by hand", "a UDF with a client for each row"][: 1 + _is_naive]
    ROWS.findings(*(f"{_what} {each}" for each in _against), mib=_mib, milliseconds=_ms, kib=_kib, naive=_is_naive)(
        _resolved
    )


@ROWS.ratio("Spark map_payloads 1 MiB, against resolve and a function behind it", 256)
def _mapped(lab: Lab, size: int) -> Sequence[Variant]:
    def lengths(batches: Any) -> Iterator[Any]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pc.binary_length(batch.column("payload"))], names=["size"])

    def resolved(df: DataFrame) -> DataFrame:
        return df.transform(resolve("value", config=there.config)).mapInArrow(lengths, "size int")

    there = Topic(lab, 0, MIB, size)
    mapped = map_payloads(len, "size int", column="value", config=there.config)
    return (
        there.variant("resolve, then mapInArrow", resolved, column="value"),
        there.variant(f"{OURS}, map_payloads", mapped, column="value"),
    )


# Writing -------------------------------------------------------------------------------------------------------


@ROWS.ratio(
    (
        "Spark offload 1 MiB, against a UDF that pickles",
        "Spark offload 1 MiB, against mapInArrow by hand, which checks nothing",
    ),
    512,
    pairs=((2, 0), (2, 1)),
    note="in 2 partitions, from the JVM",
)
def _offloaded(lab: Lab, size: int) -> Sequence[Variant]:
    config, spark = store_config(lab.redis), lab.spark  # functions of columns need a session
    payload = F.repeat(F.lpad(F.col("id").cast("string"), 16, "0"), MIB // 16).cast("binary")
    df = spark.range(0, size // MIB, 1, PARTITIONS).select(payload.alias("payload"))

    def variant(name: str, made: Callable[[], Callable[[DataFrame], DataFrame]]) -> Variant:
        # made for each run: else the second run would find everything written
        return Variant(name, lambda: noop(df.transform(made())), lab.forget)

    return (
        variant("UDF that pickles", lambda: naive_write(lab.redis)),
        variant("mapInArrow by hand", lambda: written_by_hand(lab.redis)),
        variant(OURS, lambda: offload("payload", destination="bench", config=config)),
    )


# Chunks --------------------------------------------------------------------------------------------------------


@ROWS.ratio(
    "Spark reassemble, 64 payloads in 8 chunks of 1 MiB, shuffled, 64 duplicates, of by hand",
    512,
    note="from Parquet, to the JVM, in a warm JVM",
)
def _reassembled(lab: Lab, size: int) -> Sequence[Variant]:
    folder = lab.folder / "chunks"
    piece = payload_of(MIB - len(HEADER) - CHUNK.size)  # its message has 1 MiB, as writers cut them
    write_chunks(folder, payloads=size // MIB // 8, chunks=8, piece=piece)
    lab.at_end(lambda: shutil.rmtree(folder))
    df = lab.spark.read.parquet(str(folder))

    def ours() -> None:  # to select the payload would copy it twice more in Spark, which by hand has no other column
        noop(df.select("value").transform(reassemble("value", config={"strategy": "chunking"})))

    variants = Variant("by hand, heads known", lambda: noop(joined_by_hand(df))), Variant(OURS, ours)
    for variant in variants * (_WARM_ROUNDS // lab.effort.divisor):
        variant.run()
    return variants


# What is read --------------------------------------------------------------------------------------------------


class Topic:
    """Payloads in a Redis so far away, once as we write them and once as one value each, and a DataFrame with both."""

    def __init__(self, lab: Lab, milliseconds: float, size: int, total: int) -> None:
        self.url = lab.afar(lab.redis, milliseconds) if milliseconds else lab.redis
        self.config, rows = store_config(self.url), total // size
        lab.at_end(lab.forget)
        messages = list(_written(lab, size, min(rows, 64)))
        rdd = lab.spark.sparkContext.parallelize([messages[n % len(messages)] for n in range(rows)], PARTITIONS)
        self._df = lab.spark.createDataFrame(rdd, "key string, value binary").cache()
        lab.at_end(self._df.unpersist)
        noop(self._df)

    def variant(self, name: str, transform: Callable[[Any], Any], *, column: str = "key") -> Variant:
        """One way to read everything."""
        return Variant(name, lambda: noop(self._df.select(column).transform(transform)))


def noop(df: DataFrame) -> None:
    """Compute everything, and keep nothing."""
    df.write.format("noop").mode("overwrite").save()


def _written(lab: Lab, size: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Write payloads both ways."""
    with claimcheck.from_dict(store_config(lab.redis)) as cc:
        for n in range(count):
            payload = payload_of(size)
            lab.redis_client.set(f"by-hand-{n}", payload)
            with cc.outbound(payload, destination="bench") as out:
                (envelope,) = out.envelopes
            yield f"by-hand-{n}", bytes(envelope.data)


def store_config(url: str) -> dict[str, Any]:
    store = {"type": "redis", "url": url, "ttl_seconds": 3600}
    return {"strategy": "external", "threshold_bytes": 1000, "stores": {"hot": store}}


# The data source of Pulsar --------------------------------------------------------------------------------------

_TOPICS = 2
_ENVELOPES = 200_000


def _source(lab: Lab, topic: str, **options: Any) -> DataFrame:
    """Return what the data source reads from topics, which are separated by commas."""
    register(lab.spark)
    options |= {"serviceUrl": lab.pulsar.service_url, "topic": topic}
    df: DataFrame = lab.spark.read.format("claimcheck_pulsar").schema("value binary").options(**options).load()
    return df


@SOURCE.ratio(
    "claimcheck_pulsar, 200,000 small envelopes, unbatched, against a plain consumer loop",
    1,
    note=f"a batch query for the value, planning included, of {_TOPICS} topics; two tasks against one loop",
    operations=_ENVELOPES,
    batched=False,
)
@SOURCE.ratio(
    "claimcheck_pulsar, 200,000 small envelopes, batched, against a plain consumer loop",
    1,
    operations=_ENVELOPES,
    batched=True,
)
def _small_envelopes(lab: Lab, size: int, *, batched: bool) -> Sequence[Variant]:
    name, names = f"bench-{uuid.uuid4().hex[:8]}", itertools.count()
    count = _ENVELOPES // (100 if lab.effort.is_quick else 1)
    topics = [f"{name}-{number}" for number in range(_TOPICS)]
    envelope = b"PRF_wdkafcli_header_\x02\x02" + b"x" * 250
    for topic in topics:
        _send(lab, topic, [envelope] * (count // _TOPICS), batching_enabled=batched, batching_max_publish_delay_ms=10)
    return (
        Variant("receive, data", lambda: _receive(lab.pulsar_client, topics, count, f"s{next(names)}")),
        Variant(OURS, lambda: noop(_source(lab, ",".join(topics)))),
    )


def _send(lab: Lab, topic: str, messages: Sequence[bytes], **options: Any) -> None:
    producer = lab.pulsar_client.create_producer(topic, block_if_queue_full=True, **options)
    for message in messages:
        producer.send_async(message, lambda result, message_id: None)
    producer.flush()
    producer.close()


def _receive(client: Any, topics: Sequence[str], count: int, subscription: str) -> None:
    import pulsar

    consumer = client.subscribe(topics, subscription, initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(count):
        consumer.receive().data()
    consumer.close()


# What people write by hand; it travels to workers by value ------------------------------------------------------


def client(url: str) -> Any:
    """One client for each process."""
    if url not in _clients:
        _clients[url] = redis.Redis.from_url(url)
    return _clients[url]


def naive_read(url: str) -> Callable[[DataFrame], DataFrame]:
    """The first thing that everybody writes: a UDF that connects for each row."""

    def get(key: str) -> bytes:
        with redis.Redis.from_url(url) as one:
            payload: bytes = one.get(key)
            return payload

    def transform(df: DataFrame) -> DataFrame:
        return df.withColumn("payload", F.udf(get, "binary")("key"))

    return transform


def by_hand(url: str, threads: int) -> Callable[[DataFrame], DataFrame]:
    """The best that one writes by hand: Arrow batches, one client, so many threads, in order, cut by bytes."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = (key.as_py() for batch in batches for key in batch.column(0))
        names, payloads = list[str](), list[bytes]()
        for name, payload in _fetched(keys, client(url).get, threads):
            if names and sum(map(len, payloads)) + len(payload) > _BATCH_BYTES:
                yield _batch(names, payloads)
                names, payloads = [], []
            names.append(name)
            payloads.append(payload)
        if names:
            yield _batch(names, payloads)

    return lambda df: df.select("key").mapInArrow(stage, "key string, payload binary")


def _fetched(keys: Iterator[str], get: Callable[[str], Any], threads: int) -> Iterator[tuple[str, bytes]]:
    if threads == 1:
        yield from ((key, get(key)) for key in keys)
        return
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[tuple[str, Any]] = deque()
        for key in keys:
            ahead.append((key, pool.submit(get, key)))
            if len(ahead) >= 2 * threads:
                done, future = ahead.popleft()
                yield done, future.result()
        yield from ((done, future.result()) for done, future in ahead)


def _batch(keys: list[str], payloads: list[bytes]) -> pa.RecordBatch:
    arrays = [pa.array(keys, pa.string()), pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=["key", "payload"])


def naive_write(url: str) -> Callable[[DataFrame], DataFrame]:
    """A UDF that takes payloads pickled, as all did before Arrow, and keeps its client."""

    def put(payload: bytes) -> str:
        key = str(uuid.uuid4())
        client(url).set(key, bytes(payload), ex=60)
        return key

    def transform(df: DataFrame) -> DataFrame:
        return df.select(F.udf(put, "string", useArrow=False)("payload").alias("value"))

    return transform


def written_by_hand(url: str) -> Callable[[DataFrame], DataFrame]:
    """The best that one writes by hand: Arrow batches, one client, no copy that can be helped, and no check."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = [str(uuid.uuid4()) for _ in range(len(batch))]
            for key, payload in zip(keys, batch.column(0), strict=True):
                client(url).set(key, memoryview(payload.as_buffer()), ex=60)
            yield pa.RecordBatch.from_arrays([pa.array(keys)], names=["value"])

    return lambda df: df.mapInArrow(stage, "value string")


def write_chunks(folder: Path, *, payloads: int, chunks: int, piece: bytes) -> None:
    """Write chunks as Parquet, in any order, some of them twice; and what their heads say, for those who want it."""
    chance = random.Random(1)
    rows = [(str(uuid.UUID(int=n + 1)), position) for n in range(payloads) for position in range(chunks)]
    rows += chance.sample(rows, payloads)
    chance.shuffle(rows)
    pack = CHUNK.pack
    folder.mkdir()
    for number in range(8):
        part = rows[number::8]
        table = pa.table(
            {
                "uuid": [identity for identity, _ in part],
                "position": pa.array([position for _, position in part], pa.int32()),
                "piece": [piece for _ in part],
                "value": [HEADER + pack(b"\x01", each.encode(), place, chunks) + piece for each, place in part],
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", compression="none", use_dictionary=False, row_group_size=8)


def joined_by_hand(df: DataFrame) -> DataFrame:
    """The best that one writes by hand, with the heads at hand: one shuffle, one payload at a time."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current, pieces = None, dict[int, Any]()
        for batch in batches:
            for name, position, piece in zip(*(batch.column(n) for n in range(3)), strict=True):
                if name.as_py() != current:
                    if current is not None:
                        yield _payload(pieces)
                    current, pieces = name.as_py(), {}
                pieces.setdefault(position.as_py(), piece)
        if current is not None:
            yield _payload(pieces)

    sorted_rows = df.select("uuid", "position", "piece").repartition("uuid").sortWithinPartitions("uuid", "position")
    return sorted_rows.mapInArrow(stage, "payload binary")


def _payload(pieces: dict[int, Any]) -> pa.RecordBatch:
    whole = b"".join(memoryview(pieces[n].as_buffer()) for n in sorted(pieces))
    return pa.RecordBatch.from_arrays([pa.array([whole], pa.binary())], names=["payload"])


def session(master: str = "local[2]") -> SparkSession:
    """Start one, with a Java that comes by pip where there is none."""
    from claimcheck.spark import ensure_java

    ensure_java()
    os.environ["PYTHONSAFEPATH"] = "1"  # the working folder is no place to import from
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have it
    builder = SparkSession.builder.master(master).appName("claimcheck-bench")
    for name, value in _OPTIONS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
