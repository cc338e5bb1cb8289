"""The asyncio consumer on a real Kafka: nothing is lost when a task is cancelled."""

import asyncio
import threading

import confluent_kafka as kafka
import pytest
from confluent_kafka.aio import AsyncSerializingProducer

from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer, OffsetStoreError
from tests.integration.kafka_aio_rig import Held, consuming, poll, producing, send, soon
from tests.integration.kafka_rig import LIMIT, WITHIN_SECONDS, content, rig, values

BIG = 5 * LIMIT


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        yield lab


def test_the_loop_goes_on_while_a_payload_is_stored_and_read(lab):
    async def main():
        async with producing(lab) as producer, consuming(lab) as consumer:
            loop = asyncio.get_running_loop()
            for store, name in ((producer._blocking._cc.store("m"), "write"), (lab.cc.store("m"), "read")):
                waits(store, name, loop)
            await send(producer, lab.topic, content(BIG))
            (message,) = await poll(consumer, 1)
            lab.cc.store("m").read = None  # it is read by now
            assert message.value() == content(BIG)

    asyncio.run(main())


def waits(store, name, loop):
    method = getattr(store, name)

    def call(*args, **kwargs):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)  # never done if it were blocked
        return method(*args, **kwargs)

    setattr(store, name, call)


def test_a_receive_that_is_cancelled_loses_nothing(lab):
    payloads = [content([20, LIMIT, 3 * LIMIT][i % 3], i) for i in range(60)]

    async def main():
        async with producing(lab, "chunking") as producer, consuming(lab) as consumer:
            for payload in payloads:
                await producer.produce(lab.topic, payload)
            found = []
            for turn in range(100_000):
                receive = consumer.poll() if turn % 2 else consumer.consume(3)
                task = asyncio.create_task(receive)
                for _ in range(turn % 7):  # it is cancelled at another of its steps each time
                    await asyncio.wait({task}, timeout=0.0005)
                task.cancel()
                try:
                    got = await task
                except asyncio.CancelledError:
                    continue
                found += got if isinstance(got, list) else [got]
                if len(found) == len(payloads):
                    break
            assert values(found) == payloads

    asyncio.run(asyncio.wait_for(main(), 2 * WITHIN_SECONDS))


def test_what_a_cancelled_receive_had_is_not_committed(lab):
    async def main():
        async with producing(lab) as producer:
            await send(producer, lab.topic, content(BIG))
        held = Held(lab.cc.store("m"), "read")
        async with consuming(lab, wrap={"auto_offset_store": True}, enable_auto_commit=True) as consumer:
            task = asyncio.create_task(consumer.poll())
            await held.entered()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await consumer.position(await consumer.assignment()))[0].offset == kafka.OFFSET_INVALID
        held.let_go()
        async with consuming(lab) as consumer:
            assert values(await poll(consumer, 1)) == [content(BIG)]

    asyncio.run(main())


def test_a_payload_that_is_read_too_slowly_comes_with_a_later_poll(lab):
    async def main():
        async with producing(lab) as producer, consuming(lab) as consumer:
            lab.send_raw(b"first")
            await send(producer, lab.topic, content(BIG))
            held = Held(lab.cc.store("m"), "read")
            assert values(await soon(consumer.consume(2, 1.0))) == [b"first"]
            await held.entered()
            assert await soon(consumer.poll(0.1)) is None
            held.let_go()
            assert values(await poll(consumer, 1)) == [content(BIG)]

    asyncio.run(main())


def test_seek_drops_what_a_cancelled_receive_had(lab):
    async def main():
        async with producing(lab) as producer, consuming(lab) as consumer:
            await send(producer, lab.topic, content(BIG))
            await send(producer, lab.topic, b"second")
            held = Held(lab.cc.store("m"), "read")
            task = asyncio.create_task(consumer.poll())
            await held.entered()
            task.cancel()
            held.let_go()
            await consumer.seek(kafka.TopicPartition(lab.topic, 0, 1))
            assert values(await poll(consumer, 1)) == [b"second"]

    asyncio.run(main())


def test_what_a_cancelled_receive_had_waits_while_its_partition_is_paused(lab):
    async def main():
        async with producing(lab) as producer, consuming(lab) as consumer:
            await send(producer, lab.topic, content(BIG))
            held = Held(lab.cc.store("m"), "read")
            task = asyncio.create_task(consumer.poll())
            await held.entered()
            task.cancel()
            held.let_go()
            places = await consumer.assignment()
            await consumer.pause(places)
            assert await consumer.consume(1, 0.3) == []
            await consumer.resume(places)
            assert values(await poll(consumer, 1)) == [content(BIG)]

    asyncio.run(main())


def test_nobody_waits_for_a_receive_that_waits(lab):
    async def main():
        async with consuming(lab) as consumer:
            lab.send_raw(b"one")
            (message,) = await poll(consumer, 1)
            waiting = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0)
            await soon(consumer.commit(message, asynchronous=False))
            assert not waiting.done()
            lab.send_raw(b"two")
            assert (await soon(waiting)).value() == b"two"
            abandoned = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0)
            abandoned.cancel()  # and `close` comes to its end

    asyncio.run(asyncio.wait_for(main(), WITHIN_SECONDS))
    assert lab.committed().offset == 1


