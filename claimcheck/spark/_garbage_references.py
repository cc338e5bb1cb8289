"""What the messages of topics and tables point at, and which payloads are left when these are taken away.

`claimcheck._operate.gc_collection` proves that two passes over the topics are enough, if the second one reads
everything that was appended after the first one began. Here each pass reads everything, so that is the case if the last
message of each partition in the first pass is still there in the second one: brokers delete from the beginning.

With ``consumed``, messages that every group has read do not count. The proof stays valid, if "readable" is replaced by
"not read by every group", because programs that move messages acknowledge each after its copy was sent, and because
each pass asks how far the groups have read before it takes the end of any topic. A copy that is unread at that moment
was appended before these ends, is not below the position of its partition, and counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck._operate.garbage import fingerprint, reference_of
from claimcheck._validation import fail
from claimcheck.errors import EnvelopeError, TransportError, UnknownVersionError
from claimcheck.spark._columns import map_rows
from claimcheck.spark._garbage_topics import WholeTopics
from claimcheck.spark._reading import views

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Spans = Mapping[str, tuple[int, int]]
"""The first and the last position that was read, by partition."""

_DAMAGED = ""
_FOUND = {"id": "binary", "problem": "string", "place": "string", "first": "bigint", "last": "bigint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Where to look for references."""

    spark: SparkSession
    topics: tuple[WholeTopics, ...]
    keep: tuple[DataFrame, ...]
    header: bytes = field(repr=False)
    consumed: bool = False

    def take_away(self, rows: DataFrame) -> Pass:
        """Read everything once; the returned rows are persisted."""
        with self._read() as found:
            references, damaged = _totals(found)
            spans = _spans(found)
            left = rows.join(found.where("id IS NOT NULL").select("id"), "id", "left_anti").persist()
            return Pass(left, left.count(), spans, references, damaged)

    def without_referenced(self, rows: DataFrame, *, after: Spans) -> Pass:
        """Return the payloads that no message points at now, nor will; ``after`` is what a pass before has read."""
        first = self.take_away(rows)
        if _lost(after, first.spans) is None:
            return first
        try:
            second = self.take_away(first.left)
        finally:
            first.left.unpersist()
        if (lost := _lost(first.spans, second.spans)) is not None:
            second.left.unpersist()
            text = f"{lost}: messages were deleted while they were read, so nothing else was. Try again later"
            raise TransportError(text, destination=lost)
        return second

    @contextmanager
    def _read(self) -> Iterator[DataFrame]:
        from pyspark.sql import functions as F  # noqa: N812 - as everywhere

        # Before the end of any topic is taken: a message that moves between topics counts in one of them.
        consumed = [each.consumed() if self.consumed else {} for each in self.topics]
        parts = [df for each, places in zip(self.topics, consumed, strict=True) for df in each.read(self.spark, places)]
        for number, df in enumerate(self.keep):
            _refresh(self.spark, df, path=f"keep[{number}]")
            place = [F.lit(f"keep[{number}]").alias("place"), F.lit(None).cast("bigint").alias("position")]
            parts.append(df.toDF("value").select("value", *place))
        stage = _ReferenceStage(self.header)
        found = reduce(lambda a, b: a.union(b), (map_rows(df, stage, _FOUND) for df in parts)).persist()
        try:
            yield found
        finally:
            found.unpersist()  # before the next pass, which would find these rows otherwise


def _refresh(spark: SparkSession, df: DataFrame, *, path: str) -> None:
    """List the files of a table again: a DataFrame has those that were there when it was defined."""
    name = f"claimcheck_{uuid.uuid4().hex}"
    df.createTempView(name)
    try:
        spark.catalog.refreshTable(name)
        cached = "InMemoryRelation" in df.select("*")._jdf.queryExecution().withCachedData().toString()
    except AttributeError:  # Spark Connect, which defines everything again for each action
        cached = False
    finally:
        spark.catalog.dropTempView(name)
    if cached:
        found, expected = "a DataFrame that is cached", "one that is read again: call unpersist()"
        fail(path, found=found, expected=f"{expected}, because rows that others append are not in the cache")


class Pass(NamedTuple):
    left: DataFrame
    size: int
    spans: Spans
    references: int
    damaged: int


def _lost(before: Spans, now: Spans) -> str | None:
    """Return a partition of which messages may have been deleted unread between two passes."""
    for place, (_, last) in before.items():
        if place not in now or now[place][0] > last:
            return place
    return None


def _totals(found: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as F  # noqa: N812

    damaged = F.count_if(F.col("problem") == _DAMAGED)
    totals = found.agg(F.count("id"), damaged, F.max("problem")).collect()[0]
    if totals[2]:
        raise UnknownVersionError(f"nothing was deleted, because a message may point at anything: {totals[2]}")
    return totals[0], totals[1]


def _spans(found: DataFrame) -> Spans:
    rows = found.where("place IS NOT NULL").groupBy("place").agg({"first": "min", "last": "max"})
    return {place: (first, last) for place, first, last in rows.select("place", "min(first)", "max(last)").collect()}


@dataclass(frozen=True, slots=True)
class _ReferenceStage:
    """Pickled and sent to the workers, where it is called once per partition."""

    header: bytes

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        """Yield the id of each pointer, or why a message cannot be understood; and what was read of each place."""
        for batch in batches:
            yield from ((*found, None, None, None) for found in self._references(batch))
            yield from ((None, None, *span) for span in _spans_of(batch))

    def _references(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, str | None]]:
        for number, message in enumerate(views(batch.column(0))):
            try:
                reference = None if message is None else reference_of(message, header=self.header)
            except UnknownVersionError as error:
                place, position = (batch.column(index)[number].as_py() for index in (1, 2))
                yield None, f"{place}{'' if position is None else f', position {position}'}: {error}"
            except EnvelopeError:
                yield None, _DAMAGED
            else:
                if reference is not None:
                    yield fingerprint(reference.key), None


def _spans_of(batch: pa.RecordBatch) -> Iterator[tuple[str, int, int]]:
    """Yield each place in a batch, with its first and last position."""
    import pyarrow as pa

    table = pa.Table.from_arrays([batch.column(1), batch.column(2)], names=["place", "position"])
    spans = table.group_by("place").aggregate([("position", "min"), ("position", "max")])
    for row in spans.to_pylist():
        if row["position_min"] is not None:
            yield row["place"], row["position_min"], row["position_max"]
