"""Deletes the orphans of a report, each after one more look at the topics and at the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Any

from claimcheck._garbage import GRACE_SECONDS, Candidates, fingerprint
from claimcheck._gc_claims import Claim, check_claims, claims_of, unclaimed_error
from claimcheck._listing import StoreEntry
from claimcheck._store import Store
from claimcheck._sweep import check_clock
from claimcheck._validation import MAX_SECONDS, Range, check_value, fail
from claimcheck.errors import ConfigError, ScanNotSupportedError
from claimcheck.spark._columns import (
    described,
    find_column,
    map_batches,
    require_arrow,
    session_of,
    with_index_names,
)
from claimcheck.spark._references import References, Spans, without_referenced
from claimcheck.spark._whole_topics import WholeTopics
from claimcheck.spark._worker import AnyConfig, as_config, check_paths, check_reached, claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from claimcheck.config import Config

    Tables = Sequence["DataFrame | tuple[DataFrame, str]"]
    """Tables with pointers in the column ``value``, or in the one that is named."""

Topics = Sequence[Mapping[str, Any]]
"""Topics, each as a mapping of ``format`` and the options of a Spark source."""

_BATCH = 1000
_ROW = {
    "store": "string",
    "key": "string",
    "size": "bigint",
    "created": "timestamp",
    "expires": "timestamp",
    "version": "string",
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a garbage collection covers."""

    config: Config
    references: References
    grace_seconds: float
    claims: tuple[Claim, ...]

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        *,
        config: AnyConfig,
        topics: Topics,
        keep: Tables,
        grace_seconds: float,
        consumed: bool,
    ) -> Scope:
        """Check the arguments; see `claimcheck.spark.collect_garbage`."""
        require_arrow()
        check_value("grace_seconds", grace_seconds, Annotated[float, Range(0, MAX_SECONDS)])
        check_value("consumed", consumed, bool)
        if isinstance(topics, (str, Mapping)) or not topics:
            fail("topics", found=repr(type(topics).__name__), expected="a list of mappings, at least one")
        checked = as_config(config)
        for name in checked.stores:
            check_reached(replace(checked, store=name))
        check_paths(checked, spark)
        whole = tuple(WholeTopics.of(each, path=f"topics[{number}]") for number, each in enumerate(topics))
        for each in whole:
            each.prepare(spark, whole)
        tables = tuple(_messages(*each) if isinstance(each, tuple) else _messages(each) for each in keep)
        references = References(spark=spark, topics=whole, keep=tables, header=checked.header, consumed=consumed)
        clusters = [each.cluster() for each in whole]
        claims = claims_of((name, (name,), at) for each, at in zip(whole, clusters, strict=True) for name in each.names)
        return cls(config=checked, references=references, grace_seconds=grace_seconds, claims=tuple(claims))

    def check_claims(self, *, delete: bool = False, claim: bool = False) -> None:
        """Ask an executor whether this collection may delete payloads; see `claimcheck._gc_claims`."""
        from pyspark.sql.types import StringType

        names = self.references.spark.createDataFrame([(name,) for name in sorted(self.config.stores)], "store string")
        stage, added = (
            _ClaimStage(self.config, self.claims, delete, claim, time.time()),
            dict.fromkeys(("store", "topic", "error"), StringType()),
        )
        unclaimed = dict[str, list[str]]()
        for store, topic, error in map_batches(names.coalesce(1), stage, kept=(), added=added).collect():
            if error is not None:
                raise ConfigError(error, path=f"stores.{store}")
            unclaimed.setdefault(store, []).append(topic)
        if unclaimed and delete:
            raise unclaimed_error(unclaimed, option="claim=True")

    def candidates(self) -> Candidates:
        """Return which entries may be garbage now."""
        names = {name: (name,) for each in self.references.topics for name in each.names}
        return Candidates.of(names, now=time.time(), grace_seconds=self.grace_seconds)


