"""The embedded broker as a broker under test: each topic is a file of its own, so that it can be deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from claimcheck._client import ClaimCheck
from claimcheck.transports.local import MESSAGE_OVERHEAD_BYTES, LocalBroker, LocalConsumer, LocalProducer
from tests.benchmarks.compare.broker import Broker, BrokerAddress, Consumer, Done, Mode, Producer, Received

_NATIVE_BYTES = 300 << 20


class EmbeddedBroker(Broker):
    """The embedded broker, in the folder of its address."""

    limit_bytes = 1 << 20
    bytes_source = "the embedded broker's count of each partition"

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self._folder = Path(address.url)
        self.label = f"embedded broker (SQLite {sqlite3.sqlite_version})"

    def create_topic(self, topic: str, limit: int | None = None) -> None:
        with closing(self._open(topic)) as broker:
            broker.create_topic(topic, 1)

    def delete_topic(self, topic: str) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._path(topic).with_name(f"{topic}.sqlite{suffix}").unlink(missing_ok=True)

    def topic_bytes(self, topic: str) -> int:
        with closing(self._open(topic)) as broker, broker.database.read() as db:
            [(size,)] = db.execute("SELECT bytes FROM partitions WHERE topic = ?", (topic,))
            return int(size)

    def producer(self, mode: Mode, topic: str, cc: ClaimCheck) -> Producer:
        limit = _NATIVE_BYTES if mode == "native" else self.limit_bytes
        broker = LocalBroker(self._path(topic), max_message_bytes=limit + MESSAGE_OVERHEAD_BYTES)
        if mode == "native":
            return _Producer(broker, lambda payload: broker.append(topic, payload))
        wrapped = LocalProducer(broker, cc)
        return _Producer(broker, lambda payload: wrapped.send(topic, payload))

    def consumer(self, mode: Mode, topic: str, cc: ClaimCheck, *, group: str) -> Consumer:
        broker = self._open(topic)
        return _Consumer(broker, LocalConsumer(broker, cc, topics=[topic], group=group), topic)

    def _path(self, topic: str) -> Path:
        return self._folder / f"{topic}.sqlite"

    def _open(self, topic: str) -> LocalBroker:
        return LocalBroker(self._path(topic))


@dataclass(frozen=True, slots=True)
class _Producer:
    """Appends in the caller's thread: everything is acknowledged when `send` returns."""

    broker: LocalBroker
    append: Callable[[bytes], object]

    def send(self, payload: bytes, *, done: Done) -> None:
        try:
            self.append(payload)
        except Exception as error:
            done(error)
        else:
            done(None)

    def flush(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        self.broker.close()


@dataclass(frozen=True, slots=True)
class _Consumer:
    broker: LocalBroker
    consumer: LocalConsumer
    topic: str

    def receive(self, timeout: float) -> Received | None:
        message = self.consumer.receive(timeout=timeout)
        if message is None:
            return None
        payload = None if message.error is not None else message.value
        return Received(payload, message.error, message.offset, message)

    def commit(self, received: Received) -> None:
        self.consumer.ack(received.handle)

    def seek(self, position: int | str) -> None:
        self.consumer.seek(self.topic, 0, int(position))

    def close(self) -> None:
        self.consumer.close()
        self.broker.close()


connect = EmbeddedBroker
