"""Helpers of the Spark tests: DataFrames of messages, chunks in the published format, and payloads that are gone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from claimcheck._wire.envelope import encode_chunk


def frame(spark: Any, messages: Iterable[bytes | None], partitions: int = 1) -> Any:
    """Return a DataFrame of messages, numbered in order."""
    rows = list(enumerate(messages))
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), "n int, value binary")


def batch_of(messages: Iterable[bytes | None], **options: Any) -> Any:
    """Return an Arrow batch with one column, ``value``."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(messages, type=options.get("type", pa.binary()))], names=["value"])


def in_chunks(payload: bytes, size: int = 700, uuid: str | None = None) -> list[bytes]:
    """Return a payload as chunks of up to ``size`` bytes."""
    uuid = uuid or str(uuid4())
    count = -(-len(payload) // size)
    return [encode_chunk(uuid, n, count, payload[n * size : (n + 1) * size]) for n in range(count)]


def remove_stored(config: Any) -> None:
    """Delete all stored payloads."""
    for path in Path(config["stores"]["disk"]["path"]).rglob("*"):
        if path.is_file():
            path.unlink()
