"""Garbage collection on Spark: finds stored payloads that no readable message points at, and deletes them.

The executors list the stores in parallel. The listing is anti-joined with the pointers in the topics, and in tables
that keep their payloads. It needs no memory for the set of candidates, so it suits stores that are too large for
``claimcheck gc``; `claimcheck._gc_collection` explains why the order of listing and reading is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from claimcheck._garbage import AGES, GRACE_SECONDS, Candidates, fingerprint
from claimcheck._store import Store
from claimcheck.errors import ScanNotSupportedError
from claimcheck.spark._columns import described, map_batches
from claimcheck.spark._delete_garbage import GarbageDeletion, Scope, Topics, delete_orphans
from claimcheck.spark._references import Spans
from claimcheck.spark._worker import AnyConfig, claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from claimcheck.config import Config
    from claimcheck.spark._delete_garbage import Tables

_BATCH_ROWS = 8192


def collect_garbage(
    spark: SparkSession,
    *,
    config: AnyConfig,
    topics: Topics,
    grace_seconds: float = GRACE_SECONDS,
    keep: Tables = (),
    consumed: bool = False,
    dry_run: bool = True,
    force: bool = False,
    claim: bool = False,
) -> GarbageReport:
    """Find orphans: stored payloads of some topics that no message in any of these topics points at.

    Lists all stores of the configuration that can be listed, then reads every message of the topics. Nothing is deleted
    unless `GarbageReport.delete` is called, or ``dry_run`` is false: then the topics are read once more, and each
    object is compared with the report before it is deleted.

    Everything that can hold a pointer to a payload of these topics has to be named: dead-letter topics and mirrors
    among the topics, tables of messages in ``keep``. Payloads of other destinations are never touched.

    A store remembers which cluster each topic belongs to. The first deletion needs ``claim``, and a collection that
    does not read the messages of that cluster is refused. Give each cluster its own store or prefix; those that share
    one, and have topics of the same name, have to be collected together.

    Args:
        spark: A session; with Spark Connect, too. The source of Kafka must be on its class path if it is used.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        topics: Each a mapping of ``format`` (``kafka``, ``claimcheck_pulsar`` or ``claimcheck_local``) and the options
            of that source: the connection and the topics. What is read is set here; options that would leave messages
            out are refused. Pulsar needs ``adminUrl``. For Kafka, the driver needs ``confluent-kafka`` to ask for the
            id of the cluster and, if ``consumed`` is true, for its groups; ``admin`` is a mapping of settings of
            librdkafka for this, and is only needed for TLS and passwords.
        grace_seconds: Younger payloads are kept. It must exceed the time from the beginning of a write to the moment at
            which its message is in the topic, and the difference between the clocks of writers, stores and driver.
        keep: DataFrames with a binary column ``value`` of messages, or pairs of a DataFrame and the column's name.
            Their files are listed again each time; one that is cached is refused.
        consumed: Whether messages that every group has read count as read, and no longer keep their payloads: below the
            committed offsets of all groups of Kafka, or acknowledged by all durable subscriptions of Pulsar. Messages
            of a topic without any group count as unread. The driver asks the brokers before each time that the topics
            are read. Use it only if no group will be added that reads from the beginning, or moved back.
        dry_run: Whether to delete nothing.
        force: Whether to delete although the topics and tables have no pointers at all, as on another broker.
        claim: Whether to claim topics that no cluster has claimed in a store, if payloads are deleted.

    Returns:
        The report; close it to release its rows.

    Raises:
        ConfigError: An argument is invalid, the payloads of a topic cannot be told from those of another one, or belong
            to another cluster, or to none and ``dry_run`` is false.
        ScanNotSupportedError: No store of the configuration can be listed.
        TransportError: Messages were deleted while they were read, or not all groups can be seen; nothing was deleted.
        UnknownVersionError: A message may point at anything, because a newer version wrote it; nothing was deleted.
    """
    scope = Scope.of(spark, config=config, topics=topics, keep=keep, grace_seconds=grace_seconds, consumed=consumed)
    scope.check_claims()
    with described(spark, "collect_garbage: find orphans"):
        report = _report(spark, scope)
    if not dry_run:
        try:
            report.delete(force=force, claim=claim)
        except BaseException:
            report.close()
            raise
    return report


@dataclass(kw_only=True)
class GarbageReport:
    """The orphans that a collection has found. Their rows are kept by Spark until the report is closed.

    Attributes:
        orphans: One row for each: ``store``, ``key``, ``topic``, ``size`` in bytes (null where the medium does not
            tell), ``created``, ``age_seconds``, ``expires`` and ``version``, which the deletion compares.
        count: Their number.
        listed: Entries in the stores.
        candidates: Payloads of the topics that are older than the grace period.
        pointers: Pointers in the topics and tables.
        damaged: Damaged pointers, which cannot be read.
        not_listed: Stores that cannot be listed.
        deletion: The result of the last deletion.
    """

    orphans: DataFrame
    count: int
    listed: int
    candidates: int
    pointers: int
    damaged: int
    not_listed: tuple[str, ...]
    deletion: GarbageDeletion | None = None
    _scope: Scope = field(repr=False)
    _spans: Spans = field(repr=False)

    def summary(self) -> DataFrame:
        """Return the number of orphans and their bytes, by store, topic and age."""
        from pyspark.sql import functions as F  # noqa: N812 - as everywhere

        age = F.lit(AGES[-1][0])
        for name, limit in reversed(AGES[:-1]):
            age = F.when(F.col("age_seconds") < limit, name).otherwise(age)
        groups = self.orphans.groupBy("store", "topic", age.alias("age"))
        counts = F.count("*").alias("orphans"), F.coalesce(F.sum("size"), F.lit(0)).alias("bytes")
        return groups.agg(*counts).orderBy("store", "topic", "age")

    def delete(self, *, rate: float | None = None, force: bool = False, claim: bool = False) -> GarbageDeletion:
        """Delete the orphans that no message points at by now; see `claimcheck.spark.delete_garbage`.

        Reads the topics once more, or twice if messages that the report has seen are no longer there. Calling it again
        is harmless.

        Args:
            rate: The most deletions per second, in one task.
            force: Whether to delete although the topics and tables have no pointers at all.
            claim: Whether to claim topics that no cluster has claimed in a store; the first deletion needs it.
        """
        with described(self.orphans.sparkSession, "collect_garbage: delete orphans"):
            self.deletion = delete_orphans(
                self.orphans, self._scope, after=self._spans, rate=rate, force=force, claim=claim
            )
        return self.deletion

    def close(self) -> None:
        """Release the rows. ``orphans`` and `delete` list and read everything again if they are used after that."""
        self.orphans.unpersist()

    def __enter__(self) -> GarbageReport:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _report(spark: SparkSession, scope: Scope) -> GarbageReport:
    candidates = scope.candidates()
    listing, not_listed = _listing(spark, scope.config, candidates)
    listing = listing.persist()
    try:
        listed, count = listing.selectExpr("coalesce(sum(listed), 0)", "count(key)").collect()[0]
        found = scope.references.take_away(listing.where("key IS NOT NULL").drop("listed"))
        try:
            orphans = _shown(found.left, now_ms=candidates.before_ms + round(scope.grace_seconds * 1000)).persist()
            number = orphans.count()
        finally:
            found.left.unpersist()
    finally:
        listing.unpersist()
    return GarbageReport(
        orphans=orphans,
        count=number,
        listed=listed,
        candidates=count,
        pointers=found.references,
        damaged=found.damaged,
        not_listed=not_listed,
        _scope=scope,
        _spans=found.spans,
    )


def _shown(left: DataFrame, *, now_ms: int) -> DataFrame:
    """Return the rows as a report shows them. A store may list an entry twice."""
    return left.dropDuplicates(["store", "key"]).selectExpr(
        *("store", "key", "topic", "size", "timestamp_millis(created_ms) AS created"),
        f"({now_ms} - created_ms) / 1000 AS age_seconds",
        *("timestamp_millis(expires_ms) AS expires", "version"),
    )


# Listing ------------------------------------------------------------------------------------------------------------


def _listing(spark: SparkSession, config: Config, candidates: Candidates) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the candidates in all stores, and the stores that cannot be listed."""
    from pyspark.sql.types import BinaryType, LongType, StringType

    tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    names = spark.createDataFrame([(name,) for name in sorted(config.stores)], "store string").coalesce(1)
    planned = map_batches(
        names, _PlanStage(config, tasks), kept=(), added=dict.fromkeys(("store", "part"), StringType())
    )
    parts = [(store, part) for store, part in planned.collect()]
    not_listed = tuple(store for store, part in parts if part is None)
    if len(not_listed) == len(config.stores):
        text = "no store of this configuration can be listed, so no garbage can be found in it"
        raise ScanNotSupportedError(text, store=next(iter(not_listed), None))
    parts = [(store, part) for store, part in parts if part is not None]
    work = spark.createDataFrame(parts, "store string, part string").repartition(min(tasks, len(parts)))
    types: list[DataType] = [StringType(), StringType(), BinaryType(), StringType(), *(LongType(),) * 3, StringType()]
    added = dict(zip(_Found._fields, [*types, LongType()], strict=True))
    return map_batches(work, _ListStage(config, candidates), kept=(), added=added), not_listed


