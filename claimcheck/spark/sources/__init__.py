"""Sources for Pulsar topics and for the embedded broker, in pure Python.

>>> register(spark)                                                              # doctest: +SKIP
>>> spark.readStream.format("claimcheck_pulsar").option("serviceUrl", "...")     # doctest: +SKIP
>>> spark.read.format("claimcheck_local").option("path", "broker.sqlite")        # doctest: +SKIP

Messages are read unchanged: ``df.transform(resolve("value", config="claimcheck.yaml"))`` resolves their payloads.
Importing this imports no pyspark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from claimcheck._validation import fail
from claimcheck.errors import import_vendor
from claimcheck.spark.sources._options import (
    AccessError,
    DataLossError,
    ForeignMessageError,
    SubscriptionBusyError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AccessError", "DataLossError", "ForeignMessageError", "SubscriptionBusyError", "register"]


def register(spark: SparkSession) -> None:
    """Register ``format("claimcheck_pulsar")`` and ``format("claimcheck_local")``; registering again is harmless.

    The processes that plan and run a query import this package: install it on the driver's machine and on the
    executors (the process that plans a streaming query does not see files from ``--py-files``).

    Args:
        spark: A session, also of Spark Connect.

    Raises:
        MissingDependencyError: pyspark or pyarrow is not installed.
        ConfigError: This pyspark is older than 4.2, in which a source cannot limit what a trigger reads.
    """
    _check_version(import_vendor("pyspark", extra="spark").__version__)
    import_vendor("pyarrow", extra="spark")
    from claimcheck.spark.sources._formats import LocalSource, PulsarSource

    for source in (PulsarSource, LocalSource):
        spark.dataSource.register(source)


def _check_version(version: str) -> None:
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (4, 2):
        fail("pyspark", found=f"version {version}", expected="4.2 or newer (pip install 'pyspark>=4.2')")
