"""Garbage collection on Spark: finds stored payloads that no readable message points at, and deletes them.

The executors list the stores in parallel. The listing is anti-joined with the pointers in the topics, and in tables
that keep their payloads. It needs no memory for the set of candidates, so it suits stores that are too large for
``claimcheck gc``; `claimcheck._operate.gc` explains why the order of listing and reading is safe. Each
orphan is deleted after one more look at the topics and at the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from claimcheck._operate.garbage import (
    GRACE_SECONDS,
    Candidates,
    Claim,
    check_claims,
    claims_of,
    fingerprint,
    unclaimed_error,
)
from claimcheck._operate.sweep import check_clock
from claimcheck._store.listing import StoreEntry
from claimcheck._store.store import Store
from claimcheck._validation import MAX_SECONDS, Range, check_value, fail
from claimcheck.config import Config
from claimcheck.errors import ConfigError, ScanNotSupportedError
from claimcheck.spark._columns import check_reached, map_rows, prepare, require_arrow
from claimcheck.spark._garbage_topics import References, Spans, WholeTopics, release
from claimcheck.spark._worker import AnyConfig, as_config, claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Batches: TypeAlias = Iterable[pa.RecordBatch]
    Tables = Sequence["DataFrame | str | tuple[DataFrame | str, str]"]
    """Tables with pointers in the column ``value``, or in the one that is named."""

Topics = Sequence[Mapping[str, Any]]
"""Topics, each as a mapping of ``format`` and the options of a Spark source."""

_BATCH = 1000
_LISTED = (
    "store string, key string, id binary, topic string, size bigint, created_ms bigint, expires_ms bigint, "
    "listed bigint"
)


def collect_garbage(
    spark: SparkSession, *, config: AnyConfig, topics: Topics, grace_seconds: float = GRACE_SECONDS, keep: Tables = ()
) -> GarbageReport:
    """Find orphans: stored payloads of some topics that no message in any of these topics points at.

    Lists the stores, then reads every message of the topics. Nothing is deleted until `GarbageReport.delete` is called:
    it reads the topics once more, and compares each object with the report.

    Everything that can hold a pointer to a payload of these topics has to be named: dead-letter topics and mirrors
    among the topics, tables of messages in ``keep``. Payloads of other destinations are never touched.

    A store remembers which cluster each topic belongs to, and a collection that does not read the messages of that
    cluster is refused. Clusters that share a store and its prefix, and have topics of the same name, have to be
    collected together.

    Args:
        spark: A session; with Spark Connect, too. The source of Kafka must be on its class path if it is used, and
            the sources of this package registered with `claimcheck.spark.register`.
        config: As in `resolve`.
        topics: Each a mapping of ``format`` (``kafka``, ``claimcheck_pulsar`` or ``claimcheck_local``) and the options
            of that source: the connection and the topics. What is read is set here, so other options are refused.
            Pulsar needs ``adminUrl``. For Kafka, the driver needs ``confluent-kafka`` to ask for the id of the cluster;
            ``admin`` is a mapping of settings of librdkafka for this, and is only needed for TLS and passwords.
        grace_seconds: Younger payloads are kept. It must exceed the time from the beginning of a write to the moment at
            which its message is in the topic, and the difference between the clocks of writers, stores and driver.
        keep: Names of tables, or DataFrames, with a binary column ``value`` of messages, or pairs of one and the
            column's name. Each pass finds the rows that others have appended. A DataFrame whose rows cannot change,
            such as a cached one, is refused, and with Spark Connect every DataFrame.

    Returns:
        The report; close it to release its rows.

    Raises:
        ConfigError: An argument is invalid, or the payloads of a topic cannot be told from those of another one, or
            belong to another cluster.
        ScanNotSupportedError: No store of the configuration can be listed.
        UnknownVersionError: A message may point at anything, because a newer version wrote it.
    """
    require_arrow()
    check_value("grace_seconds", grace_seconds, Annotated[float, Range(0, MAX_SECONDS)])
    if isinstance(topics, (str, Mapping)) or not topics:
        fail("topics", found=repr(type(topics).__name__), expected="a list of mappings, at least one")
    checked = as_config(config)
    for name in checked.stores:
        check_reached(replace(checked, store=name))
    prepare(checked, spark)
    whole = tuple(WholeTopics.of(each, path=f"topics[{number}]") for number, each in enumerate(topics))
    for each in whole:
        each.check(whole)
    if not isinstance(keep, Sequence):
        fail("keep", found=f"a {type(keep).__name__}", expected="a list of tables, or of pairs (table, column)")
    tables = (keep,) if isinstance(keep, str) else tuple(keep)
    references = References(spark=spark, topics=whole, keep=tables, header=checked.header)
    references.tables()
    clusters = [each.cluster() for each in whole]
    claims = claims_of((name, (name,), at) for each, at in zip(whole, clusters, strict=True) for name in each.names)
    return _report(_Scope(checked, references, grace_seconds, tuple(claims)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageDeletion:
    """What became of the orphans of a report.

    Attributes:
        deleted: Payloads that were deleted.
        gone: Payloads that no longer existed: something else, or an earlier attempt of a task, has deleted them.
        changed: Payloads that were written again since they were listed; they stay.
        kept: Payloads that stay because a message points at them now, or because they are too young or of other
            topics.
        failed: Payloads that could not be deleted.
        error: The text of one of the errors behind ``failed``.
    """

    deleted: int = 0
    gone: int = 0
    changed: int = 0
    kept: int = 0
    failed: int = 0
    error: str | None = None


@dataclass(kw_only=True)
class GarbageReport(AbstractContextManager["GarbageReport"]):
    """The orphans that a collection has found. The executors hold their rows until the report is closed.

    Attributes:
        orphans: One row for each: ``store``, ``key``, ``topic``, ``size`` in bytes (null where the medium does not
            tell), ``created``, ``age_seconds`` and ``expires``.
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
    _rows: DataFrame | None = field(repr=False)
    _scope: _Scope = field(repr=False)
    _spans: Spans = field(repr=False)

    def delete(self, *, rate: float | None = None, force: bool = False, claim: bool = False) -> GarbageDeletion:
        """Delete those of the report's orphans that no message points at by now.

        Reads the topics once more, or twice if messages that the report has seen are no longer there. Calling it again
        is harmless.

        Args:
            rate: The most deletions per second, in one task; by default there is no limit, and all executors delete.
            force: Whether to delete although the topics, or one of the tables, have no pointer, as on another broker.
            claim: Whether to claim topics that no cluster has claimed in a store; the first deletion needs it.

        Returns:
            What became of the orphans. A task that runs again counts what its first attempt has deleted as ``gone``.

        Raises:
            ConfigError: An argument is invalid, there is no pointer, a topic belongs to another cluster or to none, or
                the report is closed; nothing was deleted.
            TransportError: Messages were deleted while they were read; nothing was deleted.
            UnknownVersionError: A message may point at anything, because a newer version wrote it; nothing was deleted.
        """
        if rate is not None:
            check_value("rate", rate, Annotated[float, Range(0.001, 1_000_000)])
        if self._rows is None:
            fail("report", found="a closed one", expected="a new one from collect_garbage")
        scope = self._scope
        scope.parts()
        with scope.references.without_referenced(self._rows, after=self._spans) as left:
            if self.count and left.unused and not force:
                fail(left.unused[0], found="no pointer in it", expected="those of this store, or force=True to delete")
            scope.parts(delete=True, claim=claim)
            counts = _counts(left.left, scope, rate)
        outcomes = {name: number for name, (number, _) in counts.items()}
        outcomes["kept"] = outcomes.get("kept", 0) + self.count - left.size
        self.deletion = GarbageDeletion(**outcomes, error=counts.get("failed", (0, None))[1])
        return self.deletion

    def close(self) -> None:
        """Release the rows; after that, ``orphans`` and `delete` cannot be used."""
        release(self._rows)
        self._rows = None

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Scope:
    config: Config
    references: References
    grace_seconds: float
    claims: tuple[Claim, ...]

    @property
    def tasks(self) -> int:
        return int(self.references.spark.conf.get("spark.sql.shuffle.partitions") or 200)

    def parts(self, *, delete: bool = False, claim: bool = False) -> list[tuple[str, str | None]]:
        """Ask an executor for the parts of all stores, and whether this collection may delete payloads in them."""
        names = [(name,) for name in sorted(self.config.stores)]
        stores = self.references.spark.createDataFrame(names, "store string").coalesce(1)
        look = partial(_checked_stores, self.config, self.claims, delete, claim, time.time(), self.tasks)
        parts, unclaimed = list[tuple[str, str | None]](), dict[str, list[str]]()
        columns = "store string, part string, topic string, error string"
        for store, part, topic, error in map_rows(stores, look, columns).collect():
            if error is not None:
                raise ConfigError(error, path=f"stores.{store}")
            if topic is None:
                parts.append((store, part))
            else:
                unclaimed.setdefault(store, []).append(topic)
        if unclaimed and delete:
            raise unclaimed_error(unclaimed, option="claim=True")
        return parts

    def candidates(self) -> Candidates:
        names = {name: (name,) for each in self.references.topics for name in each.names}
        return Candidates.of(names, now=time.time(), grace_seconds=self.grace_seconds)


