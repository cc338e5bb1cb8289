"""Deletes expired payloads, and what interrupted writes left behind, from a store that can be listed.

The listing alone decides what is deleted: no payload is opened. An entry is deleted only after its lifetime and the
grace period; an entry without a known lifetime is kept.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Literal

from claimcheck._store.listing import IncompleteScanError, StoreEntry
from claimcheck._store.store import Store
from claimcheck._texts import time_text
from claimcheck._validation import MAX_SECONDS, Range, check_value
from claimcheck.errors import StoreError
from claimcheck.hooks import SweepEvent

GRACE_SECONDS = 3600.0
"""The default grace period: longer than any write takes, and than clocks differ."""

_AHEAD_SECONDS = 60.0  # by which this machine's clock may be ahead: times of HTTP have whole seconds
_BATCH = 1000
_ERRORS = 5
_SECONDS = Annotated[float, Range(0, MAX_SECONDS)]

Verdict = Literal["expired", "leftover", "alive", "unlimited", "unknown", "recent"]


@dataclass(slots=True, kw_only=True)
class SweepReport:
    """The result of a sweep of one store, or its state so far.

    Attributes:
        store: The store's name in the configuration.
        dry_run: Whether nothing was deleted.
        scanned: Entries that were listed.
        expired: Payloads whose lifetime and grace period have passed; of a garbage collection, those that no message
            points at.
        leftovers: Temporary files, incomplete uploads and empty folders that are older than the grace period.
        expired_bytes: Bytes of these payloads and leftovers, as far as the medium tells.
        deleted: Entries that were deleted; 0 in a dry run. After an error or an interruption, those of the last batch
            may not be counted.
        skipped: Expired entries that no longer existed, or were in use again, before they could be deleted.
        failed: Expired entries that could not be deleted, and folders that could not be listed.
        kept: Entries that are kept, by reason: ``alive`` (the lifetime or the grace period has not passed),
            ``unlimited`` (written without ``ttl_seconds``), ``unknown`` (the key has no lifetime: it was written by an
            earlier release), ``recent`` (a leftover that is younger than the grace period).
        errors: The first few errors behind ``failed``.
        error: What ended the sweep before the end of the store; ``None`` otherwise.
        finished: Whether the end of the store was reached; false after an error or an interruption.
        duration_seconds: How long it took.
    """

    store: str
    dry_run: bool
    scanned: int = 0
    expired: int = 0
    expired_bytes: int = 0
    leftovers: int = 0
    deleted: int = 0
    skipped: int = 0
    failed: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    errors: list[Exception] = field(default_factory=list)
    error: BaseException | None = None
    finished: bool = False
    duration_seconds: float = 0.0

    def note(self, errors: Sequence[Exception]) -> None:
        """Add errors to the first few."""
        self.errors += errors[: _ERRORS - len(self.errors)]

    def event(self, kind: Literal["sweep", "gc"]) -> SweepEvent:
        """Return the event of this store."""
        facts = {each.name: getattr(self, each.name) for each in fields(SweepEvent) if each.name != "kind"}
        return SweepEvent(**facts, kind=kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionOptions:
    """What a sweep and a garbage collection have in common."""

    grace_seconds: float = GRACE_SECONDS
    dry_run: bool = True
    rate: float | None = None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        check_value("grace_seconds", self.grace_seconds, _SECONDS)
        if self.rate is not None:
            check_value("rate", self.rate, Annotated[float, Range(0.001, 1_000_000)])

    def delete(self, store: Store, report: SweepReport, is_deleted: Callable[[StoreEntry], bool]) -> Iterator[None]:
        """List a store, and delete entries in batches of up to 1000; yields after each batch."""
        size = _BATCH if self.rate is None else max(1, min(_BATCH, int(self.rate)))
        batch = list[StoreEntry]()
        if not report.dry_run:
            check_clock(store, self.clock())
        for entry in _listed(store, report):
            report.scanned += 1
            if is_deleted(entry):
                report.expired_bytes += entry.size or 0
                batch.append(entry)
            if len(batch) >= size or report.scanned % _BATCH == 0:
                self._delete(store, batch, report)
                batch = []
                yield
        self._delete(store, batch, report)
        report.finished = True
        yield

    def _delete(self, store: Store, batch: Sequence[StoreEntry], report: SweepReport) -> None:
        if not batch or report.dry_run:
            return
        for deletion in store.delete(batch):
            report.deleted += deletion.outcome == "deleted"
            report.failed += deletion.outcome == "failed"
            report.skipped += deletion.outcome in ("gone", "changed")
            if deletion.error is not None:
                report.note([deletion.error])
        if self.rate is not None:
            self.sleep(len(batch) / self.rate)


def _listed(store: Store, report: SweepReport) -> Iterator[StoreEntry]:
    """Yield the entries of a store, and note the folders that cannot be listed."""
    try:
        yield from store.scan()
    except IncompleteScanError as error:  # everything else was listed
        report.failed += len(error.errors)
        report.note(error.errors)


def check_clock(store: Store, now: float) -> None:
    """Refuse to delete by a clock that is ahead of the store's own."""
    try:
        theirs = store._server_time()
    except Exception:  # it does not tell; a store that cannot be reached cannot be listed either
        return
    if theirs is not None and now - theirs > _AHEAD_SECONDS:
        times = f"it is {time_text(now)} here, and {time_text(theirs)} there"
        text = f"this machine's clock is ahead of the store's: {times}. Nothing was deleted: synchronize the clocks"
        raise StoreError(f"store {store.name!r}: {text}", store=store.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(DeletionOptions):
    """The options of a sweep; `run` may be called more than once."""

    def run(self, store: Store, *, on_batch: Callable[[SweepReport], None] = lambda report: None) -> SweepReport:
        """Sweep a store, and emit a `SweepEvent`."""
        report, begin = SweepReport(store=store.name, dry_run=self.dry_run), time.perf_counter()
        try:
            on_batch(report)  # which has the state after an error, too
            for _ in self.delete(store, report, partial(self._is_expired, report)):
                report.duration_seconds = time.perf_counter() - begin
                on_batch(report)
        except BaseException as error:
            report.error = error
            raise
        finally:
            report.duration_seconds = time.perf_counter() - begin
            store.context.hooks.emit(report.event("sweep"))
        return report

    def _is_expired(self, report: SweepReport, entry: StoreEntry) -> bool:
        verdict = self.verdict(entry, int(self.clock() * 1000))
        report.expired += verdict == "expired"
        report.leftovers += verdict == "leftover"
        if verdict in ("expired", "leftover"):
            return True
        report.kept[verdict] += 1
        return False

    def verdict(self, entry: StoreEntry, now_ms: int) -> Verdict:
        """Return why an entry is deleted or kept."""
        grace = math.ceil(self.grace_seconds * 1000)
        if entry.kind == "leftover":
            return "leftover" if entry.created_ms is not None and entry.created_ms + grace <= now_ms else "recent"
        if not entry.has_lifetime:
            return "unknown"
        if entry.expires_ms is None:
            return "unlimited"
        return "expired" if entry.expires_ms + grace <= now_ms else "alive"
