"""Deletes expired payloads, and what interrupted writes left behind, from a store that can be listed.

The listing alone decides what is deleted: no payload is opened. An entry is deleted only after its lifetime and the
grace period; an entry without a known lifetime is kept. `claimcheck.Store.delete` compares an entry that can be
written again under the same key once more before it deletes it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """The result of a sweep of one store, or its state so far.

    Attributes:
        store: The store's name in the configuration.
        dry_run: Whether nothing was deleted.
        scanned: Entries that were listed.
        expired: Payloads whose lifetime and grace period have passed.
        leftovers: Temporary files, incomplete uploads and empty folders that are older than the grace period.
        expired_bytes: Bytes of these payloads and leftovers, as far as the medium tells.
        deleted: Entries that were deleted; 0 in a dry run. After an error or an interruption, those of the last batch
            may not be counted.
        skipped: Expired entries that no longer existed, or were rewritten, before they could be deleted.
        failed: Expired entries that could not be deleted, and folders that could not be listed.
        kept: Entries that are kept, by reason: ``alive`` (the lifetime or the grace period has not passed),
            ``unlimited`` (written without ``ttl_seconds``), ``unknown`` (the key has no lifetime: it was written by an
            earlier release), ``recent`` (a leftover that is younger than the grace period).
        errors: The first few errors behind ``failed``.
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
    kept: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[Exception, ...] = ()
    finished: bool = False
    duration_seconds: float = 0.0


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


class Deletions:
    """Lists a store, deletes entries of it in batches, and counts what became of them."""

    def __init__(self, store: Store, options: DeletionOptions) -> None:
        self._store, self._options = store, options
        self._size = _BATCH if options.rate is None else max(1, min(_BATCH, int(options.rate)))
        self._batch: list[StoreEntry] = []
        self._weight = 0
        self.dry_run = options.dry_run
        self.scanned = 0
        self.bytes = 0
        self.outcomes: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self.finished = False

    def run(self, weigh: Callable[[StoreEntry], int]) -> Iterator[None]:
        """Delete the entries with a weight; a batch is full at a weight of 1000. Yields after each batch."""
        for entry in self._entries():
            self.scanned += 1
            if weight := weigh(entry):
                self.bytes += entry.size or 0
                self._batch.append(entry)
                self._weight += weight
            if len(self._batch) >= self._size or self._weight >= _BATCH or self.scanned % _BATCH == 0:
                self._delete()
                yield
        self._delete()
        self.finished = True
        yield

    @property
    def skipped(self) -> int:
        """Entries that no longer existed, or were written again, before they could be deleted."""
        return self.outcomes["gone"] + self.outcomes["changed"]

    def emit(
        self,
        kind: Literal["sweep", "gc"],
        *,
        expired: int,
        leftovers: int = 0,
        duration_seconds: float,
        error: BaseException | None,
    ) -> None:
        """Emit the event of this store."""
        event = SweepEvent(
            kind=kind,
            store=self._store.name,
            dry_run=self.dry_run,
            scanned=self.scanned,
            expired=expired,
            expired_bytes=self.bytes,
            leftovers=leftovers,
            deleted=self.outcomes["deleted"],
            failed=self.outcomes["failed"],
            duration_seconds=duration_seconds,
            error=error,
        )
        self._store.context.hooks.emit(event)

    def _entries(self) -> Iterator[StoreEntry]:
        """Yield the entries of the store, and note the folders that cannot be listed."""
        if not self.dry_run:
            check_clock(self._store, self._options.clock())
        try:
            yield from self._store.scan()
        except IncompleteScanError as error:  # everything else was listed
            self.outcomes["failed"] += len(error.errors)
            self._note(error.errors)

    def _delete(self) -> None:
        batch, self._batch, self._weight = self._batch, [], 0
        if not batch or self.dry_run:
            return
        for deletion in self._store.delete(batch):
            self.outcomes[deletion.outcome] += 1
            if deletion.error is not None:
                self._note([deletion.error])
        if self._options.rate is not None:
            self._options.sleep(len(batch) / self._options.rate)

    def _note(self, errors: Sequence[Exception]) -> None:
        self.errors += errors[: _ERRORS - len(self.errors)]


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

    unmarked_lifetime_seconds: float | None = None

    def __post_init__(self) -> None:
        DeletionOptions.__post_init__(self)
        if self.unmarked_lifetime_seconds is not None:
            check_value("unmarked_lifetime_seconds", self.unmarked_lifetime_seconds, _SECONDS)

    def run(self, store: Store, *, on_batch: Callable[[SweepReport], None] | None = None) -> SweepReport:
        """Sweep a store, and emit a `SweepEvent`."""
        run, begin = _Run(self, store), time.perf_counter()
        error: BaseException | None = None
        try:
            for _ in run.batches():
                if on_batch is not None:
                    on_batch(run.report(time.perf_counter() - begin))
            if run.error is not None:
                raise run.error
        except BaseException as exc:
            error = exc
            raise
        finally:
            report = run.report(time.perf_counter() - begin)
            run.deletions.emit(
                "sweep",
                expired=report.expired,
                leftovers=report.leftovers,
                duration_seconds=report.duration_seconds,
                error=error,
            )
        return report

    def verdict(self, entry: StoreEntry, now_ms: int) -> Verdict:
        """Return why an entry is deleted or kept."""
        grace = math.ceil(self.grace_seconds * 1000)
        if entry.kind == "leftover":
            return "leftover" if entry.created_ms is not None and entry.created_ms + grace <= now_ms else "recent"
        expires = entry.expires_ms
        if not entry.has_lifetime:
            if self.unmarked_lifetime_seconds is None or entry.created_ms is None:
                return "unknown"
            expires = entry.created_ms + math.ceil(self.unmarked_lifetime_seconds * 1000)
        if expires is None:
            return "unlimited"
        return "expired" if expires + grace <= now_ms else "alive"


class _Run:
    """One sweep of one store."""

    def __init__(self, options: Sweep, store: Store) -> None:
        self._options, self._name = options, store.name
        self.deletions = Deletions(store, options)
        self._verdicts: Counter[str] = Counter()
        self.error: BaseException | None = None

    def batches(self) -> Iterator[None]:
        """List and delete; yields after each batch, and after the error or interruption that ends it."""
        try:
            yield from self.deletions.run(self._weigh)
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            yield

    def _weigh(self, entry: StoreEntry) -> int:
        verdict = self._options.verdict(entry, int(self._options.clock() * 1000))
        self._verdicts[verdict] += 1
        return int(verdict in ("expired", "leftover"))

    def report(self, seconds: float) -> SweepReport:
        """Return the state so far."""
        done, kept = self.deletions, ("alive", "unlimited", "unknown", "recent")
        return SweepReport(
            store=self._name,
            dry_run=self._options.dry_run,
            scanned=done.scanned,
            expired=self._verdicts["expired"],
            expired_bytes=done.bytes,
            leftovers=self._verdicts["leftover"],
            deleted=done.outcomes["deleted"],
            skipped=done.skipped,
            failed=done.outcomes["failed"],
            kept={name: self._verdicts[name] for name in kept if self._verdicts[name]},
            errors=tuple(done.errors),
            finished=done.finished,
            duration_seconds=seconds,
        )
