"""Sources for Pulsar topics and for the embedded broker, in pure Python, and the function for SQL.

>>> register(spark, "claimcheck.yaml")                                           # doctest: +SKIP
>>> spark.readStream.format("claimcheck_pulsar").option("serviceUrl", "...")     # doctest: +SKIP
>>> spark.read.format("claimcheck_local").option("path", "broker.sqlite")        # doctest: +SKIP
>>> spark.sql("SELECT claimcheck_resolve(value, headers) FROM orders")           # doctest: +SKIP

Sources read messages unchanged. Importing this imports no pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from claimcheck._validation import fail
from claimcheck.errors import import_vendor
from claimcheck.spark._columns import name_python, older_pyspark
from claimcheck.spark._sql import sql_function
from claimcheck.spark._worker import AnyConfig
from claimcheck.spark.sources._options import (
    AccessError,
    DataLossError,
    ForeignMessageError,
    SubscriptionBusyError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AccessError", "DataLossError", "ForeignMessageError", "SubscriptionBusyError", "register"]


def register(spark: SparkSession, config: AnyConfig | None = None) -> None:
    """Register the sources, and with a configuration the SQL function ``claimcheck_resolve``; again is safe.

    ``claimcheck_resolve(value[, headers[, topic]])`` returns the payload of a message, and null for null. It checks
    signatures as `resolve` does, with the headers and the topic of the message: those of Spark's source for Kafka, or
    Pulsar's properties. A bad message fails the query. It is not deterministic for Spark: payloads are fetched once for
    each row, and an aggregate function takes its result from a subquery.

    The sources are ``format("claimcheck_pulsar")`` and ``format("claimcheck_local")``. Install this package on the
    driver's machine and the executors: the process that plans a streaming query sees no files from ``--py-files``.

    Args:
        spark: A session, also of Spark Connect.
        config: Of the function, as in `resolve`; it takes the place of an earlier one, also in existing views. With
            pyspark older than 4.2 only the function is registered.

    Raises:
        MissingDependencyError: pyspark, pyarrow or, for the function, pandas is not installed.
        ConfigError: The configuration is invalid; or there is none, and this pyspark is older than 4.2, in which a
            source cannot limit what a trigger reads.
    """
    old = older_pyspark((4, 2))
    import_vendor("pyarrow", extra="spark")
    name_python(spark)
    if config is not None:
        spark.udf.register("claimcheck_resolve", sql_function(config))
    if old and config is None:
        fail("pyspark", found=f"version {old}", expected="4.2 or newer (pip install 'pyspark>=4.2')")
    if not old:
        from claimcheck.spark.sources._formats import LocalSource, PulsarSource

        for source in (PulsarSource, LocalSource):
            spark.dataSource.register(source)
