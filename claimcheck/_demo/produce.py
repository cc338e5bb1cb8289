"""The writing half: a process of its own that sends every file through one decorated function."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import claimcheck
from claimcheck._demo.files import DemoError, Tally, read_file
from claimcheck._envelope import decode
from claimcheck.transports.local import LocalBroker, MessageId

__all__ = ["BROKER_LIMIT_BYTES", "TOPIC", "Order", "Sent", "produce"]

BROKER_LIMIT_BYTES = 1 << 20
"""What the broker accepts in one message."""

TOPIC = "files"

_KINDS = {"PointerData": "pointer", "Chunk": "chunk", "Literal": "literal", "Plain": "plain", "Abort": "abort"}


@dataclass(frozen=True, slots=True)
class Order:
    """What the producer process is told.

    Attributes:
        config: For `claimcheck.from_dict`.
        broker: The embedded broker's file; the topic exists.
        root: The folder.
        names: The files, as paths below ``root``.
        tally: Where each file that was sent is counted.
        stop: Once there is such a file no more files are sent.
    """

    config: dict[str, Any]
    broker: Path
    root: Path
    names: list[str] = field(repr=False)
    tally: Tally
    stop: Path


@dataclass(frozen=True, slots=True)
class Sent:
    """What the producer process has done.

    Attributes:
        digests: SHA-256 of every file that was sent, by message key.
        sizes: Bytes of the same files.
        skipped: Why, by name.
        envelopes: Messages by their type.
        seconds: Spent in the decorated function; reading and hashing the files is not counted.
        broker_bytes: Bytes that went through the broker: values, keys, headers, framing.
    """

    digests: dict[bytes, str] = field(repr=False)
    sizes: dict[bytes, int] = field(repr=False)
    skipped: dict[str, str]
    envelopes: dict[str, int]
    seconds: float
    broker_bytes: int


def produce(order: Order) -> Sent:
    """Send every file; one that cannot be read is left out, with the reason.

    Raises:
        ClaimCheckError: A file that was read could not be sent.
    """
    cc = claimcheck.from_dict(order.config)
    broker = LocalBroker(order.broker, max_message_bytes=BROKER_LIMIT_BYTES)
    envelopes: Counter[str] = Counter()

    @cc.offload(payload="value", destination="topic", key="key", headers="headers")
    def publish(topic: str, value: bytes, key: bytes, headers: Any = None) -> MessageId:
        envelopes[_KINDS[type(decode(value)).__name__]] += 1
        return broker.append(topic, value, key=key, headers=headers)

    digests, sizes, skipped, seconds = dict[bytes, str](), dict[bytes, int](), dict[str, str](), 0.0
    with cc, broker:
        for name in itertools.takewhile(lambda _: not order.stop.exists(), order.names):
            try:
                payload = read_file(order.root / name)
            except DemoError as error:
                skipped[name] = str(error)
                continue
            key = os.fsencode(name)
            begin = time.perf_counter()
            publish(TOPIC, payload, key)
            seconds += time.perf_counter() - begin
            digests[key], sizes[key] = hashlib.sha256(payload).hexdigest(), len(payload)
            order.tally.add(len(payload))
        return Sent(digests, sizes, skipped, dict(envelopes), seconds, broker.stats(TOPIC).bytes)