def test_two_tasks_that_receive_get_each_payload_once(lab):
    payloads = [content([5, BIG][i % 2], i) for i in range(20)]

    async def main():
        async with producing(lab) as producer, consuming(lab) as consumer:
            tasks = [asyncio.create_task(poll(consumer, 10)) for _ in range(2)]
            for payload in payloads:
                await producer.produce(lab.topic, payload)
            got = await soon(asyncio.gather(*tasks))
            assert sorted(values(got[0] + got[1])) == sorted(payloads)

    asyncio.run(main())


def test_callbacks_are_coroutines_that_may_use_the_consumer(lab):
    async def main():
        seen = []

        async def on_assign(consumer, partitions):
            seen.append(("assign", consumer))
            for partition in partitions:
                partition.offset = 1
            await consumer.assign(partitions)

        async def on_revoke(consumer, partitions):
            seen.append(("revoke", consumer))
            await asyncio.gather(consumer.commit(asynchronous=False, offsets=await consumer.position(partitions)))

        async with consuming(lab, callbacks={"on_assign": on_assign, "on_revoke": on_revoke}) as consumer:
            lab.send_raw(b"a", b"b", b"c")
            assert values(await poll(consumer, 1)) == [b"b"]
        assert seen == [("assign", consumer), ("revoke", consumer)]

    asyncio.run(asyncio.wait_for(main(), WITHIN_SECONDS))
    assert lab.committed().offset == 2


def test_what_a_callback_raises_comes_out_of_poll(lab):
    async def main():
        async def on_assign(consumer, partitions):
            raise LookupError("no place for them")

        async with consuming(lab, callbacks={"on_assign": on_assign}) as consumer:
            with pytest.raises(LookupError, match="no place"):
                await soon(consumer.poll())

    asyncio.run(main())


def test_a_task_that_a_callback_started_waits_its_turn_afterwards(lab):
    async def main():
        tasks = []

        async def on_assign(consumer, partitions):
            async def later():
                await called.wait()
                return await consumer.committed(partitions)

            tasks.append(asyncio.create_task(later()))

        called = asyncio.Event()
        async with consuming(lab, callbacks={"on_assign": on_assign}) as consumer:
            lab.send_raw(b"a")
            await poll(consumer, 1)
            async with consumer._calls.exclusive():
                called.set()
                done, _ = await asyncio.wait(tasks, timeout=0.2)
                assert not done
            assert (await soon(tasks[0]))[0].offset == kafka.OFFSET_INVALID

    asyncio.run(main())


def test_the_offset_of_the_last_message_is_stored_while_the_next_is_waited_for(lab):
    async def main():
        options = {"enable_auto_commit": True, "auto_commit_interval_ms": 50}
        async with consuming(lab, wrap={"auto_offset_store": True}, **options) as consumer:
            lab.send_raw(b"a", b"b")
            await poll(consumer, 2)
            waiting = asyncio.create_task(consumer.poll())
            while (await asyncio.to_thread(lab.committed)).offset != 2:
                assert not waiting.done()
            waiting.cancel()

    asyncio.run(asyncio.wait_for(main(), WITHIN_SECONDS))


def test_the_next_payloads_are_read_while_one_is_handled(lab):
    async def main():
        async with producing(lab) as producer, consuming(lab, wrap={"prefetch_bytes": 2 * BIG}) as consumer:
            for n in range(4):
                await send(producer, lab.topic, content(BIG, n))
            asked, store = threading.Semaphore(0), lab.cc.store("m")
            read = store.read

            def call(*args, **kwargs):
                asked.release()
                return read(*args, **kwargs)

            store.read = call
            for n in range(3):
                assert values(await poll(consumer, 1)) == [content(BIG, n)]
                for _ in range(2 if n == 0 else 1):  # two at once, and one more for each that was taken
                    assert await asyncio.to_thread(asked.acquire, timeout=WITHIN_SECONDS)
            assert asked.acquire(blocking=False) is False

    asyncio.run(main())


def test_pause_and_resume(lab):
    async def main():
        async with consuming(lab) as consumer:
            lab.send_raw(b"a", b"b")
            await poll(consumer, 1)
            places = await consumer.assignment()
            await consumer.pause(places)
            assert await consumer.consume(1, 0.3) == []
            await consumer.resume(places)
            assert values(await poll(consumer, 1)) == [b"b"]

    asyncio.run(main())


def test_other_kinds_of_clients_are_refused(lab):
    async def main():
        serializing = await AsyncSerializingProducer({**lab.servers})
        for other in (lab.native(), serializing):
            with pytest.raises(TypeError, match="expected a confluent_kafka.aio.AIOProducer"):
                AsyncKafkaProducer(other, lab.cc)
        await serializing.close()
        consumer = lab.native_consumer()
        with pytest.raises(TypeError, match="expected a confluent_kafka.aio.AIOConsumer"):
            AsyncKafkaConsumer(consumer, lab.cc)
        consumer.close()

    asyncio.run(main())


def test_a_consumer_that_stores_offsets_itself_is_refused(lab):
    async def main():
        with pytest.raises(OffsetStoreError):
            async with consuming(lab, enable_auto_offset_store=True):
                pass

    asyncio.run(main())
