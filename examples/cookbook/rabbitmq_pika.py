"""RabbitMQ: the decorator around pika's `basic_publish`, and a callback that resolves.

    python examples/cookbook/rabbitmq_pika.py

Needs pika, and RabbitMQ at AMQP_URL (default: amqp://localhost/). Payloads are in the folder claims/.
"""

from __future__ import annotations

import os
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

import claimcheck
from claimcheck.errors import ClaimCheckError

AMQP_URL = os.environ.get("AMQP_URL", "amqp://localhost/")

stores = {"disk": {"type": "filesystem", "path": "claims", "create": True}}
cc = claimcheck.from_dict({"threshold_bytes": 128_000, "stores": stores})
durable = pika.BasicProperties(delivery_mode=2)
received: list[bytes] = []


@cc.offload(payload="body", destination="queue")
def publish(channel: BlockingChannel, queue: str, body: bytes) -> None:
    channel.basic_publish("", queue, body, durable, mandatory=True)


def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
    try:
        received.append(cc.resolve(body))
    except ClaimCheckError as error:
        channel.basic_nack(method.delivery_tag, requeue=error.retryable)
    else:
        channel.basic_ack(method.delivery_tag)


def main(queue: str = "scans") -> None:
    """Send a small and a large payload, and receive both."""
    with pika.BlockingConnection(pika.URLParameters(AMQP_URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()  # a message that no queue takes raises an error
        channel.queue_declare(queue, durable=True)
        publish(channel, queue, b"small")
        publish(channel, queue, b"x" * 3_000_000)
        channel.basic_consume(queue, on_message)
        while len(received) < 2:
            connection.process_data_events(time_limit=30)
    print(*[f"{len(payload):,} bytes" for payload in received], sep="\n")


if __name__ == "__main__":
    main()
