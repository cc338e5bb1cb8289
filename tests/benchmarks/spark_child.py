"""In a process of its own: resolve payloads in one partition of a fresh Spark, and print its worker's peak in bytes.

python spark_child.py '{"config": {...}, "messages": ["hex", ...], "rows": 3000}'
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

from claimcheck.spark import resolve
from tests.benchmarks.spark_session import session


def main(what: dict[str, Any]) -> None:
    """Resolve and look."""
    spark = session("local[1]")
    messages = [bytes.fromhex(message) for message in what["messages"]]
    rows = [(messages[n % len(messages)],) for n in range(what["rows"])]
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, 1), "value binary")
    df.transform(resolve("value", config=what["config"])).write.format("noop").mode("overwrite").save()
    print(max(_peaks()))
    spark.stop()


def _peaks() -> list[int]:
    """VmHWM of the workers of this Spark, which keeps them for a while."""
    parents = {pid: parent for pid, parent, _ in _processes()}
    return [peak for pid, _, peak in _processes() if _is_below(pid, parents)]


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    """Whether a process descends from this one by way of Spark's Java, whose own name is another."""
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def _processes() -> Iterator[tuple[int, int, int]]:
    """Number, parent and peak of each process of Python's that works for a Spark."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status, works = (process / "status").read_text(), "pyspark.daemon" in (process / "cmdline").read_text()
        except OSError:  # it ended meanwhile
            continue
        said = {line.partition(":")[0]: line.partition(":")[2].split() for line in status.splitlines()}
        peak = int(said["VmHWM"][0]) << 10 if works and "VmHWM" in said else 0
        yield int(process.name), int(said["PPid"][0]), peak


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
