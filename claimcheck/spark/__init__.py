"""Claimcheck for PySpark: envelopes in, payloads out, on the executors.

>>> rdd.mapPartitions(resolver("claimcheck.yaml"))                 # doctest: +SKIP
>>> df.transform(resolve("value", config="claimcheck.yaml"))       # doctest: +SKIP

Importing this imports no pyspark; using it does, and says which extra brings it where it is missing. On a machine
without Java call `ensure_java` before the first ``SparkSession``.
"""

from claimcheck.spark.java import ensure_java
from claimcheck.spark.rdd import resolver
from claimcheck.spark.resolving import resolve

__all__ = ["ensure_java", "resolve", "resolver"]
