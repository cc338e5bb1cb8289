"""aiokafka: a decorated coroutine sends payloads of any size, and the event loop is never blocked.

    python examples/cookbook/aiokafka_stream.py

Needs aiokafka, and Kafka at KAFKA_SERVERS (default: localhost:9092). Payloads are in the folder claims/.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import claimcheck

SERVERS = os.environ.get("KAFKA_SERVERS", "localhost:9092")

stores = {"disk": {"type": "filesystem", "path": "claims", "create": True}}
cc = claimcheck.from_dict({"stores": stores})


@cc.offload(payload="value", destination="topic")
async def send(
    producer: AIOKafkaProducer,
    topic: str,
    value: bytes,
    headers: list[tuple[str, bytes]] | None = None,
) -> Any:
    return await producer.send_and_wait(topic, value, headers=headers)


async def payloads(consumer: AIOKafkaConsumer) -> AsyncGenerator[bytes, None]:
    async for record in consumer:
        yield await cc.aresolve(record.value)


async def main(topic: str) -> None:
    """Send a small and a large payload, and read both."""
    async with AIOKafkaProducer(bootstrap_servers=SERVERS) as producer:
        await send(producer, topic, b"small", headers=[("kind", b"note")])
        await send(producer, topic, b"x" * 3_000_000, headers=[("kind", b"scan")])
    async with AIOKafkaConsumer(topic, bootstrap_servers=SERVERS, auto_offset_reset="earliest") as consumer:
        received = payloads(consumer)
        for _ in range(2):
            print(f"{len(await anext(received)):,} bytes")
        await received.aclose()


if __name__ == "__main__":
    asyncio.run(main(os.environ.get("TOPIC", f"scans-{uuid.uuid4().hex[:8]}")))
