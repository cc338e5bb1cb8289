"""How late an event loop is while tasks move large payloads, with claimcheck and by hand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from claimcheck import ClaimCheck, from_dict
from tests.benchmarks.lab import KAFKA_MAX_MESSAGE_BYTES, Lab
from tests.benchmarks.redis_rows import OURS
from tests.benchmarks.rounds import Effort, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import Sample, Series

Move: TypeAlias = Callable[[], Awaitable[object]]
Moving: TypeAlias = Callable[[Lab, bytes], contextlib.AbstractAsyncContextManager[Move]]

_MOVERS = 4  # tasks
_ROUNDS = 3
_CHUNK_BYTES = 999_000  # by hand, in Kafka


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    size = effort.size(20)

    def step(key: str, what: str, moving: Moving, by_hand: Mapping[str, Moving]) -> Step:
        what = f"longest pause of a loop but for 1 in 1,000, while {_MOVERS} tasks {what} {size_text(size)}"
        measure = partial(_pauses, size=size, moving={OURS: moving, **by_hand})
        return Step((Target(f"many-pause-{key}", what, 10, "ms", at_most=True),), measure)

    through = "send and receive through"
    in_redis = {"redis.asyncio SET": _set, "redis-py SET in threads": _set_in_threads}
    in_kafka = {"AIOProducer, own chunks": _kafka_chunks, "AIOProducer, whole record": _kafka_whole}
    return [
        step("aread", "read", _read, {}),
        step("awrite", "write", _write, in_redis),
        step("decorator", "call a decorated function with, and resolve,", _decorated, {}),
        step("kafka", f"{through} Kafka, as pointers,", partial(_through_kafka, chunks=False), {}),
        step("kafka-chunks", f"{through} Kafka, as chunks,", partial(_through_kafka, chunks=True), in_kafka),
        step("pulsar", f"{through} Pulsar, as pointers,", partial(_through_pulsar, chunks=False), {}),
        step(
            "pulsar-chunks",
            f"{through} Pulsar, as chunks,",
            partial(_through_pulsar, chunks=True),
            {"pulsar.asyncio, its chunking": _pulsar_chunks},
        ),
    ]


def _pauses(lab: Lab, size: int, moving: Mapping[str, Moving]) -> Findings:
    """Return the pauses with claimcheck, and in the note those by hand; all take turns."""
    payload, names = payload_of(size), [*moving]
    late = {name: list[float]() for name in names}
    samples = {name: list[Sample]() for name in names}
    for number in range(_ROUNDS):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            ticks, sample = asyncio.run(_late(lab, payload, moving[name]))
            late[name] += ticks
            samples[name].append(sample)
    pauses = {name: sorted(ticks)[int(len(ticks) * 0.999)] * 1000 for name, ticks in late.items()}
    ours = pauses.pop(OURS)
    by_hand = [f"{name}: {pause:.1f} ms, ours is {ours / pause:.2f} of that" for name, pause in pauses.items()]
    note = "; ".join([*by_hand, "the server runs on the same cores"])
    return Findings((ours,), tuple(Series(name, size, tuple(samples[name])) for name in names), note)


async def _late(lab: Lab, payload: bytes, moving: Moving) -> tuple[list[float], Sample]:
    """Tick every millisecond while payloads move; return how late each tick was, and what one payload took."""
    late, moved = list[float](), itertools.count()

    async def tick(end: float) -> None:
        while (now := time.perf_counter()) < end:
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - now - 0.001)

    async def repeat(move: Move, end: float) -> None:
        while time.perf_counter() < end:
            await move()
            next(moved)

    async with moving(lab, payload) as move:
        await move()  # connections are there before the count begins
        cpu, begin = time.process_time(), time.perf_counter()
        end = begin + lab.effort.seconds / 2
        await asyncio.gather(tick(end), *(repeat(move, end) for _ in range(_MOVERS)))
        seconds, spent, count = time.perf_counter() - begin, time.process_time() - cpu, next(moved)
    return late, Sample(seconds / count, spent / count)


# With claimcheck -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _read(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    store = lab.redis_store()
    pointer = await store.awrite(payload)
    yield lambda: store.aread(pointer)
    await store.arollback(pointer)


@contextlib.asynccontextmanager
async def _write(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    store = lab.redis_store()

    async def move() -> None:
        await store.arollback(await store.awrite(payload))

    yield move


@contextlib.asynccontextmanager
async def _decorated(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    cc = _short_lived(lab)

    @cc.offload()
    async def send(value: bytes) -> bytes:
        return value

    async def move() -> None:
        assert len(await cc.aresolve(await send(payload))) == len(payload)

    yield move


@contextlib.asynccontextmanager
async def _through_kafka(lab: Lab, payload: bytes, *, chunks: bool) -> AsyncIterator[Move]:
    from confluent_kafka.aio import AIOConsumer, AIOProducer

    from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer

    cc, topic, servers = _chunking() if chunks else _short_lived(lab), f"pauses-{uuid.uuid4().hex}", lab.kafka
    options = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.offset.store": False}
    producer = AsyncKafkaProducer(AIOProducer({"bootstrap.servers": servers, "linger.ms": 0}, buffer_timeout=0), cc)
    consumer = AsyncKafkaConsumer(AIOConsumer({"bootstrap.servers": servers, **options}), cc)

    async def move() -> None:
        await (await producer.produce(topic, payload, key=b"k"))
        while (message := await consumer.poll()).error():  # the topic does not exist yet
            pass
        assert len(message.value()) == len(payload)

    async with producer, consumer:
        await consumer.subscribe([topic])
        yield move


@contextlib.asynccontextmanager
async def _through_pulsar(lab: Lab, payload: bytes, *, chunks: bool) -> AsyncIterator[Move]:
    import pulsar
    import pulsar.asyncio

    from claimcheck.transports.pulsar import AsyncPulsarConsumer, AsyncPulsarProducer

    cc, topic = _chunking() if chunks else _short_lived(lab), f"pauses-{uuid.uuid4().hex}"
    client = pulsar.asyncio.Client(lab.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = AsyncPulsarProducer(await client.create_producer(topic), cc)
    consumer = AsyncPulsarConsumer(await client.subscribe(topic, "s"), cc)

    async def move() -> None:
        await producer.send(payload)
        message = await consumer.receive()
        assert len(message.data()) == len(payload)
        await consumer.acknowledge(message)

    async with producer, consumer:
        yield move
    await client.close()


def _short_lived(lab: Lab) -> ClaimCheck:
    """Return a configuration with a store that deletes its payloads soon, so that they do not fill the memory."""
    return lab.cc(type="redis", url=lab.redis, ttl_seconds=10)


def _chunking() -> ClaimCheck:
    return from_dict({"strategy": "chunking"})


# By hand -------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _set(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    from redis import asyncio as redis

    async def move() -> None:
        key = uuid.uuid4().hex
        await client.set(key, payload, ex=600)
        await client.unlink(key)

    async with redis.Redis.from_url(lab.redis) as client:
        yield move


@contextlib.asynccontextmanager
async def _set_in_threads(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    import redis

    def write() -> None:
        key = uuid.uuid4().hex
        client.set(key, payload, ex=600)
        client.unlink(key)

    with redis.Redis.from_url(lab.redis) as client:
        yield lambda: asyncio.to_thread(write)


@contextlib.asynccontextmanager
async def _kafka_clients(lab: Lab, *, whole: bool = False) -> AsyncIterator[tuple[str, Any, Any]]:
    """Open a topic, a producer that sends at once, and a consumer."""
    from confluent_kafka.aio import AIOConsumer, AIOProducer

    topic = f"pauses-{uuid.uuid4().hex}"
    both: dict[str, Any] = {"bootstrap.servers": lab.kafka}
    read: dict[str, Any] = {"group.id": topic, "auto.offset.reset": "earliest"}
    if whole:
        both["message.max.bytes"] = KAFKA_MAX_MESSAGE_BYTES
        read["receive.message.max.bytes"] = KAFKA_MAX_MESSAGE_BYTES + (1 << 20)
    producer = AIOProducer({**both, "linger.ms": 0}, batch_size=1, buffer_timeout=0)
    consumer = AIOConsumer({**both, **read})
    await consumer.subscribe([topic])
    try:
        yield topic, producer, consumer
    finally:
        await producer.close()
        await consumer.close()


@contextlib.asynccontextmanager
async def _kafka_whole(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    async with _kafka_clients(lab, whole=True) as (topic, producer, consumer):

        async def move() -> None:
            sent = await producer.produce(topic, payload, key=b"k")
            await producer.flush()
            await sent
            assert len((await _record(consumer)).value()) == len(payload)

        yield move


@contextlib.asynccontextmanager
async def _kafka_chunks(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    """Send chunks with a key for each payload, and join them in a thread, which checks nothing."""
    starts, parts = range(0, len(payload), _CHUNK_BYTES), dict[bytes, list[bytes]]()
    async with _kafka_clients(lab) as (topic, producer, consumer):

        async def receive() -> bytes:
            while True:
                record = await _record(consumer)
                pieces = parts.setdefault(record.key(), [])
                pieces.append(record.value())
                if len(pieces) == len(starts):
                    return await asyncio.to_thread(b"".join, parts.pop(record.key()))

        async def move() -> None:
            key = uuid.uuid4().bytes
            sent = [await producer.produce(topic, payload[at : at + _CHUNK_BYTES], key=key) for at in starts]
            await producer.flush()
            await asyncio.gather(*sent)
            assert len(await receive()) == len(payload)

        yield move


async def _record(consumer: Any) -> Any:
    while (record := await consumer.poll(-1)).error():  # the topic does not exist yet
        pass
    return record


@contextlib.asynccontextmanager
async def _pulsar_chunks(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    import pulsar
    import pulsar.asyncio

    topic = f"pauses-{uuid.uuid4().hex}"
    client = pulsar.asyncio.Client(lab.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = await client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    consumer = await client.subscribe(topic, "s")

    async def move() -> None:
        await producer.send(payload)
        message = await consumer.receive()
        assert len(message.data()) == len(payload)
        await consumer.acknowledge(message)

    yield move
    await client.close()
