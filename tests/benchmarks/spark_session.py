"""The Spark that is measured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session"]

_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",  # as the guide recommends
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",  # as the README recommends; the default is 64m
    "spark.sql.shuffle.partitions": "8",
}


def session(master: str = "local[2]") -> SparkSession:
    """Start one, with a Java that comes by pip where there is none."""
    from claimcheck.spark import ensure_java

    ensure_java()
    os.environ["PYTHONSAFEPATH"] = "1"  # the working folder is no place to import from
    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    from tests.benchmarks import spark_rows, spark_source_rows, spark_ways

    for module in (spark_rows, spark_source_rows, spark_ways):  # workers do not have them
        cloudpickle.register_pickle_by_value(module)
    builder = SparkSession.builder.master(master).appName("claimcheck-bench")
    for name, value in _OPTIONS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
