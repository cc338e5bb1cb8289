"""What a job writes: ``df.transform(reassemble("value", config="claimcheck.yaml"))``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from claimcheck.spark._columns import by_place, check_new, check_types, error_type, need_arrow, with_fields
from claimcheck.spark._fetching import (
    MAX_INFLIGHT_BYTES,
    OUT_BATCH_BYTES,
    Concurrency,
    check_choice,
    check_seconds,
)
from claimcheck.spark._metrics import Metrics
from claimcheck.spark._reassemble import batch, streaming
from claimcheck.spark._reassemble.options import ExpireBy, Options, Places
from claimcheck.spark._worker import AnyConfig, as_config, check_paths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["reassemble"]

_REMEMBER_SECONDS = 3600.0


def reassemble(
    column: str,
    *,
    config: AnyConfig,
    payload: str = "payload",
    error: str = "error",
    uuid: str = "uuid",
    source: Sequence[str] | None = None,
    headers: str | None = None,
    expire_after_seconds: float | None = None,
    expire_by: ExpireBy = "clock",
    remember_seconds: float = _REMEMBER_SECONDS,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
    out_batch_bytes: int = OUT_BATCH_BYTES,
) -> Callable[[DataFrame], DataFrame]:
    """Make the function that puts chunks together, for ``df.transform``; on a batch and on a stream.

    One row comes out for each payload, in no particular order. For chunks it is the row of the first one, its
    ``column`` null, since no single message is the payload any more. Plain messages, literals, pointers and nulls in
    the same column are resolved, as `claimcheck.spark.resolve` does, and keep their row as it is. What cannot be had
    is a row with an error: a damaged envelope, a payload that is gone or too large, chunks that contradict each other
    or are missing. A payload that its writer gave up is no row. Errors that are not about one row (a store
    that is down) fail the task.

    The checksum of a payload in chunks stands in the headers of the last one, not in the chunks. It is checked where
    the DataFrame has them; without them, bytes that were changed within a chunk after it was sent go unnoticed.

    **On a batch** all chunks of a payload meet in one shuffle, whose partitions hold one payload in memory at a time.
    What is missing in the DataFrame counts as missing.

    **On a stream** chunks rest in ``config.store``, and small references to them in Spark's state, until the payload
    is complete. They are written under names that follow from the query and their content, so that a replay writes
    the same ones. They are never deleted here, because a replay may need them again: the store's TTL or a lifecycle
    rule does that, well after ``expire_after_seconds``. The source is read twice in each micro-batch, once
    for the chunks and once for all else. It needs pyspark 4.1, and the RocksDB state store.

    Args:
        column: A binary column of messages.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`. The limits of
            ``chunking`` on one payload hold, and ``limits``; those on what is pending do not.
        payload: Name of the binary column to add.
        error: Name of the column to add for errors, a struct of ``type``, ``message``, ``store`` and ``key``.
        uuid: Name of the text column to add; null for what did not come as chunks.
        source: The columns that tell apart where messages came from and who sent them: text, whole numbers or binary.
            Chunks of different sources never mix, and an abort envelope applies to the chunks of its own source only.
            ``None`` for those of ``topic``, ``partition`` and ``key`` that the DataFrame has, ``()`` for none.
        headers: The column of headers, in the form of Spark's source for Kafka, or a map of texts. ``None`` for
            ``headers`` or ``properties``, if one is there in such a form.
        expire_after_seconds: On a stream: how long the first chunk that came waits for the others; 0 for ever. Far
            above the time of a micro-batch, please. ``None`` takes that of ``chunking``.
        expire_by: On a stream: ``clock`` counts the time of the machine, also while nothing comes; a query with
            ``trigger(availableNow=True)`` then never ends, which is Spark's way with such clocks. ``data`` counts it
            while messages come, ends, and leaves what is not complete to the next run.
        remember_seconds: On a stream: how long a finished payload is remembered, so that duplicates of its chunks
            that come late are let go; after that they are chunks of a payload that never becomes complete.
        concurrency: Payloads or chunks that one task reads or writes at once, 1 to 64, or ``auto``.
        max_inflight_bytes: Bound on their bytes.
        metrics: Counts the rows that come out, where it is wanted.
        out_batch_bytes: Payload bytes per Arrow batch; a larger payload is a batch of its own.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns at once and reads nothing yet.

    Raises:
        ConfigError: The configuration or an option cannot be used; the function raises it for columns, and on a
            stream for a version of pyspark, a state store or a configuration with which it cannot be done.
        MissingDependencyError: pyspark, pyarrow or pandas is missing; on a stream also protobuf.
    """
    need_arrow()
    check_choice("expire_by", expire_by, "clock", "data")
    known = as_config(config)
    expire = known.chunks.expire_after_seconds if expire_after_seconds is None else expire_after_seconds
    options = Options(
        config=known,
        expire_after_seconds=check_seconds("expire_after_seconds", expire, minimum=0),
        expire_by=expire_by,
        remember_seconds=check_seconds("remember_seconds", remember_seconds, minimum=1),
        concurrency=concurrency,
        max_inflight_bytes=max_inflight_bytes,
        out_batch_bytes=out_batch_bytes,
        metrics=metrics,
    )

    def transform(df: DataFrame) -> DataFrame:
        check_paths(known, df.sparkSession)
        check_new(df.columns, uuid=uuid, payload=payload, error=error)
        check_types(df)
        places = Places.found(df, column, source, headers)
        stage = streaming.reassembled if df.isStreaming else batch.reassembled
        return stage(by_place(df), places, options, _schema(df, places, uuid, payload, error))

    return transform


def _schema(df: DataFrame, places: Places, uuid: str, payload: str, error: str) -> StructType:
    """The columns as they came, the messages' one nullable, and those that are added."""
    from pyspark.sql.types import BinaryType, StringType, StructField

    kept = list(df.schema.fields)
    kept[places.value] = StructField(kept[places.value].name, BinaryType())
    return with_fields(kept, **{uuid: StringType(), payload: BinaryType(), error: error_type()})
