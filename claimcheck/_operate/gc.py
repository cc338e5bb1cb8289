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

Keys are unique per write, so no candidate is written again. Keys without a time are kept: earlier releases could write
them again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import claimcheck.transports.kafka._queries as kafka
import claimcheck.transports.pulsar._queries as pulsar
from claimcheck._operate.garbage import (
    GRACE_SECONDS,
    Candidates,
    Claim,
    check_claims,
    claims_of,
    fingerprint,
    reference_of,
    same_slug,
    unclaimed_error,
)
from claimcheck._operate.sweep import DeletionOptions, SweepReport
from claimcheck._store.listing import IncompleteScanError, StoreEntry
from claimcheck._store.store import Store
from claimcheck._texts import time_text
from claimcheck.config import HEADER
from claimcheck.errors import ConfigError, EnvelopeError, StoreError, UnknownVersionError
from claimcheck.transports._common.topics import IncompleteReadError, TopicMessage, topics_not_read, topics_to_read
from claimcheck.transports.local._broker import LocalBroker, local_cluster

_MESSAGES = 500
_DEFAULT = "persistent://public/default/"
_BATCH = 1000
_RECENT = 10_000  # payloads within the grace period that are remembered, to recognize the broker

Phase = Literal["listing", "reading", "reading again", "deleting", "finished"]


# What is read --------------------------------------------------------------------------------------------------


class Topics(ABC):
    """The topics of one broker. Reading them changes nothing: no group is joined, nothing is acknowledged."""

    topics: tuple[str, ...]
    """The topics whose payloads are collected, as the broker calls them."""

    @abstractmethod
    def cluster(self) -> str:
        """Return the name of the broker's cluster, which no other one has."""

    @abstractmethod
    def known(self) -> list[str]:
        """Return all topics of the broker that can be listed."""

    def names(self, topic: str) -> list[str]:
        return [topic]

    @abstractmethod
    def read(self) -> Iterator[TopicMessage]:
        """Yield what was appended since the last call began, up to when this one begins; at first, everything."""


class KafkaTopics(Topics):
    """Topics of a Kafka cluster, and the topics that may have copies of their messages."""

    def __init__(self, target: kafka.KafkaTarget, *, consumed: bool = False) -> None:
        self.topics = target.topics
        self._cluster = target.cluster()
        self._next: dict[kafka.Place, int] = {}
        self._floors = kafka.consumed_offsets(self._cluster.admin, self._partitions()) if consumed else {}

    def cluster(self) -> str:
        return self._cluster.name()

    def known(self) -> list[str]:
        return sorted(self._cluster.topics())

    def read(self) -> Iterator[TopicMessage]:
        partitions, before = self._partitions(), self._next
        lows, ends = (kafka.log_offsets(self._cluster.admin, partitions, which) for which in ("earliest", "latest"))
        floors = {} if before else {each: max(lows[each], self._floors.get(each, 0)) for each in partitions}
        starts = {each: before.get(each, floors.get(each, 0)) for each in partitions}
        lost = {each for each in partitions if before and not lows[each] <= starts[each] <= ends[each]}
        lost |= before.keys() - set(partitions)
        if lost:
            topic, number = min(lost)
            raise _lost(f"partition {number} of topic {topic}", "messages that were appended", topic)
        for record in self._cluster.read(starts, ends, reset="error" if before else "earliest"):
            place = f"partition {record.partition()}, offset {record.offset()}"
            yield TopicMessage(record.topic(), place, record.value(), kafka.sent_ms(record))
        self._next = ends

    def _partitions(self) -> list[kafka.Place]:
        known = self._cluster.topics()
        return self._cluster.partitions(topics_to_read(self.topics, known), known)


