"""Claimcheck for PySpark: envelopes in, payloads out, on the executors.

>>> rdd.mapPartitions(resolver("claimcheck.yaml"))                 # doctest: +SKIP
>>> df.transform(resolve("value", config="claimcheck.yaml"))       # doctest: +SKIP

Importing this imports no pyspark; using it does, and says which extra brings it where it is missing. On a machine
without Java call `ensure_java` before the first ``SparkSession``.
"""

from claimcheck.spark.java import ensure_java
from claimcheck.spark.mapping import map_payloads
from claimcheck.spark.metrics import Metrics, measures
from claimcheck.spark.offloading import offload
from claimcheck.spark.progress import progress
from claimcheck.spark.rdd import resolver
from claimcheck.spark.reassembly import reassemble
from claimcheck.spark.resolving import resolve
from claimcheck.spark.row import DeadLetter, ResultError
from claimcheck.spark.skew import repartition_by_payload

__all__ = [
    "DeadLetter",
    "Metrics",
    "ResultError",
    "ensure_java",
    "map_payloads",
    "measures",
    "offload",
    "progress",
    "reassemble",
    "repartition_by_payload",
    "resolve",
    "resolver",
]
