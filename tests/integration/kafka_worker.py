"""A consumer in a process of its own, to be killed: says what it received, and commits it.

    python tests/integration/kafka_worker.py BOOTSTRAP_SERVERS TOPIC GROUP FOLDER JSON

FOLDER is where payloads are stored, JSON the consumer's further configuration. A line for each message: its name, the
checksum of its value, and where it is; and one when partitions are assigned. SIGTERM closes it.
"""

import hashlib
import json
import signal
import sys
from typing import Any

import confluent_kafka

import claimcheck
from claimcheck.transports.kafka import KafkaConsumer, last_offset


def main(bootstrap_servers: str, topic: str, group: str, folder: str, more: str) -> None:
    cc = claimcheck.from_dict({"strategy": "external", "stores": {"disk": {"type": "filesystem", "path": folder}}})
    conf: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    conf |= {"enable.auto.offset.store": False, "enable.auto.commit": False, **json.loads(more)}
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    consumer = KafkaConsumer(confluent_kafka.Consumer(conf), cc)
    consumer.subscribe([topic], on_assign=lambda _, partitions: print("assigned", len(partitions), flush=True))
    while not stopping:
        message = consumer.poll(0.2)
        if message is None or message.error() is not None:
            continue
        name = dict(message.headers())["name"].decode()
        digest = hashlib.sha256(message.value()).hexdigest()
        print(name, digest, message.partition(), message.offset(), last_offset(message), flush=True)
        consumer.commit(message=message)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
