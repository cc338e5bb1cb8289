"""A streaming query in a process of its own, to be killed: it prints how far it is, and then waits.

sources_child.py read|write FOLDER FORMAT OPTIONS [before|after N]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from claimcheck.spark import ensure_java
from claimcheck.spark.sources import register


def say(text: str) -> None:
    print(text, flush=True)


def session() -> SparkSession:
    ensure_java()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    return spark


def wait_at(place: str, wanted: str) -> None:
    if place == wanted:
        say(place)
        time.sleep(600)


def read(df: DataFrame, folder: Path, stop: str = "") -> None:
    """Write each attempt of a batch as one line to the batch's file."""

    def keep(batch, number):
        wait_at(f"before {number}", stop)
        (folder / "out").mkdir(exist_ok=True)
        values = sorted(bytes(row.value).decode() for row in batch.collect())
        with (folder / "out" / f"{number}.jsonl").open("a") as file:
            file.write(json.dumps(values) + "\n")
        wait_at(f"after {number}", stop)

    query = df.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(keep)
    query.trigger(availableNow=True).start().awaitTermination()


def write(df: DataFrame, folder: Path, stop: str = "") -> None:
    """Copy to the topic ``copies``; stop as if killed between the commit of the sink and that of Spark."""
    query = df.writeStream.format("claimcheck_local").options(path=str(folder / "broker.sqlite"), topic="copies")
    query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    if not stop:
        return
    last = int(stop.split()[1])
    for log, first in (("commits", last), ("offsets", last + 1)):
        for path in (folder / "checkpoint" / log).iterdir():
            if int(path.name.strip(".").removesuffix(".crc")) >= first:
                path.unlink()
    wait_at(stop, stop)


if __name__ == "__main__":
    what, place, form, options, where = sys.argv[1:6]
    frame = session().readStream.format(form).options(**json.loads(options)).load()
    {"read": read, "write": write}[what](frame, Path(place), where)
    say("done")
    time.sleep(600)
