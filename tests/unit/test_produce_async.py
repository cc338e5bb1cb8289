"""Coroutines and futures: nothing blocks the event loop, and the outcome is judged when it is known."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import io
import threading

import pytest

from claimcheck._wire.headers import TYPE
from claimcheck.errors import (
    PartialSendError,
)
from tests.produce_rig import BIG, QueueFullError, Rig


@pytest.fixture
def rig():
    return Rig()


def held_up(monkeypatch, store):
    """Have a store's writes wait; returns the event that says that one began, and the one that lets it go on."""
    writing, go_on, write = threading.Event(), threading.Event(), store._write

    def slow(*args):
        writing.set()
        assert go_on.wait(10)
        write(*args)

    monkeypatch.setattr(store, "_write", slow)
    return writing, go_on


def test_store_io_never_runs_on_the_event_loop(monkeypatch):
    rig, threads = Rig(), []
    store = rig.cc.store("hot")
    write = store._write
    monkeypatch.setattr(store, "_write", lambda *args: (threads.append(threading.current_thread()), write(*args)))

    @rig.cc.offload(payload="value")
    async def publish(value):
        return value

    assert rig.cc.resolve(asyncio.run(publish(BIG))) == BIG
    assert threads != [threading.main_thread()]


@pytest.mark.parametrize("ends_at_once", [False, True])  # the program
def test_cancelled_while_it_is_being_stored_leaves_nothing(monkeypatch, ends_at_once):
    rig, undone = Rig(), threading.Event()
    store = rig.cc.store("hot")
    delete = store._delete
    writing, go_on = held_up(monkeypatch, store)
    monkeypatch.setattr(store, "_delete", lambda pointer: (delete(pointer), undone.set()))

    @rig.cc.offload(payload="value")
    async def publish(value):
        rig.sent.append(value)

    async def main():
        task = asyncio.create_task(publish(BIG))
        await asyncio.to_thread(writing.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        if not ends_at_once:
            assert await asyncio.to_thread(undone.wait, 10)

    asyncio.run(main())
    assert (rig.sent, rig.stored) == ([], 0)


def test_the_block_works_with_async_with():
    rig = Rig()

    async def main():
        async with rig.cc.outbound(BIG, destination="orders") as out:
            rig.sent.extend(each.data for each in out.envelopes)
        assert rig.cc.resolve(rig.sent[0]) == BIG
        with pytest.raises(QueueFullError):
            async with rig.cc.outbound(BIG, destination="orders") as out:
                for _ in out.envelopes:
                    raise QueueFullError

    asyncio.run(main())
    assert rig.stored == 1


def future_publisher(rig, futures, kind):
    @rig.cc.offload(payload="value", key="key", headers="headers")
    def publish(value, key=None, headers=None):
        rig.sent.append(("t", value, key, headers))
        future = concurrent.futures.Future() if kind == "thread" else asyncio.get_running_loop().create_future()
        futures.append(future)
        return future

    return publish


def test_an_asyncio_future_is_judged_when_it_is_done_and_undone_off_the_loop(rig, monkeypatch):
    undone = threading.Event()
    store = rig.cc.store("hot")
    delete = store._delete
    monkeypatch.setattr(store, "_delete", lambda pointer: (delete(pointer), undone.set()))

    async def main():
        futures = []
        returned = future_publisher(rig, futures, "asyncio")(BIG)
        futures[0].set_exception(QueueFullError())
        with pytest.raises(QueueFullError):
            await returned
        assert await asyncio.to_thread(undone.wait, 10)

    asyncio.run(main())
    assert rig.stored == 0


@pytest.mark.parametrize("kind", ["thread", "asyncio"])
def test_the_futures_of_chunks_come_back_as_one(kind):
    async def main():
        rig, futures = Rig("chunking"), []
        publish = future_publisher(rig, futures, kind)
        joined = publish(BIG)
        for number, future in enumerate(futures):
            assert not joined.done()
            future.set_result(number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert joined.result() == 0
        futures.clear()
        joined = publish(BIG)
        for number, future in enumerate(list(futures)):
            future.set_exception(QueueFullError("late")) if number == 3 else future.set_result(number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        partial = joined.exception()
        assert isinstance(partial, PartialSendError)
        assert isinstance(partial.__cause__, QueueFullError)
        assert rig.sent[-1][3][TYPE] == "abort"

    asyncio.run(main())


def test_an_abort_that_hangs_does_not_hold_up_a_cancelled_task():
    rig = Rig("chunking")

    @rig.cc.offload(payload="value", key="key")
    async def publish(value, key=None):
        await asyncio.Event().wait()

    async def main():
        task = asyncio.create_task(publish(BIG))
        await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=2)
        assert done
        assert task.cancelled()

    asyncio.run(main())


def test_a_cancelled_future_is_unknown_whatever_the_classifier_says(rig):
    futures = []

    @rig.cc.offload(payload="value", classify=lambda _: "failed")
    def publish(value):
        futures.append(concurrent.futures.Future())
        return futures[-1]

    publish(BIG).cancel()
    assert rig.stored == 1


def test_the_error_of_a_future_with_nothing_stored_stays_the_callers_to_look_at(rig):
    async def main():
        loop, complaints = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))

        @rig.cc.offload(payload="value", headers="headers")
        def publish(value, headers=None):
            future = loop.create_future()
            future.set_exception(QueueFullError())
            return future

        publish(bytearray(b"small"))
        await asyncio.sleep(0)
        gc.collect()
        assert complaints == ["Future exception was never retrieved"]

    asyncio.run(main())


