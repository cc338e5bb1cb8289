"""The decorator around produce calls: what is sent, and what it refuses to decorate."""

from __future__ import annotations

import functools
import io
import mmap
import uuid

import pytest

from claimcheck import Envelope, Outbound, Strategy, WireLimit
from claimcheck._wire.headers import TYPE
from claimcheck.errors import (
    ClaimCheckError,
    ConfigError,
    PartialSendError,
    PayloadError,
    PayloadTooLargeError,
    PayloadTypeError,
)
from tests.produce_rig import BIG, QueueFullError, Rig, Unseekable


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
        assert rig.cc.resolve(rig.cc.offload(payload="value")(function)(BIG)) == BIG


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
def test_reserved_header_names_do_no_harm_and_similar_ones_arrive(strategy):
    rig = Rig(strategy)
    rig.publisher()("orders", BIG, headers={"claimcheck-checksum": "crc32:0", "claimcheck-app": "mine"})
    ((outcome,),) = [rig.received()]
    assert (outcome.payload, outcome.headers) == (BIG, {"claimcheck-app": "mine"})


@pytest.mark.parametrize(("annotation", "kind"), [("str | None", str), ("str | bytes | None", bytes), ("Any", bytes)])
def test_an_annotated_text_key_gets_the_uuid_as_text(annotation, kind):
    rig = Rig("chunking")

    def publish(value, key=None):
        rig.sent.append(key)

    publish.__annotations__["key"] = annotation
    rig.cc.offload(payload="value", key="key")(publish)(BIG)
    assert {type(key) for key in rig.sent} == {kind}


@pytest.mark.parametrize("maximum", [500, 5000])
def test_chunks_obey_the_smaller_of_their_own_limit_and_the_brokers(maximum):
    rig = Rig("chunking", chunking={"max_message_bytes": maximum})
    limit = WireLimit(3000)
    with rig.cc.outbound(BIG, destination="orders", limit=limit) as out:
        sizes = [len(each.data) + limit.overhead(each.key, each.headers) for each in out.envelopes]
    assert min(maximum, 3000) - 80 < max(sizes) <= min(maximum, 3000)


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


class Shrinking(io.BytesIO):
    def read(self, size=-1):
        return super().read(size) if self.tell() < 5000 else b""


@pytest.mark.parametrize(("strategy", "error"), [("external", PayloadError), ("chunking", PartialSendError)])
def test_a_file_that_shrinks_leaves_nothing_or_an_abort_envelope(strategy, error):
    rig = Rig(strategy)
    with pytest.raises(error, match="shrank"):
        rig.publisher()("orders", Shrinking(b"x" * (3 << 20)))
    assert rig.stored == 0
    assert [sent[3][TYPE] for sent in rig.sent[-1:]] == ([] if strategy == "external" else ["abort"])


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


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_headers_that_leave_no_room_are_refused_before_anything_is_sent(strategy):
    rig = Rig(strategy, threshold_bytes="auto")
    with pytest.raises(PayloadTooLargeError, match="too little space for a pointer|fill a chunk"):
        rig.publisher()("orders", BIG, headers={"h": "x" * 1_000_000})
    assert (rig.sent, rig.stored) == ([], 0)


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


def test_a_third_party_strategy_may_read_a_file_as_files_are_read():
    rig = Rig(f"{__name__}:WholeStrategy")
    rig.publisher()("orders", Unseekable(BIG))
    assert rig.sent[0][1] == BIG


class WholeStrategy(Strategy):
    def _offload(self, message):
        return Outbound([Envelope(message.payload.read())])


@pytest.mark.parametrize("strategy", ["external", "hybrid"])
def test_the_lifetime_of_a_stored_payload_begins_when_a_delayed_message_is_delivered(strategy):
    rig = Rig(strategy, stores={"hot": {"type": "memory", "space": str(uuid.uuid4()), "ttl_seconds": 60}})
    for delay, lifetime in ((0, 60), (3600, 3660)):
        with rig.cc.outbound(BIG, destination="orders", key=b"k", delay_seconds=delay) as out:
            (envelope,) = out.envelopes
        pointer = rig.cc.pointer(envelope.data)
        assert pointer.expires_ms - pointer.created_ms == lifetime * 1000