def _checked_stores(
    config: Config, claims: tuple[Claim, ...], delete: bool, claim: bool, now: float, count: int, batches: Batches
) -> Iterator[tuple[str | None, ...]]:
    """Yield the parts of each store, the topics that no cluster has claimed in it, and errors."""
    for name in (name for batch in batches for name in batch.column(0).to_pylist()):
        try:
            store = claim_check(config).store(name)
            next(store.scan(), None)
            if delete:
                check_clock(store, now)
            unclaimed = check_claims(store, claims, delete=delete, claim=claim)
            yield from ((name, None, topic, None) for topic in unclaimed)
            yield from ((name, part, None, None) for part in store.partitions(count))
        except ScanNotSupportedError:
            yield name, None, None, None
        except ConfigError as error:  # Spark would wrap it
            yield name, None, None, str(error)


# Listing ------------------------------------------------------------------------------------------------------------


def _report(scope: _Scope) -> GarbageReport:
    candidates = scope.candidates()
    listing, not_listed = _listing(scope, candidates)
    listing = listing.persist()
    try:
        listed, count = listing.selectExpr("coalesce(sum(listed), 0)", "count(key)").collect()[0]
        with scope.references.take_away(listing.where("key IS NOT NULL").drop("listed")) as found:
            rows = found.left.dropDuplicates(["store", "key"]).localCheckpoint()  # a store may list an entry twice
    finally:
        listing.unpersist()
    now_ms = candidates.before_ms + round(scope.grace_seconds * 1000)
    orphans = rows.selectExpr(
        *("store", "key", "topic", "size", "timestamp_millis(created_ms) AS created"),
        f"({now_ms} - created_ms) / 1000 AS age_seconds",
        "timestamp_millis(expires_ms) AS expires",
    )
    return GarbageReport(
        orphans=orphans,
        count=rows.count(),
        listed=listed,
        candidates=count,
        pointers=found.references,
        damaged=found.damaged,
        not_listed=not_listed,
        _rows=rows,
        _scope=scope,
        _spans=found.spans,
    )