class PulsarTopics(Topics):
    """Topics of a Pulsar cluster, and the topics that may have copies of their messages.

    Pulsar deletes whole ledgers, the oldest first: as long as a ledger exists, nothing that was appended to it or after
    it is gone.
    """

    def __init__(self, target: pulsar.PulsarTarget, *, consumed: bool = False) -> None:
        if target.url is None or target.admin_url is None:
            text = "both --pulsar and --admin-url are needed: only the web service knows which topics exist"
            raise ConfigError(text, path="--admin-url")
        self.topics = tuple(map(pulsar.full_name, target.topics))
        for topic in self.topics:
            if not topic.startswith("persistent://"):
                raise ConfigError(f"{topic} is not persistent: its messages cannot be read again", path="--topic")
        self._target, self._admin = target, target.admin()
        self._ends: dict[str, pulsar.Entry] = {}
        self._ledgers: dict[str, int] = {}  # the last one of each partition when it was read last
        self._known = self.known()
        names = self._partitions() if consumed else ()
        self._floors = {name: pulsar.consumed_position(self._admin, name) for name in names}

    def cluster(self) -> str:
        return self._admin.cluster()

    def known(self) -> list[str]:
        return pulsar.topics_of(self._admin, ("/".join(topic.split("/")[2:4]) for topic in self.topics))

    def names(self, topic: str) -> list[str]:
        names = [topic, topic.removeprefix("persistent://")]
        return [*names, topic.removeprefix(_DEFAULT)] if topic.startswith(_DEFAULT) else names

    def read(self) -> Iterator[TopicMessage]:
        starts, before = self._ends or self._floors, self._ledgers
        self._known = self.known()
        stats = {name: pulsar.internal_stats(self._admin, name) for name in self._partitions()}
        self._ends = {name: pulsar.entry_of(each["lastConfirmedEntry"]) for name, each in stats.items()}
        self._ledgers = {name: _ledgers(each)[-1] for name, each in stats.items()}
        if missing := before.keys() - stats.keys():
            raise _lost(f"topic {min(missing)}", "messages, or a ledger,", min(missing))
        with closing(self._target.client()) as client:
            for name, end in self._ends.items():
                topic, where = self._place(name)
                start = starts.get(name, pulsar.NOTHING)
                for message in pulsar.read(client, self._admin, name, start, end):
                    place = f"ledger {message.message_id().ledger_id()}, entry {message.message_id().entry_id()}"
                    yield TopicMessage(topic, f"{where}{place}", message.data(), message.publish_timestamp())
                oldest = before.get(name, _ledgers(stats[name])[0])
                if before and oldest not in _ledgers(pulsar.internal_stats(self._admin, name)):
                    raise _lost(f"topic {name}", "messages, or a ledger,", name)

    def _partitions(self) -> list[str]:
        read = topics_to_read(self.topics, self._known)
        return [name for topic in read for name in pulsar.partitions_of(self._admin, topic)]

    def _place(self, name: str) -> tuple[str, str]:
        """Return the topic of a partition, and which one it is, for errors."""
        topic, number = pulsar.split_partition(name)
        return (topic, f"partition {number}, ") if topic != name and topic in self._known else (name, "")


class LocalTopics(Topics):
    """Topics of an embedded broker, and the topics that may have copies of their messages."""

    def __init__(self, broker: LocalBroker, topics: tuple[str, ...], *, consumed: bool = False) -> None:
        self.topics = topics
        self._broker = broker
        self._next: dict[tuple[str, int], int] = {}
        if consumed:
            self._next = {place: broker.consumed_offset(*place) for place in self._partitions()}

    def cluster(self) -> str:
        return local_cluster(self._broker.database)

    def known(self) -> list[str]:
        return self._broker.topics()

    def read(self) -> Iterator[TopicMessage]:
        ends = {place: self._broker.end_offset(*place) for place in self._partitions()}
        for (topic, partition), end in ends.items():
            offset = self._next.get((topic, partition), 0)
            while offset < end:
                messages = self._broker.fetch(topic, partition, offset, min(_MESSAGES, end - offset))
                for message in messages:
                    place, sent_ms = f"partition {partition}, offset {message.offset}", int(message.timestamp * 1000)
                    yield TopicMessage(topic, place, message.value, sent_ms)
                offset = messages[-1].offset + 1
        self._next = ends

    def _partitions(self) -> list[tuple[str, int]]:
        found = topics_to_read(self.topics, self.known())
        return [(name, number) for name in found for number in range(self._broker.partitions(name))]


def _ledgers(stats: Mapping[str, Any]) -> list[int]:
    return sorted(int(each["ledgerId"]) for each in stats["ledgers"]) or [-1]


def _lost(where: str, what: str, topic: str) -> IncompleteReadError:
    return IncompleteReadError(f"{where} lost {what} while it was read: run it again", destination=topic)


