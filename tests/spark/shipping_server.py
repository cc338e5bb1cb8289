"""A Spark Connect server. Prints its port; ends when its standard input is closed.

python shipping_server.py MASTER
"""

from __future__ import annotations

import os
import sys

from claimcheck.spark import ensure_java

ensure_java()
if "installed" not in sys.argv:
    os.environ.pop("PYTHONPATH", None)  # the executors' Java inherits the environment

from pyspark.sql import SparkSession  # noqa: E402 - a Java is needed first


def main(master: str) -> None:
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.artifact.isolation.enabled": "true",  # as in Spark's own server
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.task.maxFailures": "1",  # fail without retries
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    }
    builder = SparkSession.builder.master(master).appName("shipping-server")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    print(getattr(service, "MODULE$").localPort(), flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
