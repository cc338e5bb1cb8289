"""Apache Pulsar: wrappers for the client's producers, consumers and readers that take payloads of any size."""

from claimcheck.transports.pulsar._admin import ask_limit
from claimcheck.transports.pulsar._asyncio import AsyncPulsarConsumer, AsyncPulsarProducer, AsyncPulsarReader
from claimcheck.transports.pulsar._consumer import PulsarConsumer
from claimcheck.transports.pulsar._errors import ChunkArgumentError, SendDeadlineError, SharedSubscriptionError
from claimcheck.transports.pulsar._listener import listening
from claimcheck.transports.pulsar._message import PulsarMessage
from claimcheck.transports.pulsar._message_ids import WholeMessageId, deserialize
from claimcheck.transports.pulsar._producer import PulsarProducer
from claimcheck.transports.pulsar._reader import PulsarReader

__all__ = [
    # payloads in, payloads out
    "PulsarConsumer",
    "PulsarMessage",
    "PulsarProducer",
    "PulsarReader",
    "listening",
    # the same for pulsar.asyncio
    "AsyncPulsarConsumer",
    "AsyncPulsarProducer",
    "AsyncPulsarReader",
    # where they are
    "WholeMessageId",
    "deserialize",
    # how large they may be
    "ask_limit",
    # what is refused and how it fails
    "ChunkArgumentError",
    "SendDeadlineError",
    "SharedSubscriptionError",
]
