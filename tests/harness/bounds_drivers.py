"""Every reader that has a bound in bytes, driven by messages in memory: yields the result of each message.

A caller here drops each payload before it requests the next one, so all that is in memory is the reader's.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any
from uuid import UUID

import claimcheck
from claimcheck._wire.envelope import Chunk, decode, encode_literal
from claimcheck.errors import ClaimCheckError
from tests.harness.bounds_attacks import LIMIT

Config = dict[str, Any]
Driver = Callable[[Config, list[bytes], Path], Iterator[str]]
Receive = Callable[[Any], list[Any]]

_QUIET_SECONDS = 0.25


def result_of(read: Callable[[], Any]) -> str:
    """Return the size of a payload, or the name of the error."""
    try:
        return f"{len(read())} bytes"
    except ClaimCheckError as error:
        return type(error).__name__


# The client -------------------------------------------------------------------------------------------------------


class SlowFirst:
    """Messages behind one whose payload arrives only when the reader takes no more of them ahead."""

    def __init__(self, cc: Any, messages: list[bytes]) -> None:
        self._messages = [messages[2], *messages]  # a small stored payload
        self._taken = threading.Event()
        self._store = cc.store("s")
        self._read, self._store.read = self._store.read, self._slow

    def __iter__(self) -> Iterator[bytes]:
        for message in self._messages:
            self._taken.set()
            yield message

    def _slow(self, pointer: Any) -> bytes:
        self._store.read = self._read
        while self._taken.wait(_QUIET_SECONDS):
            self._taken.clear()
        payload: bytes = self._read(pointer)
        return payload


def resolve_many(config: Config, messages: list[bytes], folder: Path) -> Iterator[str]:
    """Drive `ClaimCheck.resolve_many`."""
    with claimcheck.from_dict(config) as cc:
        resolutions = cc.resolve_many(SlowFirst(cc, messages), concurrency=64, max_bytes=LIMIT)
        next(resolutions)
        yield from (result_of(each) for each in map(_payload, resolutions))


def aresolve_many(config: Config, messages: list[bytes], folder: Path) -> Iterator[str]:
    """Drive `ClaimCheck.aresolve_many`."""

    async def run(cc: Any) -> list[str]:
        slow = SlowFirst(cc, messages)
        async with contextlib.aclosing(cc.aresolve_many(slow, concurrency=64, max_bytes=LIMIT)) as resolutions:
            await anext(resolutions)
            return [result_of(_payload(each)) async for each in resolutions]

    with claimcheck.from_dict(config) as cc:
        yield from asyncio.run(run(cc))


def _payload(resolution: Any) -> Callable[[], Any]:
    return lambda: resolution.payload


# Kafka ------------------------------------------------------------------------------------------------------------


def kafka_consumer(config: Config, messages: list[bytes], folder: Path, *, receive: Receive) -> Iterator[str]:
    """Drive `KafkaConsumer` by a function that returns the next messages, or none at the end."""
    import confluent_kafka

    from tests.harness.kafka_model import ConsumerClient, Group
    from tests.harness.topic import topic_of

    confluent_kafka.Consumer = ConsumerClient  # type: ignore[assignment, misc]
    from claimcheck.transports.kafka import KafkaConsumer

    topic, process = topic_of(messages)
    native: Any = ConsumerClient(Group("g", topic), process)
    consumer = KafkaConsumer(native, claimcheck.from_dict(config))
    consumer.subscribe(["t"])
    while received := receive(consumer):
        while received:
            message = received.pop(0)
            yield result_of(message.value)
            del message
    consumer.close()


# Pulsar -----------------------------------------------------------------------------------------------------------


def pulsar_consumer(config: Config, messages: list[bytes], folder: Path, *, receive: Receive) -> Iterator[str]:
    """Drive `PulsarConsumer` by a function that returns the next messages, or none at the end."""
    import pulsar

    from claimcheck.transports.pulsar import PulsarConsumer
    from tests.harness.pulsar_model import ConsumerClient, Subscription
    from tests.harness.topic import topic_of

    kind, (topic, process) = pulsar.ConsumerType.Exclusive, topic_of(messages)
    native: Any = ConsumerClient(Subscription("s", topic), process)
    consumer = PulsarConsumer(native, claimcheck.from_dict(config), consumer_type=kind)
    while received := receive(consumer):
        while received:
            message = received.pop(0)
            yield result_of(message.data)
            consumer.acknowledge(message)
            del message
    consumer.close()


def _received_alone(consumer: Any) -> list[Any]:
    import pulsar

    with contextlib.suppress(pulsar.Timeout):
        return [consumer.receive(1)]
    return []


# The embedded broker ------------------------------------------------------------------------------------------------


def local_consumer(config: Config, messages: list[bytes], folder: Path) -> Iterator[str]:
    """Drive `LocalConsumer`."""
    from claimcheck.transports.local import LocalBroker, LocalConsumer

    path = folder / "broker.sqlite"
    path.unlink(missing_ok=True)
    with LocalBroker(path) as broker:
        broker.create_topic("t")
        for message in messages:
            broker.append("t", message)
        with LocalConsumer(broker, claimcheck.from_dict(config), topics=["t"], group="g") as consumer:
            while (received := consumer.receive(timeout=0)) is not None:
                yield result_of(lambda: received.value)
                consumer.ack(received)
                del received


# Spark's functions of a partition ------------------------------------------------------------------------------------


def _reading(config: Config) -> Any:
    from claimcheck.spark._reading import Reading
    from claimcheck.spark._worker import as_config

    return Reading(
        config=as_config(config), concurrency=4, max_inflight_bytes=LIMIT, out_batch_bytes=LIMIT // 4, on_error="null"
    )


def _arrow(**columns: tuple[list[Any], str]) -> Any:
    import pyarrow as pa

    arrays = [pa.array(values, type=getattr(pa, kind)()) for values, kind in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _rows(batches: Iterable[Any], payload: int, error: int) -> Iterator[str]:
    """Yield the results in output batches: in a column of payloads, or of their sizes, and in one of errors."""
    for batch in batches:
        for number in range(batch.num_rows):
            kind = batch.column(error)[number].as_py()
            value = None if kind else batch.column(payload)[number]
            if value is None:
                yield kind["type"]
            else:
                yield f"{value.as_buffer().size if hasattr(value, 'as_buffer') else value.as_py()} bytes"
            del value
        del batch


def spark_resolve(config: Config, messages: list[bytes], folder: Path) -> Iterator[str]:
    """Drive the function of `claimcheck.spark.resolve`."""
    from claimcheck.spark._reading import ResolveStage

    stage = ResolveStage(_reading(config), 0, ("value",))
    return _rows(stage([_arrow(value=(messages, "binary"))]), 1, 2)


def spark_reassemble_batch(config: Config, messages: list[bytes], folder: Path) -> Iterator[str]:
    """Drive the function of `claimcheck.spark.reassemble` on a batch."""
    from claimcheck.spark._reassemble import _ReassembleStage
    from claimcheck.spark._reassemble_common import ColumnIndexes

    found = [(_uuid_of(message) or "", message) for message in messages]
    uuids, values = zip(*sorted(found, key=lambda each: each[0]), strict=True)  # as Spark sorts them
    batch = _arrow(
        value=(list(values), "binary"),
        uuid=([each or None for each in uuids], "string"),
        position=([0] * len(values), "int32"),
        declared=([None] * len(values), "string"),
    )
    stage = _ReassembleStage(_reading(config), ColumnIndexes(0, ()))
    return _rows(stage([batch]), 2, 3)


def spark_reassemble_stream(config: Config, messages: list[bytes], folder: Path) -> Iterator[str]:
    """Drive the last function of `claimcheck.spark.reassemble` on a stream, for chunks that were stored."""
    from claimcheck.spark._reassemble_common import ColumnIndexes
    from claimcheck.spark._reassemble_stream import _FetchStage, _packed

    pieces = [decode(message).piece for message in messages if _uuid_of(message)]  # type: ignore[union-attr]
    rows, count = _packed(_arrow(n=([1], "int32"))), len(pieces)
    import pyarrow as pa

    arrays = [
        pa.array([_uuid_of(message) for message in messages if _uuid_of(message)]),
        pa.array([rows] * count, type=pa.binary()),
        pa.array([[encode_literal(bytes(piece))] for piece in pieces], type=pa.list_(pa.binary())),
        *(pa.nulls(count, pa.string()) for _ in range(3)),
    ]
    names = ["uuid", "row", "pieces", "error_type", "error_message", "declared"]
    stage = _FetchStage(_reading(config), ColumnIndexes(0, ()), ("value", "n", "uuid", "payload", "error"))
    yield from _rows(stage([pa.RecordBatch.from_arrays(arrays, names=names)]), 3, 4)
    others = [message for message in messages if not _uuid_of(message)]  # do not go through this function
    yield from (f"{len(message) if message == b'plain' else 1200} bytes" for message in others)


def _uuid_of(message: bytes) -> str | None:
    envelope = decode(message)
    return str(UUID(envelope.uuid)) if isinstance(envelope, Chunk) else None


WHOLE = ("many_that_decompress", "more_than_declared", "many_stored", "stored_larger_than_declared", "raised")
CHUNKS = ("many_chunks_that_decompress",)
DRIVERS: dict[str, tuple[Driver, tuple[str, ...]]] = {
    "resolve_many": (resolve_many, WHOLE),
    "aresolve_many": (aresolve_many, WHOLE),
    "kafka_poll": (partial(kafka_consumer, receive=lambda native: [*filter(None, [native.poll(0)])]), WHOLE + CHUNKS),
    "kafka_consume": (partial(kafka_consumer, receive=methodcaller("consume", 1000, 0)), WHOLE + CHUNKS),
    "pulsar_receive": (partial(pulsar_consumer, receive=_received_alone), WHOLE + CHUNKS),
    "pulsar_batch_receive": (partial(pulsar_consumer, receive=methodcaller("batch_receive")), WHOLE + CHUNKS),
    "local_consumer": (local_consumer, WHOLE + CHUNKS),
    "spark_resolve": (spark_resolve, WHOLE),
    "spark_reassemble_batch": (spark_reassemble_batch, WHOLE + CHUNKS),
    "spark_reassemble_stream": (spark_reassemble_stream, CHUNKS),
}
"""Each reader, and the attacks that it can meet."""
