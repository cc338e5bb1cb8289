"""On a stream: chunks rest in a store, Spark's state holds small references to them until a payload is complete."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

from claimcheck._validation import fail
from claimcheck.errors import ConfigError, MissingDependencyError
from claimcheck.spark._reassemble import error_texts
from claimcheck.spark._reassemble.chunk_heads import declared_of, head_of
from claimcheck.spark._reassemble.chunk_storage import STORED, Storing
from claimcheck.spark._reassemble.joining import Joining
from claimcheck.spark._reassemble.options import Options, Places
from claimcheck.spark._resolve import resolve
from claimcheck.spark._worker import check_reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["reassembled"]

_NEEDED = (4, 1)
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PACKAGE = "claimcheck.spark._reassemble"
_BEHIND_SECONDS = 3600  # how far the clock of a driver may be set back without chunks being taken for late ones


def reassembled(df: DataFrame, places: Places, options: Options, schema: StructType) -> DataFrame:
    """Put the chunks of a stream together.

    Args:
        df: With columns of names that stand for themselves.
        places: Of the messages and their sources.
        options: See `claimcheck.spark.reassemble`.
        schema: Of the result.

    Raises:
        ConfigError: It cannot be done with this pyspark, this state store or this configuration.
        MissingDependencyError: protobuf is missing, which Spark's state asks for.
    """
    _check_pyspark()
    _check_state_store(df)
    _check_store(options)
    uuid = head_of(df[df.columns[places.value]], options.config.header).uuid
    chunks = _of_chunks(df.filter(uuid.isNotNull()), places, options, schema)
    return _of_messages(df.filter(uuid.isNull()), places, options).union(chunks).toDF(*schema.names)


def _of_messages(df: DataFrame, places: Places, options: Options) -> DataFrame:
    """What is no chunk: resolved, row by row."""
    from pyspark.sql import functions as F  # noqa: N812

    resolved = df.transform(
        resolve(
            df.columns[places.value],
            config=options.config,
            on_error="null",
            concurrency=options.concurrency,
            max_inflight_bytes=options.max_inflight_bytes,
            metrics=options.metrics,
            out_batch_bytes=options.out_batch_bytes,
        )
    )
    return resolved.select(*df.columns, F.lit(None).cast("string").alias("uuid"), "payload", "error")


def _of_chunks(df: DataFrame, places: Places, options: Options, schema: StructType) -> DataFrame:
    """Store them, note them, and join what is complete."""
    from pyspark import cloudpickle
    from pyspark.sql import functions as F  # noqa: N812

    processor = importlib.import_module(f"{_PACKAGE}.stateful_processor")
    for module in (processor, error_texts):  # see there
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    by_data = options.expire_by == "data"
    limits = processor.Limits(
        max_chunks=options.config.chunks.max_chunks,
        max_bytes=options.max_payload_bytes,
        expire_ms=int(options.expire_after_seconds * 1000),
        remember_ms=int(options.remember_seconds * 1000),
        behind_ms=_BEHIND_SECONDS * 1000 if by_data else 0,
    )
    now = F.current_timestamp()  # of the micro-batch, the same when it is replayed
    declared = df.select("*", declared_of(df, places.headers).alias("declared"))
    stored = declared.mapInArrow(Storing(options, places), STORED).withColumn("arrived", F.unix_millis(now))
    if by_data:
        stored = stored.withColumn("time", now).withWatermark("time", f"{_BEHIND_SECONDS} seconds")
    noted = stored.groupBy("key").transformWithState(
        statefulProcessor=processor.Reassembler(limits),
        outputStructType=processor.OUTPUT,
        outputMode="Append",
        timeMode="EventTime" if by_data else "ProcessingTime",
    )
    return noted.mapInArrow(Joining(options, places, (*df.columns, "uuid", "payload", "error")), schema)


def _check_pyspark() -> None:
    import pyspark

    found = re.findall(r"\d+", pyspark.__version__)[:2]
    if tuple(map(int, found)) < _NEEDED:
        expected = "4.1 or newer for reassemble on a stream; a batch, as in foreachBatch, needs less"
        fail("pyspark", found=f"version {pyspark.__version__}", expected=expected)
    try:
        importlib.import_module("google.protobuf")
    except ImportError as error:
        text = "Spark's state needs the package protobuf: pip install protobuf"
        raise MissingDependencyError(text, package="protobuf", extra="spark") from error


def _check_state_store(df: DataFrame) -> None:
    provider = df.sparkSession.conf.get(_PROVIDER)
    if "RocksDB" not in str(provider):
        fail(_PROVIDER, found=repr(provider), expected=f'spark.conf.set("{_PROVIDER}", "{_ROCKSDB}")')


def _check_store(options: Options) -> None:
    name = options.config.store
    if name is None:
        raise ConfigError(
            "store: found none, expected the store in which the chunks of a stream rest until their payload is "
            "complete; every executor has to reach it, and writers whose strategy is chunking do not mind it",
            path="store",
        )
    check_reached(options.config)
