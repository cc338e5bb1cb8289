"""Consumers in processes of their own, to be killed; test_kafka_rebalance.py runs them.

    python tests/integration/kafka_worker.py receive TOPIC FOLDER JSON
    python tests/integration/kafka_worker.py consume TOPIC FOLDER JSON

FOLDER is where payloads are stored, JSON the client's configuration. ``receive`` prints a line when partitions are
assigned, and one for each message: its name and the checksum of its value; SIGTERM closes it. ``consume`` waits in one
call for more messages than there are.
"""

import contextlib
import hashlib
import json
import signal
import sys
import threading
from typing import Any

from confluent_kafka import Consumer, KafkaException

import claimcheck
from claimcheck.transports.kafka import KafkaConsumer


def receive(consumer: KafkaConsumer, topic: str) -> None:
    """Receive and commit until SIGTERM."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    consumer.subscribe([topic], on_assign=lambda _, partitions: print("assigned", len(partitions), flush=True))
    while not stopping:
        message = consumer.poll(0.2)
        if message is None or message.error() is not None:
            continue
        name = dict(message.headers())["name"].decode()
        print(name, hashlib.sha256(message.value()).hexdigest(), flush=True)
        consumer.commit(message=message)
    consumer.close()


def consume(consumer: KafkaConsumer, topic: str, *, commits: bool) -> None:
    """Wait for 100 messages in one call; ``commits`` in the callback of a rebalance."""

    def on_revoke(consumer: KafkaConsumer, partitions: list[Any]) -> None:
        if commits:
            with contextlib.suppress(KafkaException):  # there is nothing to commit
                consumer.commit(asynchronous=False)
        print("revoked", flush=True)

    consumer.subscribe([topic], on_revoke=on_revoke)
    threading.Thread(target=count, args=(consumer,), daemon=True).start()
    consumer.consume(100, timeout=120)
    print("returned", flush=True)


def count(consumer: KafkaConsumer) -> None:
    """Print when `consume` has received ten messages."""
    while sum(each.offsets.taken for each in list(consumer._assignment.partitions.values())) != 10:
        threading.Event().wait(0.05)
    print("received 10", flush=True)


def main(what: str, topic: str, folder: str, conf: str) -> None:
    told = {"auto.offset.reset": "earliest", "enable.auto.offset.store": False, **json.loads(conf)}
    stores = {"disk": {"type": "filesystem", "path": folder}}
    cc = claimcheck.from_dict({"strategy": "external", "stores": stores})
    if what == "receive":
        receive(KafkaConsumer(Consumer(told), cc), topic)
    else:
        commits = not told["enable.auto.commit"]
        consume(KafkaConsumer(Consumer(told), cc, auto_offset_store=True), topic, commits=commits)


if __name__ == "__main__":
    main(*sys.argv[1:])
