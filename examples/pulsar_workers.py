"""Several workers on one Shared subscription. Payloads are stored on a side topic, so Pulsar is the only service.

    python examples/pulsar_workers.py [--payloads 20] [--size 3000000]

Start a broker with `docker compose up -d pulsar`, or name yours in PULSAR_URL and PULSAR_ADMIN_URL.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import threading
import urllib.request
import uuid

import pulsar

import claimcheck
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
ADMIN_URL = os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")


def keep(client: pulsar.Client, topic: str) -> None:
    """Set the side topic's retention: `pulsar-admin topics set-retention --time 1h --size -1`."""
    client.create_producer(topic).close()
    body = json.dumps({"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}).encode()
    url = f"{ADMIN_URL}/admin/v2/persistent/public/default/{topic}/retention"
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST")).close()


def work(name: str, consumer: PulsarConsumer, sums: dict[str, str]) -> None:
    """Process payloads until none arrives for three seconds."""
    while True:
        try:
            message = consumer.receive(timeout_millis=3000)
        except pulsar.Timeout:
            return
        sums[message.properties()["number"]] = hashlib.sha256(message.data()).hexdigest()
        print(f"{name}: {len(message.data()):,} bytes, payload {message.properties()['number']}")
        consumer.acknowledge(message)


def main(payloads: int, size: int) -> None:
    """Send, distribute, compare."""
    topic = f"work-{uuid.uuid4().hex[:8]}"
    client = pulsar.Client(URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    keep(client, f"{topic}-payloads")
    side = {
        "type": "pulsar-topic",
        "url": URL,
        "topic": f"{topic}-payloads",
        "ttl_seconds": 600,
        "segment_bytes": 90_000,
    }
    cc = claimcheck.from_dict({"strategy": "external", "threshold_bytes": 50_000, "stores": {"side": side}})

    sums: dict[str, str] = {}
    workers = []
    for name in ("first", "second"):
        native = client.subscribe(topic, "workers", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=5)
        consumer = PulsarConsumer(native, cc, consumer_type=pulsar.ConsumerType.Shared)
        workers.append(threading.Thread(target=work, args=(name, consumer, sums)))
    for worker in workers:
        worker.start()

    producer = PulsarProducer(client.create_producer(topic), cc)
    sent = {}
    for number in map(str, range(payloads)):
        payload = os.urandom(size)
        sent[number] = hashlib.sha256(payload).hexdigest()
        producer.send(payload, properties={"number": number})
    for worker in workers:
        worker.join()
    assert sums == sent
    cc.close()
    client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payloads", type=int, default=20)
    parser.add_argument("--size", type=int, default=3_000_000)
    arguments = parser.parse_args()
    main(arguments.payloads, arguments.size)
