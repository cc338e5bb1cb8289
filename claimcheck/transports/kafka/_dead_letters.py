"""Sends received records to a dead-letter topic, and waits until they are in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck._validation import check_type
from claimcheck._wire.envelope import encode_literal
from claimcheck.errors import ClaimCheckError, ConfigError
from claimcheck.transports._common.dead_letters import kept_longer, origin
from claimcheck.transports.kafka._client import exception_of, vendor
from claimcheck.transports.kafka._message import KafkaMessage

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

    from claimcheck._client import ClaimCheck

_POLL_SECONDS = 0.1


class _Record(NamedTuple):
    """A record as it was received."""

    offset: int
    value: bytes | None
    key: bytes | None
    headers: list[Any]


class DeadLetters:
    """Sends the records of received messages to dead-letter topics."""

    def __init__(self, cc: ClaimCheck, producer: Producer | None) -> None:
        valid = producer is None or type(producer) is vendor().Producer
        check_type("dead_letter_producer", producer, valid=valid, expected="an unwrapped confluent_kafka.Producer")
        self._cc = cc
        self._producer: Any = producer

    def __bool__(self) -> bool:
        return self._producer is not None

    def send(self, message: Message, topic: str, reason: str) -> None:
        """Send a message's records, after the lifetime of a stored payload was extended; see `KafkaConsumer`."""
        if self._producer is None:
            raise ConfigError("there is no dead_letter_producer", path="dead_letter_producer")
        source, partition = str(message.topic()), message.partition() or 0
        reports: list[Any] = []
        records = _records_of(message, self._cc.config.header)
        for record in records:
            value = kept_longer(self._cc, record.value, topic=source, dead_letter_topic=topic)
            labels = [*record.headers, *origin(source, partition, record.offset, reason)]
            produce = partial(
                self._producer.produce, topic, value, key=record.key, on_delivery=lambda error, _: reports.append(error)
            )
            self._produce(produce, labels, record.headers)
        while len(reports) < len(records):
            self._producer.poll(_POLL_SECONDS)
        for error in filter(None, reports):
            raise exception_of(error)

    def _produce(self, produce: Callable[..., None], labels: list[Any], headers: list[Any]) -> None:
        """Produce a record with the labels, or without them if it would be too large for the producer."""
        while True:
            try:
                produce(headers=labels)
                return
            except BufferError:
                self._producer.poll(_POLL_SECONDS)
            except vendor().KafkaException as error:
                if labels is headers or error.args[0].code() != vendor().KafkaError.MSG_SIZE_TOO_LARGE:
                    raise
                labels = headers


def _records_of(message: Any, header: bytes) -> list[_Record]:
    if not isinstance(message, KafkaMessage):
        value = message.value()
        if value is not None and value.startswith(header):  # it was escaped
            value = encode_literal(value, header=header)
        return [_Record(message.offset(), value, message.key(), message.headers() or [])]
    if not message.records:
        raise ClaimCheckError("the chunks were not kept: pass dead_letter_producer to the consumer that received them")
    return [_Record(each.offset(), each.value(), each.key(), list(each.headers() or [])) for each in message.records]
