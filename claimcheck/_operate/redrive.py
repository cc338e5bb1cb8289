"""Sends dead letters back to their topic: the loop and its report, and the dead-letter topics of Kafka and Pulsar.

A letter is settled only after the broker has confirmed the send, so that a kill at any point loses nothing: at worst
the last letters are sent twice. The producer stores a payload again, with a fresh lifetime.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import claimcheck.transports.kafka._client as kafka_client
import claimcheck.transports.kafka._queries as kafka
import claimcheck.transports.pulsar._queries as pulsar
from claimcheck._validation import check_int
from claimcheck._wire.envelope import unverified_pointer
from claimcheck.errors import (
    ClaimCheckError,
    ConfigError,
    EnvelopeError,
    PayloadNotFoundError,
    StoreError,
    TransportError,
)
from claimcheck.transports._common.dead_letters import EndClock, Letter, Senders, foreign, patient, relabeled
from claimcheck.transports.kafka._consumer import KafkaConsumer
from claimcheck.transports.kafka._producer import KafkaProducer
from claimcheck.transports.pulsar._consumer import PulsarConsumer
from claimcheck.transports.pulsar._message import PulsarMessage, natives, position_of
from claimcheck.transports.pulsar._producer import PulsarProducer

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

MAX_NAMED = 1000
"""The most letters that a report names."""

_WATERMARK_SECONDS = 30.0
_POLL_SECONDS = 0.2
_LIMIT = "message.max.bytes"
_CONSUMER = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
}
_SILENCE_MILLIS = 3000  # without a message although some may be left: they were acknowledged before
_QUEUE = 20  # messages of a Pulsar partition in memory; chunks are large

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RedriveReport:
    """What became of the letters so far."""

    dry_run: bool
    read: int = 0
    sent: int = 0
    bytes: int = 0
    failed: int = 0
    unreadable: int = 0
    foreign: int = 0
    named: list[tuple[str, ClaimCheckError]] = field(default_factory=list)
    finished: bool = False
    duration_seconds: float = 0.0

    def name(self, letter: Letter, error: ClaimCheckError) -> None:
        if len(self.named) < MAX_NAMED:
            self.named.append((letter.position, error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    dry_run: bool = True
    limit: int | None = None
    force: bool = False
    skip_unreadable: bool = False
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        check_int("limit", 1 if self.limit is None else self.limit, minimum=1)

    def run(self, letters: Iterable[Letter], report: RedriveReport, on_letter: Callable[[], None]) -> None:
        """Take letters until they end or the limit is reached."""
        begin = time.monotonic()
        proven = set[str | None]({None})  # the stores that had the payload of a letter
        for letter in letters:
            if letter.foreign is not None and not self.force:
                report.foreign += 1
                report.name(letter, letter.foreign)
            else:
                self._take(letter, report, proven)
            report.duration_seconds = time.monotonic() - begin
            on_letter()
            if (report.read if self.dry_run else report.sent) == self.limit:
                return
        report.finished = True

    def _take(self, letter: Letter, report: RedriveReport, proven: set[str | None]) -> None:
        """Read a letter and send it, or move past it."""
        try:
            payload = letter.read()
        except ClaimCheckError as error:
            if error.retryable:
                raise
            report.unreadable += 1
            report.name(letter, error)
            self._move_past(letter, error, proven)
            return
        proven.add(letter.store)
        report.read += 1
        report.bytes += len(payload or b"")
        if self.dry_run:
            return
        try:
            letter.send(payload)
        except BaseException as error:
            report.failed += 1
            error.add_note(f"the dead letter {letter.position} was not sent; it stays, and so do all later ones")
            raise
        report.sent += 1
        letter.settle()

    def _move_past(self, letter: Letter, error: ClaimCheckError, proven: set[str | None]) -> None:
        """Move past a letter that cannot be read, unless the reason may be that this is the wrong store."""
        if self.dry_run or letter.skip is None:
            return
        expires_ms = error.expires_ms if isinstance(error, PayloadNotFoundError) else None
        has_expired = expires_ms is not None and expires_ms <= self.clock() * 1000
        if not (has_expired or letter.store in proven or self.skip_unreadable):
            text = (
                f"store {letter.store!r} has had the payload of none of its letters so far: is it the right store? The "
                f"letter at {letter.position} stays, and so do all later ones. If its payload is lost, "
                f"--skip-unreadable moves past it: {error}"
            )
            raise StoreError(text, store=letter.store)
        letter.skip()


# Brokers -----------------------------------------------------------------------------------------------------------


class KafkaDeadLetters:
    """A dead-letter topic of Kafka with a consumer, and the topic to send to with a producer."""

    def __init__(self, place: kafka.KafkaTarget, cc: ClaimCheck, *, group: str) -> None:
        source, target = self._source, self._target = place.topics
        own = {name: value for name, value in place.settings.items() if name != _LIMIT}
        limit = int(place.settings.get(_LIMIT, kafka.MAX_MESSAGE_BYTES))
        cluster = place.cluster()
        known = cluster.topics()
        for option, name in (("--from", source), ("--to", target)):
            if name not in known or known[name].error is not None:
                raise ConfigError(f"there is no topic {name}: check its name and the ACLs", path=option)
        self._partitions = sorted(known[source].partitions)
        self._settled: dict[int, Any] = {}  # the last message by partition
        self._clock = EndClock()
        self._reader = patient(cc, source=source, target=target)
        receiving = {**own, **_CONSUMER, "group.id": group}
        consumer = kafka_client.vendor().Consumer(receiving, logger=_log)
        sending = {**own, _LIMIT: limit, "linger.ms": 0, "enable.idempotence": True}
        native = kafka_client.vendor().Producer(sending, logger=_log)
        # With a producer for dead letters chunks are kept, and their signatures with them.
        self._consumer = KafkaConsumer(consumer, self._reader, dead_letter_producer=native, clock=self._clock)
        limit = min(limit, kafka.topic_settings(cluster.admin, target).max_message_bytes or limit)
        self._senders = Senders(cc, lambda each: KafkaProducer(native, each, max_message_bytes=limit))

    def letters(self) -> Iterator[Letter]:
        """Yield the letters that are in the topic now and were not settled before, as the broker returns them."""
        places = [kafka_client.vendor().TopicPartition(self._source, partition) for partition in self._partitions]
        ends = {place.partition: self._consumer.get_watermark_offsets(place, _WATERMARK_SECONDS)[1] for place in places}
        self._consumer.assign(places)
        done: set[int] = set()
        has_ended = False
        while True:
            message = self._consumer.poll(_POLL_SECONDS)
            if message is None and len(done) == len(ends):
                if has_ended:
                    return
                has_ended = True
                self._clock.end()
            elif message is not None and message.error() is not None:
                done.add(_ended(message))
            elif message is not None and message.offset() < ends[message.partition()]:
                yield self._letter(message)
            elif message is not None:
                done.add(message.partition())

    def _letter(self, message: Any) -> Letter:
        def move_past() -> None:
            self._settled[message.partition()] = message
            self._consumer.commit(message)

        return Letter(
            position=f"{message.topic()}[{message.partition()}] at {message.offset()}",
            read=message.value,
            send=partial(self._send, message),
            settle=move_past,
            skip=move_past,
            store=self._store_of(message),
            foreign=foreign(message.headers() or [], self._target),
        )

    def _store_of(self, message: Any) -> str | None:
        records = getattr(message, "records", ())
        try:
            value = records[0].value() or b"" if records else b""
            pointer = unverified_pointer(value, header=self._reader.config.header)
        except EnvelopeError:
            return None
        return pointer.store or "" if pointer else None

    def _send(self, message: Any, payload: bytes | None) -> None:
        errors: list[Any] = []
        headers = relabeled(message.headers() or [], str.encode)
        received = [(each.value(), each.headers()) for each in getattr(message, "records", None) or [message]]
        producer = self._senders.choose(received)
        producer.produce(
            self._target, payload, message.key(), on_delivery=lambda error, _: errors.append(error), headers=headers
        )
        producer.flush()
        for error in filter(None, errors):
            raise kafka_client.exception_of(error)
        if not errors:
            raise TransportError("the producer has no delivery report", destination=self._target)

    def close(self) -> None:
        """Commit what was settled, and close consumer and producer."""
        with ExitStack() as closing:
            closing.callback(self._reader.close)
            closing.callback(self._senders.close)
            for producer in self._senders.producers:
                closing.callback(producer.flush)
            closing.callback(self._consumer.close)
            for message in self._settled.values():
                self._consumer.commit(message, asynchronous=False)


def _ended(message: Any) -> int:
    """Return the partition that has no more records; raises any other error of the client."""
    if message.error().name() != "_PARTITION_EOF":
        raise kafka_client.exception_of(message.error())
    return int(message.partition())


class PulsarDeadLetters:
    """The same on Pulsar."""

    def __init__(self, place: pulsar.PulsarTarget, cc: ClaimCheck, *, group: str) -> None:
        source, target = self._source, self._target = place.topics
        if place.admin_url:
            _check_topics(place)
        self._subscription, self._clock, self._opened = group, EndClock(), ExitStack()
        self._client = client = place.client()
        self._opened.callback(client.close)
        try:
            self._partitions = client.get_topic_partitions(source)
            self._reader = self._opened.enter_context(patient(cc, source=source, target=target))
            native = client.create_producer(target)
            limit = place.admin().max_message_bytes(target) if place.admin_url else pulsar.MAX_MESSAGE_BYTES
            self._senders = Senders(cc, lambda each: PulsarProducer(native, each, max_message_bytes=limit))
            self._opened.callback(self._senders.close)
        except BaseException:
            self._opened.close()
            raise

    def letters(self) -> Iterator[Letter]:
        """Yield the letters that are in the topic now and were not settled before, partition by partition."""
        consumers = [self._subscribe(topic) for topic in self._partitions]
        ends = [position_of(consumer.get_last_message_id()) for consumer in consumers]
        for consumer, end in zip(consumers, ends, strict=True):
            if end[1] >= 0:  # the topic has messages
                yield from self._letters_of(consumer, end)

    def _subscribe(self, topic: str) -> PulsarConsumer:
        library = pulsar.vendor()
        exclusive, earliest = library.ConsumerType.Exclusive, library.InitialPosition.Earliest
        try:
            native = self._client.subscribe(
                topic,
                self._subscription,
                consumer_type=exclusive,
                initial_position=earliest,
                receiver_queue_size=_QUEUE,
            )
        except library.ConsumerBusy as error:
            error.add_note(f"another redrive of {self._source} is running, or another consumer of {self._subscription}")
            raise
        consumer = PulsarConsumer(native, self._reader, consumer_type=exclusive, clock=self._clock)
        consumer.keeps_natives = True  # of chunks: their signatures
        return consumer

    def _letters_of(self, consumer: PulsarConsumer, end: tuple[int, int, int]) -> Iterator[Letter]:
        last = (0, 0, 0)
        while last < end:
            try:
                message = consumer.receive(_SILENCE_MILLIS)
            except pulsar.vendor().Timeout:
                break
            ids = natives(message.message_id())
            if position_of(ids[0])[:2] > end[:2]:  # it arrived since the start
                break
            last = max(last, *map(position_of, ids))
            yield self._letter(consumer, message)
        self._clock.end()
        consumer.tick()
        while (incomplete := consumer.take_ready()) is not None:
            yield self._letter(consumer, incomplete)

    def _letter(self, consumer: PulsarConsumer, message: PulsarMessage) -> Letter:
        return Letter(
            position=f"{message.topic_name()} at {message.message_id()}",
            read=lambda: None if message.has_null_value() else message.data(),
            send=partial(self._send, message),
            settle=partial(consumer.acknowledge, message),
            foreign=foreign(message.properties().items(), self._target, _topic_of),
        )

    def _send(self, message: PulsarMessage, payload: bytes | None) -> None:
        received = [(each.data(), each.properties()) for each in message.natives]
        self._senders.choose(received).send(
            payload,
            dict(relabeled(message.properties().items(), str)),
            message.partition_key() or None,
            ordering_key=message.ordering_key() or None,
            event_timestamp=message.event_timestamp() or None,
        )

    def close(self) -> None:
        """Close consumer, producer and client."""
        self._opened.close()


def _check_topics(place: pulsar.PulsarTarget) -> None:
    """Raise `ConfigError` if a topic does not exist: clients would create it."""
    admin = place.admin()
    for option, topic in zip(("--from", "--to"), place.topics, strict=True):
        if pulsar.topic_stats(admin, topic) is None:
            raise ConfigError(f"there is no topic {topic}: check its name", path=option)


def _topic_of(name: str) -> str:
    """Return the complete name of a topic, without the number of a partition."""
    return pulsar.split_partition(pulsar.full_name(name))[0]
