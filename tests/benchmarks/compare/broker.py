"""The broker under test: the few operations that the measurements need, the same for each; and what they send."""

from __future__ import annotations

import importlib
import random
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol

from claimcheck._client import ClaimCheck
from claimcheck.errors import ClaimCheckError

Mode = Literal["external", "chunking", "hybrid", "native"]
"""How a payload travels through the broker.

``native`` uses no claimcheck: a topic with a raised limit (Kafka, embedded broker), or the client's chunking
(Pulsar).
"""

MODES: tuple[Mode, ...] = ("external", "chunking", "hybrid", "native")


class CompareError(ClaimCheckError):
    """The comparison cannot run: what is missing, and what to do. Everything it had created was removed."""


class NotMeasuredError(CompareError):
    """This broker, or the way in which it is connected, does not permit a measurement; the others go on."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """How to connect, with the client's own options; passed to worker processes. The URL may contain credentials."""

    kind: str
    url: str = field(repr=False)
    admin_url: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Received:
    """A payload as the application gets it, or the error it gets instead; the position is for `Consumer.seek`."""

    payload: bytes | None
    error: Exception | None
    position: int | str
    handle: Any


def received(read: Callable[[], Any], position: int | str, handle: object) -> Received:
    """Return what an application gets that reads a message."""
    try:
        return Received(read(), None, position, handle)
    except ClaimCheckError as error:
        return Received(None, error, position, handle)


Done = Callable[[Exception | None], None]
"""Called once for a payload, when it was acknowledged or has failed."""


class Producer(Protocol):
    """Sends payloads to one topic in one mode."""

    def send(self, payload: bytes, *, done: Done) -> None:
        """Send without waiting, unless the queue is full."""

    def flush(self, timeout: float) -> None:
        """Wait until everything is acknowledged. Raises `TimeoutError`."""

    def close(self) -> None: ...


def deliver(producer: Producer, payloads: Iterable[bytes]) -> None:
    """Send payloads, and wait for all; raises the first error."""
    errors: list[Exception | None] = []
    for payload in payloads:
        producer.send(payload, done=errors.append)
    producer.flush(60.0)
    for error in filter(None, errors):
        raise error


class Consumer(Protocol):
    """Reads one topic as a member of a group, from its beginning if the group is new."""

    def receive(self, timeout: float) -> Received | None:
        """Return the next payload; ``None`` after the time-out."""

    def commit(self, received: Received) -> None:
        """Acknowledge this payload."""

    def seek(self, position: int | str) -> None:
        """Continue at a position."""

    def close(self) -> None: ...


class Broker(Protocol):
    """A connection for administration, and the clients of each mode. Topics have one partition."""

    address: BrokerAddress
    label: str
    """Name and version for people, without credentials."""
    limit_bytes: int
    """The largest message that the broker accepts by default."""
    bytes_source: str
    """Where `topic_bytes` comes from, for people: ``the broker's statistics``, for example."""

    def create_topic(self, topic: str, limit: int | None = None) -> None:
        """Create a topic for messages up to a limit, or the broker's default. Raises `CompareError`."""

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; a missing one is not an error."""

    def topic_bytes(self, topic: str) -> int:
        """Return the bytes that a topic takes up on the broker's disk (one replica), from the broker itself."""

    def producer(self, mode: Mode, topic: str, cc: ClaimCheck) -> Producer:
        """Return a producer; ``cc`` has the strategy of ``mode`` and is not used for ``native``."""

    def consumer(self, mode: Mode, topic: str, cc: ClaimCheck, *, group: str) -> Consumer: ...

    def close(self) -> None:
        """Close the connection; topics stay."""


def connect(address: BrokerAddress) -> Broker:
    """Return the broker of an address, connected for administration; the client is imported now."""
    module = importlib.import_module(f"tests.benchmarks.compare.{address.kind}")
    broker: Broker = module.connect(address)
    return broker


# Payloads: a number, content, and the checksum of both, so that a reader can verify them without a copy ---------------

MIN_BYTES = 16
"""The smallest payload: its number, some content and the checksum."""

MAX_BYTES = 256 << 20
"""The largest payload: what chunks can carry by default."""

_NUMBER, _SUM = struct.Struct(">Q"), struct.Struct(">L")


def make(size: int, number: int) -> bytes:
    """Return payload ``number`` of this size."""
    block = _block()
    content = block * (size // len(block) + 1)
    body = _NUMBER.pack(number) + content[: size - _NUMBER.size - _SUM.size]
    return body + _SUM.pack(zlib.crc32(body))


def number_of(payload: bytes | None) -> int | None:
    """Return the number of a payload that arrived whole; ``None`` for anything else."""
    view = memoryview(payload or b"")
    if len(view) < MIN_BYTES or _SUM.pack(zlib.crc32(view[: -_SUM.size])) != view[-_SUM.size :]:
        return None
    number: int = _NUMBER.unpack_from(view)[0]
    return number


@lru_cache(maxsize=1)
def _block() -> bytes:
    return random.Random(20_200_917).randbytes(1_000_003)  # a prime, so that no two chunks of a payload are equal
