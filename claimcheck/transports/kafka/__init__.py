"""Apache Kafka: wrap your producer and consumer of confluent-kafka to send and receive payloads of any size."""

from claimcheck.transports.kafka._asyncio import AsyncKafkaConsumer, AsyncKafkaProducer
from claimcheck.transports.kafka._client import OffsetStoreError
from claimcheck.transports.kafka._consumer import KafkaConsumer
from claimcheck.transports.kafka._message import KafkaMessage, last_offset
from claimcheck.transports.kafka._producer import KafkaProducer

__all__ = [
    # blocking clients
    "KafkaConsumer",
    "KafkaMessage",
    "KafkaProducer",
    "last_offset",
    # clients of confluent_kafka.aio
    "AsyncKafkaConsumer",
    "AsyncKafkaProducer",
    # errors
    "OffsetStoreError",
]
