"""The embedded transport: a broker in one SQLite file, and a producer and a consumer of payloads of any size."""

from claimcheck.transports.local._broker import LocalBroker, TopicStats
from claimcheck.transports.local._consumer import LocalConsumer
from claimcheck.transports.local._errors import (
    BrokerArgumentError,
    BrokerBusyError,
    BrokerClosedError,
    BrokerCommitError,
    BrokerStorageError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    StaleDeliveryError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from claimcheck.transports.local._groups import Delivery, GroupMember, Polled
from claimcheck.transports.local._messages import MESSAGE_OVERHEAD_BYTES, LocalMessage, MessageId, message_size
from claimcheck.transports.local._producer import LocalProducer
from claimcheck.transports.local._received_message import ReceivedMessage

__all__ = [
    # payloads in, payloads out
    "LocalConsumer",
    "LocalProducer",
    "ReceivedMessage",
    # the broker
    "LocalBroker",
    "LocalMessage",
    "MessageId",
    "TopicStats",
    # consumer groups, below the consumer
    "Delivery",
    "GroupMember",
    "Polled",
    # what counts towards the limit
    "MESSAGE_OVERHEAD_BYTES",
    "message_size",
    # what it refuses and how it fails
    "BrokerArgumentError",
    "BrokerBusyError",
    "BrokerClosedError",
    "BrokerCommitError",
    "BrokerStorageError",
    "MessageTooLargeError",
    "OffsetOutOfRangeError",
    "StaleDeliveryError",
    "TopicExistsError",
    "UnknownPartitionError",
    "UnknownTopicError",
]
