"""Messages that nobody can use, put aside where somebody can look at them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from claimcheck.transports.local.broker import LocalBroker
from claimcheck.transports.local.errors import MessageTooLargeError, TopicExistsError
from claimcheck.transports.local.groups import Delivery
from claimcheck.transports.local.messages import LocalMessage

__all__ = ["dead_letter_topic", "put_aside"]

_LONGEST_REASON = 500


def dead_letter_topic(topic: str) -> str:
    """Name the topic that takes the dead letters of another one."""
    return f"{topic}.dead_letter"


def put_aside(broker: LocalBroker, deliveries: Iterable[Delivery], *, reason: str) -> None:
    """Append the original messages, envelopes as they came, to their topic's dead letters, all to one partition.

    Each one gets the headers ``dead-letter-topic``, ``-partition``, ``-offset`` and ``-reason``, unless it is so close
    to the broker's limit that they do not fit: the message matters more than its label.

    Args:
        broker: Where they came from. The topic is made, with one partition, when it is not there.
        deliveries: Messages of one partition; their values are read anew.
        reason: Why.

    Raises:
        TransportError: The broker refused; some of the messages may be among the dead letters already.
    """
    originals = [_original(broker, delivery) for delivery in deliveries]
    topic = dead_letter_topic(originals[0].topic)
    with contextlib.suppress(TopicExistsError):  # somebody made it with more partitions: as good
        broker.create_topic(topic)
    partition = broker.partition_for(topic, originals[0].key)
    for message in sorted(originals, key=lambda message: message.offset):
        _append(broker, topic, partition, message, reason)


def _original(broker: LocalBroker, delivery: Delivery) -> LocalMessage:
    """The message with its value, which deliveries that wait for their acknowledgement do not carry about."""
    known = delivery.message
    return broker.fetch(known.topic, known.partition, known.offset, 1)[0]


def _append(broker: LocalBroker, topic: str, partition: int, message: LocalMessage, reason: str) -> None:
    origin = {
        "dead-letter-topic": message.topic,
        "dead-letter-partition": str(message.partition),
        "dead-letter-offset": str(message.offset),
        "dead-letter-reason": reason[:_LONGEST_REASON],
    }
    try:
        headers = [*message.headers, *((name, text.encode()) for name, text in origin.items())]
        broker.append(topic, message.value, key=message.key, headers=headers, partition=partition)
    except MessageTooLargeError:
        broker.append(topic, message.value, key=message.key, headers=message.headers, partition=partition)
