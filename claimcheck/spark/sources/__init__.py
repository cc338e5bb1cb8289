"""Sources and sinks for Spark, in pure Python: Pulsar topics, and the embedded broker, which needs no server.

>>> register(spark)                                                              # doctest: +SKIP
>>> spark.readStream.format("claimcheck_pulsar").option("serviceUrl", "...")     # doctest: +SKIP
>>> spark.read.format("claimcheck_local").option("path", "broker.sqlite")        # doctest: +SKIP

They move messages as they are. ``df.transform(resolve("value", config="claimcheck.yaml"))`` makes payloads of what was
read, and the option ``config`` of a sink offloads what is too large to be sent. Importing this imports no pyspark.
"""

from claimcheck.spark.sources._errors import (
    AccessError,
    DataLossError,
    ForeignMessageError,
    RowSendError,
    SubscriptionBusyError,
)
from claimcheck.spark.sources._registration import register

__all__ = ["AccessError", "DataLossError", "ForeignMessageError", "RowSendError", "SubscriptionBusyError", "register"]
