"""Apache Kafka: wrap the producer and consumer of confluent-kafka that you have; payloads may then be of any size."""

from claimcheck.transports.kafka.aio_consumer import AsyncKafkaConsumer
from claimcheck.transports.kafka.aio_producer import AsyncKafkaProducer
from claimcheck.transports.kafka.consumer import KafkaConsumer
from claimcheck.transports.kafka.errors import CompactedTopicError, OffsetStoreError, ShareGroupError
from claimcheck.transports.kafka.message import KafkaMessage, last_offset
from claimcheck.transports.kafka.producer import KafkaProducer
from claimcheck.transports.kafka.share import KafkaShareConsumer

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
