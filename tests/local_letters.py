"""Dead letters on the embedded broker, for tests of what the transports share: no server is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from weakref import WeakKeyDictionary

import claimcheck
from claimcheck import Failed, Resolved
from claimcheck._receive.resolver import Outcome
from claimcheck.errors import ConfigError
from claimcheck.transports._common.dead_letters import EndClock, Letter, Senders, foreign, origin, patient, relabeled
from claimcheck.transports.local import (
    LocalBroker,
    LocalConsumer,
    LocalMessage,
    LocalProducer,
    MessageTooLargeError,
    ReceivedMessage,
)

_settled: WeakKeyDictionary[LocalBroker, set[tuple[str, str, int, int]]] = WeakKeyDictionary()


def dead_letter(
    broker: LocalBroker,
    cc: claimcheck.ClaimCheck,
    consumer: LocalConsumer,
    message: ReceivedMessage,
    reason: str = "rejected",
) -> None:
    """Append the messages of a payload to ``<topic>.dead_letter`` as the transports do, and acknowledge them."""
    topic = f"{message.topic}.dead_letter"
    with contextlib.suppress(ConfigError):  # with more partitions
        broker.create_topic(topic)
    originals = [broker.fetch(message.topic, message.partition, at, 1)[0] for at in message.positions]
    for each in originals:
        labels = tuple(origin(each.topic, each.partition, each.offset, reason))
        append = partial(broker.append, topic, each.value, key=each.key)
        try:
            append(headers=[*each.headers, *labels])
        except MessageTooLargeError:
            append(headers=[*each.headers, *labels[:1]])
    consumer.ack(message)


class LocalLetters:
    """A dead-letter topic whose messages are acknowledged one by one."""

    def __init__(self, broker: LocalBroker, cc: claimcheck.ClaimCheck, *, source: str, target: str, group: str) -> None:
        for option, name in (("--from", source), ("--to", target)):
            if name not in broker.topics():
                raise ConfigError(f"there is no topic {name}: check its name", path=option)
        self._broker, self._source, self._target, self._group = broker, source, target, group
        self._settled = _settled.setdefault(broker, set())
        self.reader = patient(cc, source=source, target=target)
        self._senders = Senders(cc, lambda each: LocalProducer(broker, each))

    def letters(self) -> Iterator[Letter]:
        """Yield the letters, partition by partition."""
        clock = EndClock()
        resolver = self.reader.resolver(clock=clock)
        ends = [
            self._broker.end_offset(self._source, number) for number in range(self._broker.partitions(self._source))
        ]
        for partition, end in enumerate(ends):
            for message in self._broker.fetch(self._source, partition, 0, end):
                if self._key(message) not in self._settled:
                    yield from map(self._letter, self._feed(resolver, message))
        clock.end()
        yield from map(self._letter, resolver.tick())

    def _feed(self, resolver: claimcheck.Resolver, message: LocalMessage) -> list[Outcome]:
        return resolver.feed(
            message.partition,
            message.offset,
            message.value,
            headers=message.headers,
            key=message.key,
            handle=message,
            destination=self._source,
        )

    def _letter(self, outcome) -> Letter:
        messages = sorted(outcome.handles, key=lambda each: each.offset)
        first = messages[0]
        return Letter(
            position=f"{first.topic}[{first.partition}] at {first.offset}",
            read=partial(self._read, outcome),
            send=partial(self._send, messages, outcome),
            settle=lambda: self._settled.update(map(self._key, messages)),
            foreign=foreign(outcome.headers, self._target),
        )

    def _read(self, outcome: Resolved | Failed) -> bytes | None:
        if isinstance(outcome, Resolved):
            payload: bytes | None = outcome.payload
            return payload
        raise outcome.error

    def _send(self, messages: list[LocalMessage], outcome: Resolved | Failed, payload: bytes | None) -> None:
        producer = self._senders.choose([(each.value, each.headers) for each in messages])
        headers = relabeled(outcome.headers, str.encode)
        producer.send(self._target, payload, key=outcome.key, headers=headers)

    def _key(self, message: LocalMessage) -> tuple[str, str, int, int]:
        return self._group, message.topic, message.partition, message.offset

    def close(self) -> None:
        self.reader.close()
        self._senders.close()
