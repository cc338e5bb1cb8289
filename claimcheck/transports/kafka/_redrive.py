"""Reads a dead-letter topic of Kafka, and sends to another topic."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import PointerData, decode
from claimcheck.errors import ConfigError, EnvelopeError, TransportError
from claimcheck.transports._common.dead_letters import EndClock, Letter, Senders, foreign, patient, relabeled
from claimcheck.transports.kafka._client import exception_of, vendor
from claimcheck.transports.kafka._consumer import KafkaConsumer
from claimcheck.transports.kafka._producer import KafkaProducer
from claimcheck.transports.kafka._queries import MAX_MESSAGE_BYTES, KafkaTarget

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_SECONDS = 30.0
_POLL_SECONDS = 0.2
_LIMIT = "message.max.bytes"
_CONSUMER = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
}
_quiet = logging.getLogger(__name__)


class KafkaDeadLetters:
    """A dead-letter topic of Kafka; see `claimcheck.transports._common.dead_letters.DeadLetterTopic`."""

    def __init__(self, place: KafkaTarget, cc: ClaimCheck, *, group: str) -> None:
        source, target = self._source, self._target = place.topics
        own = {name: value for name, value in place.settings.items() if name != _LIMIT}
        limit = int(place.settings.get(_LIMIT, MAX_MESSAGE_BYTES))
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
        consumer = vendor().Consumer(receiving, logger=_quiet)
        sending = {**own, _LIMIT: limit, "linger.ms": 0, "enable.idempotence": True}
        native = vendor().Producer(sending, logger=_quiet)
        # With a producer for dead letters chunks are kept, and their signatures with them.
        self._consumer = KafkaConsumer(consumer, self._reader, dead_letter_producer=native, clock=self._clock)
        admin = cluster.admin
        self._senders = Senders(cc, lambda each: KafkaProducer(native, each, max_message_bytes=limit, admin=admin))

    def letters(self) -> Iterator[Letter]:
        """Yield the letters of all partitions, in the order in which the broker returns them."""
        places = [vendor().TopicPartition(self._source, partition) for partition in self._partitions]
        ends = {place.partition: self._consumer.get_watermark_offsets(place, _SECONDS)[1] for place in places}
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
            envelope = decode(records[0].value() or b"", header=self._reader.config.header) if records else None
            return (pointers.decode(envelope.data).store or "") if isinstance(envelope, PointerData) else None
        except EnvelopeError:
            return None

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
            raise exception_of(error)
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
        raise exception_of(message.error())
    return int(message.partition())
