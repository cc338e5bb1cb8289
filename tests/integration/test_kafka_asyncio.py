"""The asyncio wrappers on a real Kafka: every record, in order, even if tasks are cancelled."""

import asyncio

import confluent_kafka as kafka
import pytest

from claimcheck.transports.kafka import OffsetStoreError
from tests.integration.kafka_rig import (
    LIMIT,
    WITHIN_SECONDS,
    Held,
    consuming,
    content,
    nothing_comes,
    poll,
    producing,
    receive,
    rig,
    send,
    soon,
    stored,
    values,
)

# Producers ---------------------------------------------------------------------------------------------------------


BIG = 5 * LIMIT


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        yield lab


def read_all(lab, count):
    """Return the messages of the topic, and check that there are no more."""
    consumer = lab.consumer(group="reader")
    found = receive(consumer, count)
    assert nothing_comes(consumer, 0.5)
    return found


def test_nothing_goes_on_when_no_record_is_on_its_way(lab):
    async def main():
        async with producing(lab) as producer:
            before = asyncio.all_tasks()
            await send(producer, lab.topic, b"small")
            await send(producer, lab.topic, content(BIG))
            await soon(asyncio.gather(*asyncio.all_tasks() - before))  # no end if somebody still polled

    asyncio.run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": {"a": 3}},
        {"value": content(BIG), "timestamp": "now"},
    ],
)
def test_a_wrong_call_is_refused_and_what_follows_is_sent(lab, wrong):
    async def main():
        async with producing(lab) as producer:
            before = await producer.produce(lab.topic, b"before")
            with pytest.raises(TypeError):
                await producer.produce(lab.topic, **{"value": b"wrong", **wrong})
            after = await producer.produce(lab.topic, b"after")
            assert await soon(producer.flush()) == 0
            assert (before.result().value(), after.result().value()) == (b"before", b"after")
            assert stored(lab) == 0

    asyncio.run(main())
    assert values(read_all(lab, 2)) == [b"before", b"after"]


def test_a_full_queue_is_waited_for(lab):
    async def main():
        async with producing(lab, queue_buffering_max_messages=5) as producer:
            futures = [await soon(producer.produce(lab.topic, b"%d" % i)) for i in range(100)]
            await soon(asyncio.gather(*futures))

    asyncio.run(main())
    assert values(read_all(lab, 100)) == [b"%d" % i for i in range(100)]


def test_what_the_client_refuses_is_said_by_the_future_and_nothing_is_kept(lab):
    async def main():
        async with producing(lab) as producer:
            await send(producer, lab.topic, b"first")  # the client knows the topic now, and refuses at once
            future = await producer.produce(lab.topic, content(BIG), partition=7)
            with pytest.raises(kafka.KafkaException, match="_UNKNOWN_PARTITION"):
                await soon(future)
            await soon(producer.flush())
            assert stored(lab) == 0

    asyncio.run(main())


def test_purge_is_said_by_the_futures(lab):
    async def main():
        async with producing(lab, linger_ms=60_000) as producer:
            futures = [await producer.produce(lab.topic, payload) for payload in (b"small", content(BIG))]
            await producer.purge()
            for future in futures:
                with pytest.raises(kafka.KafkaException, match="_PURGE_QUEUE"):
                    await soon(future)
            await soon(producer.flush())
            assert stored(lab) == 0

    asyncio.run(main())


def test_transactions(lab):
    async def main():
        async with producing(lab, transactional_id=f"tx-{lab.topic}") as producer:
            await soon(producer.init_transactions())
            for n, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
                await soon(producer.begin_transaction())
                futures = [await producer.produce(lab.topic, each) for each in (b"small %d" % n, content(BIG, n))]
                await soon(end())
                reports = await soon(asyncio.gather(*futures, return_exceptions=True))
                assert n or all(report.error() is None for report in reports)
            await soon(producer.flush())
            assert stored(lab) == 1  # what was aborted is gone

    asyncio.run(main())
    assert values(read_all(lab, 2)) == [b"small 0", content(BIG)]


def test_a_transaction_that_is_aborted_at_once_is_not_the_producers_end(lab):
    async def main():
        async with producing(lab, transactional_id=f"tx-{lab.topic}") as producer:
            await soon(producer.init_transactions())
            for _ in range(15):  # about every third was
                await soon(producer.begin_transaction())
                future = await producer.produce(lab.topic, b"small")
                await soon(producer.abort_transaction())
                assert future.result().error() is None

    asyncio.run(main())


def test_a_transaction_takes_offsets_along(lab):
    async def main():
        async with producing(lab, transactional_id=f"tx-{lab.topic}") as producer, consuming(lab) as consumer:
            lab.send_raw(b"a", b"b", b"c")
            await soon(producer.init_transactions())
            await soon(producer.begin_transaction())
            await poll(consumer, 2)
            positions = await consumer.position(await consumer.assignment())
            await soon(producer.send_offsets_to_transaction(positions, await consumer.consumer_group_metadata()))
            await soon(producer.commit_transaction())

    asyncio.run(main())
    assert lab.committed().offset == 2


# Consumers ---------------------------------------------------------------------------------------------------------


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


def test_a_consumer_that_stores_offsets_itself_is_refused(lab):
    async def main():
        with pytest.raises(OffsetStoreError):
            async with consuming(lab, enable_auto_offset_store=True):
                pass

    asyncio.run(main())
