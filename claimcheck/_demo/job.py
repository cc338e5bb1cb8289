"""The reading half: a Spark job that reads the topic, resolves every envelope and looks into the payloads."""

from __future__ import annotations

import hashlib
import io
import struct
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from claimcheck._demo.files import Tally
from claimcheck._demo.produce import TOPIC
from claimcheck.spark import resolve, resolver
from claimcheck.transports.local import LocalBroker

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PARTITIONS", "Found", "Reading", "Topic", "read_as_dataframe", "read_as_rdd", "warm_up"]

PARTITIONS = 4
_FETCH = 16  # messages of up to 1 MiB at once


@dataclass(frozen=True, slots=True)
class Found:
    """What Spark says about one payload.

    Attributes:
        key: The message key: the file's name.
        size: Bytes.
        digest: SHA-256.
        entries: Files in the archive; ``None`` for anything but an archive.
        unpacked: Their uncompressed bytes together.
    """

    key: bytes
    size: int
    digest: str
    entries: int | None = None
    unpacked: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass over the whole topic.

    Attributes:
        name: How it was read.
        found: What was found, one for each payload.
        seconds: From the first message to the last result.
    """

    name: str
    found: list[Found] = field(repr=False)
    seconds: float


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic as Spark reads it: one Spark partition for each of its own, read where Spark wants it read."""

    broker: Path

    def __call__(self, partition: int) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Give the keys and values of one partition, in order, a few messages at a time."""
        with LocalBroker(self.broker) as broker:
            offset, end = 0, broker.end_offset(TOPIC, partition)
            while offset < end:
                for message in broker.fetch(TOPIC, partition, offset, min(_FETCH, end - offset)):
                    yield message.key, message.value
                    offset = message.offset + 1

    def rdd(self, spark: SparkSession) -> RDD[tuple[Any, Any]]:
        """The same as an RDD of pairs."""
        return spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS).flatMap(self)


@dataclass(frozen=True, slots=True)
class _Look:
    """Looks into one payload, in the worker: only the small result leaves it."""

    tally: Tally

    def __call__(self, pair: tuple[bytes, bytes]) -> Found:
        key, payload = pair
        self.tally.add(len(payload))
        return Found(key, len(payload), hashlib.sha256(payload).hexdigest(), *_archive(payload))


def warm_up(spark: SparkSession) -> None:
    """Do once, in small, what is measured later: the first query of a Spark loads classes for many seconds."""
    small = spark.createDataFrame([(b"", b"x")], "key binary, value binary")
    _digests(small.transform(resolve("value", config={"strategy": "inline"})))


def read_as_rdd(
    spark: SparkSession, topic: Topic, config: dict[str, Any], tally: Tally, *, chunks: Literal["refuse", "reassemble"]
) -> Reading:
    """Resolve with ``rdd.mapPartitions(resolver(...))`` and look into the payloads inside the workers."""
    begin = time.perf_counter()
    payloads = topic.rdd(spark).mapPartitions(resolver(config, keyed=True, chunks=chunks))
    found = payloads.map(_Look(tally)).collect()
    return Reading("RDD", found, time.perf_counter() - begin)


def read_as_dataframe(spark: SparkSession, topic: Topic, config: dict[str, Any]) -> Reading:
    """Resolve with ``df.transform(resolve(...))`` and let Spark's own functions work on the payload column."""
    begin = time.perf_counter()
    messages = spark.createDataFrame(topic.rdd(spark), "key binary, value binary")
    payloads = messages.transform(resolve("value", config=config))
    return Reading("DataFrame", _digests(payloads), time.perf_counter() - begin)


def _digests(payloads: DataFrame) -> list[Found]:
    rows = payloads.selectExpr("key", "length(payload) AS size", "sha2(payload, 256) AS digest").collect()
    return [Found(bytes(row.key), row.size, row.digest) for row in rows]


def _archive(payload: bytes) -> tuple[int | None, int]:
    """Entries and uncompressed bytes of a zip archive, such as a jar; read from its directory, nothing is unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, struct.error):
        return None, 0
    return len(infos), sum(info.file_size for info in infos)