def _listing(scope: _Scope, candidates: Candidates) -> tuple[DataFrame, tuple[str, ...]]:
    found = scope.parts()
    parts, not_listed = [each for each in found if each[1] is not None], [name for name, part in found if part is None]
    if not parts:
        text = "no store of this configuration can be listed, so no garbage can be found in it"
        raise ScanNotSupportedError(text, store=next(iter(not_listed), None))
    work = scope.references.spark.createDataFrame(parts, "store string, part string")
    spread = work.repartition(min(scope.tasks, len(parts)))
    return map_rows(spread, partial(_listed, scope.config, candidates), _LISTED), tuple(not_listed)


def _listed(config: Config, candidates: Candidates, batches: Batches) -> Iterator[tuple[Any, ...]]:
    """List parts of stores; yields the candidates, and the number of entries in each part."""
    for row in (row for batch in batches for row in batch.to_pylist()):
        store, count = claim_check(config, uses_keys=False).store(row["store"]), 0
        for entry in store.scan(partition=row["part"]):
            count += 1
            if candidates.verdict(entry, prefix=store.prefix) == "candidate":
                topic = candidates.topic_of(entry, prefix=store.prefix)
                times = entry.created_ms, entry.expires_ms
                yield store.name, entry.key, fingerprint(entry.key), topic, entry.size, *times, None
        yield store.name, *[None] * 6, count


# Deleting -----------------------------------------------------------------------------------------------------------


def _counts(rows: DataFrame, scope: _Scope, rate: float | None) -> dict[str, tuple[int, str | None]]:
    """Delete, in order of the keys, and return the number of each outcome with one of its errors."""
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    rows = (rows if rate is None else rows.coalesce(1)).sortWithinPartitions("store", "key")
    done = map_rows(rows, partial(_deleted, scope.config, scope.candidates(), rate), "outcome string, error string")
    found = done.groupBy("outcome").agg(F.count("*"), F.first("error", ignorenulls=True)).collect()
    return {outcome: (number, error) for outcome, number, error in found}


def _deleted(
    config: Config, candidates: Candidates, rate: float | None, batches: Batches
) -> Iterator[tuple[str, str | None]]:
    """Delete what is still a candidate; yields outcomes and errors."""
    size = _BATCH if rate is None else max(1, min(_BATCH, int(rate)))
    rows = (row for batch in batches for row in batch.to_pylist())
    for name, group in groupby(rows, key=lambda row: str(row["store"])):
        store = claim_check(config, uses_keys=False).store(name)
        entries = (_entry_of(store, row) for row in group)
        while some := list(islice(entries, size)):
            chosen = [each for each in some if candidates.verdict(each, prefix=store.prefix) == "candidate"]
            yield from [("kept", None)] * (len(some) - len(chosen))
            for deletion in store.delete(chosen):
                yield deletion.outcome, None if deletion.error is None else str(deletion.error)
            if rate is not None:
                time.sleep(len(chosen) / rate)


def _entry_of(store: Store, row: Mapping[str, Any]) -> StoreEntry:
    """Return the entry of a report's row. What its key says comes from the key, not from the row."""
    key, known = row["key"], store._lifetime_of(row["key"])
    if known is None:
        return StoreEntry(key=key)  # of none of the topics
    entry = StoreEntry.of(key, known, size=row["size"], stored_ms=row["created_ms"])
    return entry if row["expires_ms"] is None else replace(entry, expires_ms=row["expires_ms"], has_lifetime=True)
