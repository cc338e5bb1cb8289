"""Each public coroutine, cancelled at each of its suspensions: nothing is lost, nothing hangs, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import io

import pulsar
import pytest

from claimcheck._store import store as _store
from claimcheck._threads import in_thread
from claimcheck.errors import ChunkError, ClaimCheckError
from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer
from claimcheck.transports.kafka._asyncio import DeliveryFutures
from claimcheck.transports.pulsar import AsyncPulsarConsumer, AsyncPulsarProducer, AsyncPulsarReader
from tests.harness import kafka_model, pulsar_model
from tests.harness.cancellation import PAYLOAD, Subject, eventually, faults
from tests.kit.transport_harness import chunks_of

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


# Producers -------------------------------------------------------------------------------------------------------


def kafka_producer(lab):
    """Open a producer; returns it, and its way to send a payload."""
    producer = AsyncKafkaProducer(kafka_model.AioClient(kafka_model.ProducerClient(lab.topic, lab.process)), lab.cc)
    return producer, lambda payload: producer.produce("t", payload, "key")


def pulsar_producer(lab):
    producer = AsyncPulsarProducer(pulsar_model.ProducerClient(lab.topic, lab.process).wrapped(), lab.cc)
    return producer, producer.send


def sending(opened, end="", payload=PAYLOAD, strategy="external"):
    async def make(lab):
        lab.use(strategy)
        producer, send = opened(lab)
        results = []

        async def call():
            results.append(await send(payload))
            if end:
                await getattr(producer, end)()

        async def finish(ending):
            if end != "close":
                await producer.flush()
            await producer.close()
            sent = [record.value for record in lab.topic.launched]
            futures = [each for each in results if isinstance(each, asyncio.Future)]
            wrong = [] if all(each.done() for each in futures) else ["a future is open"]
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


for transport, opened in (("Kafka", kafka_producer), ("Pulsar", pulsar_producer)):
    SUBJECTS[f"{transport} send"] = subject(sending(opened))
    SUBJECTS[f"{transport} send, then flush"] = subject(sending(opened, "flush"))
    SUBJECTS[f"{transport} send, then close"] = subject(sending(opened, "close"))
    SUBJECTS[f"{transport} send of a small one"] = subject(sending(opened, payload=b"small"))
    SUBJECTS[f"{transport} send of chunks"] = subject(sending(opened, strategy="chunking"))


# Consumers and readers -------------------------------------------------------------------------------------------


def kafka_receiving(begin, *, reads_on=True, **options):
    async def make(lab):
        first, *chunks = chunks_of(PAYLOAD[:-1], 3)
        lab.topic.fill([b"plain", lab.envelope(), first, b"between", *chunks, lab.envelope(PAYLOAD[1:])])
        client = kafka_model.ConsumerClient(kafka_model.Group("g", lab.topic), lab.process)
        consumer = AsyncKafkaConsumer(kafka_model.AioClient(client), lab.cc, **options)
        await consumer.subscribe(["t"])

        async def finish(ending):
            found = list(ending.result or [])
            if reads_on:
                for _ in range(40):
                    if len(found) < 5 and (message := await consumer.poll(0.5)) is not None:
                        found.append(message)
            await consumer.close()
            wrong = [] if client.closed else ["not closed"]
            expected = sorted([b"plain", PAYLOAD, b"between", PAYLOAD[:-1], PAYLOAD[1:]])
            if reads_on and sorted(each.value() for each in found) != expected:
                wrong.append(f"received {[each.value()[:10] for each in found]}")
            return wrong

        return Subject(lambda: begin(consumer), finish)

    return make


async def poll(consumer):
    return [await consumer.poll()]


def consume(consumer):
    return consumer.consume(5, 30)


SUBJECTS["Kafka poll"] = subject(kafka_receiving(poll))
SUBJECTS["Kafka consume"] = subject(kafka_receiving(consume))
SUBJECTS["Kafka consume ahead"] = subject(kafka_receiving(consume, prefetch_bytes=1_000_000))
SUBJECTS["Kafka close of a consumer"] = subject(kafka_receiving(AsyncKafkaConsumer.close, reads_on=False))
SUBJECTS["Kafka poll, then close"] = subject(kafka_receiving(poll, reads_on=False))


def pulsar_client(lab):
    subscription = pulsar_model.Subscription("s", lab.topic)
    return pulsar_model.AsyncConsumerClient(pulsar_model.ConsumerClient(subscription, lab.process))


def pulsar_receiving(wrapper, name, tasks=1, end=None, reads_on=True):
    async def make(lab):
        values = [b"plain", lab.envelope(), *chunks_of(PAYLOAD[:-1], 3), lab.envelope(PAYLOAD[1:])]
        lab.topic.fill([] if end else values)
        native = pulsar_client(lab)
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
    lab.topic.fill([lab.envelope()])
    consumer = AsyncPulsarConsumer(pulsar_client(lab), lab.cc)
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


@pytest.mark.parametrize("name", SUBJECTS)
def test_cancelled_anywhere(name):
    assert list(faults(SUBJECTS[name])) == []


# Planted faults ----------------------------------------------------------------------------------------------------


async def taken_before_the_last_suspension(self):
    message = await _next(self)
    await asyncio.sleep(0)
    return message


_next = AsyncPulsarConsumer._next


async def served_forever(self):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("owner", "name", "fault", "subject", "reported"),
    [
        (AsyncPulsarConsumer, "_next", taken_before_the_last_suspension, "Pulsar receive", "a later call hangs"),
        (_store, "in_thread", lambda function, **_: in_thread(function), "awrite", "an orphan"),
        (DeliveryFutures, "_serve_all", served_forever, "Kafka send", "a task is left"),
    ],
)
def test_a_planted_fault_is_reported(monkeypatch, owner, name, fault, subject, reported):
    monkeypatch.setattr(owner, name, fault)
    assert any(reported in each for each in faults(SUBJECTS[subject]))