def delete_garbage(
    orphans: DataFrame,
    *,
    config: AnyConfig,
    topics: Topics,
    keep: Tables = (),
    grace_seconds: float = GRACE_SECONDS,
    consumed: bool = False,
    rate: float | None = None,
    force: bool = False,
    claim: bool = False,
) -> GarbageDeletion:
    """Delete the orphans of a report that `claimcheck.spark.collect_garbage` returned, perhaps by way of a table.

    Reads the topics and tables again, twice, and keeps every payload that a message points at by now. Each object is
    compared once more before it is deleted. Calling it again is harmless.

    Args:
        orphans: The DataFrame ``orphans`` of a report, or some of its rows.
        config: As for `claimcheck.spark.collect_garbage`, like the next four.
        topics: Payloads of other topics are kept.
        keep: Tables whose pointers keep their payloads.
        grace_seconds: Younger payloads are kept.
        consumed: Whether to delete payloads of messages that every group has read, too.
        rate: The most deletions per second, in one task; by default there is no limit, and all executors delete.
        force: Whether to delete although the topics and tables have no pointers at all, as on another broker.
        claim: Whether to claim topics that no cluster has claimed in a store; the first deletion needs it.

    Returns:
        What became of the orphans. A task that runs again counts what its first attempt has deleted as ``gone``.

    Raises:
        ConfigError: An argument is invalid, there is no pointer, or a topic belongs to another cluster or to none;
            nothing was deleted.
        TransportError: Messages were deleted while they were read; nothing was deleted.
        UnknownVersionError: A message may point at anything, because a newer version wrote it; nothing was deleted.
    """
    spark = session_of(orphans)
    scope = Scope.of(spark, config=config, topics=topics, keep=keep, grace_seconds=grace_seconds, consumed=consumed)
    with described(spark, "delete_garbage: delete orphans"):
        return delete_orphans(orphans, scope, after=None, rate=rate, force=force, claim=claim)


def delete_orphans(
    orphans: DataFrame, scope: Scope, *, after: Spans | None, rate: float | None, force: bool, claim: bool
) -> GarbageDeletion:
    """Delete orphans; see `delete_garbage` and `claimcheck.spark._references.without_referenced`."""
    if rate is not None:
        check_value("rate", rate, Annotated[float, Range(0.001, 1_000_000)])
    scope.check_claims()
    rows = _identified(orphans).persist()
    try:
        count = rows.count()
        left = without_referenced(rows, scope.references, after=after)
        try:
            if count and not left.references and not force:
                text = "found no pointer in any of them, expected those of this store's broker, or force=True to delete"
                raise ConfigError(f"topics: {text}", path="topics")
            scope.check_claims(delete=True, claim=claim)
            counts = _counts(left.left, _DeleteStage(scope.config, scope.candidates(), rate), single=rate is not None)
        finally:
            left.left.unpersist()
    finally:
        rows.unpersist()
    outcomes = {name: number for name, (number, _) in counts.items()}
    outcomes["kept"] = outcomes.get("kept", 0) + count - left.size
    return GarbageDeletion(**outcomes, error=counts.get("failed", (0, None))[1])


def _messages(df: DataFrame, column: str = "value") -> DataFrame:
    """Return the column of messages alone."""
    index = find_column(df, "keep", column)
    return with_index_names(df).select(f"c{index}")


def _identified(orphans: DataFrame) -> DataFrame:
    """Return the columns that describe an entry, each entry once, with the fingerprint of its payload."""
    from pyspark.sql.types import BinaryType

    for name, kind in _ROW.items():
        find_column(orphans, "orphans", name, kind)
    times = ["unix_millis(created) AS created_ms", "unix_millis(expires) AS expires_ms"]
    rows = orphans.dropDuplicates(["store", "key"]).selectExpr("store", "key", "size", *times, "version")
    return map_batches(rows, _add_ids, kept=range(len(rows.columns)), added={"id": BinaryType()})


