"""Apache Kafka: wrap the producer and consumer of confluent-kafka that you have; payloads may then be of any size."""

from claimcheck.transports.kafka._async_consumer import AsyncKafkaConsumer
from claimcheck.transports.kafka._async_producer import AsyncKafkaProducer
from claimcheck.transports.kafka._consumer import KafkaConsumer
from claimcheck.transports.kafka._errors import CompactedTopicError, OffsetStoreError, ShareGroupError
from claimcheck.transports.kafka._message import KafkaMessage, last_offset
from claimcheck.transports.kafka._producer import KafkaProducer
from claimcheck.transports.kafka._share_consumer import KafkaShareConsumer

__all__ = [
    # payloads in, payloads out
    "KafkaConsumer",
    "KafkaMessage",
    "KafkaProducer",
    "KafkaShareConsumer",
    "last_offset",
    # the same for confluent_kafka.aio
    "AsyncKafkaConsumer",
    "AsyncKafkaProducer",
    # what is refused
    "CompactedTopicError",
    "OffsetStoreError",
    "ShareGroupError",
]