@pytest.mark.parametrize("payload", [b"small", BIG])
@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid"])
def test_a_coroutine_may_send_the_same_file_again_after_a_failure(strategy, payload):
    rig, file, down = Rig(strategy), io.BytesIO(payload), [True]

    @rig.cc.offload(payload="value", key="key", headers="headers")
    async def publish(value, key=None, headers=None):
        if down and down.pop():
            raise QueueFullError
        rig.sent.append(("t", value, key, headers))

    async def main():
        with pytest.raises(QueueFullError):
            await publish(file)
        await publish(file)

    asyncio.run(main())
    assert rig.received()[-1].payload == payload


@pytest.mark.parametrize("finished", [False, True])
def test_a_file_whose_storing_was_cancelled_may_be_sent_again_at_once(monkeypatch, finished):
    rig, file = Rig(), io.BytesIO(BIG * 50)
    reading, go_on = threading.Event(), threading.Event()
    store = rig.cc.store("hot")
    write = store._write

    def slow(pointer, source):
        if finished:
            write(pointer, source)
        reading.set()
        assert go_on.wait(10)
        if not finished:
            write(pointer, source)

    @rig.cc.offload(payload="value")
    async def publish(value):
        rig.sent.append(("t", value, None, None))

    async def main():
        with monkeypatch.context() as patch:
            patch.setattr(store, "_write", slow)
            task = asyncio.create_task(publish(file))
            await asyncio.to_thread(reading.wait, 10)
            task.cancel()
            asyncio.get_running_loop().call_soon(go_on.set)
            with pytest.raises(asyncio.CancelledError):
                await task
        await publish(file)

    asyncio.run(main())
    assert [outcome.payload for outcome in rig.received()] == [BIG * 50]
    assert rig.stored == 1


def test_a_file_whose_chunks_were_cancelled_may_be_sent_again_at_once():
    rig, tasks = Rig("chunking"), []

    class Cancelling(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 3000 and tasks:
                loop, task = tasks.pop()
                loop.call_soon_threadsafe(task.cancel)
            return super().read(size)

    @rig.cc.offload(payload="value", key="key", headers="headers")
    async def publish(value, key=None, headers=None):
        rig.sent.append(("t", value, key, headers))

    async def main():
        file = Cancelling(BIG)
        task = asyncio.create_task(publish(file))
        tasks.append((asyncio.get_running_loop(), task))
        with pytest.raises(asyncio.CancelledError):
            await task
        await publish(file)

    asyncio.run(main())
    assert rig.received()[-1].payload == BIG
