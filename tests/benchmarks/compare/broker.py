"""The broker under test: the few operations that the experiments need, the same for each broker; and what they send."""

from __future__ import annotations

import importlib
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from claimcheck._client import ClaimCheck
from claimcheck.errors import ClaimCheckError
from tests.benchmarks.children import error_text
from tests.benchmarks.compare.model import Mode


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """How to connect, with the client's own options; passed to worker processes. The URL may contain credentials."""

    kind: str
    url: str = field(repr=False)
    admin_url: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How a topic is created; ``None`` for the broker's default. Brokers without retention refuse one."""

    partitions: int = 1
    max_message_bytes: int | None = None
    retention_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A payload as the application gets it, or the error it gets instead; the position is for `Consumer.seek`."""

    payload: bytes | None
    error: Exception | None
    partition: int
    position: int | str
    handle: object


def received(read: Callable[[], Any], partition: int, position: int | str, handle: object) -> Received:
    """Return what an application gets that reads a message."""
    try:
        return Received(read(), None, partition, position, handle)
    except ClaimCheckError as error:
        return Received(None, error, partition, position, handle)


Done = Callable[[Exception | None, int | None], None]
"""Called once for a payload that was sent, with an error or the partition."""


class Producer(Protocol):
    """Sends payloads to one topic in one mode."""

    def send(self, payload: bytes, *, done: Done) -> None:
        """Send without waiting, unless the queue is full. ``done`` is called once, with an error or the partition."""

    def flush(self, timeout: float) -> None:
        """Wait until everything is acknowledged. Raises `TimeoutError`."""

    def close(self) -> None: ...


def deliver(producer: Producer, payloads: Iterable[bytes]) -> None:
    """Send payloads, and wait for all; raises the first error."""
    errors: list[Exception | None] = []
    for payload in payloads:
        producer.send(payload, done=lambda error, partition: errors.append(error))
    producer.flush(60.0)
    for error in filter(None, errors):
        raise error


class Consumer(Protocol):
    """Reads one topic as a member of a group, from its beginning if the group is new."""

    def receive(self, timeout: float) -> Received | None:
        """Return the next payload; ``None`` after the time-out."""

    def commit(self, received: Received) -> None:
        """Acknowledge this payload, and wait until the broker knows it."""

    def seek(self, partition: int, position: int | str) -> None:
        """Continue at a position; it may lie in the middle of a payload's chunks."""

    def close(self) -> None: ...


class Broker(Protocol):
    """A connection for administration, and the clients of each mode. By default, `expire` and `close` do nothing."""

    address: BrokerAddress
    label: str
    """Name and version for people, without credentials."""
    limit_bytes: int
    """The largest message that the broker accepts by default."""
    retention_source: str | None
    """What deletes messages, for people: a setting of the broker; ``None`` if messages cannot expire."""
    bytes_source: str
    """Where `topic_bytes` comes from, for people: ``the broker's statistics``, for example."""

    def create_topic(self, topic: str, settings: TopicSettings) -> None:
        """Create a topic. Raises `CompareError` if it is not permitted, or a limit is lower than requested."""

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; a missing one is not an error."""

    def topic_bytes(self, topic: str) -> Sequence[int]:
        """Return the bytes that each partition takes up on the broker's disk (one replica), from the broker itself."""

    def expire(self, topic: str) -> None:
        """Make the broker delete what the retention no longer covers, if it does that on request."""

    def readable_messages(self, topic: str) -> int:
        """Return how many messages of the topic can still be read."""

    def positions(self, topic: str, partition: int) -> Sequence[int | str]:
        """Return the position of each readable message (each chunk, each envelope) of a partition, in order."""

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


# Payloads: determined by size and number, so that a reader can recognize them without a copy --------------------------

MIN_BYTES = 16
"""The smallest payload: its number, and some content."""

MAX_BYTES = 256 << 20
"""The largest payload: what chunks can carry by default."""

_NUMBER = struct.Struct(">Q")
_BLOCK_BYTES = 1_000_003  # a prime, so that no two chunks of a payload are equal


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a consumer received: the number of a payload, or ``None`` for an error, and for bytes that were not sent."""

    number: int | None
    error: str
    size: int
    partition: int
    position: int | str

    @property
    def is_wrong(self) -> bool:
        """Whether the consumer returned bytes that were not sent."""
        return self.number is None and not self.error


def make(size: int, number: int) -> bytes:
    """Return payload ``number`` of this size; it begins with its number."""
    block = _block()
    start = number % len(block)
    content = block[start:] + block * (size // len(block) + 1)
    return _NUMBER.pack(number) + content[: size - _NUMBER.size]


def recognized(received: Received) -> Delivery:
    """Return which payload was received. The beginning of one is recognized, too: its size tells."""
    payload, place = received.payload, (received.partition, received.position)
    if payload is None:
        error = "a tombstone" if received.error is None else error_text(received.error)
        return Delivery(None, error, 0, *place)
    return Delivery(_number_of(memoryview(payload)), "", len(payload), *place)


def _number_of(view: memoryview) -> int | None:
    """Return the number of a payload, if these are the bytes of `make`, without making them."""
    size, block = len(view), memoryview(_block())
    if size < MIN_BYTES:
        return None
    number: int = _NUMBER.unpack_from(view)[0]
    begin, at = number % len(block), _NUMBER.size
    while at < size:
        piece = block[begin : begin + size - at]
        if view[at : at + len(piece)] != piece:
            return None
        begin, at = 0, at + len(piece)
    return number


@lru_cache(maxsize=1)
def _block() -> bytes:
    return random.Random(20_200_917).randbytes(_BLOCK_BYTES)