# The collection ------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class StoreReport(SweepReport):
    """What became of the payloads of one store, so far; ``expired`` are those that no message points at."""

    referenced: int = 0
    topics: Counter[str] = field(default_factory=Counter)


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
    unclaimed: Mapping[str, list[str]] = field(default_factory=dict)
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
        report = run.report
        try:
            for _ in run.steps():
                report.duration_seconds = time.perf_counter() - begin
                on_progress(report)
        except BaseException as error:
            for each in report.stores:
                if not each.finished and each.error is None:
                    each.error = error
            raise
        finally:
            report.duration_seconds = time.perf_counter() - begin
            on_progress(report)
            for store, each in run.stores:
                each.duration_seconds = report.duration_seconds
                store.context.hooks.emit(each.event("gc"))
        return report


class Run:
    def __init__(self, options: Collection, stores: Sequence[Store], topics: Topics) -> None:
        self._options, self._topics = options, topics
        self._candidates = Candidates({}, 0)
        self._garbage: set[bytes] = set()
        self._recent: set[bytes] = set()  # some younger payloads
        self._claims: list[Claim] = []
        self.stores = [(store, StoreReport(store=store.name, dry_run=options.dry_run)) for store in stores]
        self.report = CollectionReport(
            dry_run=options.dry_run,
            grace_seconds=options.grace_seconds,
            stores=tuple(report for _, report in self.stores),
        )

    def steps(self) -> Iterator[None]:
        """Do the work; yields now and then."""
        self._begin()
        yield from self._list()
        self._check_claims(delete=False)
        phases: tuple[Phase, ...] = ("reading", "reading again")
        for self.report.phase in phases:
            yield from self._read()
        self._check_match()
        if not self._options.dry_run:
            self._check_claims(delete=True)
        self.report.phase = "deleting"
        for store, report in self.stores:
            yield from self._delete(store, report)
        self.report.phase = "finished"
        if self.report.unclaimed and not self._options.dry_run:
            raise unclaimed_error(self.report.unclaimed, option="--claim")

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

    def _check_claims(self, *, delete: bool) -> None:
        """Refuse the topics of other clusters, and find those that no cluster has claimed."""
        unclaimed = {}
        for store, report in self.stores:
            try:
                if report.error is None:
                    unclaimed[store.name] = check_claims(store, self._claims, delete=delete, claim=self._options.claim)
            except StoreError as error:
                report.error = error
        self.report.unclaimed = {name: topics for name, topics in unclaimed.items() if topics}

    def _list(self) -> Iterator[None]:
        for store, report in self.stores:
            try:
                for entry in store.scan():
                    verdict = self._candidates.verdict(entry, prefix=store.prefix)
                    if verdict == "recent" and len(self._recent) < _RECENT:
                        self._recent.add(fingerprint(entry.key))
                    if verdict == "candidate":
                        self._garbage.add(fingerprint(entry.key))
                        self.report.candidates = len(self._garbage)
                        if len(self._garbage) % _BATCH == 0:
                            yield
            except IncompleteScanError:  # everything else was listed; the second listing reports it
                pass
            except StoreError as error:
                report.error = error
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
                key = reference_of(message.value or b"", header=header)
            except UnknownVersionError as error:
                if self._is_ignored(message):
                    self.report.ignored += 1
                    continue
                sent = "at an unknown time" if message.sent_ms is None else f"at {time_text(message.sent_ms / 1000)}"
                text = (
                    f"{message.topic}, {message.place}: {error}. Nothing was deleted, because the message may point at "
                    "anything. Upgrade this installation to the release of the newest writer; if the message is junk, "
                    f"go on with --ignore-unknown-before and a later time: it was sent {sent}"
                )
                raise UnknownVersionError(text, kind=error.kind, version=error.version) from error
            except EnvelopeError:
                self.report.damaged += 1
                continue
            if key is not None:
                self.report.pointers += 1
                found = fingerprint(key)
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

    def _delete(self, store: Store, report: StoreReport) -> Iterator[None]:
        """List a store again and delete the candidates that are garbage, if it is claimed; yields after each batch."""
        report.dry_run = report.dry_run or bool(self.report.unclaimed)
        if report.error is not None:
            return
        try:
            yield from self._options.delete(store, report, partial(self._is_garbage, report, store.prefix))
        except StoreError as error:
            report.error = error
        yield

    def _is_garbage(self, report: StoreReport, prefix: str, entry: StoreEntry) -> bool:
        verdict = self._candidates.verdict(entry, prefix=prefix)
        if verdict != "candidate":
            report.kept[verdict] += 1
            return False
        if fingerprint(entry.key) not in self._garbage:
            report.referenced += 1
            return False
        report.expired += 1
        report.topics[self._candidates.topic_of(entry, prefix=prefix) or ""] += 1
        return True
