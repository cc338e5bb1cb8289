"""The decorator around produce calls: what is sent or refused, and how sending ends: what is kept, who is told."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import mmap
import random
import threading
import uuid
from types import SimpleNamespace

import pytest

from claimcheck import ClaimCheck, Envelope, Outbound, Strategy, WireLimit
from claimcheck._send.classification import classifier
from claimcheck._send.outbound import SendLedger
from claimcheck._wire.envelope import FailedEnvelope, encoded_start
from claimcheck._wire.headers import DEFAULT_LIMIT, TYPE
from claimcheck.config import HEADER
from claimcheck.errors import (
    ClaimCheckError,
    ConfigError,
    PartialSendError,
    PayloadError,
    PayloadTooLargeError,
    PayloadTypeError,
    StoreUnavailableError,
)
from tests.produce_rig import BIG, QueueFullError, Rig, Unseekable

LARGEST = bytes(2000 - DEFAULT_LIMIT.overhead(None, None))  # that Rig leaves in its message


@pytest.fixture
def rig():
    return Rig()


def test_a_small_payload_is_sent_as_the_very_same_object(rig):
    small, headers = b"small", {"a": "1"}
    rig.publisher()("orders", small, key=b"k", headers=headers)
    ((topic, value, key, given),) = rig.sent
    assert value is small
    assert given is headers
    for payload, make in ((small, io.BytesIO), (LARGEST, Unseekable)):
        with rig.cc.outbound(make(payload), destination="orders") as out:
            assert (next(out.envelopes).data, out.as_is) == (payload, True)
    assert (topic, key, rig.stored) == ("orders", b"k", 0)

    @rig.cc.offload(payload="value")
    async def echo(value):
        return value

    for payload in (small, bytearray(small)):
        assert asyncio.run(echo(payload)) is payload


def test_a_small_payload_is_passed_on_as_the_function_was_called(rig):
    def publish(topic, value, headers=None):
        raise AssertionError("only its signature is used")

    @rig.cc.offload(payload="value", headers="headers")
    @functools.wraps(publish)
    def passed(*args, **kwargs):
        return args, kwargs

    for more in ({"value": LARGEST}, {"value": b"small", "headers": {"a": "1"}}):
        assert passed("orders", **more) == (("orders",), more)


def test_nothing_is_reported_of_what_is_sent_as_it_is(rig):
    events = []
    cc = ClaimCheck(rig.cc.config, hooks=[events.append])
    with cc.outbound(BIG, destination="orders") as out:
        [envelope] = out.envelopes
    events.clear()
    for payload, headers in ((None, None), (envelope, None), (envelope.data, envelope.headers)):
        with cc.outbound(payload, destination="orders", headers=headers) as out:
            [_] = out.envelopes
    assert events == []


def test_an_envelope_goes_through_untouched_by_the_callers_word_and_is_never_known_by_its_bytes(rig):
    publish = rig.publisher()
    publish("orders", BIG, headers={"mine": "1"})
    _, value, _, headers = rig.sent[0]
    publish("other", value, headers=headers)
    publish("other", Envelope(value, headers))
    publish("other", value)
    assert [sent[1] for sent in rig.sent[:3]] == [value] * 3
    assert rig.stored == 1
    assert rig.cc.resolve(rig.sent[3][1]) == value


def test_stale_hints_of_a_message_that_was_received_are_dropped(rig):
    publish = rig.publisher()
    publish("orders", BIG, headers={TYPE: "pointer", "claimcheck-size": "1", "mine": "1"})
    ((_, value, _, headers),) = rig.sent
    assert rig.cc.resolve(value) == BIG
    assert headers == {"mine": "1", TYPE: "pointer", "claimcheck-size": str(len(BIG))}
    publish("orders", b"small", headers={TYPE: "pointer", "mine": "1"})
    assert rig.sent[1][3] == {"mine": "1"}
    with pytest.raises(PayloadError, match="send the payload itself again"):
        publish("orders", FailedEnvelope(value))


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


@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid"])
@pytest.mark.parametrize("payload", [None, io.BytesIO(b"")])
def test_tombstones_and_empty_payloads_stay_what_they_are_however_large_their_headers(strategy, payload):
    rig, headers = Rig(strategy), {"h": "x" * 3000}
    rig.publisher()("orders", payload, headers=headers)
    assert [sent[1:] for sent in rig.sent] == [(None if payload is None else b"", None, headers)]


def generate(topic, value):
    yield value


NO_KEY = {"payload": "value", "destination": "topic"}


@pytest.mark.parametrize(
    ("config", "options", "function", "text"),
    [
        ({}, {"payload": "nope"}, lambda topic, value: None, "'nope'.*topic, value"),
        ({}, NO_KEY | {"headers": "nope"}, lambda topic, value: None, "'nope'.*topic, value"),
        ({"strategy": "chunking"}, NO_KEY, lambda topic, value: None, "key"),
        ({"strategy": "hybrid"}, NO_KEY, lambda topic, value: None, "key"),
        ({"destinations": {"a": {"strategy": "chunking"}}}, NO_KEY, lambda topic, value: None, "key"),
        ({}, {"payload": "value"}, generate, "generator"),
    ],
)
def test_what_is_refused_at_decoration(config, options, function, text):
    with pytest.raises(ConfigError, match=text):
        Rig(**config).cc.offload(**options)(function)


@pytest.mark.parametrize("key", [42, uuid.UUID(int=7), bytearray(b"x")])
@pytest.mark.parametrize("payload", [b"small", BIG])
def test_keys_and_header_values_may_be_whatever_the_function_takes(rig, key, payload):
    rig.publisher()("orders", payload, key=key, headers={"n": 5, "m": None})
    ((_, _, sent_key, headers),) = rig.sent
    assert sent_key is key
    assert (headers["n"], headers["m"]) == (5, None)


@pytest.mark.parametrize("payload", [b"small", BIG])
@pytest.mark.parametrize("headers", [[("a",)], [("a", "b", "c")], "text", 5])
def test_headers_of_no_known_shape_are_refused(rig, headers, payload):
    with pytest.raises(PayloadTypeError, match="headers"):
        rig.publisher()("orders", payload, headers=headers)


@pytest.mark.parametrize("given", [(), (b"k",)])
def test_hints_reach_a_parameter_that_the_call_leaves_out_and_only_a_place_can_fill(rig, given):
    @rig.cc.offload(payload="value", key="key", headers="headers")
    def publish(value, key=None, partition=7, headers=None, /, *, flag=False):
        return value, key, partition, headers, flag

    _, key, partition, headers, flag = publish(BIG, *given, flag=True)
    assert (key, partition, flag) == (given[0] if given else None, 7, True)
    assert headers[TYPE] == "pointer"


def test_a_payload_is_found_wherever_the_signature_has_it(rig):
    def placed(value, /, **more):
        return value, more

    def named(topic, *parts, value=b"default"):
        return value, (topic, parts)

    first, others = (rig.cc.offload(payload="value")(function) for function in (placed, named))
    for (value, more), expected in (
        (first(BIG, value=b"small"), {"value": b"small"}),
        (others("t", 1, value=BIG), ("t", (1,))),
    ):
        assert rig.cc.resolve(value) == BIG
        assert more == expected
    assert others("t", 1, 2) == (b"default", ("t", (1, 2)))


def test_a_wrong_call_is_pythons_own_error_also_after_a_right_one_of_the_same_length(rig):
    publish = rig.publisher()
    publish("orders", BIG)
    with pytest.raises(TypeError, match="color"):
        publish("orders", BIG, color="red")
    for payload in (b"small", BIG):
        with pytest.raises(TypeError, match="topic"):
            publish(value=payload)
    assert (len(rig.sent), rig.stored) == (1, 1)


def test_callables_without_a_name_of_their_own(rig):
    def publish(prefix, value):
        return value

    class Sender:
        def __call__(self, value):
            return value

    for function in (functools.partial(publish, "p"), Sender()):
        assert rig.cc.resolve(rig.cc.offload(payload="value")(function)(value=BIG)) == BIG


def test_a_function_that_hides_a_coroutine_is_refused_before_anything_is_lost():
    async def send(value, key=None):
        raise AssertionError("nothing may run")

    for strategy in ("external", "chunking"):
        rig = Rig(strategy)
        offload = rig.cc.offload(payload="value", key="key", classify=lambda _: "unknown")  # our refusal is definite
        publish = offload(lambda value, key=None: send(value, key))
        with pytest.raises(ConfigError, match="async def"):
            publish(BIG)
        assert rig.stored == 0


def test_an_envelope_takes_the_calls_key_and_headers_where_it_has_none(rig):
    publish = rig.publisher()
    publish("orders", Envelope(b"abc"), key=b"k", headers={"mine": "1"})
    publish("orders", Envelope(b"abc", headers={"its": "1"}, key=b"its"), key=b"k", headers={"mine": "1"})
    assert [sent[2:] for sent in rig.sent] == [(b"k", {"mine": "1"}), (b"its", {"its": "1"})]


@pytest.mark.parametrize("strategy", ["external", "chunking"])
@pytest.mark.parametrize("mine", [{}, {"claimcheck-app": "mine"}])
def test_reserved_header_names_do_no_harm_and_similar_ones_arrive(strategy, mine):
    rig = Rig(strategy)
    rig.publisher()("orders", BIG, headers={"claimcheck-checksum": "crc32:0"} | mine)
    assert [(outcome.payload, outcome.headers) for outcome in rig.received()] == [(BIG, mine)]


@pytest.mark.parametrize(("annotation", "kind"), [("str | None", str), ("str | bytes | None", bytes), ("Any", bytes)])
def test_an_annotated_text_key_gets_the_uuid_as_text(annotation, kind):
    rig = Rig("chunking")

    def publish(value, key=None):
        rig.sent.append(key)

    publish.__annotations__["key"] = annotation
    rig.cc.offload(payload="value", key="key")(publish)(BIG)
    assert {type(key) for key in rig.sent} == {kind}


@pytest.mark.parametrize(("ours", "brokers"), [(500, 3000), (5000, 500)])
def test_chunks_obey_the_smaller_of_their_own_limit_and_the_brokers_whatever_their_headers(ours, brokers):
    rig, limit = Rig("chunking", chunking={"max_message_bytes": ours}), WireLimit(brokers)
    outbound, largest = functools.partial(rig.cc.outbound, destination="orders", limit=limit), []
    for headers in ({"h": "x" * n} for n in range(70, 100)):
        with contextlib.suppress(PayloadTooLargeError), outbound(BIG, headers=headers) as out:
            largest.append(max(len(each.data) + limit.overhead(each.key, each.headers) for each in out.envelopes))
    assert 420 < min(largest) <= max(largest) <= 500
    assert len(largest) < 30, "the longest headers leave no room"


def test_a_threshold_above_the_brokers_limit_is_cut_down_to_it():
    rig = Rig(threshold_bytes=1_000_000)
    with rig.cc.outbound(BIG, destination="orders", limit=WireLimit(2000)) as out:
        assert [each.kind.name for each in out.envelopes] == ["POINTER"]


RELEASED = memoryview(BIG)
RELEASED.release()


@pytest.mark.parametrize("payload", ["text", 5, (x for x in b"abc"), io.StringIO("text"), RELEASED])
@pytest.mark.parametrize("strategy", ["external", "inline"])
def test_what_is_neither_bytes_nor_a_binary_file_is_refused(strategy, payload):
    rig = Rig(strategy)
    with pytest.raises(PayloadTypeError) as caught:
        rig.publisher()("orders", payload)
    assert isinstance(caught.value, (ClaimCheckError, TypeError))
    assert (rig.sent, rig.stored) == ([], 0)


@pytest.mark.parametrize(
    ("strategy", "config"),
    [
        ("external", {"limits": {"max_payload_bytes": 5000}}),
        ("external", {"destinations": {"ord*": {"limits": {"max_payload_bytes": 5000}}}}),
        ("chunking", {"chunking": {"max_payload_bytes": 5000}}),
        ("chunking", {"limits": {"max_payload_bytes": 5000}}),
        ("chunking", {"chunking": {"max_chunks": 2}}),
        ("hybrid", {"limits": {"max_payload_bytes": 5000}}),
    ],
)
@pytest.mark.parametrize("make", [bytes, Unseekable])
def test_payloads_over_a_limit_are_refused_before_anything_is_sent(strategy, config, make):
    rig = Rig(strategy, **config)
    with pytest.raises(PayloadTooLargeError):
        rig.publisher()("orders", make(BIG))
    assert (rig.sent, rig.stored) == ([], 0)


@pytest.mark.parametrize(
    ("strategy", "section", "more"),
    [("external", "limits", {}), ("chunking", "limits", {}), ("chunking", "chunking", {"max_chunks": 7})],
)
def test_a_payload_as_large_as_its_limit_is_sent(strategy, section, more):
    rig = Rig(strategy, **{section: {"max_payload_bytes": len(BIG), **more}})
    rig.publisher()("orders", BIG)
    assert rig.received()[-1].payload == BIG


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_headers_that_leave_no_room_are_refused_before_anything_is_sent(strategy):
    rig = Rig(strategy, threshold_bytes="auto")
    with pytest.raises(PayloadTooLargeError, match="too little space for a pointer|fill a chunk"):
        rig.publisher()("orders", BIG, headers={"h": "x" * 1_000_000})
    assert (rig.sent, rig.stored) == ([], 0)


def test_a_payload_that_begins_like_an_encoded_one_arrives_in_chunks_as_it_is():
    rig, payload = Rig("chunking"), encoded_start(header=HEADER) + BIG
    rig.publisher()("orders", payload)
    assert [outcome.payload for outcome in rig.received()] == [payload]
    rig = Rig("chunking", chunking={"max_payload_bytes": len(payload)})
    with pytest.raises(PayloadTooLargeError, match=r"encoded, is over chunking\.max_payload_bytes"):
        rig.publisher()("orders", payload)


def test_a_compressed_file_of_unknown_size_arrives_in_chunks():
    rig, payload = Rig("chunking", threshold_bytes=500, compression={"codec": "zstd"}), random.Random(1).randbytes(9000)
    rig.publisher()("orders", Unseekable(payload + bytes(9000)))
    assert [outcome.payload for outcome in rig.received()] == [payload + bytes(9000)]
    assert sum(len(value) for _, value, *_ in rig.sent) < 18_000


def test_a_memory_map_is_bytes_and_its_position_is_its_owners():
    rig = Rig()
    with mmap.mmap(-1, len(BIG)) as mapped:
        mapped[:] = BIG
        mapped.seek(3)
        for _ in range(2):
            rig.publisher()("orders", mapped)
        assert mapped.tell() == 3
    assert [outcome.payload for outcome in rig.received()] == [BIG, BIG]


def test_a_buffer_is_free_again_when_the_call_has_failed():
    rig, buffer = Rig("chunking"), bytearray(BIG)
    try:
        rig.publisher(error=QueueFullError())("orders", buffer)
    except QueueFullError:
        buffer.clear()
    assert rig.sent == [], "no abort envelope, as no chunk was sent"


@pytest.mark.parametrize("strategy", ["inline", f"{__name__}:WholeStrategy"])
def test_a_third_party_strategy_may_read_a_file_as_files_are_read(strategy):
    rig = Rig(strategy)
    rig.publisher()("orders", Unseekable(BIG))
    assert rig.sent[0][1] == BIG


class WholeStrategy(Strategy):
    def _offload(self, message):
        assert message.payload.read(0) == b""
        return Outbound([Envelope(message.payload.read())])


@pytest.mark.parametrize("ttl", [60, None])
@pytest.mark.parametrize("strategy", ["external", "hybrid"])
def test_the_lifetime_of_a_stored_payload_begins_when_a_delayed_message_is_delivered(strategy, ttl):
    rig = Rig(strategy, stores={"hot": {"type": "memory", "space": str(uuid.uuid4()), "ttl_seconds": ttl}})
    for delay in (0, 3600):
        with rig.cc.outbound(BIG, destination="orders", key=b"k", delay_seconds=delay) as out:
            [envelope] = out.envelopes
        pointer = rig.cc.pointer(envelope.data)
        assert pointer.expires_ms == (ttl and pointer.created_ms + (ttl + delay) * 1000)


# How sending ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_a_second_send_is_an_error_and_changes_nothing(strategy):
    rig, sent, nothing_left = Rig(strategy), [], pytest.raises(ClaimCheckError, match="nothing left to send")
    with nothing_left, rig.cc.outbound(BIG, destination="orders") as out:
        record = SimpleNamespace(exception=None, cancelled=False)  # no future
        assert out.send(lambda envelope: sent.append(envelope) or record) is record
        assert out.ledger.verdict().outcome == "sent"
        before = list(sent)
        out.send(sent.append)
    assert sent == before

    async def produce(envelope):
        return "sent"

    async def main():
        async with rig.cc.outbound(BIG, destination="orders") as out:
            assert await out.send_async(produce) == "sent"
            with nothing_left:
                await out.send_async(produce)

    asyncio.run(main())
    assert rig.stored == (2 if strategy == "external" else 0)


def broken(_):
    raise RuntimeError("the classifier itself fails")


@pytest.mark.parametrize(
    ("classify", "error", "kept"),
    [
        (lambda _: "failed", TimeoutError(), 0),
        (lambda _: "unknown", QueueFullError(), 1),
        (lambda _: "nonsense", QueueFullError(), 1),
        (broken, QueueFullError(), 1),
    ],
)
def test_the_callers_classifier_decides_and_doubt_keeps(rig, classify, error, kept, caplog):
    with pytest.raises(type(error)):
        rig.publisher(error=error, classify=classify)("orders", BIG)
    assert rig.stored == kept
    assert ("the classifier failed on QueueFullError" in caplog.text) == (classify is broken)


def test_a_classifier_of_more_errors_keeps_those_of_the_table():
    classify = classifier({("builtins", "BufferError"): frozenset({"mine"})})
    answers = [classify(BufferError(text)) for text in ("mine", "Local: Queue full", "another")]
    assert answers == ["failed", "failed", "unknown"]


def test_a_rollback_that_fails_is_noted_on_the_first_error_and_never_replaces_it(rig, monkeypatch, caplog):
    def fail(_):
        raise ConnectionError("the store is down")

    monkeypatch.setattr(rig.cc.store("hot"), "_delete", fail)
    with pytest.raises(QueueFullError) as caught:
        rig.publisher(error=QueueFullError("first"))("orders", BIG)
    assert "rollback failed" in caught.value.__notes__[0]
    assert "rollback failed: store 'hot'" in caplog.text
    with pytest.raises(QueueFullError) as caught, rig.cc.outbound(BIG, destination="orders"):
        raise QueueFullError
    assert caught.value.__notes__
    with pytest.raises(StoreUnavailableError), rig.cc.outbound(BIG, destination="orders"):
        pass  # nothing was sent


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
    with pytest.raises(PartialSendError, match=r"^1 of 6 chunks is in the topic, 0 may be, 5 were not sent"):
        asyncio.run(publish(BIG)) if is_async else publish(BIG)
    assert "could not send the abort envelope: QueueFullError" in caplog.text


@pytest.mark.parametrize(
    ("takes", "error", "outcome"),
    [(False, None, "failed"), (True, None, "sent"), (True, QueueFullError, "failed"), (True, TimeoutError, "unknown")],
)
def test_a_block_undoes_what_was_never_sent_and_taking_an_envelope_is_not_sending_it(rig, takes, error, outcome):
    with contextlib.suppress(QueueFullError, TimeoutError), rig.cc.outbound(BIG, destination="orders") as out:
        assert rig.stored == 1
        if takes:
            [_] = out.envelopes
        if error:
            raise error
    assert (rig.stored, out.finish().outcome) == (outcome != "failed", outcome)
    assert out.ledger.error is None, "its traceback would keep the payload"


def test_a_message_that_is_handed_over_again_may_be_in_the_topic():
    ledger = SendLedger()
    number = ledger.launched()
    ledger.postponed(number)
    assert ledger.verdict().outcome == "failed"
    ledger.resumed(number)
    assert ledger.verdict().outcome == "unknown"
    ledger.failed(number, QueueFullError())
    ledger.acknowledged(number)  # after all
    assert (ledger.verdict().outcome, ledger.verdict().unknown) == ("sent", 0)


@pytest.mark.parametrize("more", [0, 1])
def test_a_pointer_that_became_too_long_leaves_nothing_stored(rig, more):
    with rig.cc.outbound(BIG, destination="orders") as out:
        [usual] = out.envelopes
    limit = WireLimit(len(usual.data) + DEFAULT_LIMIT.overhead(usual.key, usual.headers) - more)
    with pytest.raises(PayloadTooLargeError) if more else contextlib.nullcontext():
        rig.cc.outbound(BIG, destination="orders", limit=limit).__enter__()
    assert rig.stored == 2 - more
    name = "n" * (len("hot") + 512 - len(usual.data) + len(HEADER) + 1 + more)  # it stands in the pointer
    rig = Rig(limits={"max_pointer_bytes": 512}, stores={name: {"type": "memory", "space": str(uuid.uuid4())}})
    with pytest.raises(PayloadTooLargeError, match="max_pointer_bytes") if more else contextlib.nullcontext():
        rig.publisher()("orders", BIG)
    assert len(rig.cc.store(name)._payloads) == 1 - more


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


def test_a_payload_in_one_chunk_returns_the_future_of_the_function():
    rig, futures = Rig("chunking", chunking={"max_message_bytes": 100_000}), []

    async def main():
        assert future_publisher(rig, futures)(BIG) is futures[0]

    asyncio.run(main())
    assert [outcome.payload for outcome in rig.received()] == [BIG]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("count", [2, 7])
def test_the_asyncio_futures_of_chunks_come_back_as_one(count, is_async):
    async def main():
        rig, futures = Rig("chunking"), []
        publish = future_publisher(rig, futures)

        async def publish_later(value, key=None, headers=None):
            return publish.__wrapped__(value, key, headers)

        later = rig.cc.offload(payload="value", key="key", headers="headers")(publish_later)
        joined = await later(BIG[: count * 1500]) if is_async else publish(BIG[: count * 1500])
        assert len(futures) == count
        for number, future in enumerate(list(futures)):
            assert not joined.done()
            future.set_exception(QueueFullError("late")) if number == 1 else future.set_result(number)
        with pytest.raises(PartialSendError) as caught:
            await joined
        assert isinstance(caught.value.__cause__, QueueFullError)
        await asyncio.sleep(0)
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


def test_a_file_in_chunks_is_read_off_the_event_loop_and_a_cancellation_meanwhile_ends_the_send():
    rig, threads = Rig("chunking"), []
    reading, go_on = threading.Event(), threading.Event()

    class Slow(io.BytesIO):
        def read(self, size=-1):
            threads.append(threading.get_ident())
            if rig.sent:
                reading.set()
                assert go_on.wait(10)
            return super().read(size)

    @rig.cc.offload(payload="value", key="key")
    async def publish(value, key=None):
        rig.sent.append(value)

    async def main():
        task = asyncio.create_task(publish(Slow(BIG)))
        await asyncio.to_thread(reading.wait, 10)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert threads
    assert threading.get_ident() not in threads
