"""In a process of its own: resolve payloads in one partition of a fresh Spark, and print its worker's peak in bytes.

python spark_child.py '{"config": {...}, "messages": ["hex", ...], "rows": 3000}'
"""

from __future__ import annotations

import json
import sys
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
    print(max(_peaks("pyspark.daemon")))
    spark.stop()


def _peaks(program: str) -> list[int]:
    """VmHWM of all processes of a program that are there: Spark keeps its workers for a while."""
    found = [0]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if program in (process / "cmdline").read_text():
                status = (process / "status").read_text()
                found.append(int(status.partition("VmHWM:")[2].split()[0]) << 10)
        except (OSError, IndexError):  # it ended meanwhile
            continue
    return found


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
