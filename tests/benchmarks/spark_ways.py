"""The Spark that is measured, and what people write by hand to have payloads in it; it travels to workers by value."""

from __future__ import annotations

import os
import random
import struct
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import redis
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from claimcheck import HEADER

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


def client(url: str) -> Any:
    """One client for each process."""
    if url not in _clients:
        _clients[url] = redis.Redis.from_url(url)
    return _clients[url]


def naive(url: str) -> Callable[[DataFrame], DataFrame]:
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


def dropped(df: DataFrame) -> DataFrame:
    """Take payloads out of Spark, and do nothing with them."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([len(batch)])], names=["rows"])

    return df.mapInArrow(stage, "rows long")


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
    from tests.benchmarks import spark_rows, spark_ways

    for module in (spark_rows, spark_ways):  # workers do not have them
        cloudpickle.register_pickle_by_value(module)
    builder = SparkSession.builder.master(master).appName("claimcheck-bench")
    for name, value in _OPTIONS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
