"""Makes the sources known to a Spark session, and says what is missing where that cannot be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from claimcheck._registry import import_vendor
from claimcheck._validation import fail
from claimcheck.spark._worker import is_one_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_version", "register"]

_OLDEST = (4, 2)


def register(spark: SparkSession) -> None:
    """Make ``format("claimcheck_pulsar")`` and ``format("claimcheck_local")`` known; doing it twice is harmless.

    The processes that plan and run a query import this package: install it on the driver's machine and on the
    executors (what ``--py-files`` brings is not seen by the process that plans a streaming query).

    Args:
        spark: A session, of Spark Connect too.

    Raises:
        MissingDependencyError: pyspark or pyarrow is not installed.
        ConfigError: This pyspark is older than 4.2: before that, a source cannot limit what a trigger reads.
    """
    check_version(import_vendor("pyspark", extra="spark").__version__)
    import_vendor("pyarrow", extra="spark")
    from claimcheck.spark.sources._local.source import ClusterLocalSource, LocalSource
    from claimcheck.spark.sources._pulsar.source import ClusterPulsarSource, PulsarSource

    sources = (PulsarSource, LocalSource) if is_one_machine(spark) else (ClusterPulsarSource, ClusterLocalSource)
    for source in sources:
        spark.dataSource.register(source)


def check_version(version: str) -> None:
    """Refuse a pyspark whose sources start again from nowhere.

    Raises:
        ConfigError: It is too old; says which would do.
    """
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
        wanted = ".".join(map(str, _OLDEST))
        fail("pyspark", found=f"version {version}", expected=f"{wanted} or newer (pip install 'pyspark>={wanted}')")
