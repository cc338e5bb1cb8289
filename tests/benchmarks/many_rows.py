"""Many payloads at once: tasks, iterators and consumers at the end of a line."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from claimcheck import ClaimCheck
from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer
from tests.benchmarks import pause_rows
from tests.benchmarks.lab import BUCKET, CREDENTIALS, REGION, Lab
from tests.benchmarks.redis_rows import OURS
from tests.benchmarks.rounds import Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast

_TASKS = 1000
_FAR_MS, _NEAR_MS = 20, 5  # round trips
_STORED = 20  # payloads, read in turns
_KAFKA_ROUNDS = 60  # for which there are messages; a consumer that starts again waits for the broker
_CONNECTIONS = 100  # of the peer, as many as redis-py allows by default
_THREADS = 32


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    small = effort.size(1 / 16)

    def at_once(key: str, what: str, bound: float, measure: Callable[..., Findings]) -> Step:
        return Step((Target(key, f"{what}, {size_text(small)}", bound),), partial(measure, size=small))

    tasks = f"{_TASKS} tasks, {_FAR_MS} ms"
    return [
        at_once("many-redis-read", f"{tasks}: cc.aresolve from Redis, of redis.asyncio's rate", 0.8, _redis_reads),
        at_once("many-redis-write", f"{tasks}: store.awrite to Redis, of redis.asyncio's rate", 0.8, _redis_writes),
        at_once("many-obstore-read", f"{tasks}: store.aread with obstore, of its own async rate", 0.8, _obstore_reads),
        at_once("many-resolve", f"{_NEAR_MS} ms: cc.resolve_many, of {_THREADS} threads' rate", 0.9, _resolve_many),
        at_once(
            "many-kafka", f"{_NEAR_MS} ms: pointers from Kafka one by one, of {_THREADS} threads' rate", 0.9, _kafka
        ),
        *pause_rows.steps(effort),
    ]


def _redis_reads(lab: Lab, size: int) -> Findings:
    cc, pointers = _stored(lab, lab.redis_afar(_FAR_MS), size)
    sealed = [cc.seal(pointer) for pointer in pointers]
    with asyncio.Runner() as loop, _peer(lab, loop) as peer:
        base = _Tasks("redis.asyncio GET", loop, lambda n: peer.get(f"{pointers[n % _STORED].key}-0"))
        return _faster(lab, base, _Tasks(OURS, loop, lambda n: cc.aresolve(sealed[n % _STORED])))


def _redis_writes(lab: Lab, size: int) -> Findings:
    store, payload, written = lab.store(type="redis", url=lab.redis_afar(_FAR_MS)), payload_of(size), list[Pointer]()
    near = lab.redis_store()

    async def write(_: int) -> None:
        written.append(await store.awrite(payload))

    def clean() -> None:
        while written:
            near.rollback(written.pop())

    with asyncio.Runner() as loop, _peer(lab, loop) as peer:
        base = _Tasks("redis.asyncio SET", loop, lambda n: peer.set(f"peer-{n}", payload, ex=600))
        return _faster(lab, base, _Tasks(OURS, loop, write, clean))


def _obstore_reads(lab: Lab, size: int) -> Findings:
    import obstore
    from obstore.store import S3Store

    url = lab.s3_afar(_FAR_MS)
    store = lab.store(type="obstore", url=f"s3://{BUCKET}", endpoint_url=url, region_name=REGION)
    peer = S3Store(
        BUCKET,
        endpoint=url,
        region=REGION,
        access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )
    written = [store.write(payload_of(size)) for _ in range(_STORED)]
    pattern = digest_of(memoryview(obstore.get(peer, written[0].key).bytes()))  # the server keeps sizes only
    pointers = [replace(pointer, checksum=pattern) for pointer in written]

    async def get(n: int) -> None:
        await (await obstore.get_async(peer, pointers[n % _STORED].key)).bytes_async()

    with asyncio.Runner() as loop:
        ours = _Tasks(OURS, loop, lambda n: store.aread(pointers[n % _STORED]))
        return _faster(lab, _Tasks("obstore get_async", loop, get), ours)


def _resolve_many(lab: Lab, size: int) -> Findings:
    cc, pointers = _stored(lab, lab.redis_afar(_NEAR_MS), size)
    store, many = cc.store("hot"), pointers * (_TASKS // _STORED)
    sealed = [cc.seal(pointer) for pointer in many]

    def ours() -> None:
        for resolution in cc.resolve_many(sealed):
            assert len(resolution.payload or b"") == size

    with ThreadPoolExecutor(_THREADS) as threads:
        base, found = compare(
            lab.effort,
            _TASKS,
            Variant(f"store.read, {_THREADS} threads", lambda: list(map(len, threads.map(store.read, many)))),
            Variant(OURS, ours),
            counts="operations",
        )
    return Findings((times_as_fast(found, base),), (base, found))


def _kafka(lab: Lab, size: int) -> Findings:
    import confluent_kafka

    from claimcheck.transports.kafka import KafkaConsumer

    cc, pointers = _stored(lab, lab.redis_afar(_NEAR_MS), size)
    store, many, topic = cc.store("hot"), pointers * (_TASKS // _STORED), f"many-{uuid.uuid4().hex}"
    producer = confluent_kafka.Producer({"bootstrap.servers": lab.kafka})
    for pointer in many * _KAFKA_ROUNDS:
        producer.produce(topic, cc.seal(pointer))
        producer.poll(0)
    producer.flush()
    options = {"bootstrap.servers": lab.kafka, "group.id": topic, "enable.auto.offset.store": False}
    consumer = KafkaConsumer(confluent_kafka.Consumer({**options, "auto.offset.reset": "earliest"}), cc)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def ours() -> None:
        for _ in many:
            assert len(consumer.poll(30).value()) == size

    with contextlib.closing(consumer), ThreadPoolExecutor(_THREADS) as threads:
        base, found = compare(
            lab.effort,
            _TASKS,
            Variant(f"store.read, {_THREADS} threads", lambda: list(map(len, threads.map(store.read, many)))),
            Variant("KafkaConsumer", ours),
            counts="operations",
        )
    return Findings(
        (times_as_fast(found, base),), (base, found), "one poll at a time; up to 64 payloads are read ahead"
    )


# What the rows share ------------------------------------------------------------------------------------------------


def _stored(lab: Lab, url: str, size: int) -> tuple[ClaimCheck, list[Pointer]]:
    """Return a configuration with the store at the end of a line, and payloads that are in it."""
    payload, near = payload_of(size), lab.redis_store()
    return lab.cc(type="redis", url=url), [near.write(payload) for _ in range(_STORED)]


@dataclass(frozen=True, slots=True)
class _Tasks:
    """A thousand tasks that start together, on a loop that stays open between rounds, as its connections do.

    Attributes:
        name: As it is printed.
        loop: The loop.
        one: Returns what a task awaits, by its number.
        clean: Removes what the tasks wrote.
    """

    name: str
    loop: asyncio.Runner
    one: Callable[[int], Awaitable[Any]]
    clean: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Start all of them, and wait for all of them."""
        self.loop.run(self._together())

    def undo(self, _: object) -> None:
        """Clean up after a round."""
        self.clean()

    async def _together(self) -> None:
        await asyncio.gather(*(self.one(n) for n in range(_TASKS)))


def _faster(lab: Lab, peer: _Tasks, ours: _Tasks) -> Findings:
    variants = [Variant(each.name, each.run, each.undo) for each in (peer, ours)]
    base, found = compare(lab.effort, _TASKS, *variants, counts="operations")
    return Findings((times_as_fast(found, base),), (base, found))


@contextlib.contextmanager
def _peer(lab: Lab, loop: asyncio.Runner) -> Iterator[Any]:
    """A client as people write it: one pool for all tasks, which waits for a free connection."""
    from redis import asyncio as redis

    pool = redis.BlockingConnectionPool.from_url(lab.redis_afar(_FAR_MS), max_connections=_CONNECTIONS, timeout=None)
    peer = redis.Redis(connection_pool=pool)
    try:
        yield peer
    finally:
        loop.run(pool.disconnect())
