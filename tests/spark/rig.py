"""Helpers of the Spark tests: DataFrames and files of messages, chunks in the published format, streams."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import claimcheck
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


# A topic as files that a stream reads, one per micro-batch --------------------------------------------------------

SCHEMA = (
    "topic string, partition int, offset bigint, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)


class TopicFiles:
    """Files that a stream reads in the order in which they were put."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._files = self._rows = 0

    def stream(self, spark: Any) -> Any:
        """Return a streaming DataFrame with one file in each micro-batch."""
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.folder))

    def put(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add one file with rows of `SCHEMA`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        types = [pa.string(), pa.int32(), pa.int64(), pa.binary(), pa.binary(), pa.list_(pair)]
        names = ["topic", "partition", "offset", "key", "value", "headers"]
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(types)
        columns[-1] = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in columns[-1]]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        path, hidden = self.folder / f"{self._files:04}.parquet", self.folder / f".{self._files:04}"
        pq.write_table(pa.table(dict(zip(names, arrays, strict=True))), hidden)
        os.utime(hidden, (1_000_000_000 + self._files,) * 2)  # Spark sorts files by time
        hidden.rename(path)
        self._files += 1

    def put_values(self, *messages: tuple[str, int, bytes | None]) -> list[int]:
        """Add one file of topics, partitions and values; offsets go on from file to file, and are returned."""
        offsets = list(range(self._rows, self._rows + len(messages)))
        self._rows += len(messages)
        self.put(
            [
                (topic, number, at, None, value, None)
                for at, (topic, number, value) in zip(offsets, messages, strict=True)
            ]
        )
        return offsets


# Streams that run to their end -------------------------------------------------------------------------------------


def stream(spark: Any, form: str, options: dict[str, Any]) -> Any:
    """Return a streaming DataFrame."""
    told = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return spark.readStream.format(form).options(**told).load()


def batches_of(df: Any, checkpoint: Path) -> dict[int, list[Any]]:
    """Run until all available rows are read; return the rows of every batch by its number."""
    seen: dict[int, list[Any]] = {}

    def keep(batch: Any, number: int) -> None:
        seen[number] = batch.collect()

    query = df.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).foreachBatch(keep)
    query.start().awaitTermination()
    return seen


def values(seen: dict[int, list[Any]]) -> list[bytes]:
    """Return the values of all rows of all batches, sorted."""
    return sorted(bytes(row.value) for rows in seen.values() for row in rows)


def failure(run: Callable[[], object]) -> str:
    """Return the text of the error that Spark raises."""
    with pytest.raises(Exception) as caught:
        run()
    return str(caught.value)


def written(folder: Path) -> dict[int, list[list[dict[str, Any]]]]:
    """Return the rows that `write_batches` has written for every batch, once for each attempt."""
    logs = {int(path.stem): path.read_text().splitlines() for path in (folder / "out").glob("*.jsonl")}
    return {number: [json.loads(line) for line in logs[number]] for number in sorted(logs)}


def staged(folder: Path) -> Path:
    """Copy the tested package, with its stores, to a folder of its own, as in a wheel."""
    package, ignore = folder / "package" / "claimcheck", shutil.ignore_patterns("__pycache__", "stores")
    stores = importlib.import_module("claimcheck.stores").__file__
    shutil.copytree(Path(claimcheck.__file__).parent, package, ignore=ignore)
    shutil.copytree(Path(str(stores)).parent, package / "stores", ignore=ignore)
    return package
