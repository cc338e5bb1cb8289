"""A topic as files that a stream reads, one per micro-batch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SCHEMA = (
    "topic string, partition int, offset bigint, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@contextlib.contextmanager
def stateful_session(spark: Any) -> Iterator[Any]:
    """The session with the state store that stateful operators need."""
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    yield spark
    spark.conf.set(PROVIDER, before)


class TopicFiles:
    """Files that a stream reads in the order in which they were put."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._files = self._rows = 0

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
