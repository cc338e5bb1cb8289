"""The wrappers for `pulsar.asyncio` on a real Pulsar: the same guarantees, and they never block the event loop."""

import asyncio
import contextlib
import itertools
import threading
import time

import pulsar
import pulsar.asyncio
import pytest

from claimcheck.errors import PayloadNotFoundError, PayloadTypeError
from claimcheck.transports.pulsar import AsyncPulsarConsumer, AsyncPulsarProducer, AsyncPulsarReader
from tests.integration.pulsar_rig import LIMIT, STRATEGIES, content

EARLIEST = {"initial_position": pulsar.InitialPosition.Earliest, "negative_ack_redelivery_delay_ms": 100}


@contextlib.asynccontextmanager
async def wrapped(lab, strategy="external"):
    """A producer and a consumer of one topic."""
    client = pulsar.asyncio.Client(lab.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    native = await client.create_producer(lab.topic, batching_enabled=False)
    producer = AsyncPulsarProducer(native, lab.claimcheck(strategy), max_message_bytes=LIMIT)
    consumer = AsyncPulsarConsumer(await client.subscribe(lab.topic, "s", **EARLIEST), lab.cc)
    try:
        yield producer, consumer
    finally:
        with contextlib.suppress(pulsar.asyncio.PulsarException):  # its topic was terminated
            await producer.close()
        with contextlib.suppress(pulsar.asyncio.PulsarException):  # the test did so itself
            await consumer.close()
        await client.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_many_at_once_and_given_back(lab, strategy):
    async def main():
        async with wrapped(lab, strategy) as (producer, consumer):
            payloads = [content([20, 3 * LIMIT][i % 2], i) for i in range(20)]
            await asyncio.gather(*map(producer.send, payloads))
            first = [await consumer.receive() for _ in payloads]
            assert sorted(message.data() for message in first) == sorted(payloads)
            for message in first:
                await consumer.negative_acknowledge(message)
            again = [await consumer.receive() for _ in payloads]
            assert sorted(message.data() for message in again) == sorted(payloads)
            for message in again:
                await consumer.acknowledge(message)

    asyncio.run(main())
    lab.settled()


@contextlib.contextmanager
def slow_at_first(store):
    """Payloads are stored concurrently, and the first ones take longest."""
    write, pauses = store.write, itertools.chain([0.3, 0.25, 0.2, 0.15, 0.1], itertools.repeat(0.0))

    def slow(*args, **kwargs):
        time.sleep(next(pauses))
        return write(*args, **kwargs)

    store.write = slow
    yield
    store.write = write


@pytest.mark.parametrize("sizes", [[2 * LIMIT], [2 * LIMIT, 10], [10, 30 * LIMIT, 2 * LIMIT]], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sends_at_once_keep_the_order_of_the_calls(lab, strategy, sizes):
    async def main():
        async with wrapped(lab, strategy) as (producer, consumer):
            payloads = [content(sizes[i % len(sizes)], i) for i in range(12)]
            with slow_at_first(producer._blocking._cc.store("m")):
                await asyncio.gather(*map(producer.send, payloads))
            assert [(await consumer.receive()).data() for _ in payloads] == payloads

    asyncio.run(main())


def test_a_send_that_fails_or_is_cancelled_holds_up_nobody(lab):
    async def main():
        async with wrapped(lab) as (producer, consumer):
            payloads = [content(2 * LIMIT, i) for i in range(6)]
            with slow_at_first(producer._blocking._cc.store("m")):
                tasks = [asyncio.create_task(producer.send(payload)) for payload in payloads[:3]]
                bad = asyncio.create_task(producer.send(object()))
                tasks += [asyncio.create_task(producer.send(payload)) for payload in payloads[3:]]
                await asyncio.sleep(0.05)  # they have begun
                tasks[1].cancel()
                results = await asyncio.gather(*tasks, bad, return_exceptions=True)
            failed = [type(result) for result in results if isinstance(result, BaseException)]
            assert failed == [asyncio.CancelledError, PayloadTypeError]
            assert [(await consumer.receive()).data() for _ in payloads] == payloads

    asyncio.run(main())


def test_flushing_and_closing_wait_for_what_is_still_being_stored(lab):
    async def main():
        async with wrapped(lab) as (producer, consumer):
            with slow_at_first(producer._blocking._cc.store("m")):
                for end in (producer.flush, producer.close):
                    task = asyncio.create_task(producer.send(content(2 * LIMIT)))
                    await asyncio.sleep(0.05)
                    await end()
                    await asyncio.wait_for(task, 1)
                    assert (await consumer.receive()).data() == content(2 * LIMIT)

    asyncio.run(main())


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
        client = pulsar.asyncio.Client(lab.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = AsyncPulsarProducer(await client.create_producer(lab.topic), cc, max_message_bytes=LIMIT)
        store.write = slow
        for i, written in enumerate((first_written, second_written)):
            asyncio.create_task(producer.send(content(2 * LIMIT, i)))  # noqa: RUF006
            assert await asyncio.to_thread(written.wait, 60)
        threading.Timer(0.5, ended.set).start()  # once the loop has begun to end

    asyncio.run(main())
    assert len(dropped) == 2


def test_a_receive_that_is_cancelled_loses_nothing(lab):
    async def main():
        async with wrapped(lab) as (producer, consumer):
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.receive(), 0.05)
            await producer.send(b"once")
            assert (await asyncio.wait_for(consumer.receive(), 10)).data() == b"once"

    asyncio.run(main())


@pytest.mark.parametrize("how", ["close", "unsubscribe"])
def test_closing_ends_a_receive_as_the_client_does(lab, how):
    async def main():
        async with wrapped(lab) as (_, consumer):
            tasks = [asyncio.create_task(consumer.receive()) for _ in range(2)]
            await asyncio.sleep(0.1)
            await getattr(consumer, how)()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, pulsar.asyncio.PulsarException)
                assert result.error() == pulsar.Result.AlreadyClosed
            with pytest.raises(pulsar.asyncio.PulsarException, match="AlreadyClosed"):
                await consumer.receive()

    asyncio.run(main())


def test_closing_a_reader_ends_its_read_as_the_client_does(lab):
    async def main():
        client = pulsar.asyncio.Client(lab.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        reader = AsyncPulsarReader(await client.create_reader(lab.topic, pulsar.MessageId.earliest), lab.cc)
        task = asyncio.create_task(reader.read_next())
        await asyncio.sleep(0.1)
        await reader.close()
        with pytest.raises(pulsar.asyncio.PulsarException, match="AlreadyClosed"):
            await task
        await client.close()

    asyncio.run(main())


def test_two_tasks_that_receive_get_each_message_once(lab):
    async def main():
        async with wrapped(lab, "chunking") as (producer, consumer):
            payloads = [content([5, 2 * LIMIT][i % 2], i) for i in range(10)]

            async def some():
                return [(await consumer.receive()).data() for _ in range(5)]

            tasks = [asyncio.create_task(some()) for _ in range(2)]
            for payload in payloads:
                await producer.send(payload)
            got = await asyncio.gather(*tasks)
            assert sorted(got[0] + got[1]) == sorted(payloads)

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


def test_the_loop_goes_on_while_a_payload_is_stored_and_read(lab):
    async def main():
        async with wrapped(lab) as (producer, consumer):
            beats, store = 0, lab.cc.store("m")
            write, read, loop = store.write, store.read, asyncio.get_running_loop()

            def waits(function):
                def call(*args, **kwargs):
                    beaten = asyncio.run_coroutine_threadsafe(beat(), loop)  # never done if the loop were blocked
                    assert beaten.result(10)
                    return function(*args, **kwargs)

                return call

            async def beat():
                nonlocal beats
                beats += 1
                return True

            store.write, store.read = waits(write), waits(read)
            await producer.send(content(2 * LIMIT))
            assert (await consumer.receive()).data() == content(2 * LIMIT)
            assert beats == 2

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
        client = pulsar.asyncio.Client(lab.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = lab.producer("chunking")
        ids = [producer.send(content(3 * LIMIT, i)) for i in range(2)]
        native = await client.create_reader(lab.topic, pulsar.MessageId.earliest)
        async with AsyncPulsarReader(native, lab.cc) as reader:
            assert await reader.has_message_available()
            assert [(await reader.read_next()).data() for _ in range(2)] == [content(3 * LIMIT, i) for i in range(2)]
            assert not await reader.has_message_available()
            await reader.seek(ids[0])
            assert (await reader.read_next()).message_id() == ids[1]
        with pytest.raises(pulsar.asyncio.PulsarException, match="AlreadyClosed"):
            await reader.read_next()
        await client.close()

    asyncio.run(main())
