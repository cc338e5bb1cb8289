"""Deletes garbage: payloads that no readable message points at. What is deleted, and why it is safe.

A collection does this, in this order:

1. It takes the time. Only payloads written more than a grace period earlier are candidates.
2. It lists the stores and remembers the candidates, as 16 bytes each.
3. It reads every message of the topics, up to their ends when reading begins, and forgets the candidates that one of
   them points at.
4. It reads what was appended to the topics during step 3, up to their ends when step 4 begins, and forgets these, too.
5. It lists the stores again, and deletes the remaining candidates that are as old as before.

*No message that is readable when step 5 begins, or later, points at a deleted payload, and none will.* This needs two
assumptions. First: the grace period is longer than the time from the beginning of a write to the moment at which its
message can be read, including retries, transactions and differences between clocks. Second: when a message is moved to
another topic (dead-lettering, redriving), its copy can be read before the original is gone.

Let ``m`` be such a message, pointing at a candidate. The candidate was older than the grace period in step 1. So the
first message of this pointer could be read before step 1, and every later one is a copy of an earlier one. By the
second assumption, some copy ``c`` was readable at the moment ``t`` when step 4 took the ends of the topics. Either
``c`` was appended after step 3 took the end of its partition. Then step 4 read it, because `Topics.read` raises an
error if anything that was appended since was deleted unread. Or ``c`` was appended before. Then it was readable during
the whole step 3, which read it. In both cases the candidate is forgotten, whatever happens after ``t``.

Without step 4, a message could move from a topic that has not been read to one that has been read. Without the error of
`Topics.read`, it could do so once more during step 4: from one end to another, each time just before it is read.

A payload with an identity has no time in its key and can be written again, by a task that runs again. Its age is that
of the last write, in step 2 and again in step 5, and `claimcheck.Store.delete` compares it once more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from claimcheck._operate.garbage import AGES, GRACE_SECONDS, Candidates, fingerprint, reference_of, same_slug
from claimcheck._operate.gc_claims import Claim, check_claims, claims_of, unclaimed_error
from claimcheck._operate.gc_topics import Topics
from claimcheck._operate.sweep import DeletionOptions, Deletions
from claimcheck._store.listing import IncompleteScanError, StoreEntry
from claimcheck._store.store import Store
from claimcheck._texts import time_text
from claimcheck.config import HEADER
from claimcheck.errors import ConfigError, EnvelopeError, StoreError, UnknownVersionError
from claimcheck.transports._common.topics import TopicMessage, topics_not_read, topics_to_read

_BATCH = 1000
_MUTABLE_BATCH = 20  # of entries that may be written again: little time between their comparison and their deletion
_RECENT = 10_000  # payloads within the grace period that are remembered, to recognize the broker

Phase = Literal["listing", "reading", "reading again", "deleting", "finished"]


@dataclass(slots=True, kw_only=True)
class StoreReport:
    """What became of the payloads of one store, so far."""

    store: str
    listed: int = 0
    referenced: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    ages: Counter[str] = field(default_factory=Counter)
    deleted: int = 0
    skipped: int = 0
    failed: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    errors: Sequence[Exception] = ()
    error: BaseException | None = None
    finished: bool = False


@dataclass(slots=True, kw_only=True)
class CollectionReport:
    """The result of a collection, or its state so far."""

    dry_run: bool
    phase: Phase = "listing"
    grace_seconds: float = GRACE_SECONDS
    topics: Counter[str] = field(default_factory=Counter)
    not_read: tuple[str, ...] = ()
    candidates: int = 0
    messages: int = 0
    pointers: int = 0
    damaged: int = 0
    ignored: int = 0
    matched: bool = False
    unclaimed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stores: tuple[StoreReport, ...] = ()
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection(DeletionOptions):
    """The options of a collection; `run` may be called more than once."""

    grace_seconds: float = GRACE_SECONDS
    headers: tuple[bytes, ...] = (HEADER,)
    force: bool = False
    claim: bool = False
    ignore_unknown_before: float | None = None

    def run(
        self,
        stores: Sequence[Store],
        topics: Topics,
        *,
        on_progress: Callable[[CollectionReport], None] = lambda report: None,
    ) -> CollectionReport:
        """Collect the garbage of topics in stores, and emit a `SweepEvent` for each store."""
        run, begin = Run(self, stores, topics), time.perf_counter()
        try:
            for _ in run.steps():
                run.report.duration_seconds = time.perf_counter() - begin
                on_progress(run.report)
        except BaseException as error:
            run.fail(error)
            raise
        finally:
            run.report.duration_seconds = time.perf_counter() - begin
            on_progress(run.report)
            run.emit()
        return run.report


class Run:
    """One collection."""

    def __init__(self, options: Collection, stores: Sequence[Store], topics: Topics) -> None:
        self._options, self._topics = options, topics
        self._candidates = Candidates({}, 0)
        self._garbage: set[bytes] = set()
        self._recent: set[bytes] = set()  # some younger payloads
        self._phase: Phase = "listing"
        self._claims: list[Claim] = []
        self._stores = [StoreRun(store, options) for store in stores]
        self.report = CollectionReport(
            dry_run=options.dry_run,
            grace_seconds=options.grace_seconds,
            stores=tuple(store.report for store in self._stores),
        )

    def steps(self) -> Iterator[None]:
        """Do the work; yields now and then."""
        self._begin()
        yield from self._list()
        self._check_claims(delete=False)
        for self._phase in ("reading", "reading again"):
            self.report.phase = self._phase
            yield from self._read()
        self._check_match()
        if not self._options.dry_run:
            self._check_claims(delete=True)
        self.report.phase = "deleting"
        for store in self._stores:
            yield from store.delete(self._candidates, self._garbage, claimed=not self.report.unclaimed)
        self.report.phase = "finished"
        if self.report.unclaimed and not self._options.dry_run:
            raise unclaimed_error(self.report.unclaimed, option="--claim")

    def _check_claims(self, *, delete: bool) -> None:
        """Refuse the topics of other clusters, and find those that no cluster has claimed."""
        claim = self._options.claim
        found = {each.report.store: each.unclaimed(self._claims, delete=delete, claim=claim) for each in self._stores}
        self.report.unclaimed = {name: topics for name, topics in found.items() if topics}

    def _begin(self) -> None:
        names = {topic: self._topics.names(topic) for topic in self._topics.topics}
        known = {topic: self._topics.names(topic) for topic in self._topics.known()}
        for topic in names:
            if topic not in known:
                raise ConfigError(f"there is no topic {topic}: check its name", path="--topic")
        for other, topic in sorted(same_slug(names, known).items()):
            text = f"payloads of topic {other} have the same keys as those of {topic}: name both topics, or neither"
            raise ConfigError(text, path="--topic")
        self.report.topics = Counter(dict.fromkeys(topics_to_read(names, known), 0))
        self.report.not_read = tuple(topics_not_read(names, known))
        options = self._options
        self._candidates = Candidates.of(names, now=options.clock(), grace_seconds=options.grace_seconds)
        cluster = self._topics.cluster()
        self._claims = claims_of((topic, several, cluster) for topic, several in names.items())

    def _list(self) -> Iterator[None]:
        for store in self._stores:
            for found, is_candidate in store.candidates(self._candidates):
                if is_candidate:
                    self._garbage.add(found)
                elif len(self._recent) < _RECENT:
                    self._recent.add(found)
                self.report.candidates = len(self._garbage)
                if is_candidate and len(self._garbage) % _BATCH == 0:
                    yield
        yield

    def _read(self) -> Iterator[None]:
        for message in self._topics.read():
            self.report.messages += 1
            self.report.topics[message.topic] += 1
            if message.value is not None:
                self._take(message)
            if self.report.messages % _BATCH == 0:
                yield
        yield

    def _take(self, message: TopicMessage) -> None:
        """Forget the candidate that a message points at."""
        for header in self._options.headers:
            try:
                reference = reference_of(message.value or b"", header=header)
            except UnknownVersionError as error:
                if self._is_ignored(message):
                    self.report.ignored += 1
                    continue
                text = (
                    f"{message.topic}, {message.place}: {error}. Nothing was deleted, because the message may point at "
                    "anything. Upgrade this installation to the release of the newest writer; if the message is junk, "
                    f"go on with --ignore-unknown-before and a time after {_time_of(message)}, when it was sent"
                )
                raise UnknownVersionError(text, kind=error.kind, version=error.version) from error
            except EnvelopeError:
                self.report.damaged += 1
                continue
            if reference is not None:
                self.report.pointers += 1
                found = fingerprint(reference.key)
                self.report.matched |= found in self._garbage or found in self._recent
                self._garbage.discard(found)

    def _is_ignored(self, message: TopicMessage) -> bool:
        before = self._options.ignore_unknown_before
        return before is not None and message.sent_ms is not None and message.sent_ms < before * 1000

    def _check_match(self) -> None:
        """Refuse to delete everything: the store may belong to another broker."""
        if self._garbage and not (self.report.matched or self._options.dry_run or self._options.force):
            text = (
                f"no message in {', '.join(self.report.topics)} points at any payload in these stores. Is this the "
                "broker of these stores, and are these all topics? Nothing was deleted; use --force if it is right"
            )
            raise ConfigError(text, path="--topic")

    def fail(self, error: BaseException) -> None:
        """Note the error that ends the collection, in the stores that are not done."""
        for report in self.report.stores:
            if not report.finished and report.error is None:
                report.error = error

    def emit(self) -> None:
        """Emit the events."""
        for store in self._stores:
            store.emit(self.report.duration_seconds)


class StoreRun:
    """One store: which of its payloads are candidates, and the deletion of those that remain."""

    def __init__(self, store: Store, options: Collection) -> None:
        self._store, self._clock = store, options.clock
        self._deletions = Deletions(store, options)
        self.report = StoreReport(store=store.name)

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
            self.report.error = error

    def unclaimed(self, claims: Sequence[Claim], *, delete: bool, claim: bool) -> tuple[str, ...]:
        """Return the topics that no cluster has claimed; see `check_claims`. A store that failed has none."""
        if self.report.error is None:
            try:
                return tuple(check_claims(self._store, claims, delete=delete, claim=claim))
            except StoreError as error:
                self.report.error = error
        return ()

    def delete(self, candidates: Candidates, garbage: Container[bytes], *, claimed: bool) -> Iterator[None]:
        """List the store again and delete the candidates that are garbage, if claimed; yields after each batch."""
        deletions, report = self._deletions, self.report
        deletions.dry_run = deletions.dry_run or not claimed
        if report.error is not None:
            return
        try:
            for _ in deletions.run(lambda entry: self._weigh(entry, candidates, garbage)):
                self._count()
                yield
        except StoreError as error:
            report.error = error
        finally:
            self._count()
        yield

    def _weigh(self, entry: StoreEntry, candidates: Candidates, garbage: Container[bytes]) -> int:
        report = self.report
        verdict = candidates.verdict(entry, prefix=self._store.prefix)
        if verdict != "candidate":
            report.kept[verdict] += 1
            return 0
        if fingerprint(entry.key) not in garbage:
            report.referenced += 1
            return 0
        report.orphans += 1
        report.topics[candidates.topic_of(entry, prefix=self._store.prefix) or ""] += 1
        seconds = self._clock() - (entry.created_ms or 0) / 1000
        report.ages[next(name for name, limit in AGES if seconds < limit)] += 1
        return 1 if entry.is_immutable else _BATCH // _MUTABLE_BATCH

    def _count(self) -> None:
        done, report = self._deletions, self.report
        report.listed, report.orphan_bytes, report.finished = done.scanned, done.bytes, done.finished
        report.deleted, report.failed = done.outcomes["deleted"], done.outcomes["failed"]
        report.skipped, report.errors = done.skipped, done.errors

    def emit(self, seconds: float) -> None:
        """Emit the event of this store."""
        report = self.report
        self._deletions.emit("gc", expired=report.orphans, duration_seconds=seconds, error=report.error)


def _time_of(message: TopicMessage) -> str:
    return "an unknown time" if message.sent_ms is None else time_text(message.sent_ms / 1000)
