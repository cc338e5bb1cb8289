"""Tries relative paths in a session on a cluster. Reads JSON; prints the error of each step as JSON.

The cluster is local-cluster, whose executors have folders of their own. It runs no job, so none is started.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from claimcheck.spark import ensure_java, map_payloads, offload, reassemble, resolve, resolver

ensure_java()

from pyspark.sql import SparkSession  # noqa: E402 - a Java is needed first


def steps(spark: SparkSession, config: Any) -> dict[str, Callable[[], object]]:
    """Return everything that opens a store on an executor."""
    df = spark.createDataFrame([(bytearray(b"payload"),)], "value binary")
    return {
        "resolve": lambda: df.transform(resolve("value", config=config)),
        "map_payloads": lambda: df.transform(map_payloads(len, "bytes int", column="value", config=config)),
        "offload": lambda: df.transform(offload("value", destination="orders", config=config)),
        "reassemble": lambda: df.transform(reassemble("value", config=config)),
        "resolver": lambda: resolver(config),
    }


def error_of(step: Callable[[], object]) -> str | None:
    """Return the end of a step's error: Spark's errors begin with a location."""
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-2000:]}"
    return None


def main(given: dict[str, Any]) -> None:
    builder = SparkSession.builder.master("local-cluster[1,1,1024]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    found: dict[str, Any] = {}
    for name, path in given["cases"].items():
        stores = {"disk": {"type": "filesystem", "path": path, "create": True}}
        config = {"strategy": "external", "stores": stores}
        found[name] = {step: error_of(call) for step, call in steps(spark, config).items()}
    found["jobs"] = len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(json.load(sys.stdin))
