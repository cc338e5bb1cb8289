"""The embedded transport: a broker in one SQLite file, and a producer and a consumer of payloads of any size."""

from claimcheck.transports.local._broker import (
    MESSAGE_OVERHEAD_BYTES,
    LocalBroker,
    LocalMessage,
    MessageId,
    TopicStats,
    message_size,
)
from claimcheck.transports.local._consumer import LocalConsumer, ReceivedMessage
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
from claimcheck.transports.local._producer import LocalProducer

__all__ = [
    # payloads
    "LocalConsumer",
    "LocalProducer",
    "ReceivedMessage",
    # the broker
    "LocalBroker",
    "LocalMessage",
    "MessageId",
    "TopicStats",
    # consumer groups
    "Delivery",
    "GroupMember",
    "Polled",
    # the size limit
    "MESSAGE_OVERHEAD_BYTES",
    "message_size",
    # errors
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
