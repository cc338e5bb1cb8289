"""Apache Pulsar: wrappers for the client's producers, consumers and readers that take payloads of any size."""

from claimcheck.transports.pulsar._asyncio import AsyncPulsarConsumer, AsyncPulsarProducer, AsyncPulsarReader
from claimcheck.transports.pulsar._consumer import PulsarConsumer, SharedSubscriptionError
from claimcheck.transports.pulsar._message import PulsarMessage, WholeMessageId, deserialize
from claimcheck.transports.pulsar._producer import PulsarProducer
from claimcheck.transports.pulsar._queries import ask_limit
from claimcheck.transports.pulsar._receiver import PulsarReader
from claimcheck.transports.pulsar._send import ChunkArgumentError, SendDeadlineError

__all__ = [
    # producers, consumers and readers
    "PulsarConsumer",
    "PulsarMessage",
    "PulsarProducer",
    "PulsarReader",
    # the same for pulsar.asyncio
    "AsyncPulsarConsumer",
    "AsyncPulsarProducer",
    "AsyncPulsarReader",
    # message ids
    "WholeMessageId",
    "deserialize",
    # size limits
    "ask_limit",
    # errors
    "ChunkArgumentError",
    "SendDeadlineError",
    "SharedSubscriptionError",
]
