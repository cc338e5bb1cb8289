"""Claimcheck for PySpark: resolves and offloads payloads on the executors.

>>> rdd.mapPartitions(resolver("claimcheck.yaml"))                 # doctest: +SKIP
>>> df.transform(resolve("value", config="claimcheck.yaml"))       # doctest: +SKIP

Importing this package does not import pyspark; if pyspark is missing, its first use raises `MissingDependencyError`
naming the extra to install. On a machine without Java, call `ensure_java` before the first ``SparkSession``.
"""

from claimcheck.spark._garbage import GarbageDeletion, GarbageReport, collect_garbage
from claimcheck.spark._java import ensure_java
from claimcheck.spark._metrics import Metrics, progress
from claimcheck.spark._offload import offload, pin
from claimcheck.spark._reading import DeadLetter, ResultError, resolver
from claimcheck.spark._reassemble import reassemble
from claimcheck.spark._resolve import map_payloads, max_offsets, repartition_by_payload, resolve
from claimcheck.spark._sql import as_file
from claimcheck.spark.sources import register

__all__ = [
    "DeadLetter",
    "GarbageDeletion",
    "GarbageReport",
    "Metrics",
    "ResultError",
    "as_file",
    "collect_garbage",
    "ensure_java",
    "map_payloads",
    "max_offsets",
    "offload",
    "pin",
    "progress",
    "reassemble",
    "register",
    "repartition_by_payload",
    "resolve",
    "resolver",
]
