"""Reads a dead-letter topic of the embedded broker, and sends to another topic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from claimcheck.errors import ConfigError, TransportError
from claimcheck.transports._common.redrive import EndClock, Letter, Senders, foreign, patient, relabeled
from claimcheck.transports.local._broker import LocalBroker
from claimcheck.transports.local._consumer import LocalConsumer, ReceivedMessage
from claimcheck.transports.local._groups import members
from claimcheck.transports.local._producer import LocalProducer

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

_LEASE_SECONDS = 5.0
_STEP_SECONDS = 0.5


class LocalDeadLetters:
    """A dead-letter topic of the embedded broker; see `claimcheck.transports._common.redrive.DeadLetterTopic`."""

    def __init__(self, broker: LocalBroker, cc: ClaimCheck, *, source: str, target: str, group: str) -> None:
        for option, name in (("--from", source), ("--to", target)):
            if name not in broker.topics():
                raise ConfigError(f"there is no topic {name}: check its name", path=option)
        self._broker, self._source, self._target, self._group = broker, source, target, group
        self._wait_for_others()
        self._clock = EndClock()
        self._reader = patient(cc, source=source, target=target)
        self._consumer = LocalConsumer(broker, self._reader, topics=[source], group=group, lease_seconds=_LEASE_SECONDS)
        self._consumer._resolver = self._reader.resolver(clock=self._clock)  # the broker's clock is that of its leases
        self._senders = Senders(cc, lambda each: LocalProducer(broker, each))

    def letters(self) -> Iterator[Letter]:
        """Yield the letters, partition by partition."""
        partitions = range(self._broker.partitions(self._source))
        ends = [self._broker.end_offset(self._source, partition) for partition in partitions]
        self._consumer._member._poll_once(0)  # reads which partitions it has
        self._check_partitions(len(ends))
        beyond: set[int] = set()
        while len(beyond) < len(ends) and (message := self._next()) is not None:
            if message.offset < ends[message.partition]:
                yield self._letter(message)
            else:
                beyond.add(message.partition)
        self._check_partitions(len(ends))

    def _wait_for_others(self) -> None:
        """Wait until a member that was killed has lost its lease; raises `TransportError` if one is alive."""
        waited = 0.0
        while members(self._broker, self._group, self._source):
            if waited > 2 * _LEASE_SECONDS:
                raise self._busy()
            self._broker.sleep(_STEP_SECONDS)
            waited += _STEP_SECONDS

    def _check_partitions(self, count: int) -> None:
        """Make sure that no other member has letters that this one was to read."""
        if len(self._consumer._member.assignment()) < count:
            raise self._busy()

    def _busy(self) -> TransportError:
        text = (
            f"another redrive of {self._source} is running, or another consumer of the group {self._group}: letters "
            "remain that were not read; run the command again when it has ended"
        )
        return TransportError(text, destination=self._source)

    def _next(self) -> ReceivedMessage | None:
        message = self._consumer.receive(timeout=0)
        if message is None:
            self._clock.end()
            message = self._consumer.receive(timeout=0)
        return message

    def _letter(self, message: ReceivedMessage) -> Letter:
        return Letter(
            position=f"{message.topic}[{message.partition}] at {message.offset}",
            read=lambda: message.value,
            send=partial(self._send, message),
            settle=partial(self._consumer.ack, message),
            foreign=foreign(message.headers, self._target),
        )

    def _send(self, message: ReceivedMessage, payload: bytes | None) -> None:
        headers = relabeled(message.headers, str.encode)
        received = [self._broker.fetch(message.topic, message.partition, at, 1)[0] for at in message.positions]
        producer = self._senders.choose([(each.value, each.headers) for each in received])
        producer.send(self._target, payload, key=message.key, headers=headers)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
        self._reader.close()
        self._senders.close()
