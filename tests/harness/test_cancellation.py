"""Each public coroutine, cancelled at each of its suspensions: nothing is lost, nothing hangs, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import io
import types

import pulsar
import pytest

from claimcheck._send.outbound import Outbound
from claimcheck._store import store as _store
from claimcheck._threads import in_thread
from claimcheck.errors import ChunkError, ClaimCheckError
from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer
from claimcheck.transports.kafka._asyncio import DeliveryFutures
from claimcheck.transports.pulsar import AsyncPulsarConsumer, AsyncPulsarProducer, AsyncPulsarReader
from tests.harness import cancellation
from tests.harness.async_clients import (
    AioClient,
    KafkaConsumerClient,
    KafkaProducerClient,
    PulsarInner,
    PulsarReceiverClient,
    chunks_of,
    kafka_clients,
    pulsar_messages,
)
from tests.harness.cancellation import PAYLOAD, Subject, eventually, faults
from tests.simulation.scheduler import patched

SUBJECTS = {}


def subject(make):
    """Register a coroutine function that returns a subject for a lab."""

    @contextlib.asynccontextmanager
    async def manager(lab):
        yield await make(lab)

    SUBJECTS[make.__name__] = manager
    return manager


# The client and its stores ---------------------------------------------------------------------------------------


@subject
async def aresolve(lab):
    envelope = lab.envelope()

    async def finish(ending):
        same = await lab.cc.aresolve(envelope) == PAYLOAD == (ending.result or PAYLOAD)
        return [] if same else ["another payload"]

    return Subject(lambda: lab.cc.aresolve(envelope), finish)


@subject
async def aresolve_many(lab):
    envelopes = [lab.envelope(PAYLOAD + bytes([n])) for n in range(5)]

    async def read():
        return [each.payload async for each in lab.cc.aresolve_many(envelopes, concurrency=2)]

    async def finish(ending):
        return [] if await read() == [PAYLOAD + bytes([n]) for n in range(5)] else ["other payloads"]

    return Subject(read, finish)


def writing(payload):
    async def make(lab):
        async def finish(ending):
            if ending.error is None:
                return [] if await lab.store.aread(ending.result) == PAYLOAD else ["another payload"]
            return [] if await eventually(lambda: not lab.stored) else ["an orphan"]

        return Subject(lambda: lab.store.awrite(payload(), destination="t"), finish)

    return make


SUBJECTS["awrite"] = subject(writing(lambda: PAYLOAD))
SUBJECTS["awrite of a file"] = subject(writing(lambda: io.BytesIO(PAYLOAD)))


@subject
async def arollback(lab):
    lab.gate.open()
    pointer = lab.store.write(PAYLOAD, destination="t")
    lab.gate.close()

    async def finish(ending):
        return [] if await eventually(lambda: not lab.stored) else ["an orphan"]

    return Subject(lambda: lab.store.arollback(pointer), finish)


class Broker:
    """A produce function that suspends before and after it sends, or fails definitely."""

    def __init__(self, *, fails=False):
        self.sent, self.entered, self.failed, self.fails = [], False, False, fails

    async def send(self, value, key=None, headers=None):
        self.entered = True
        await asyncio.sleep(0)
        if self.fails:
            self.failed = True
            raise BufferError
        self.sent.append(value)
        await asyncio.sleep(0)


def definite(error):
    return "failed" if isinstance(error, BufferError) else "unknown"


async def orphans(lab, broker):
    """What is wrong with the store after a send: payloads that no message needs, or that one lacks."""
    wrong = []
    for envelope in broker.sent:
        try:
            await lab.cc.aresolve(bytes(envelope))
        except ChunkError:
            pass
        except ClaimCheckError as error:
            wrong.append(f"a message without its payload: {error}")
    is_undone = broker.failed or not broker.entered
    if is_undone and not await eventually(lambda: not lab.stored):
        wrong.append("an orphan")
    return wrong


def publishing(*, fails, payload=lambda: PAYLOAD, strategy="external"):
    async def make(lab):
        lab.use(strategy)
        broker = Broker(fails=fails)
        publish = lab.cc.offload(payload="value", key="key", headers="headers", classify=definite)(broker.send)
        return Subject(lambda: publish(payload()), lambda ending: orphans(lab, broker), (BufferError,) * fails)

    return make


def outbound(*, fails):
    async def make(lab):
        broker = Broker(fails=fails)

        async def send():
            async with lab.cc.outbound(PAYLOAD, destination="t", classify=definite) as out:
                for envelope in out.envelopes:
                    await broker.send(envelope.data)

        return Subject(send, lambda ending: orphans(lab, broker), (BufferError,) * fails)

    return make


SUBJECTS["offload"] = subject(publishing(fails=False))
SUBJECTS["offload that fails"] = subject(publishing(fails=True))
SUBJECTS["offload of a file"] = subject(publishing(fails=False, payload=lambda: io.BytesIO(PAYLOAD)))
SUBJECTS["offload in chunks"] = subject(publishing(fails=False, strategy="chunking"))
SUBJECTS["outbound"] = subject(outbound(fails=False))
SUBJECTS["outbound that fails"] = subject(outbound(fails=True))


# Kafka -----------------------------------------------------------------------------------------------------------


def producing(payload, strategy="external", end="produce"):
    async def make(lab):
        lab.use(strategy)
        native = AioClient(KafkaProducerClient())
        producer = AsyncKafkaProducer(native, lab.cc)
        futures = []

        async def call():
            futures.append(await producer.produce("t", payload, "key"))
            if end != "produce":
                await getattr(producer, end)()

        async def finish(ending):
            if end != "close":
                await producer.flush()
            await producer.close()
            wrong = [] if all(each.done() for each in futures) else ["a future is open"]
            sent = [value for value, _ in native.client.records]
            if strategy == "external" and len(sent) > 1:
                wrong.append("sent twice")
            if ending.error is None and not sent:
                wrong.append("not sent")
            if payload is PAYLOAD and strategy == "external":
                broker = Broker()
                broker.sent, broker.entered = sent, bool(sent)
                wrong += await orphans(lab, broker)
            return wrong

        return Subject(call, finish)

    return make


for end in ("produce", "flush", "close"):
    SUBJECTS[f"Kafka {end}"] = subject(producing(PAYLOAD, end=end))
SUBJECTS["Kafka produce of a small one"] = subject(producing(b"small"))
SUBJECTS["Kafka produce of chunks"] = subject(producing(PAYLOAD, "chunking"))


def kafka_receiving(begin, *, reads_on=True, **options):
    async def make(lab):
        first, *chunks = chunks_of(PAYLOAD[:-1])
        values = [b"plain", lab.envelope(), first, b"between", *chunks, lab.envelope(PAYLOAD[1:])]
        native = AioClient(KafkaConsumerClient(values))
        consumer = AsyncKafkaConsumer(native, lab.cc, **options)
        await consumer.subscribe(["t"])
        found = []

        async def call():
            return await begin(consumer)

        async def finish(ending):
            if reads_on:
                found.extend(ending.result or [])
                for _ in range(40):
                    if len(found) < 5 and (message := await consumer.poll(0.02)) is not None:
                        found.append(message)
            await consumer.close()
            wrong = [] if native.client.closed else ["not closed"]
            expected = sorted([b"plain", PAYLOAD, b"between", PAYLOAD[:-1], PAYLOAD[1:]])
            if reads_on and sorted(each.value() for each in found) != expected:
                wrong.append(f"received {[each.value()[:10] for each in found]}")
            return wrong + (["calls at the same time"] if native.client.clashes else [])

        return Subject(call, finish)

    return make


async def poll(consumer):
    return [await consumer.poll()]


async def consume(consumer):
    return await consumer.consume(5, 30)


async def closing(consumer):
    await consumer.close()


SUBJECTS["Kafka poll"] = subject(kafka_receiving(poll))
SUBJECTS["Kafka consume"] = subject(kafka_receiving(consume))
SUBJECTS["Kafka consume ahead"] = subject(kafka_receiving(consume, prefetch_bytes=1_000_000))
SUBJECTS["Kafka close of a consumer"] = subject(kafka_receiving(closing, reads_on=False))
SUBJECTS["Kafka poll, then close"] = subject(kafka_receiving(poll, reads_on=False))


# Pulsar ----------------------------------------------------------------------------------------------------------


def pulsar_sending(payload, strategy="external", end="send"):
    async def make(lab):
        lab.use(strategy)
        native = PulsarInner([])
        outer = types.SimpleNamespace(_producer=native, _schema=pulsar.schema.BytesSchema())
        producer = AsyncPulsarProducer(outer, lab.cc)

        async def call():
            await producer.send(payload)
            if end != "send":
                await getattr(producer, end)()

        async def finish(ending):
            if end != "close":
                await producer.flush()
            await producer.close()
            wrong = [] if native.sent or ending.error is not None else ["not sent"]
            if payload is PAYLOAD and strategy == "external":
                broker = Broker()
                broker.sent, broker.entered = native.sent, bool(native.sent)
                wrong += await orphans(lab, broker)
            return wrong

        return Subject(call, finish)

    return make


for end in ("send", "flush", "close"):
    SUBJECTS[f"Pulsar {end}"] = subject(pulsar_sending(PAYLOAD, end=end))
SUBJECTS["Pulsar send of a small one"] = subject(pulsar_sending(b"small"))
SUBJECTS["Pulsar send of chunks"] = subject(pulsar_sending(PAYLOAD, "chunking"))


def pulsar_receiving(wrapper, name, tasks=1, end=None, reads_on=True):
    async def make(lab):
        values = [b"plain", lab.envelope(), *chunks_of(PAYLOAD[:-1]), lab.envelope(PAYLOAD[1:])]
        values = [] if end else values
        native = PulsarReceiverClient(pulsar_messages(values))
        receiver = wrapper(
            native, lab.cc, **({"consumer_type": pulsar.ConsumerType.Exclusive} if name == "receive" else {})
        )
        found, others = [], []

        async def call():
            others.extend(asyncio.create_task(getattr(receiver, name)()) for _ in range(tasks - 1))
            if end is not None:
                await asyncio.sleep(0)
                await receiver.close()
                return
            found.append(await getattr(receiver, name)())
            found.append(await getattr(receiver, name)())

        async def finish(ending):
            if end is None and reads_on:
                found.extend([await each for each in others])
                while len(found) < 4:
                    found.append(await getattr(receiver, name)())
            await receiver.close()
            await asyncio.gather(*others, return_exceptions=True)
            wrong = [] if native._consumer.closed else ["not closed"]
            expected = sorted([b"plain", PAYLOAD, PAYLOAD[:-1], PAYLOAD[1:]])
            if end is None and reads_on and sorted(each.data() for each in found) != expected:
                wrong.append(f"received {[each.data()[:10] for each in found]}")
            return wrong

        return Subject(call, finish)

    return make


SUBJECTS["Pulsar receive"] = subject(pulsar_receiving(AsyncPulsarConsumer, "receive"))
SUBJECTS["Pulsar receive in two tasks"] = subject(pulsar_receiving(AsyncPulsarConsumer, "receive", tasks=2))
SUBJECTS["Pulsar read_next"] = subject(pulsar_receiving(AsyncPulsarReader, "read_next"))
SUBJECTS["Pulsar receive, then close"] = subject(pulsar_receiving(AsyncPulsarConsumer, "receive", reads_on=False))
SUBJECTS["Pulsar close of a consumer"] = subject(pulsar_receiving(AsyncPulsarConsumer, "receive", tasks=2, end="close"))


@subject
async def receive_of_the_only_message(lab):
    """Another task waits for a message: it gets this one if the call is cancelled."""
    consumer = AsyncPulsarConsumer(PulsarReceiverClient(pulsar_messages([lab.envelope()])), lab.cc)
    others = []

    async def call():
        others.append(asyncio.create_task(consumer.receive()))
        return await consumer.receive()

    async def finish(ending):
        message = ending.result or await others[0]
        await consumer.close()
        await asyncio.gather(*others, return_exceptions=True)
        return [] if message.data() == PAYLOAD else ["another payload"]

    return Subject(call, finish)


@pytest.fixture(autouse=True)
def _scripted():
    with patched(kafka_clients(KafkaConsumerClient, KafkaProducerClient)):
        yield


@pytest.mark.parametrize("name", SUBJECTS)
def test_cancelled_anywhere(name):
    assert list(faults(SUBJECTS[name])) == []


# Planted faults ----------------------------------------------------------------------------------------------------


async def taken_before_the_last_suspension(self):
    message = await _next(self)
    await asyncio.sleep(0)
    return message


_next = AsyncPulsarConsumer._next


async def keeps_the_lock(self):
    await self._one_at_a_time.acquire()
    self._calls += 1
    while (message := self._blocking.take_read()) is None:
        await self._step()
    self._calls -= 1
    self._one_at_a_time.release()
    return message


async def broken_off(self, error):
    await asyncio.sleep(0)
    self.settle(error)


async def served_forever(self):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("owner", "name", "fault", "subject", "reported"),
    [
        (AsyncPulsarConsumer, "_next", taken_before_the_last_suspension, "Pulsar receive", "a later call hangs"),
        (AsyncPulsarConsumer, "_next", keeps_the_lock, "receive_of_the_only_message", "a later call hangs"),
        (_store, "in_thread", lambda function, **_: in_thread(function), "awrite", "an orphan"),
        (Outbound, "settle_async", broken_off, "offload that fails", "an orphan"),
        (DeliveryFutures, "_serve_all", served_forever, "Kafka produce", "a task is left"),
    ],
)
def test_a_planted_fault_is_reported(monkeypatch, owner, name, fault, subject, reported):
    monkeypatch.setattr(cancellation, "HANGS_SECONDS", 1.0)
    monkeypatch.setattr(owner, name, fault)
    assert any(reported in each for each in faults(SUBJECTS[subject]))
