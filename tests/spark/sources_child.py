"""A streaming query in a process of its own, to be killed: it says where it stands, and then waits for the end.

sources_child.py read|write BROKER FOLDER [before|after N]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

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


def read(broker: str, folder: Path, stop: str) -> None:
    def keep(batch, number):
        wait_at(f"before {number}", stop)
        (folder / "out").mkdir(exist_ok=True)
        values = sorted(bytes(row.value).decode() for row in batch.collect())
        with (folder / "out" / f"{number}.jsonl").open("a") as file:
            file.write(json.dumps(values) + "\n")
        wait_at(f"after {number}", stop)

    source = session().readStream.format("claimcheck_local")
    df = source.options(path=broker, topic="orders", maxRowsPerTrigger="15").load()
    query = df.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(keep)
    query.trigger(availableNow=True).start().awaitTermination()


def write(broker: str, folder: Path, stop: str) -> None:
    """Stops between the sink's commit and Spark's: the log of commits is taken away, as if it had died before it."""
    spark = session()
    source = spark.readStream.format("claimcheck_local")
    df = source.options(path=broker, topic="orders", maxRowsPerTrigger="15").load()
    query = df.writeStream.format("claimcheck_local").options(path=broker, topic="copies")
    query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    if stop:
        number = stop.split()[1]
        for path in (folder / "checkpoint" / "commits").iterdir():
            if path.name.strip(".").removesuffix(".crc") >= number:
                path.unlink()
        for path in (folder / "checkpoint" / "offsets").iterdir():
            if path.name.strip(".").removesuffix(".crc") > number:
                path.unlink()
        wait_at(stop, stop)


if __name__ == "__main__":
    what, path, place, where = sys.argv[1:5]
    {"read": read, "write": write}[what](path, Path(place), where)
    say("done")
    time.sleep(600)
