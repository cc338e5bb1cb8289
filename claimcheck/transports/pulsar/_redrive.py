"""Reads a dead-letter topic of Pulsar, and sends to another topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from claimcheck.errors import ConfigError
from claimcheck.transports._common.dead_letters import EndClock, Letter, Senders, foreign, patient, relabeled
from claimcheck.transports.pulsar._consumer import PulsarConsumer
from claimcheck.transports.pulsar._message import PulsarMessage, natives, position_of
from claimcheck.transports.pulsar._producer import PulsarProducer
from claimcheck.transports.pulsar._queries import (
    MAX_MESSAGE_BYTES,
    PulsarTarget,
    full_name,
    split_partition,
    topic_stats,
    vendor,
)

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_SILENCE_MILLIS = 3000  # without a message although some may be left: they were acknowledged before
_QUEUE = 20  # messages of a partition in memory; chunks are large


class PulsarDeadLetters:
    """A dead-letter topic of Pulsar; see `claimcheck.transports._common.dead_letters.DeadLetterTopic`."""

    def __init__(self, place: PulsarTarget, cc: ClaimCheck, *, group: str) -> None:
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
            limit = place.admin().max_message_bytes(target) if place.admin_url else MAX_MESSAGE_BYTES
            self._senders = Senders(cc, lambda each: PulsarProducer(native, each, max_message_bytes=limit))
            self._opened.callback(self._senders.close)
        except BaseException:
            self._opened.close()
            raise

    def letters(self) -> Iterator[Letter]:
        """Yield the letters, partition by partition."""
        consumers = [self._subscribe(topic) for topic in self._partitions]
        ends = [position_of(consumer.get_last_message_id()) for consumer in consumers]
        for consumer, end in zip(consumers, ends, strict=True):
            if end[1] >= 0:  # the topic has messages
                yield from self._letters_of(consumer, end)

    def _subscribe(self, topic: str) -> PulsarConsumer:
        pulsar = vendor()
        exclusive, earliest = pulsar.ConsumerType.Exclusive, pulsar.InitialPosition.Earliest
        try:
            native = self._client.subscribe(
                topic,
                self._subscription,
                consumer_type=exclusive,
                initial_position=earliest,
                receiver_queue_size=_QUEUE,
            )
        except pulsar.ConsumerBusy as error:
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
            except vendor().Timeout:
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


def _check_topics(place: PulsarTarget) -> None:
    """Raise `ConfigError` if a topic does not exist: clients would create it."""
    admin = place.admin()
    for option, topic in zip(("--from", "--to"), place.topics, strict=True):
        if topic_stats(admin, topic) is None:
            raise ConfigError(f"there is no topic {topic}: check its name", path=option)


def _topic_of(name: str) -> str:
    """Return the complete name of a topic, without the number of a partition."""
    return split_partition(full_name(name))[0]
