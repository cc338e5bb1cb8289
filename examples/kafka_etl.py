"""Transform payloads from one Kafka topic to another, exactly once, although a worker crashes.

    python examples/kafka_etl.py [--payloads 10] [--size 3000000] [--strategy external|chunking|hybrid]

Start a broker with `docker compose up -d kafka`, or name yours in KAFKA_SERVERS (default: localhost:9092).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import claimcheck
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer

SERVERS: dict[str, Any] = {"bootstrap.servers": os.environ.get("KAFKA_SERVERS", "localhost:9092")}
READING = {
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
}


class BreakdownError(Exception):
    """Simulates a crash in the middle of a transaction."""


def transform(payload: bytes) -> bytes:
    """Transform one payload."""
    return payload.hex().encode()


def work(cc: claimcheck.ClaimCheck, source: str, target: str, todo: set[bytes], *, breaks_at: int = -1) -> None:
    """Process payloads until `todo` is empty; each transaction commits offsets and results together."""
    # All workers use the same id, so a new worker aborts the transaction that a crashed one left open.
    native = Producer({**SERVERS, "transactional.id": f"etl-{source}"})
    reading = Consumer({**SERVERS, **READING, "group.id": f"etl-{source}"})
    with KafkaProducer(native, cc) as producer, KafkaConsumer(reading, cc) as consumer:
        producer.init_transactions(30)
        consumer.subscribe([source])
        while todo:
            messages = consumer.consume(3, timeout=1)
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, transform(message.value()), message.key())
            if len(todo) <= breaks_at:
                raise BreakdownError
            where = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(where, consumer.consumer_group_metadata())
            producer.commit_transaction()
            todo -= {message.key() for message in messages}
            print(f"{len(messages)} payloads committed, {len(todo)} left")


def send(cc: claimcheck.ClaimCheck, topic: str, payloads: dict[bytes, bytes]) -> None:
    """Send the payloads to process."""
    with KafkaProducer(Producer(SERVERS), cc) as producer:
        for key, payload in payloads.items():
            producer.produce(topic, payload, key)


def receive(cc: claimcheck.ClaimCheck, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """Receive the committed payloads, and one more if there is one."""
    with KafkaConsumer(Consumer({**SERVERS, **READING, "group.id": f"check-{topic}"}), cc) as consumer:
        consumer.subscribe([topic])
        found = [consumer.poll(30) for _ in range(count)] + consumer.consume(1, timeout=2)
        return [(message.key(), message.value()) for message in found]


def main(payloads: int, size: int, strategy: str) -> None:
    """Send, process with one crash, compare."""
    source, target = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("raw", "done"))
    admin = AdminClient(SERVERS)
    for made in admin.create_topics([NewTopic(source, 2, 1), NewTopic(target, 2, 1)]).values():
        made.result()
    sent = {str(number).encode(): os.urandom(size) for number in range(payloads)}
    with tempfile.TemporaryDirectory() as folder:
        cc = claimcheck.from_dict({"strategy": strategy, "stores": {"disk": {"type": "filesystem", "path": folder}}})
        send(cc, source, sent)
        todo = set(sent)
        try:
            work(cc, source, target, todo, breaks_at=payloads - 1)
        except BreakdownError:
            print(f"worker crashed, {len(todo)} left")
        work(cc, source, target, todo)
        found = receive(cc, target, payloads)
        assert len(found) == payloads
        assert dict(found) == {key: transform(payload) for key, payload in sent.items()}
        print(f"{len(found)} payloads, each exactly once")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payloads", type=int, default=10)
    parser.add_argument("--size", type=int, default=3_000_000)
    parser.add_argument("--strategy", default="external", choices=["external", "chunking", "hybrid"])
    arguments = parser.parse_args()
    main(arguments.payloads, arguments.size, arguments.strategy)
