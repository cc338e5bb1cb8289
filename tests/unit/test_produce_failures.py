"""How sending ends: what is kept, what is undone, and who is told."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import threading

import pytest

import claimcheck
from claimcheck._wire.headers import TYPE
from claimcheck.errors import PartialSendError, PayloadError, PayloadTooLargeError, StoreUnavailableError
from tests.produce_rig import BIG, QueueFullError, Rig


@pytest.fixture
def rig():
    return Rig()


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_a_second_send_is_an_error_and_changes_nothing(strategy):
    rig, sent = Rig(strategy), []
    with pytest.raises(claimcheck.ClaimCheckError, match="nothing left to send"):  # noqa: SIM117
        with rig.cc.outbound(BIG, destination="orders") as out:
            assert out.send(lambda envelope: sent.append(envelope) or len(sent)) == 1
            before = list(sent)
            out.send(sent.append)
    assert sent == before
    with rig.cc.outbound(BIG, destination="orders") as out:
        sent = list(out.envelopes)
        with pytest.raises(claimcheck.ClaimCheckError, match="nothing left to send"):
            out.send(print)
        for _ in sent:
            out.sent()
    assert rig.stored == (2 if strategy == "external" else 0)


def test_a_second_asynchronous_send_is_an_error_too(rig):
    async def main():
        async with rig.cc.outbound(BIG, destination="orders") as out:
            assert await out.send_async(produce) == "sent"
            with pytest.raises(claimcheck.ClaimCheckError, match="nothing left to send"):
                await out.send_async(produce)

    async def produce(envelope):
        return "sent"

    asyncio.run(main())
    assert rig.stored == 1


def broken(_):
    raise RuntimeError("the classifier itself fails")


@pytest.mark.parametrize(
    ("classify", "error", "kept"),
    [
        (lambda _: "failed", TimeoutError(), 0),
        (lambda _: "unknown", QueueFullError(), 1),
        (lambda _: "nonsense", QueueFullError(), 1),
        (broken, QueueFullError(), 1),
        (lambda _: "failed", KeyboardInterrupt(), 1),
    ],
)
def test_the_callers_classifier_decides_and_doubt_keeps(rig, classify, error, kept):
    with pytest.raises(type(error)):
        rig.publisher(error=error, classify=classify)("orders", BIG)
    assert rig.stored == kept


def test_a_rollback_that_fails_is_noted_on_the_first_error_and_never_replaces_it(rig, monkeypatch):
    def fail(_):
        raise ConnectionError("the store is down")

    monkeypatch.setattr(rig.cc.store("hot"), "_delete", fail)
    with pytest.raises(QueueFullError) as caught:
        rig.publisher(error=QueueFullError("first"))("orders", BIG)
    assert "rollback failed" in caught.value.__notes__[0]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_abort_that_cannot_be_sent_either_does_not_hide_the_error_and_is_logged(is_async, caplog):
    rig = Rig("chunking")

    def produce(value, key=None):
        if len(rig.sent) == 1:
            raise QueueFullError
        rig.sent.append(value)

    async def produce_later(value, key=None):
        produce(value, key)

    publish = rig.cc.offload(payload="value", key="key")(produce_later if is_async else produce)
    with pytest.raises(PartialSendError):
        asyncio.run(publish(BIG)) if is_async else publish(BIG)
    assert "could not send the abort envelope: QueueFullError" in caplog.text


def test_taking_every_envelope_is_not_sending_it(rig):
    with pytest.raises(QueueFullError):  # noqa: SIM117
        with rig.cc.outbound(BIG, destination="orders") as out:
            [_] = out.envelopes
            raise QueueFullError
    assert rig.stored == 0
    with pytest.raises(TimeoutError):  # noqa: SIM117
        with rig.cc.outbound(BIG, destination="orders") as out:
            [_] = out.envelopes
            raise TimeoutError
    assert rig.stored == 1
    with rig.cc.outbound(BIG, destination="orders") as out:
        [_] = out.envelopes
    assert rig.stored == 2


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (1, "1 of 6 chunks is in the topic, 1 may be, 4 were not sent"),
        (4, "4 of 6 chunks are in the topic, 1 may be, 1 was not sent"),
    ],
)
def test_a_partial_send_says_what_is_in_the_topic_what_may_be_and_what_is_not(after, text):
    rig = Rig("chunking", chunking={"max_message_bytes": 2000})
    with pytest.raises(PartialSendError, match=f"^{text}") as caught:
        rig.publisher(error=TimeoutError("?"), after=after)("orders", bytes(9000))
    assert (caught.value.seen, caught.value.total) == (after, 6)


def test_the_block_undoes_what_was_never_sent(rig):
    with rig.cc.outbound(BIG, destination="orders"):
        assert rig.stored == 1
    assert rig.stored == 0
    with pytest.raises(QueueFullError):  # noqa: SIM117
        with rig.cc.outbound(BIG, destination="orders") as out:
            for _ in out.envelopes:
                raise QueueFullError
    assert rig.stored == 0


def test_a_file_that_fails_before_the_first_chunk_needs_no_abort():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            raise OSError("gone")

    rig = Rig("chunking")
    with pytest.raises(PayloadError):
        rig.publisher(classify=lambda _: "unknown")("orders", Failing(BIG))
    assert rig.sent == []


def test_a_pointer_that_became_too_long_leaves_nothing_stored():
    name = "n" * 600  # the store's name stands in the pointer
    stores = {name: {"type": "memory", "space": "long-pointer"}}
    cc = claimcheck.from_dict(
        {"strategy": "external", "threshold_bytes": 2000, "limits": {"max_pointer_bytes": 512}, "stores": stores}
    )
    with pytest.raises(PayloadTooLargeError, match="max_pointer_bytes"):
        cc.outbound(BIG, destination="orders").__enter__()
    assert cc.store(name)._payloads == {}


def test_a_file_that_fails_in_the_middle_stands_where_it_stood():
    class Flaky(io.BytesIO):
        failures = 1

        def read(self, size=-1):
            if self.tell() > 3000 and self.failures:
                self.failures -= 1
                raise OSError("flaky")
            return super().read(size)

    rig, file = Rig("chunking"), Flaky(BIG)
    with pytest.raises(PartialSendError):
        rig.publisher()("orders", file)
    rig.publisher()("orders", file)
    assert rig.received()[-1].payload == BIG


def future_publisher(rig, futures):
    @rig.cc.offload(payload="value", key="key", headers="headers")
    def publish(value, key=None, headers=None):
        rig.sent.append(("t", value, key, headers))
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    return publish


def test_an_asyncio_future_is_judged_when_it_is_done_and_undone_off_the_loop(rig, monkeypatch):
    undone = threading.Event()
    store = rig.cc.store("hot")
    delete = store._delete
    monkeypatch.setattr(store, "_delete", lambda pointer: (delete(pointer), undone.set()))

    async def main():
        futures = []
        returned = future_publisher(rig, futures)(BIG)
        futures[0].set_exception(QueueFullError())
        with pytest.raises(QueueFullError):
            await returned
        assert await asyncio.to_thread(undone.wait, 10)

    asyncio.run(main())
    assert rig.stored == 0


def test_the_asyncio_futures_of_chunks_come_back_as_one():
    async def main():
        rig, futures = Rig("chunking"), []
        joined = future_publisher(rig, futures)(BIG)
        for number, future in enumerate(list(futures)):
            assert not joined.done()
            future.set_exception(QueueFullError("late")) if number == 3 else future.set_result(number)
        with pytest.raises(PartialSendError) as caught:
            await joined
        assert isinstance(caught.value.__cause__, QueueFullError)
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


@pytest.mark.parametrize("fails", ["the call", "the store"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("strategy", "payload"), [("external", BIG), ("chunking", BIG), ("external", b"small")])
def test_the_same_file_may_be_sent_again_after_a_failure(monkeypatch, strategy, payload, is_async, fails):
    rig, file, down = Rig(strategy), io.BytesIO(b"skipped" + payload), [True]
    file.seek(7)
    store = rig.cc.store("hot")
    write = store._write

    def fail_once(pointer, source):
        if fails == "the store" and down and down.pop():
            next(iter(source))
            raise ConnectionError
        write(pointer, source)

    def produce(value, key=None, headers=None):
        if down and down.pop():
            raise QueueFullError
        rig.sent.append(("t", value, key, headers))

    async def produce_later(value, key=None, headers=None):
        produce(value, key, headers)

    monkeypatch.setattr(store, "_write", fail_once)
    publish = rig.cc.offload(payload="value", key="key", headers="headers")(produce_later if is_async else produce)
    with pytest.raises((QueueFullError, StoreUnavailableError)):
        asyncio.run(publish(file)) if is_async else publish(file)
    asyncio.run(publish(file)) if is_async else publish(file)
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
