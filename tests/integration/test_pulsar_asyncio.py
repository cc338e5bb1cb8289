"""The wrappers for `pulsar.asyncio` on a real Pulsar: the same guarantees, and they never block the event loop."""

import asyncio
import contextlib
import threading

import pulsar
import pulsar.asyncio
import pytest

from claimcheck.errors import PayloadNotFoundError
from claimcheck.transports.pulsar import AsyncPulsarConsumer, AsyncPulsarProducer, AsyncPulsarReader
from tests.integration.pulsar_rig import LIMIT, content

EARLIEST = {"initial_position": pulsar.InitialPosition.Earliest, "negative_ack_redelivery_delay_ms": 100}


def client_of(lab):
    return pulsar.asyncio.Client(lab.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


@contextlib.asynccontextmanager
async def wrapped(lab):
    """A producer and a consumer of one topic."""
    client = client_of(lab)
    native = await client.create_producer(lab.topic, batching_enabled=False)
    producer = AsyncPulsarProducer(native, lab.cc, max_message_bytes=LIMIT)
    consumer = AsyncPulsarConsumer(await client.subscribe(lab.topic, "s", **EARLIEST), lab.cc)
    try:
        yield producer, consumer
    finally:
        with contextlib.suppress(pulsar.asyncio.PulsarException):  # its topic was terminated
            await producer.close()
        with contextlib.suppress(pulsar.asyncio.PulsarException):  # the test did so itself
            await consumer.close()
        await client.close()


def test_a_loop_that_ends_takes_what_was_not_sent_out_of_the_store(lab):
    cc = lab.claimcheck("external")
    store, dropped = cc.store("m"), []
    first_written, second_written, ended = threading.Event(), threading.Event(), threading.Event()
    write, rollback = store.write, store.rollback
    store.rollback = lambda pointer: (dropped.append(pointer.key), rollback(pointer))

    def slow(*args, **kwargs):
        pointer = write(*args, **kwargs)
        if first_written.is_set():
            second_written.set()
        else:
            first_written.set()
            ended.wait(60)
        return pointer

    async def main():
        client = client_of(lab)
        producer = AsyncPulsarProducer(await client.create_producer(lab.topic), cc, max_message_bytes=LIMIT)
        store.write = slow
        for i, written in enumerate((first_written, second_written)):
            asyncio.create_task(producer.send(content(2 * LIMIT, i)))  # noqa: RUF006
            assert await asyncio.to_thread(written.wait, 60)
        threading.Timer(0.5, ended.set).start()  # once the loop has begun to end

    asyncio.run(main())
    assert len(dropped) == 2


def test_closing_ends_a_receive_as_the_client_does(lab):
    async def main():
        async with wrapped(lab) as (_, consumer):
            tasks = [asyncio.create_task(consumer.receive()) for _ in range(2)]
            await asyncio.sleep(0.1)
            await consumer.close()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, pulsar.asyncio.PulsarException)
                assert result.error() == pulsar.Result.AlreadyClosed
            with pytest.raises(pulsar.asyncio.PulsarException, match="AlreadyClosed"):
                await consumer.receive()

    asyncio.run(main())


def test_receives_at_once_read_concurrently_and_return_in_order(lab):
    """Otherwise a cumulative acknowledgement would cover a payload that nobody has."""

    async def main():
        gate, started, store = threading.Event(), [], lab.cc.store("m")
        read = store.read

        def slow(pointer):
            started.append(pointer)
            if len(started) == 1:
                gate.wait(30)
            return read(pointer)

        async with wrapped(lab) as (producer, consumer):
            payloads = [content(3 * LIMIT, 0), content(20, 1), content(3 * LIMIT, 2)]
            for payload in payloads:
                await producer.send(payload)
            store.read = slow
            receiving = [asyncio.ensure_future(consumer.receive()) for _ in payloads]
            done, _ = await asyncio.wait(receiving, timeout=1)
            assert (len(done), len(started)) == (0, 2)
            gate.set()
            assert [message.data() for message in await asyncio.gather(*receiving)] == payloads

    asyncio.run(main())


def test_errors_are_those_of_the_asyncio_client_and_ours(lab):
    async def main():
        async with wrapped(lab) as (producer, consumer):
            pointer = lab.cc.store("m").write(b"gone")
            lab.cc.store("m").rollback(pointer)
            await producer.send(lab.cc.seal(pointer), properties={"claimcheck-type": "pointer"})
            message = await consumer.receive()
            with pytest.raises(PayloadNotFoundError):
                message.data()
            await consumer.acknowledge(message)

            lab.broker.request("POST", f"persistent/public/default/{lab.topic}/terminate")
            with pytest.raises(pulsar.asyncio.PulsarException) as caught:
                await producer.send(b"small")
            assert caught.value.error() in (pulsar.Result.TopicTerminated, pulsar.Result.AlreadyClosed)

    asyncio.run(main())


def test_a_reader(lab):
    async def main():
        client = client_of(lab)
        producer = lab.producer("chunking")
        ids = [producer.send(content(3 * LIMIT, i)) for i in range(2)]
        native = await client.create_reader(lab.topic, pulsar.MessageId.earliest)
        async with AsyncPulsarReader(native, lab.cc) as reader:
            assert await reader.has_message_available()
            assert [(await reader.read_next()).data() for _ in range(2)] == [content(3 * LIMIT, i) for i in range(2)]
            assert not await reader.has_message_available()
            await reader.seek(ids[0])
            assert (await reader.read_next()).message_id() == ids[1]
            waiting = asyncio.create_task(reader.read_next())
            await asyncio.sleep(0.1)
        with pytest.raises(pulsar.asyncio.PulsarException, match="AlreadyClosed"):
            await waiting
        with pytest.raises(pulsar.asyncio.PulsarException, match="AlreadyClosed"):
            await reader.read_next()
        await client.close()

    asyncio.run(main())
