"""A streaming query in a process of its own, to be killed: it prints how far it is, and then waits.

    sources_child.py read FOLDER FORMAT OPTIONS "after N" all|jvm

With ``jvm`` it kills only the JVM under it, and its Python processes are left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

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


def stop_here(df: DataFrame, whom: str) -> None:
    if whom == "jvm":
        bridge: Any = df.sparkSession._jvm
        jvm = bridge.java.lang.ProcessHandle.current().pid()
        os.kill(jvm, signal.SIGKILL)
    else:
        time.sleep(600)


def read(df: DataFrame, folder: Path, stop: str = "", whom: str = "all") -> None:
    """Write each attempt of a batch as one line to the batch's file."""

    def keep(batch, number):
        (folder / "out").mkdir(exist_ok=True)
        values = sorted(bytes(row.value).decode() for row in batch.collect())
        with (folder / "out" / f"{number}.jsonl").open("a") as file:
            file.write(json.dumps(values) + "\n")
        if stop == f"after {number}":
            say(stop)
            stop_here(df, whom)

    query = df.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(keep)
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    place, form, options, where, whom = sys.argv[2:7]
    frame = session().readStream.format(form).options(**json.loads(options)).load()
    with contextlib.suppress(Exception):  # there is no JVM any more
        read(frame, Path(place), where, whom)
    say("noticed" if whom == "jvm" else "done")
    os._exit(0)  # there is nobody to say goodbye to
