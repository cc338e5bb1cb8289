"""Claimcheck for PySpark: envelopes in, payloads out, on the executors.

>>> rdd.mapPartitions(resolver("claimcheck.yaml"))                 # doctest: +SKIP
>>> df.transform(resolve("value", config="claimcheck.yaml"))       # doctest: +SKIP

Importing this imports no pyspark; using it does, and says which extra brings it where it is missing. On a machine
without Java call `ensure_java` before the first ``SparkSession``.
"""

from claimcheck.spark._java import ensure_java
from claimcheck.spark._map_payloads import map_payloads
from claimcheck.spark._metrics import Metrics, measures
from claimcheck.spark._offload import offload
from claimcheck.spark._progress import progress
from claimcheck.spark._reassemble import reassemble
from claimcheck.spark._repartition_by_payload import repartition_by_payload
from claimcheck.spark._resolve import resolve
from claimcheck.spark._resolver import resolver
from claimcheck.spark._rows import DeadLetter, ResultError

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
