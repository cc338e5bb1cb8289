"""A Spark session that starts while other work goes on, and leaves nothing on the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from claimcheck.spark import ensure_java, register, resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def session(scratch: Path) -> Generator[Future[SparkSession]]:
    """Start Spark in a thread, and stop it at the end: a JVM that was interrupted while it started would stay."""
    with ThreadPoolExecutor(1) as thread:
        spark = thread.submit(start, scratch)
        try:
            yield spark
        finally:
            if spark.exception() is None:
                spark.result().stop()


def start(scratch: Path) -> SparkSession:
    """Start Spark, with the Java of the extra `java` if the machine has none."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    ensure_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[*]").appName("claimcheck demo")
    folders = {"spark.local.dir": f"{scratch}/spark", "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
    for name, value in (OPTIONS | folders).items():
        builder = builder.config(name, value)
    log = scratch / "spark.log"
    try:
        with standard_error_to(log):
            spark = builder.getOrCreate()
    except Exception as error:
        raise RuntimeError(f"Spark did not start ({type(error).__name__}): {log.read_text()[-2000:]}") from error
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    small = spark.createDataFrame([(b"payload",)], "value binary")
    small.transform(resolve("value", config={"strategy": "inline"})).collect()  # the first query takes many seconds
    return spark


@contextmanager
def standard_error_to(file: Path) -> Generator[None]:
    """Send what the JVM prints while it starts to a file, which it inherits; its warnings ignore the log level."""
    saved = os.dup(sys.stderr.fileno())
    with file.open("wb") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        yield
    finally:
        os.dup2(saved, sys.stderr.fileno())
        os.close(saved)


def explained(error: Exception) -> str:
    """Return the decisive line of an error; Spark's own text has pages."""
    if not type(error).__module__.startswith(("py4j", "pyspark")):
        return str(error)
    lines = re.findall(r"^(?:claimcheck\.[\w.]+|[A-Z]\w*Error): .+$", str(error), re.MULTILINE)
    return str(lines[-1] if lines else str(error).splitlines()[0])
