"""Helpers for the tests of the embedded transport."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import claimcheck
from claimcheck._wire.envelope import Chunk, decode, encode_chunk
from claimcheck.transports.local import LocalBroker, LocalConsumer, LocalProducer, MessageId

LIMIT = 4096
BIG = os.urandom(10_000)
STRATEGIES = ("external", "chunking", "hybrid")


def stored(tmp_path: Path) -> list[str]:
    return [str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").rglob("*") if path.is_file()]


def drain(consumer: LocalConsumer, *, timeout: float = 0.0) -> list:
    """Receive and acknowledge all available messages."""
    found = []
    while (message := consumer.receive(timeout=timeout)) is not None:
        found.append(message)
        consumer.ack(message)
    return found


def acknowledge(broker: LocalBroker, cc: claimcheck.ClaimCheck, group: str, count: int, topic: str = "orders") -> None:
    """Let a group receive and acknowledge some messages of a topic."""
    with LocalConsumer(broker, cc, topics=[topic], group=group) as consumer:
        for _ in range(count):
            message = consumer.receive(timeout=5)
            assert message is not None
            consumer.ack(message)


def send(broker: LocalBroker, cc: claimcheck.ClaimCheck, topic: str, payload: Any, **more: Any) -> list[MessageId]:
    """Send one payload; return the positions of its messages."""
    before = [broker.end_offset(topic, number) for number in range(broker.partitions(topic))]
    LocalProducer(broker, cc).send(topic, payload, **more)
    return [
        MessageId(topic, number, offset)
        for number, end in enumerate(before)
        for offset in range(end, broker.end_offset(topic, number))
    ]


def append_chunks(broker: LocalBroker, cc: claimcheck.ClaimCheck, payload: bytes, numbers: slice | None = None) -> int:
    """Append some chunks of a payload, as a slow or dying producer would; return the number of all its chunks."""
    limit = claimcheck.WireLimit(LIMIT, lambda key, headers: 600)
    with cc.outbound(payload, destination="orders", limit=limit) as out:
        envelopes = list(out.envelopes)
    for envelope in envelopes[numbers or slice(None)]:
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    return len(envelopes)


def rest_of(broker: LocalBroker, total: int):
    """Return the missing chunks, made with the uuid of the present ones."""
    first = broker.fetch("orders", 0, 0, 1)[0]
    chunk = decode(first.value or b"")
    assert isinstance(chunk, Chunk)
    size = len(chunk.piece)
    for position in range(2, total):
        piece = BIG[position * size : (position + 1) * size]
        data = encode_chunk(chunk.uuid, position, total, piece)
        yield claimcheck.Envelope(data, {}, first.key)
