"""Partitions of equal payload: Spark sees pointers only, and a thousand of them may stand for a hundred gigabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from claimcheck.errors import ClaimCheckError
from claimcheck.spark.columns import find_column, need_arrow, with_fields
from claimcheck.spark.core import check_bytes
from claimcheck.spark.worker import AnyConfig, as_config, claim_check, partition_id
from claimcheck.validation import fail

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from claimcheck.config import Config
    from claimcheck.wiring import ClaimCheck

__all__ = ["repartition_by_payload"]

_BIN = "__claimcheck_bin"
_MAX_PARTITIONS = 100_000
_UNKNOWN_BYTES = 1 << 20  # what a pointer of version 1, which declares no size, counts as


def repartition_by_payload(
    column: str, *, config: AnyConfig, target_bytes: int = 128 << 20
) -> Callable[[DataFrame], DataFrame]:
    """Make the function that spreads rows so that each partition has about as many payload bytes, for ``df.transform``.

    Sizes are those that pointers declare; no store is asked. The rows are read twice: their sizes are added up at once,
    when the function is called. Rows of one partition stay together where they fit, and need not stay in order.

    Args:
        column: A binary column of envelopes and plain messages.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        target_bytes: Payload bytes of a partition. One has more only where a payload does not fit: less than twice as
            many, or that payload alone.

    Returns:
        A function from a DataFrame that is no stream to a DataFrame with the same columns.

    Raises:
        ConfigError: The configuration or an option cannot be used; the function raises it for columns, and for
            streams, whose sources bound payload bytes themselves.
        MissingDependencyError: pyspark, pyarrow or pandas is missing.
    """
    need_arrow()
    check_bytes("target_bytes", target_bytes)
    known = as_config(config)

    def transform(df: DataFrame) -> DataFrame:
        if df.isStreaming:
            fail("df", found="a stream", expected="a batch; a stream's source bounds what a trigger takes")
        sizes = _Sizes(known, find_column(df, "column", column), target_bytes)
        offsets, total = _offsets(df, sizes)
        count = min(max(1, -(-total // target_bytes)), _MAX_PARTITIONS)
        places = _places(df, count)
        return _spread(df, _Bins(replace(sizes, offsets=offsets), tuple(places)), count)

    return transform


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Adds up the payload bytes of each partition; called once per partition.

    Attributes:
        config: Tells pointers from other messages.
        index: Of the column.
        target_bytes: Of a partition to come.
        offsets: Payload bytes before each partition, once they are known.
    """

    config: Config
    index: int
    target_bytes: int
    offsets: tuple[int, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        total = sum(sum(self.of(batch)) for batch in batches)
        yield pa.RecordBatch.from_pydict({"partition": pa.array([partition_id()]), "bytes": pa.array([total])})

    def of(self, batch: pa.RecordBatch) -> list[int]:
        """The payload bytes of each row."""
        cc = claim_check(self.config)
        return [_size(cc, message.as_py()) for message in batch.column(self.index)]


@dataclass(frozen=True, slots=True)
class _Bins:
    """Adds a column that says where each row goes; called once per partition."""

    sizes: _Sizes
    places: tuple[int, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        offsets, partition, last = self.sizes.offsets, partition_id(), len(self.places) - 1
        before = offsets[partition] if partition < len(offsets) else 0
        for batch in batches:
            chosen = list[int]()
            for size in self.sizes.of(batch):
                chosen.append(self.places[min(before // self.sizes.target_bytes, last)])
                before += size
            fields = pa.schema([*batch.schema, pa.field(_BIN, pa.int32())])
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(chosen, type=pa.int32())], schema=fields)


def _offsets(df: DataFrame, sizes: _Sizes) -> tuple[tuple[int, ...], int]:
    """Payload bytes before each partition, and in all of them."""
    found = {row[0]: row[1] for row in df.mapInArrow(sizes, "partition long, bytes long").collect()}
    offsets, total = list[int](), 0
    for partition in range(max(found, default=-1) + 1):
        offsets.append(total)
        total += found.get(partition, 0)
    return tuple(offsets), total


def _places(df: DataFrame, count: int) -> list[int]:
    """For each partition a number that Spark's hash leads there: it spreads rows by nothing else in all versions."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    found, tried = dict[int, int](), 0
    while len(found) < count:
        some = df.sparkSession.range(tried, tried + 16 * count + 64)
        number = F.col("id").cast("int")
        hashed = some.select(number.alias("n"), F.pmod(F.hash(number), F.lit(count)).alias("place"))
        for row in hashed.groupBy("place").agg(F.min("n").alias("n")).collect():
            found.setdefault(row["place"], row["n"])
        tried += 16 * count + 64
    return [found[place] for place in range(count)]


def _spread(df: DataFrame, bins: _Bins, count: int) -> DataFrame:
    from pyspark.sql.types import IntegerType

    return (
        df.mapInArrow(bins, with_fields(df.schema.fields, **{_BIN: IntegerType()})).repartition(count, _BIN).drop(_BIN)
    )


def _size(cc: ClaimCheck, message: bytes | None) -> int:
    if message is None:
        return 0
    try:
        pointer = cc.pointer(message)
    except ClaimCheckError:  # whoever resolves it will be told
        pointer = None
    if pointer is None:
        return len(message)
    return _UNKNOWN_BYTES if pointer.size is None else pointer.size
