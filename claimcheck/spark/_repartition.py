"""Partitions with equal payload bytes: Spark sees only pointers, a thousand of which may represent 100 GB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from claimcheck._validation import check_int, fail
from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import PointerData, decode
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import (
    find_column,
    map_batches,
    map_rows,
    require_arrow,
    session_of,
    with_index_names,
)
from claimcheck.spark._worker import AnyConfig, as_config, partition_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from claimcheck.config import Config

_BIN = "__claimcheck_bin"
_UNKNOWN_BYTES = 1 << 20  # assumed for pointers of version 1, which declare no size


def repartition_by_payload(
    column: str, *, config: AnyConfig, target_bytes: int = 128 << 20
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that spreads rows so that partitions have about equal payload bytes, for ``df.transform``.

    Uses the sizes that pointers declare, within ``limits``; no store is accessed. Reads the rows twice: their sizes
    are added up when the function is called. Rows of one partition stay together if they fit, but not in order.

    Args:
        column: A binary column of envelopes and plain messages.
        config: As in `resolve`.
        target_bytes: The most payload bytes per partition, except for a partition with a single larger payload.

    Returns:
        A function from a batch DataFrame to a DataFrame with the same columns.

    Raises:
        ConfigError: As `resolve`. The function raises it for streams, too: their sources limit payload bytes.
        MissingDependencyError: As `resolve`.
    """
    require_arrow()
    check_int("target_bytes", target_bytes, minimum=1)
    checked = as_config(config)

    def transform(df: DataFrame) -> DataFrame:
        session_of(df)
        if df.isStreaming:
            fail("df", found="a stream", expected="a batch; a stream's source limits the bytes of a trigger")
        packing = _Packing(checked, find_column(df, "column", column), target_bytes)
        ranges, count = _bin_ranges(df, packing)
        keys = tuple(_hash_keys(df, count))
        return _repartitioned(df, _Assignment(packing, ranges, keys), count)

    return transform


@dataclass(frozen=True, slots=True)
class _Packing:
    """Packs the rows of each partition into bins, in order, and reports the bins; called once per partition."""

    config: Config
    index: int
    target_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, int]]:
        last, rest = -1, 0
        for _, bins, held in self.packed(batches):
            last, rest = (bins[-1], held) if bins else (last, rest)
        if last >= 0:
            yield partition_id(), last, rest

    def packed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, list[int], int]]:
        """Yield each batch, the bin of each row, and the bytes in the last bin."""
        last, held = -1, 0
        for batch in batches:
            bins = list[int]()
            for message in batch.column(self.index):
                size = _payload_bytes(message.as_py(), self.config)
                fits = last >= 0 and (held == 0 or held + size <= self.target_bytes)
                last, held = (last, held + size) if fits else (last + 1, size)
                bins.append(last)
            yield batch, bins, held


@dataclass(frozen=True, slots=True)
class _BinRange:
    """The bins of one partition: ``full`` bins of its own, numbered from ``first``, and a shared one, ``rest``."""

    first: int
    full: int
    rest: int


@dataclass(frozen=True, slots=True)
class _Assignment:
    packing: _Packing
    ranges: dict[int, _BinRange]
    keys: tuple[int, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        own = self.ranges.get(partition_id(), _BinRange(0, 0, 0))
        for batch, bins, _ in self.packing.packed(batches):
            keys = [self.keys[own.first + each if each < own.full else own.rest] for each in bins]
            columns = [*batch.columns, pa.array(keys, type=pa.int32())]
            yield pa.RecordBatch.from_arrays(columns, names=list(map(str, range(len(columns)))))


def _bin_ranges(df: DataFrame, packing: _Packing) -> tuple[dict[int, _BinRange], int]:
    """Number the bins of all partitions; the last bins of partitions are combined."""
    columns = "partition bigint, full bigint, rest bigint"
    reports = sorted(map_rows(with_index_names(df), packing, columns).collect())
    count = sum(full for _, full, _ in reports)
    ranges, first, current, held = dict[int, _BinRange](), 0, -1, 0
    for partition, full, rest in reports:
        if current < 0 or held + rest > packing.target_bytes:
            current, held, count = count, 0, count + 1
        held += rest
        ranges[partition] = _BinRange(first, full, current)
        first += full
    return ranges, max(count, 1)


def _hash_keys(df: DataFrame, count: int) -> list[int]:
    """Return for each partition a number that Spark hashes to it: only hashing works in every version."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual alias

    keys, tried = dict[int, int](), 0
    while len(keys) < count:
        numbers = df.sparkSession.range(tried, tried + 16 * count + 64)
        number = F.col("id").cast("int")
        hashed = numbers.select(number.alias("n"), F.pmod(F.hash(number), F.lit(count)).alias("place"))
        for row in hashed.groupBy("place").agg(F.min("n").alias("n")).collect():
            keys.setdefault(row["place"], row["n"])
        tried += 16 * count + 64
    return [keys[place] for place in range(count)]


def _repartitioned(df: DataFrame, assignment: _Assignment, count: int) -> DataFrame:
    from pyspark.sql.types import IntegerType

    added = {_BIN: IntegerType()}
    binned = map_batches(with_index_names(df), assignment, kept=range(len(df.columns)), added=added)
    return binned.repartition(count, _BIN).drop(_BIN).toDF(*df.columns)


def _payload_bytes(message: bytes | None, config: Config) -> int:
    """Return the payload bytes that a message declares; signatures are not checked."""
    if message is None:
        return 0
    try:
        envelope = decode(message, header=config.header)
        if not isinstance(envelope, PointerData):
            return len(message)
        size = pointers.decode(envelope.data, max_bytes=config.limits.max_pointer_bytes).size
    except ClaimCheckError:  # resolving the message raises it again
        return len(message)
    if size is None:
        return _UNKNOWN_BYTES
    return len(message) if size > config.limits.max_payload_bytes else size  # never fetched
