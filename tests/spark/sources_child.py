"""A streaming query in a process of its own, to be killed: it prints how far it is, and then waits.

sources_child.py read FOLDER FORMAT OPTIONS [before|after N]
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


if __name__ == "__main__":
    place, form, options, where = sys.argv[2:6]
    frame = session().readStream.format(form).options(**json.loads(options)).load()
    read(frame, Path(place), where)
    say("done")
    time.sleep(600)
