"""One store in a garbage collection: which of its payloads are candidates, and the deletion of those that remain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from claimcheck._garbage import Candidates, fingerprint
from claimcheck._gc._claims import Claim, check_claims
from claimcheck._listing import IncompleteScanError, StoreEntry
from claimcheck._store import Store
from claimcheck._sweep import check_clock
from claimcheck.errors import StoreError
from claimcheck.hooks import SweepEvent

AGES = (("less than 7 days", 7 * 86_400), ("7 to 30 days", 30 * 86_400), ("more than 30 days", math.inf))
"""The classes of age in a report, with their upper limits in seconds."""

_BATCH = 1000
_MUTABLE_BATCH = 20  # of entries that may be written again: little time between their comparison and their deletion
_ERRORS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """What became of the payloads of one store."""

    store: str
    listed: int = 0
    referenced: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    topics: Mapping[str, int] = field(default_factory=dict)
    ages: Mapping[str, int] = field(default_factory=dict)
    deleted: int = 0
    skipped: int = 0
    failed: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[Exception, ...] = ()
    error: BaseException | None = None
    finished: bool = False


class Allowance:
    """How many payloads may still be deleted, in all stores together."""

    def __init__(self, limit: int | None) -> None:
        self.left = math.inf if limit is None else limit


class StoreRun:
    """One store."""

    def __init__(
        self,
        store: Store,
        allowance: Allowance,
        *,
        dry_run: bool,
        rate: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._store, self._allowance = store, allowance
        self._dry_run, self._rate, self._clock, self._sleep = dry_run, rate, clock, sleep
        self._size = _BATCH if rate is None else max(1, min(_BATCH, int(rate)))
        self._batch: list[StoreEntry] = []
        self._weight = 0
        self._listed = self._bytes = 0
        self._verdicts: Counter[str] = Counter()
        self._topics: Counter[str] = Counter()
        self._ages: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._errors: list[Exception] = []
        self._error: BaseException | None = None
        self._finished = False

    def candidates(self, candidates: Candidates) -> Iterator[tuple[bytes, bool]]:
        """List the store; yields the fingerprint of each payload of the topics, and whether it is a candidate."""
        try:
            for entry in self._store.scan():
                verdict = candidates.verdict(entry, prefix=self._store.prefix)
                if verdict in ("candidate", "recent"):
                    yield fingerprint(entry.key), verdict == "candidate"
        except IncompleteScanError:  # everything else was listed; the second listing reports it
            pass
        except StoreError as error:
            self._error = error

    @property
    def name(self) -> str:
        """The store's name."""
        return self._store.name

    def unclaimed(self, claims: Sequence[Claim], *, delete: bool, claim: bool) -> tuple[str, ...]:
        """Return the topics that no cluster has claimed; see `check_claims`. A store that failed has none."""
        if self._error is None:
            try:
                return tuple(check_claims(self._store, claims, delete=delete, claim=claim))
            except StoreError as error:
                self._error = error
        return ()

    def delete(self, candidates: Candidates, garbage: Container[bytes], *, claimed: bool) -> Iterator[None]:
        """List the store again and delete the candidates that are garbage, if claimed; yields after each batch."""
        self._dry_run = self._dry_run or not claimed
        if self._error is not None:
            return
        try:
            if not self._dry_run:
                check_clock(self._store, self._clock())
            for entry in self._entries():
                if not self._allowance.left:
                    return
                self._take(entry, candidates, garbage)
                is_full = self._is_full
                if is_full:
                    self._delete_batch()
                if is_full or self._listed % _BATCH == 0:
                    yield
            self._delete_batch()
            self._finished = True
        except StoreError as error:
            self._error = error
        yield

    def _entries(self) -> Iterator[StoreEntry]:
        try:
            yield from self._store.scan()
        except IncompleteScanError as error:
            self._outcomes["failed"] += len(error.errors)
            self._note(error.errors)

    def _take(self, entry: StoreEntry, candidates: Candidates, garbage: Container[bytes]) -> None:
        self._listed += 1
        verdict: str = candidates.verdict(entry, prefix=self._store.prefix)
        if verdict == "candidate":
            verdict = "orphan" if fingerprint(entry.key) in garbage else "referenced"
        self._verdicts[verdict] += 1
        if verdict == "orphan":
            self._bytes += entry.size or 0
            self._topics[candidates.topic_of(entry, prefix=self._store.prefix) or ""] += 1
            self._ages[self._age(entry)] += 1
            self._allowance.left -= 1
            self._batch.append(entry)
            self._weight += 1 if entry.is_immutable else _BATCH // _MUTABLE_BATCH

    def _age(self, entry: StoreEntry) -> str:
        seconds = self._clock() - (entry.created_ms or 0) / 1000
        return next(name for name, limit in AGES if seconds < limit)

    @property
    def _is_full(self) -> bool:
        return len(self._batch) >= self._size or self._weight >= _BATCH or not self._allowance.left

    def _delete_batch(self) -> None:
        batch, self._batch, self._weight = self._batch, [], 0
        if not batch or self._dry_run:
            return
        for deletion in self._store.delete(batch):
            self._outcomes[deletion.outcome] += 1
            if deletion.error is not None:
                self._note([deletion.error])
        if self._rate is not None:
            self._sleep(len(batch) / self._rate)

    def _note(self, errors: Sequence[Exception]) -> None:
        self._errors += errors[: _ERRORS - len(self._errors)]

    def fail(self, error: BaseException) -> None:
        """Note the error that ends the collection, unless this store is done."""
        if not self._finished and self._error is None:
            self._error = error

    def report(self) -> StoreReport:
        """Return the state so far."""
        kept = {name: self._verdicts[name] for name in ("recent", "other", "leftover", "unknown")}
        return StoreReport(
            store=self._store.name,
            listed=self._listed,
            referenced=self._verdicts["referenced"],
            orphans=self._verdicts["orphan"],
            orphan_bytes=self._bytes,
            topics=dict(self._topics),
            ages={name: self._ages[name] for name, _ in AGES if self._ages[name]},
            deleted=self._outcomes["deleted"],
            skipped=self._outcomes["gone"] + self._outcomes["changed"],
            failed=self._outcomes["failed"],
            kept={name: count for name, count in kept.items() if count},
            errors=tuple(self._errors),
            error=self._error,
            finished=self._finished,
        )

    def emit(self, seconds: float) -> None:
        """Emit the event of this store."""
        report = self.report()
        event = SweepEvent(
            kind="gc",
            store=report.store,
            dry_run=self._dry_run,
            scanned=report.listed,
            expired=report.orphans,
            expired_bytes=report.orphan_bytes,
            leftovers=0,
            deleted=report.deleted,
            failed=report.failed,
            duration_seconds=seconds,
            error=report.error,
        )
        self._store.context.hooks.emit(event)
