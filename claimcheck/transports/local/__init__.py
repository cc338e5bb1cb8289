"""The embedded transport: a broker in one SQLite file, and a producer and a consumer of payloads of any size."""

from claimcheck.transports.local._broker import (
    MESSAGE_OVERHEAD_BYTES,
    BrokerBusyError,
    BrokerClosedError,
    BrokerCommitError,
    BrokerStorageError,
    GroupTakenOverError,
    LocalBroker,
    LocalMessage,
    MessageId,
    MessageTooLargeError,
    TopicStats,
    UnknownPartitionError,
    UnknownTopicError,
)
from claimcheck.transports.local._clients import LocalConsumer, LocalProducer, ReceivedMessage

__all__ = [
    "MESSAGE_OVERHEAD_BYTES",
    "BrokerBusyError",
    "BrokerClosedError",
    "BrokerCommitError",
    "BrokerStorageError",
    "GroupTakenOverError",
    "LocalBroker",
    "LocalConsumer",
    "LocalMessage",
    "LocalProducer",
    "MessageId",
    "MessageTooLargeError",
    "ReceivedMessage",
    "TopicStats",
    "UnknownPartitionError",
    "UnknownTopicError",
]
