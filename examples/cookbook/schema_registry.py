"""Schema Registry: serialize first, and let claimcheck send what the serializer returns.

    python examples/cookbook/schema_registry.py

Needs confluent-kafka[avro,schemaregistry], and Kafka at KAFKA_SERVERS (default: localhost:9092). The registry is at
SCHEMA_REGISTRY_URL (default: one in this process). Payloads are in the folder claims/.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import claimcheck
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer

SERVERS = {"bootstrap.servers": os.environ.get("KAFKA_SERVERS", "localhost:9092")}
READING: dict[str, Any] = {"auto.offset.reset": "earliest", "enable.auto.offset.store": False}
SCHEMA = """{"type": "record", "name": "Scan", "fields": [
    {"name": "page", "type": "int"}, {"name": "image", "type": "bytes"}]}"""

registry = SchemaRegistryClient.new_client({"url": os.environ.get("SCHEMA_REGISTRY_URL", "mock://")})
stores = {"disk": {"type": "filesystem", "path": "claims", "create": True}}
cc = claimcheck.from_dict({"stores": stores})
serialize = AvroSerializer(registry, SCHEMA)
deserialize = AvroDeserializer(registry)


def send(producer: KafkaProducer, topic: str, scan: dict[str, Any]) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    producer.produce(topic, serialize(scan, context))


def receive(consumer: KafkaConsumer) -> Any:
    message = consumer.poll(30)
    assert message is not None
    context = SerializationContext(message.topic(), MessageField.VALUE)
    return deserialize(message.value(), context)


def main(topic: str) -> None:
    """Send a small and a large record, and read both."""
    with KafkaProducer(Producer(SERVERS), cc) as producer:
        send(producer, topic, {"page": 1, "image": b"small"})
        send(producer, topic, {"page": 2, "image": bytes(3_000_000)})
    consumer = KafkaConsumer(Consumer({**SERVERS, **READING, "group.id": topic}), cc, auto_offset_store=True)
    with consumer:
        consumer.subscribe([topic])
        for scan in (receive(consumer), receive(consumer)):
            print(f"page {scan['page']}: {len(scan['image']):,} bytes")


if __name__ == "__main__":
    main(os.environ.get("TOPIC", f"scans-{uuid.uuid4().hex[:8]}"))
