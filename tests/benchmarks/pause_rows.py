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

from claimcheck import from_dict
from tests.benchmarks.lab import Lab
from tests.benchmarks.rounds import OURS, Sample, Series, payload_of, rotated
from tests.benchmarks.rows import Findings, Rows

Move: TypeAlias = Callable[[], Awaitable[object]]
Moving: TypeAlias = Callable[[Lab, bytes], contextlib.AbstractAsyncContextManager[Move]]

ROWS = Rows()
_MOVERS = 4  # tasks
_ROUNDS = 3


def _declare(what: str, moving: Moving, **by_hand: Moving) -> None:
    what = f"longest pause of a loop but for 1 in 1,000, while {_MOVERS} tasks {what} {{size}}"
    named = {OURS: moving, **{name.replace("_", " "): each for name, each in by_hand.items()}}
    ROWS.findings(what, mib=20, unit="ms", moving=named)(_pauses)


def _pauses(lab: Lab, size: int, moving: Mapping[str, Moving]) -> Findings:
    """Return the pauses with claimcheck, and in the note those by hand; all take turns."""
    payload, names = payload_of(size), [*moving]
    late = {name: list[float]() for name in names}
    samples = {name: list[Sample]() for name in names}
    for number in range(_ROUNDS):
        for name in rotated(names, number):
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


# Stores --------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _write(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    store = lab.redis_store()

    async def move() -> None:
        await store.arollback(await store.awrite(payload))

    yield move


@contextlib.asynccontextmanager
async def _decorated(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    cc = lab.cc(type="redis", url=lab.redis, ttl_seconds=10)  # soon deleted: they must not fill the memory

    @cc.offload()
    async def send(value: bytes) -> bytes:
        return value

    async def move() -> None:
        assert len(await cc.aresolve(await send(payload))) == len(payload)

    yield move


@contextlib.asynccontextmanager
async def _set_by_hand(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    from redis import asyncio as redis

    async def move() -> None:
        key = uuid.uuid4().hex
        await client.set(key, payload, ex=600)
        await client.unlink(key)

    async with redis.Redis.from_url(lab.redis) as client:
        yield move


# Brokers -------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _kafka_chunks(lab: Lab, payload: bytes) -> AsyncIterator[Move]:
    from confluent_kafka.aio import AIOConsumer, AIOProducer

    from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer

    topic, cc = f"pauses-{uuid.uuid4().hex}", from_dict({"strategy": "chunking"})
    both: dict[str, Any] = {"bootstrap.servers": lab.kafka}
    read = {**both, "group.id": topic, "auto.offset.reset": "earliest", "enable.auto.offset.store": False}
    producer = AsyncKafkaProducer(AIOProducer({**both, "linger.ms": 0}, batch_size=1, buffer_timeout=0), cc)
    consumer = AsyncKafkaConsumer(AIOConsumer(read), cc)
    await consumer.subscribe([topic])

    async def move() -> None:
        await (await producer.produce(topic, payload, key=b"k"))
        while (record := await consumer.poll(-1)).error():  # the topic does not exist yet
            pass
        assert len(record.value()) == len(payload)

    yield move
    for each in (producer, consumer):
        await each.close()


@contextlib.asynccontextmanager
async def _pulsar_chunks(lab: Lab, payload: bytes, *, wrapped: bool = True) -> AsyncIterator[Move]:
    """Send and receive chunks, or by the client's own chunking."""
    import pulsar
    import pulsar.asyncio

    from claimcheck.transports.pulsar import AsyncPulsarConsumer, AsyncPulsarProducer

    topic = f"pauses-{uuid.uuid4().hex}"
    client = pulsar.asyncio.Client(lab.pulsar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    options = {} if wrapped else {"chunking_enabled": True, "batching_enabled": False}
    producer: Any = await client.create_producer(topic, **options)
    consumer: Any = await client.subscribe(topic, "s")
    if wrapped:
        cc = from_dict({"strategy": "chunking"})
        producer, consumer = AsyncPulsarProducer(producer, cc), AsyncPulsarConsumer(consumer, cc)

    async def move() -> None:
        await producer.send(payload)
        message = await consumer.receive()
        assert len(message.data()) == len(payload)
        await consumer.acknowledge(message)

    yield move
    for each in (producer, consumer, client):
        await each.close()


_declare("write", _write, redis_asyncio_SET=_set_by_hand)
_declare("call a decorated function with, and resolve,", _decorated)
_declare("send and receive through Kafka, as chunks,", _kafka_chunks)
_declare(
    "send and receive through Pulsar, as chunks,",
    _pulsar_chunks,
    pulsar_asyncio_its_chunking=partial(_pulsar_chunks, wrapped=False),
)
