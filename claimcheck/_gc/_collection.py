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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from claimcheck._envelope import HEADER
from claimcheck._garbage import GRACE_SECONDS, Candidates, fingerprint, reference_of, same_slug
from claimcheck._gc._claims import Claim, claims_of, unclaimed_error
from claimcheck._gc._stores import Allowance, StoreReport, StoreRun
from claimcheck._gc._topics import TopicMessage, Topics, topics_not_read, topics_to_read
from claimcheck._store import Store
from claimcheck._texts import time_text
from claimcheck._validation import MAX_SECONDS, Range, check_int, check_value
from claimcheck.errors import ConfigError, EnvelopeError, UnknownVersionError

_BATCH = 1000
_RECENT = 10_000  # payloads within the grace period that are remembered, to recognize the broker

Phase = Literal["listing", "reading", "reading again", "deleting", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionReport:
    """The result of a collection, or its state so far."""

    dry_run: bool
    phase: Phase = "listing"
    grace_seconds: float = GRACE_SECONDS
    topics: Mapping[str, int] = field(default_factory=dict)
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
class Collection:
    """The options of a collection; `run` may be called more than once."""

    grace_seconds: float = GRACE_SECONDS
    headers: tuple[bytes, ...] = (HEADER,)
    dry_run: bool = True
    force: bool = False
    claim: bool = False
    ignore_unknown_before: float | None = None
    limit: int | None = None
    rate: float | None = None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        check_value("grace_seconds", self.grace_seconds, Annotated[float, Range(0, MAX_SECONDS)])
        if self.limit is not None:
            check_int("limit", self.limit, minimum=1)
        if self.rate is not None:
            check_value("rate", self.rate, Annotated[float, Range(0.001, 1_000_000)])

    def run(
        self,
        stores: Sequence[Store],
        topics: Topics,
        *,
        on_progress: Callable[[CollectionReport], None] | None = None,
    ) -> CollectionReport:
        """Collect the garbage of topics in stores, and emit a `SweepEvent` for each store."""
        run, begin = Run(self, stores, topics), time.perf_counter()
        try:
            for _ in run.steps():
                if on_progress is not None:
                    on_progress(run.report(time.perf_counter() - begin))
        except BaseException as error:
            run.fail(error)
            raise
        finally:
            report = run.report(time.perf_counter() - begin)
            if on_progress is not None:
                on_progress(report)
            run.emit(report.duration_seconds)
        return report


class Run:
    """One collection."""

    def __init__(self, options: Collection, stores: Sequence[Store], topics: Topics) -> None:
        self._options, self._topics = options, topics
        self._candidates = Candidates({}, 0)
        self._garbage: set[bytes] = set()
        self._recent: set[bytes] = set()  # some younger payloads
        self._matched = False
        self._phase: Phase = "listing"
        self._counts: Counter[str] = Counter()
        self._read_topics: Counter[str] = Counter()
        self._not_read: tuple[str, ...] = ()
        self._claims: list[Claim] = []
        self._unclaimed: dict[str, tuple[str, ...]] = {}
        left = Allowance(options.limit)
        self._stores = [
            StoreRun(store, left, dry_run=options.dry_run, rate=options.rate, clock=options.clock, sleep=options.sleep)
            for store in stores
        ]

    def steps(self) -> Iterator[None]:
        """Do the work; yields now and then."""
        self._begin()
        yield from self._list()
        self._check_claims(delete=False)
        for self._phase in ("reading", "reading again"):
            yield from self._read()
        self._check_match()
        if not self._options.dry_run:
            self._check_claims(delete=True)
        self._phase = "deleting"
        for store in self._stores:
            yield from store.delete(self._candidates, self._garbage, claimed=not self._unclaimed)
        self._phase = "finished"
        if self._unclaimed and not self._options.dry_run:
            raise unclaimed_error(self._unclaimed, option="--claim")

    def _check_claims(self, *, delete: bool) -> None:
        """Refuse the topics of other clusters, and find those that no cluster has claimed."""
        claim = self._options.claim
        found = {store.name: store.unclaimed(self._claims, delete=delete, claim=claim) for store in self._stores}
        self._unclaimed = {name: topics for name, topics in found.items() if topics}

    def _begin(self) -> None:
        names = {topic: self._topics.names(topic) for topic in self._topics.topics}
        known = {topic: self._topics.names(topic) for topic in self._topics.known()}
        for topic in names:
            if topic not in known:
                raise ConfigError(f"there is no topic {topic}: check its name", path="--topic")
        for other, topic in sorted(same_slug(names, known).items()):
            text = f"payloads of topic {other} have the same keys as those of {topic}: name both topics, or neither"
            raise ConfigError(text, path="--topic")
        self._read_topics = Counter(dict.fromkeys(topics_to_read(names, known), 0))
        self._not_read = tuple(topics_not_read(names, known))
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
                self._counts["candidates"] = len(self._garbage)
                if is_candidate and len(self._garbage) % _BATCH == 0:
                    yield
        yield

    def _read(self) -> Iterator[None]:
        for message in self._topics.read():
            self._counts["messages"] += 1
            self._read_topics[message.topic] += 1
            if message.value is not None:
                self._take(message)
            if self._counts["messages"] % _BATCH == 0:
                yield
        yield

    def _take(self, message: TopicMessage) -> None:
        """Forget the candidate that a message points at."""
        for header in self._options.headers:
            try:
                reference = reference_of(message.value or b"", header=header)
            except UnknownVersionError as error:
                if self._is_ignored(message):
                    self._counts["ignored"] += 1
                    continue
                text = (
                    f"{message.topic}, {message.place}: {error}. Nothing was deleted, because the message may point at "
                    "anything. Upgrade this installation to the release of the newest writer; if the message is junk, "
                    f"go on with --ignore-unknown-before and a time after {_time_of(message)}, when it was sent"
                )
                raise UnknownVersionError(text, kind=error.kind, version=error.version) from error
            except EnvelopeError:
                self._counts["damaged"] += 1
                continue
            if reference is not None:
                self._counts["pointers"] += 1
                found = fingerprint(reference.key)
                self._matched = self._matched or found in self._garbage or found in self._recent
                self._garbage.discard(found)

    def _is_ignored(self, message: TopicMessage) -> bool:
        before = self._options.ignore_unknown_before
        return before is not None and message.sent_ms is not None and message.sent_ms < before * 1000

    def _check_match(self) -> None:
        """Refuse to delete everything: the store may belong to another broker."""
        if self._garbage and not (self._matched or self._options.dry_run or self._options.force):
            text = (
                f"no message in {', '.join(self._read_topics)} points at any payload in these stores. Is this the "
                "broker of these stores, and are these all topics? Nothing was deleted; use --force if it is right"
            )
            raise ConfigError(text, path="--topic")

    def fail(self, error: BaseException) -> None:
        """Note the error that ends the collection."""
        for store in self._stores:
            store.fail(error)

    def emit(self, seconds: float) -> None:
        """Emit the events."""
        for store in self._stores:
            store.emit(seconds)

    def report(self, seconds: float) -> CollectionReport:
        """Return the state so far."""
        return CollectionReport(
            dry_run=self._options.dry_run,
            phase=self._phase,
            grace_seconds=self._options.grace_seconds,
            topics=dict(self._read_topics),
            not_read=self._not_read,
            candidates=self._counts["candidates"],
            messages=self._counts["messages"],
            pointers=self._counts["pointers"],
            damaged=self._counts["damaged"],
            ignored=self._counts["ignored"],
            matched=self._matched,
            unclaimed=dict(self._unclaimed),
            stores=tuple(store.report() for store in self._stores),
            duration_seconds=seconds,
        )


def _time_of(message: TopicMessage) -> str:
    return "an unknown time" if message.sent_ms is None else time_text(message.sent_ms / 1000)