class _Found(NamedTuple):
    """A row of the listing."""

    store: str
    key: str | None = None
    id: bytes | None = None
    topic: str | None = None
    size: int | None = None
    created_ms: int | None = None
    expires_ms: int | None = None
    version: str | None = None
    listed: int | None = None


@dataclass(frozen=True, slots=True)
class _PlanStage:
    """Divides the listing of each store into parts."""

    config: Config
    count: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = [(name, part) for name in batch.column(0).to_pylist() for part in self._parts(name)]
            arrays = [pa.array([row[n] for row in rows], pa.string()) for n in (0, 1)]
            yield pa.RecordBatch.from_arrays(arrays, names=["store", "part"])

    def _parts(self, name: str) -> list[str] | list[None]:
        store = claim_check(self.config, uses_keys=False).store(name)
        try:
            next(store.scan(), None)
            return store.partitions(self.count)
        except ScanNotSupportedError:
            return [None]


@dataclass(frozen=True, slots=True)
class _ListStage:
    """Lists parts of stores; yields the candidates."""

    config: Config
    candidates: Candidates

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = self._rows(batches)
        while some := list(islice(rows, _BATCH_ROWS)):
            yield _batch_of(some)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Found]:
        for batch in batches:
            for name, part in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from self._entries(claim_check(self.config, uses_keys=False).store(name), part)

    def _entries(self, store: Store, part: str) -> Iterator[_Found]:
        count = 0
        for entry in store.scan(partition=part):
            count += 1
            if self.candidates.verdict(entry, prefix=store.prefix) == "candidate":
                yield _Found(
                    store=store.name,
                    key=entry.key,
                    id=fingerprint(entry.key),
                    topic=self.candidates.topic_of(entry, prefix=store.prefix),
                    size=entry.size,
                    created_ms=entry.created_ms,
                    expires_ms=entry.expires_ms,
                    version=entry.version,
                )
        yield _Found(store=store.name, listed=count)


def _batch_of(rows: list[_Found]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = (pa.string(), pa.string(), pa.binary(), pa.string(), *(pa.int64(),) * 3, pa.string(), pa.int64())
    columns = [pa.array(values, type=kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(_Found._fields))
