"""Send every file of a folder through a Kafka topic, whatever its size, and receive it.

    python examples/kafka_files.py [FOLDER] [--strategy external|chunking|hybrid]

Start a broker with `docker compose up -d kafka`, or name yours in KAFKA_SERVERS (default: localhost:9092).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import claimcheck
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer

SERVERS: dict[str, Any] = {"bootstrap.servers": os.environ.get("KAFKA_SERVERS", "localhost:9092")}


def main(folder: Path, strategy: str) -> None:
    """Send, receive, compare."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    topic = f"files-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(SERVERS)
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result()
    reading = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.offset.store": False}
    with tempfile.TemporaryDirectory() as work:
        stores = {"disk": {"type": "filesystem", "path": work}}
        # Small, so that there is something to see. Without it, everything that fits into a record is sent unchanged.
        cc = claimcheck.from_dict({"strategy": strategy, "threshold_bytes": 50_000, "stores": stores})

        with KafkaProducer(Producer({**SERVERS, "enable.idempotence": True}), cc) as producer:
            for path in files:
                with path.open("rb") as file:
                    producer.produce(topic, file, headers={"path": str(path.relative_to(folder))})

        with KafkaConsumer(Consumer({**SERVERS, **reading}), cc) as consumer:
            consumer.subscribe([topic])
            for _ in files:
                message = consumer.poll(30)
                path = folder / dict(message.headers())["path"].decode()
                assert message.value() == path.read_bytes()
                print(f"{len(message.value()):>12,}  {path.name}  {message.partition()}:{message.offset()}")
                consumer.commit(message, asynchronous=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(claimcheck.__file__).parent)
    parser.add_argument("--strategy", default="external", choices=["external", "chunking", "hybrid"])
    arguments = parser.parse_args()
    main(arguments.folder, arguments.strategy)
