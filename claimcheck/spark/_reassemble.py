"""Chunks to payloads: ``df.transform(reassemble("value", config="claimcheck.yaml"))``, batch and streaming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from claimcheck._validation import check_value
from claimcheck.spark._columns import check_new, error_type, with_fields, with_index_names
from claimcheck.spark._metrics import Metrics
from claimcheck.spark._reading import MAX_INFLIGHT_BYTES, Reading
from claimcheck.spark._reassemble_batch import reassemble_batch
from claimcheck.spark._reassemble_common import ColumnIndexes, ExpireBy
from claimcheck.spark._reassemble_stream import reassemble_stream
from claimcheck.spark._worker import AnyConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def reassemble(
    column: str,
    *,
    config: AnyConfig,
    source: Sequence[str] | None = None,
    destination: str | None = None,
    expire_by: ExpireBy = "clock",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that joins chunks into payloads, for ``df.transform``; on a batch and on a stream.

    Returns one row per payload, in no particular order, with three more columns: the binary ``payload``, ``uuid``, text
    that is null for rows that did not come as chunks, and ``error``, a struct of ``type``, ``message``, ``store`` and
    ``key``. A payload in chunks gets the row of its first chunk, with a null ``column``, since no single message is the
    payload. Plain messages, literals, pointers and nulls in the same column are resolved as by
    `claimcheck.spark.resolve` and keep their rows. Bad messages become rows with an error: a damaged envelope, a
    payload that is gone or too large, chunks that conflict or are missing. A payload aborted by its writer becomes no
    row. Errors that are not specific to one row (a store that is down) fail the task.

    The checksum and the signature of a payload in chunks are in the headers of its last message, not in the chunks.
    They are checked if the DataFrame has the headers, in a column ``headers`` as of Spark's Kafka source, or in a map
    of texts ``properties``; without them, bytes changed inside a chunk after sending go unnoticed, and with
    ``signing.require`` every payload in chunks is an error. An abort envelope whose signature is missing or wrong is
    ignored.

    **On a batch** one shuffle brings all chunks of a payload together, and each partition holds one payload in memory
    at a time. Chunks that are not in the DataFrame are missing.

    **On a stream** chunks are stored in ``config.store``, and small references to them in Spark's state, until the
    payload is complete. Their names depend on the query and the content, so that a replay writes the same ones. A later
    micro-batch deletes them, when the one with the payload or its error is committed, so a replay never misses one.
    Those of a query that was stopped, or that could not be deleted, expire with their store: its lifetime must be well
    above ``chunking.expire_after_seconds``, for which the first chunk waits for the others, and which must be much
    longer than a micro-batch. Each micro-batch reads the source twice, once for the chunks and once for everything
    else. Streaming needs pyspark 4.1 and the RocksDB state store.

    Args:
        column: A binary column of messages.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`. The limits in
            ``chunking`` on one payload apply, and ``limits``; those on pending payloads do not.
        source: The columns that identify where messages came from and who sent them: text, whole numbers or binary.
            Chunks of different sources never mix, and an abort envelope applies only to its own source. ``None`` for
            those of ``topic``, ``partition`` and ``key`` that the DataFrame has, ``()`` for none.
        destination: The topic that all messages were read from, for the check of signatures. ``None`` uses the column
            ``topic`` of each row.
        expire_by: On a stream: ``clock`` uses the machine's time, which also passes while no messages arrive; in Spark
            a query with ``trigger(availableNow=True)`` then never ends. ``data`` uses the arrival of messages
            of any kind: the query ends, and leaves incomplete payloads to the next run.
        max_inflight_bytes: Bound on the bytes of the payloads or chunks that one task reads or writes at once.
        metrics: Counts the rows of the result.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns when called and reads nothing yet.

    Raises:
        ConfigError: The configuration or an option is invalid. The function raises it for columns, and on a stream for
            an unsupported version of pyspark, state store or configuration.
        MissingDependencyError: pyspark, pyarrow or pandas is missing; on a stream also protobuf.
    """
    reading = Reading.of(config, max_inflight_bytes, metrics, "null")
    check_value("expire_by", expire_by, ExpireBy)

    def transform(df: DataFrame) -> DataFrame:
        placed = reading.at(df, destination)
        check_new(df.columns, uuid="uuid", payload="payload", error="error")
        columns = ColumnIndexes.find(df, column, source)
        placed = replace(placed, origin=replace(placed.origin, headers=columns.headers))
        named, schema = with_index_names(df), _schema(df, columns)
        if df.isStreaming:
            return reassemble_stream(named, columns, placed, expire_by, schema)
        return reassemble_batch(named, columns, placed, schema)

    return transform


def _schema(df: DataFrame, columns: ColumnIndexes) -> StructType:
    """Return the columns of the input, with nullable messages, and those that are added."""
    from pyspark.sql.types import BinaryType, StringType, StructField

    kept = list(df.schema.fields)
    kept[columns.message] = StructField(kept[columns.message].name, BinaryType())
    return with_fields(kept, uuid=StringType(), payload=BinaryType(), error=error_type())
