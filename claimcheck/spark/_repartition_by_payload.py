"""Partitions of equal payload: Spark sees pointers only, and a thousand of them may stand for a hundred gigabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from claimcheck._validation import fail
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import by_place, check_types, find_column, need_arrow, over_rows
from claimcheck.spark._fetching import check_bytes
from claimcheck.spark._worker import AnyConfig, as_config, claim_check, partition_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from claimcheck._client import ClaimCheck
    from claimcheck.config import Config

__all__ = ["repartition_by_payload"]

_BIN = "__claimcheck_bin"
_UNKNOWN_BYTES = 1 << 20  # what a pointer of version 1, which declares no size, counts as


def repartition_by_payload(
    column: str, *, config: AnyConfig, target_bytes: int = 128 << 20
) -> Callable[[DataFrame], DataFrame]:
    """Make the function that spreads rows so that each partition has about as many payload bytes, for ``df.transform``.

    Sizes are those that pointers declare, as far as ``limits`` lets them be followed; no store is asked. The rows are
    read twice: their sizes are added up at once, when the function is called. Rows of one partition stay together
    where they fit, and need not stay in order.

    Args:
        column: A binary column of envelopes and plain messages.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        target_bytes: Payload bytes that a partition has at most, unless it has a single payload.

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
        check_types(df)
        filling = _Filling(known, find_column(df, "column", column), target_bytes)
        shares, count = _shared(df, filling)
        return _spread(df, _Bins(filling, shares, tuple(_places(df, count))), count)

    return transform


@dataclass(frozen=True, slots=True)
class _Filling:
    """Fills bins with the rows of each partition, in their order, and says how many; called once per partition.

    Attributes:
        config: Tells pointers from other messages.
        index: Of the column.
        target_bytes: That a bin takes.
    """

    config: Config
    index: int
    target_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        last, rest = -1, 0
        for _, bins, held in self.filled(batches):
            last, rest = (bins[-1], held) if bins else (last, rest)
        told = {"partition": partition_id(), "full": max(last, 0), "rest": rest, "rows": last + 1}
        yield pa.RecordBatch.from_pydict({name: pa.array([value], pa.int64()) for name, value in told.items()})

    def filled(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, list[int], int]]:
        """Each batch, the bin of each of its rows, and the bytes that are in the last bin by then."""
        cc, last, held = claim_check(self.config), -1, 0
        for batch in batches:
            bins = list[int]()
            for message in batch.column(self.index):
                size = _size(cc, message.as_py())
                fits = last >= 0 and (held == 0 or held + size <= self.target_bytes)
                last, held = (last, held + size) if fits else (last + 1, size)
                bins.append(last)
            yield batch, bins, held


@dataclass(frozen=True, slots=True)
class _Share:
    """Which bins of all a partition fills: some alone, numbered on from ``first``; its last one with others."""

    first: int
    full: int
    rest: int


@dataclass(frozen=True, slots=True)
class _Bins:
    """Adds a column that says where each row goes; called once per partition."""

    filling: _Filling
    shares: dict[int, _Share]
    places: tuple[int, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        share = self.shares.get(partition_id(), _Share(0, 0, 0))
        for batch, bins, _ in self.filling.filled(batches):
            chosen = [self.places[share.first + each if each < share.full else share.rest] for each in bins]
            columns = [*batch.columns, pa.array(chosen, type=pa.int32())]
            yield pa.RecordBatch.from_arrays(columns, names=list(map(str, range(len(columns)))))


def _shared(df: DataFrame, filling: _Filling) -> tuple[dict[int, _Share], int]:
    """Number the bins of all partitions; what each of them has in its last one is put together with others."""
    rows = by_place(df).mapInArrow(filling, "partition long, full long, rest long, rows long").collect()
    found = sorted((row for row in rows if row["rows"]), key=lambda row: int(row["partition"]))
    count = sum(row["full"] for row in found)
    shares, first, current, held = dict[int, _Share](), 0, -1, 0
    for row in found:
        if current < 0 or held + row["rest"] > filling.target_bytes:
            current, held, count = count, 0, count + 1
        held += row["rest"]
        shares[row["partition"]] = _Share(first, row["full"], current)
        first += row["full"]
    return shares, max(count, 1)


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

    binned = over_rows(by_place(df), bins, kept=range(len(df.columns)), added={_BIN: IntegerType()})
    return binned.repartition(count, _BIN).drop(_BIN).toDF(*df.columns)


def _size(cc: ClaimCheck, message: bytes | None) -> int:
    if message is None:
        return 0
    try:
        pointer = cc.pointer(message)
    except ClaimCheckError:  # whoever resolves it will be told
        pointer = None
    if pointer is None or (pointer.size or 0) > cc.config.limits.max_payload_bytes:  # nobody will fetch so much
        return len(message)
    return _UNKNOWN_BYTES if pointer.size is None else pointer.size