def _add_ids(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        ids = pa.array([fingerprint(key) for key in batch.column(1).to_pylist()], pa.binary())
        yield pa.RecordBatch.from_arrays([*batch.columns, ids], names=[*batch.schema.names, "id"])


def _counts(rows: DataFrame, stage: _DeleteStage, *, single: bool) -> dict[str, tuple[int, str | None]]:
    """Delete, in order of the keys, and return the number of each outcome with one of its errors."""
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere
    from pyspark.sql.types import StringType

    rows = rows.select("store", "key", "size", "created_ms", "expires_ms", "version")
    rows = (rows.coalesce(1) if single else rows).sortWithinPartitions("store", "key")
    done = map_batches(rows, stage, kept=(), added={"outcome": StringType(), "error": StringType()})
    found = done.groupBy("outcome").agg(F.count("*"), F.first("error", ignorenulls=True)).collect()
    return {outcome: (number, error) for outcome, number, error in found}


@dataclass(frozen=True, slots=True)
class _ClaimStage:
    """Pickled and sent to a worker; yields the topics that no cluster has claimed, and errors, by store."""

    config: Config
    claims: tuple[Claim, ...]
    delete: bool
    claim: bool
    now: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = [(name, *found) for name in batch.column(0).to_pylist() for found in self._checked(name)]
            arrays = [pa.array([row[n] for row in rows], pa.string()) for n in range(3)]
            yield pa.RecordBatch.from_arrays(arrays, names=["store", "topic", "error"])

    def _checked(self, name: str) -> list[tuple[str | None, str | None]]:
        store = claim_check(self.config).store(name)
        try:
            next(store.scan(), None)
            if self.delete:
                check_clock(store, self.now)
            return [(topic, None) for topic in check_claims(store, self.claims, delete=self.delete, claim=self.claim)]
        except ScanNotSupportedError:
            return []
        except ConfigError as error:  # Spark would wrap it
            return [(None, str(error))]


@dataclass(frozen=True, slots=True)
class _DeleteStage:
    """Pickled and sent to the workers, where it is called once per partition."""

    config: Config
    candidates: Candidates
    rate: float | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            outcomes = list(self._delete(batch.to_pylist()))
            arrays = [pa.array([each[n] for each in outcomes], pa.string()) for n in (0, 1)]
            yield pa.RecordBatch.from_arrays(arrays, names=["outcome", "error"])

    def _delete(self, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str | None]]:
        size = _BATCH if self.rate is None else max(1, min(_BATCH, int(self.rate)))
        for name, group in groupby(rows, key=lambda row: str(row["store"])):
            store = claim_check(self.config, uses_keys=False).store(name)
            entries = (_entry_of(store, row) for row in group)
            while some := list(islice(entries, size)):
                yield from self._delete_some(store, some)

    def _delete_some(self, store: Store, entries: list[StoreEntry]) -> Iterator[tuple[str, str | None]]:
        chosen = [each for each in entries if self.candidates.verdict(each, prefix=store.prefix) == "candidate"]
        yield from [("kept", None)] * (len(entries) - len(chosen))
        for deletion in store.delete(chosen):
            yield deletion.outcome, None if deletion.error is None else str(deletion.error)
        if self.rate is not None:
            time.sleep(len(chosen) / self.rate)


def _entry_of(store: Store, row: Mapping[str, Any]) -> StoreEntry:
    """Return the entry of a report's row. What its key says comes from the key, not from the row."""
    key, known = row["key"], store._lifetime_of(row["key"])
    if known is None:
        return StoreEntry(key=key)  # of none of the topics
    entry = StoreEntry.of(key, known, size=row["size"], stored_ms=row["created_ms"], version=row["version"])
    return entry if row["expires_ms"] is None else replace(entry, expires_ms=row["expires_ms"], has_lifetime=True)
