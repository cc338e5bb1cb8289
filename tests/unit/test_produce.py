"""The decorator and the block around produce calls: what is sent, what is kept, what is undone."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import threading
import uuid

import pytest

import claimcheck
from claimcheck import Envelope, envelope
from claimcheck.errors import (
    ClaimCheckError,
    ConfigError,
    PartialSendError,
    PayloadError,
    PayloadTooLargeError,
    PayloadTypeError,
)
from claimcheck.hints import TYPE

BIG = bytes(range(256)) * 40


class Rig:
    """A configuration on a memory store of its own, and a broker that is a list."""

    def __init__(self, strategy="external", **config):
        self.cc = claimcheck.from_dict(
            {
                "strategy": strategy,
                "threshold_bytes": 2000,
                "stores": {"hot": {"type": "memory", "space": str(uuid.uuid4())}},
            }
            | config
        )
        self.sent: list[tuple] = []

    @property
    def stored(self):
        return len(self.cc.store("hot")._payloads)

    def publisher(self, error=None, after=0, **options):
        """A decorated function that sends, and fails with ``error`` once it has sent ``after`` messages."""

        @self.cc.offload(payload="value", destination="topic", key="key", headers="headers", **options)
        def publish(topic, value, key=None, headers=None):
            if error is not None and len(self.sent) >= after and (headers or {}).get(TYPE) != "abort":
                raise error
            self.sent.append((topic, value, key, headers))
            return len(self.sent) - 1

        return publish

    def received(self):
        resolver = self.cc.resolver()
        return [
            outcome
            for offset, (_, value, key, headers) in enumerate(self.sent)
            for outcome in resolver.feed("t", offset, value, headers=headers, key=key)
        ]


@pytest.fixture
def rig():
    return Rig()


def test_a_small_payload_is_sent_as_the_very_same_object(rig):
    small, headers = b"small", {"a": "1"}
    rig.publisher()("orders", small, key=b"k", headers=headers)
    ((topic, value, key, given),) = rig.sent
    assert value is small
    assert given is headers
    assert (topic, key, rig.stored) == ("orders", b"k", 0)


def test_a_large_payload_rests_in_the_store_and_a_pointer_travels(rig):
    assert rig.publisher()("orders", BIG, b"k") == 0
    ((_, value, key, headers),) = rig.sent
    assert len(value) < 400
    assert (key, headers) == (b"k", {"claimcheck-type": "pointer", "claimcheck-size": str(len(BIG))})
    assert rig.cc.resolve(value) == BIG


def test_chunks_are_one_call_each_with_one_key_and_the_first_result():
    rig = Rig("chunking")
    rig.sent.append(("before", b"", None, None))
    assert rig.publisher()("orders", BIG) == 1
    keys = {key for _, _, key, _ in rig.sent[1:]}
    assert len(rig.sent) > 5
    assert len(keys) == 1
    assert rig.received()[-1].payload == BIG


def test_every_call_of_a_chunked_payload_has_a_fresh_uuid():
    rig = Rig("chunking")
    publish = rig.publisher()
    publish("orders", BIG)
    publish("orders", BIG)
    assert len({envelope.decode(value).uuid for _, value, _, _ in rig.sent}) == 2


@pytest.mark.parametrize("strategy", ["external", "chunking"])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_threshold_counts_the_message_on_the_wire_to_the_byte(strategy, extra):
    rig = Rig(strategy)
    key, headers = b"key", {"name": "välue"}
    overhead = 72 + (1 + 3) + (1 + 4) + (1 + 6) - 1  # record, key without its length, name, value: facts of Kafka
    payload = b"x" * (2000 - overhead + extra)
    rig.publisher()("orders", payload, key=key, headers=headers)
    assert (rig.sent[0][1] == payload) == (extra <= 0)
    if strategy == "chunking":
        limit = rig.cc.outbound(b"", destination="x")._message.limit
        assert all(len(v) + limit.overhead(k, h) <= 2000 for _, v, k, h in rig.sent)


def test_a_lookalike_is_escaped_and_when_escaping_makes_it_too_large_offloaded(rig):
    publish = rig.publisher()
    publish("orders", envelope.HEADER + b"\x02{}")
    publish("orders", envelope.HEADER + b"x" * 1905)
    kinds = [type(envelope.decode(value)).__name__ for _, value, _, _ in rig.sent]
    assert kinds == ["Literal", "PointerData"]
    assert [o.payload for o in rig.received()] == [envelope.HEADER + b"\x02{}", envelope.HEADER + b"x" * 1905]


@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid", "inline"])
@pytest.mark.parametrize("payload", [b"", None, io.BytesIO(b"")])
def test_empty_payloads_and_tombstones_stay_what_they_are(strategy, payload):
    rig = Rig(strategy)
    rig.publisher()("orders", payload)
    ((_, value, _, headers),) = rig.sent
    assert value in (b"", None)
    assert headers is None


def test_an_envelope_goes_through_untouched_by_the_callers_word(rig):
    publish = rig.publisher()
    publish("orders", BIG, headers={"mine": "1"})
    _, value, _, headers = rig.sent[0]
    publish("other", value, headers=headers)
    publish("other", Envelope(value, headers))
    assert [sent[1] for sent in rig.sent] == [value] * 3
    assert rig.stored == 1


def test_it_is_never_known_by_its_bytes(rig):
    publish = rig.publisher()
    publish("orders", BIG)
    publish("orders", rig.sent[0][1])
    assert isinstance(envelope.decode(rig.sent[1][1]), envelope.Literal)
    assert rig.cc.resolve(rig.sent[1][1]) == rig.sent[0][1]


def test_stale_hints_of_a_message_that_was_received_are_dropped(rig):
    publish = rig.publisher()
    publish("orders", BIG, headers={TYPE: "pointer", "claimcheck-size": "1", "mine": "1"})
    ((_, value, _, headers),) = rig.sent
    assert rig.cc.resolve(value) == BIG
    assert headers == {"mine": "1", TYPE: "pointer", "claimcheck-size": str(len(BIG))}


def test_decorators_on_top_of_each_other_offload_once(rig):
    decorate = rig.cc.offload(payload="value", destination="topic", headers="headers")

    @decorate
    @decorate
    def publish(topic, value, headers=None):
        rig.sent.append((topic, value, None, headers))

    publish("orders", BIG)
    assert rig.stored == 1
    assert rig.cc.resolve(rig.sent[0][1]) == BIG


def test_methods_and_their_defaults_work_like_functions(rig):
    class Service:
        @rig.cc.offload(payload="body", destination="topic")
        def send(self, body, topic="orders", *args, **kwargs):
            return self, body, topic, args, kwargs

    service = Service()
    this, body, topic, args, kwargs = service.send(BIG, "t", 1, 2, more=3)
    assert (this, topic, args, kwargs) == (service, "t", (1, 2), {"more": 3})
    assert rig.cc.resolve(body) == BIG
    assert Service.send.__name__ == "send"


# What a decoration refuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["payload", "destination", "key", "headers"])
def test_a_parameter_that_does_not_exist_is_refused_at_decoration(rig, wrong):
    with pytest.raises(ConfigError, match="'nope'.*topic, value"):
        rig.cc.offload(**({"payload": "value", "destination": "topic"} | {wrong: "nope"}))(lambda topic, value: None)


@pytest.mark.parametrize(
    "config", [{"strategy": "chunking"}, {"strategy": "hybrid"}, {"destinations": {"a": {"strategy": "chunking"}}}]
)
def test_chunks_without_a_key_parameter_are_refused_at_decoration(config):
    rig = Rig(**config)
    with pytest.raises(ConfigError, match="key"):
        rig.cc.offload(payload="value", destination="topic")(lambda topic, value: None)


def test_generator_functions_are_refused(rig):
    def generate(value):
        yield value

    with pytest.raises(ConfigError, match="generator"):
        rig.cc.offload(payload="value")(generate)


# What a payload may be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", ["text", 5, (x for x in b"abc"), ["a"], io.StringIO("text"), object()])
@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid", "inline"])
def test_what_is_neither_bytes_nor_a_binary_file_is_refused(strategy, payload):
    rig = Rig(strategy)
    with pytest.raises(PayloadTypeError) as caught:
        rig.publisher()("orders", payload)
    assert isinstance(caught.value, (ClaimCheckError, TypeError))
    assert (rig.sent, rig.stored) == ([], 0)


def test_a_closed_file_is_refused(rig):
    file = io.BytesIO(BIG)
    file.close()
    with pytest.raises(PayloadError, match="closed"):
        rig.publisher()("orders", file)


class Unseekable(io.RawIOBase):
    """A pipe, for all that anyone can tell."""

    def __init__(self, data):
        self.data = io.BytesIO(data)

    def readable(self):
        return True

    def readinto(self, buffer):
        return self.data.readinto(memoryview(buffer)[:777])


@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid", "inline"])
@pytest.mark.parametrize(
    "payload", [BIG, b"small", envelope.HEADER + b"\x01", envelope.HEADER + BIG, b"x" * 1928, b"x" * 1929]
)
@pytest.mark.parametrize("make", [io.BytesIO, Unseekable, bytearray, memoryview])
def test_files_and_buffers_of_every_kind_arrive(strategy, payload, make):
    rig = Rig(strategy)
    rig.publisher()("orders", make(payload))
    assert [outcome.payload for outcome in rig.received()] == [payload]


def test_a_file_is_read_from_where_it_stands(rig):
    file = io.BytesIO(b"skipped" + BIG)
    file.seek(7)
    rig.publisher()("orders", file)
    assert rig.received()[0].payload == BIG


class Shrinking(io.BytesIO):
    def read(self, size=-1):
        return super().read(size) if self.tell() < 5000 else b""


@pytest.mark.parametrize("strategy", ["external", "hybrid"])
def test_a_file_that_shrinks_leaves_nothing(strategy):
    rig = Rig(strategy)
    with pytest.raises(PayloadError, match="shrank"):
        rig.publisher()("orders", Shrinking(b"x" * (3 << 20)))
    assert (rig.sent, rig.stored) == ([], 0)


def test_a_file_that_shrinks_between_two_chunks_is_aborted():
    rig = Rig("chunking")
    with pytest.raises(PartialSendError, match="shrank"):
        rig.publisher()("orders", Shrinking(BIG))
    assert rig.sent[-1][3][TYPE] == "abort"


@pytest.mark.parametrize(
    ("strategy", "config"),
    [
        ("external", {"limits": {"max_payload_bytes": 5000}}),
        ("chunking", {"chunking": {"max_payload_bytes": 5000}}),
        ("chunking", {"chunking": {"max_chunks": 2}}),
        ("hybrid", {"limits": {"max_payload_bytes": 5000}}),
    ],
)
@pytest.mark.parametrize("make", [bytes, io.BytesIO, Unseekable])
def test_payloads_over_a_limit_are_refused_before_anything_is_sent(strategy, config, make):
    rig = Rig(strategy, **config)
    with pytest.raises(PayloadTooLargeError):
        rig.publisher()("orders", make(BIG))
    assert (rig.sent, rig.stored) == ([], 0)


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_headers_that_leave_no_room_are_refused_before_anything_is_sent(strategy):
    rig = Rig(strategy, threshold_bytes="auto")
    with pytest.raises(PayloadTooLargeError, match="no room"):
        rig.publisher()("orders", BIG, headers={"h": "x" * 1_000_000})
    assert (rig.sent, rig.stored) == ([], 0)


# How sending ends ------------------------------------------------------------------------------------------------


class QueueFullError(Exception):
    pass


class BrokerTimeoutError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (QueueFullError("full"), 0),
        (ValueError("no"), 0),
        (TimeoutError("?"), 1),
        (ConnectionResetError("?"), 1),
        (BrokerTimeoutError("?"), 1),
        (KeyboardInterrupt(), 1),
    ],
)
def test_only_a_definite_failure_removes_what_was_stored_and_the_error_comes_through(rig, error, kept):
    with pytest.raises(type(error)) as caught:
        rig.publisher(error=error)("orders", BIG)
    assert caught.value is error
    assert rig.stored == kept


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


def test_a_first_chunk_that_is_refused_definitely_gives_its_own_error_and_no_abort():
    rig = Rig("chunking")
    error = QueueFullError()
    with pytest.raises(QueueFullError) as caught:
        rig.publisher(error=error)("orders", BIG)
    assert caught.value is error
    assert rig.sent == []


@pytest.mark.parametrize(("error", "after"), [(QueueFullError("full"), 2), (TimeoutError("?"), 0)])
def test_a_send_that_breaks_off_says_what_was_sent_and_tells_the_readers(error, after):
    rig = Rig("chunking")
    with pytest.raises(PartialSendError) as caught:
        rig.publisher(error=error, after=after)("orders", BIG)
    partial = caught.value
    assert partial.__cause__ is error
    assert (partial.seen, partial.results) == (after, tuple(range(after)))
    assert envelope.decode(rig.sent[-1][1]) == envelope.Abort(partial.uuid)
    assert [outcome.action for outcome in rig.received()] == ["ack"]


def test_an_abort_that_cannot_be_sent_either_does_not_hide_the_error():
    rig = Rig("chunking")

    @rig.cc.offload(payload="value", key="key")
    def publish(value, key=None):
        if len(rig.sent) == 1:
            raise QueueFullError
        rig.sent.append(value)

    with pytest.raises(PartialSendError):
        publish(BIG)


# By hand ---------------------------------------------------------------------------------------------------------


def test_the_block_keeps_what_was_sent_even_if_something_else_fails_later(rig):
    with pytest.raises(ValueError, match="later"):  # noqa: SIM117
        with rig.cc.outbound(BIG, destination="orders") as out:
            for each in out.envelopes:
                rig.sent.append(each.data)
            raise ValueError("later")
    assert rig.cc.resolve(rig.sent[0]) == BIG


def test_the_block_undoes_what_was_never_sent(rig):
    with rig.cc.outbound(BIG, destination="orders"):
        assert rig.stored == 1
    assert rig.stored == 0
    with pytest.raises(QueueFullError):  # noqa: SIM117
        with rig.cc.outbound(BIG, destination="orders") as out:
            for _ in out.envelopes:
                raise QueueFullError
    assert rig.stored == 0


def test_the_block_has_all_results():
    rig = Rig("chunking")
    with rig.cc.outbound(BIG, destination="orders", key=b"k") as out:
        first = out.send(lambda each: each.headers["chunk_id"])
    assert first == "0"
    assert out.results == [str(n) for n in range(out.total)]


# Coroutines ------------------------------------------------------------------------------------------------------


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


def test_a_coroutine_that_fails_is_undone_and_one_that_is_cancelled_is_kept():
    rig = Rig()
    entered = asyncio.Event()

    @rig.cc.offload(payload="value")
    async def publish(value, error=None):
        if error:
            raise error
        entered.set()
        await asyncio.Event().wait()

    async def main():
        with pytest.raises(QueueFullError):
            await publish(BIG, QueueFullError())
        assert rig.stored == 0
        task = asyncio.create_task(publish(BIG))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert rig.stored == 1

    asyncio.run(main())


def test_cancelled_while_it_is_being_stored_leaves_nothing(monkeypatch):
    rig, writing, go_on = Rig(), threading.Event(), threading.Event()
    undone = threading.Event()
    store = rig.cc.store("hot")
    write, delete = store._write, store._delete

    def slow(*args):
        writing.set()
        assert go_on.wait(10)
        write(*args)

    monkeypatch.setattr(store, "_write", slow)
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
        assert await asyncio.to_thread(undone.wait, 10)

    asyncio.run(main())
    assert (rig.sent, rig.stored) == ([], 0)


def test_chunks_of_a_coroutine_go_in_order_and_break_off_with_an_abort():
    rig = Rig("chunking")

    @rig.cc.offload(payload="value", key="key", headers="headers")
    async def publish(value, key=None, headers=None, fail_at=None):
        if len(rig.sent) == fail_at and headers[TYPE] != "abort":
            raise TimeoutError
        rig.sent.append(("t", value, key, headers))
        return len(rig.sent)

    assert asyncio.run(publish(io.BytesIO(BIG))) == 1
    assert rig.received()[0].payload == BIG
    rig.sent.clear()
    with pytest.raises(PartialSendError):
        asyncio.run(publish(BIG, fail_at=2))
    assert rig.sent[-1][3][TYPE] == "abort"


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


# Futures ---------------------------------------------------------------------------------------------------------


def future_publisher(rig, futures, kind):
    @rig.cc.offload(payload="value", key="key", headers="headers")
    def publish(value, key=None, headers=None):
        rig.sent.append(("t", value, key, headers))
        future = concurrent.futures.Future() if kind == "thread" else asyncio.get_running_loop().create_future()
        futures.append(future)
        return future

    return publish


@pytest.mark.parametrize(("error", "kept"), [(None, 1), (QueueFullError(), 0), (TimeoutError(), 1), ("cancel", 1)])
def test_a_future_is_judged_when_it_is_done(rig, error, kept):
    futures = []
    returned = future_publisher(rig, futures, "thread")(BIG)
    assert returned is futures[0]
    assert rig.stored == 1
    if error == "cancel":
        returned.cancel()
    elif error:
        returned.set_exception(error)
    else:
        returned.set_result("id")
    assert rig.stored == kept


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
