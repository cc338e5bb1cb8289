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
from claimcheck.transports.local._producer import LocalProducer

__all__ = [
    "MESSAGE_OVERHEAD_BYTES",
    "BrokerBusyError",
    "BrokerClosedError",
    "BrokerCommitError",
    "BrokerStorageError",
    "LocalBroker",
    "LocalConsumer",
    "LocalMessage",
    "LocalProducer",
    "MessageId",
    "MessageTooLargeError",
    "OffsetOutOfRangeError",
    "ReceivedMessage",
    "StaleDeliveryError",
    "TopicExistsError",
    "TopicStats",
    "UnknownPartitionError",
    "UnknownTopicError",
    "message_size",
]
