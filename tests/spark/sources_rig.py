"""Helpers for the tests of sources: streams that run to their end, and drivers that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("sources_child.py")


def stream(spark, form: str, options: dict[str, Any]):
    """Return a streaming DataFrame."""
    told = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return spark.readStream.format(form).options(**told).load()


def batches_of(df, checkpoint: Path) -> dict[int, list[Any]]:
    """Run until all available rows are read; return the rows of every batch by its number."""
    seen: dict[int, list[Any]] = {}

    def keep(batch, number):
        seen[number] = batch.collect()

    query = df.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).foreachBatch(keep)
    query.start().awaitTermination()
    return seen


def values(seen: dict[int, list[Any]]) -> list[bytes]:
    """Return the values of all rows of all batches, sorted."""
    return sorted(bytes(row.value) for rows in seen.values() for row in rows)


def failure(run) -> str:
    """Return the text of the error that Spark raises."""
    with pytest.raises(Exception) as caught:
        run()
    return str(caught.value)


def run_child(environment: dict[str, str], *arguments: object, stop: str, whom: str = "all") -> None:
    """Run a query in a process of its own until it reaches ``stop``; then kill its process group, or only its JVM."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), *map(str, arguments), stop, whom],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline().strip() == stop
        if whom == "jvm":
            assert child.stdout.readline().strip() == "noticed"
    finally:
        if whom != "jvm":
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


def written(folder: Path) -> dict[int, list[list[str]]]:
    """Return the rows that the child wrote for every batch, once for each attempt."""
    logs = {int(path.stem): path.read_text().splitlines() for path in (folder / "out").glob("*.jsonl")}
    return {number: [json.loads(line) for line in lines] for number, lines in logs.items()}
