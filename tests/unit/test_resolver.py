"""Messages to outcomes: bad ones isolated, claims compared, stores refused; and many at once, in order and bounded."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import sys
import threading
import types

import pytest

import claimcheck
from claimcheck import Dropped, Failed, _threads
from claimcheck._receive import messages
from claimcheck._threads import IoThreads
from claimcheck._wire import envelope
from claimcheck._wire import headers as hints
from claimcheck._wire.envelope import encode_pointer
from claimcheck.config import HEADER
from claimcheck.errors import (
    ChunkError,
    ConfigError,
    EnvelopeError,
    IntegrityError,
    MissingDependencyError,
    PayloadNotFoundError,
    PayloadTypeError,
    PointerRejectedError,
)
from claimcheck.hooks import AssembledEvent, DropEvent
from tests.produce_rig import Rig
from tests.vectors import UUID, golden

BIG = bytes(range(256)) * 40
CONFIG = {"strategy": "external", "threshold_bytes": 2000, "stores": {"hot": {"type": "memory", "space": "resolver"}}}


def sent_by(strategy, payload=BIG, **options):
    """The messages that one payload becomes."""
    cc, messages = claimcheck.from_dict(CONFIG | {"strategy": strategy}), []
    with cc.outbound(payload, destination="orders", **options) as out:
        out.send(messages.append)
    return messages


def feed_all(resolver, messages):
    return [
        outcome
        for offset, each in enumerate(messages)
        for outcome in resolver.feed("s", offset, each.data, headers=each.headers, key=each.key, handle=offset)
    ]


@pytest.fixture
def cc():
    return claimcheck.from_dict(CONFIG)


def test_one_bad_message_never_stops_the_others(cc):
    gone, good = sent_by("external")[0], b"good"
    cc.store("hot").rollback(cc.pointer(gone.data))
    bad = [HEADER + b"\x09?", golden("pointer_v2").replace(b"hot", b"ice"), golden("pointer_v1"), gone.data]
    outcomes = feed_all(cc.resolver(), [claimcheck.Envelope(each) for each in (*bad, good)])
    errors = [type(outcome.error) for outcome in outcomes if isinstance(outcome, Failed)]
    assert errors == [EnvelopeError, PointerRejectedError, PointerRejectedError, PayloadNotFoundError]
    assert outcomes[-1].payload is good, "a plain message is not copied"
    assert "names the store 'ice', which is not configured here" in str(outcomes[1].error)
    assert [outcome.handles for outcome in outcomes] == [(0,), (1,), (2,), (3,), (4,)]


@pytest.mark.parametrize(
    "message", ["text", 5, memoryview(bytes(b for byte in HEADER + b"\x09" for b in (byte, 0)))[::2], object()]
)
def test_feed_never_raises_whatever_comes(cc, message):
    resolver = cc.resolver()
    (outcome,) = resolver.feed("s", 0, message, handle="h")
    assert isinstance(outcome, Failed)
    assert outcome.handles == ("h",)
    resolver.settle(outcome, acked=True)
    assert resolver.safe_position("s") is None


def test_headers_that_cannot_be_read_lose_no_handle(cc):
    chunks = sent_by("chunking")
    outcomes = feed_all(cc.resolver(), [*chunks[:-1], dataclasses.replace(chunks[-1], headers=5)])
    assert [(type(outcome), outcome.handles) for outcome in outcomes] == [(Failed, (len(chunks) - 1,))]


def test_an_error_that_is_not_ours_becomes_one_and_keeps_its_cause(cc, monkeypatch):
    def out_of_memory(pointer):
        raise MemoryError("5 GiB")

    monkeypatch.setattr(cc.store("hot"), "read", out_of_memory)
    (outcome,) = feed_all(cc.resolver(), sent_by("external"))
    assert isinstance(outcome.error, claimcheck.ClaimCheckError)
    assert isinstance(outcome.error.__cause__, MemoryError)


def test_a_seek_returns_what_is_held_and_an_outcome_from_before_settles_nothing(cc):
    resolver, chunks = cc.resolver(), sent_by("chunking")
    (plain,) = resolver.feed("s", 20, b"x")
    feed_all(resolver, chunks[:3])
    resolver.feed("other", 7, chunks[3].data)
    assert resolver.clear("s") == (0, 1, 2)
    assert (resolver.safe_position("s"), resolver.safe_position("other")) == (None, 7)
    resolver.feed("s", 20, b"x")
    resolver.settle(plain, acked=True)
    assert resolver.safe_position("s") == 20
    assert feed_all(resolver, chunks[3:]) == []
    assert len(resolver.clear()) == len(chunks) - 2


def test_expiry_and_completion_go_through_hooks_with_the_injected_clock():
    events, now = [], [0.0]
    cc = claimcheck.from_dict(CONFIG | {"chunking": {"on_expire": "dead_letter"}}, hooks=[events.append])
    resolver, chunks = cc.resolver(clock=lambda: now[0]), sent_by("chunking")
    feed_all(resolver, chunks[:2])
    assert resolver.tick() == []
    now[0] = 61
    (outcome,) = resolver.tick()
    assert isinstance(outcome, Dropped)
    assert (outcome.reason, outcome.action, outcome.handles) == ("expired", "dead_letter", (0, 1))
    (whole,) = feed_all(resolver, chunks)
    assert [(type(event), event.source, event.uuid, event.messages) for event in events] == [
        (DropEvent, "s", whole.uuid, 2),
        (AssembledEvent, "s", whole.uuid, len(chunks)),
    ]


def test_a_stuck_position_does_not_make_the_others_pile_up(cc):
    resolver = cc.resolver()
    resolver.feed("s", 0, b"stuck")
    for position in range(1, 2000):
        (outcome,) = resolver.feed("s", position, b"x")
        resolver.settle(outcome, acked=True)
    assert resolver.safe_position("s") == 0
    assert len(resolver._unsettled["s"]._heap) < 100


# What headers claim -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["external", "chunking"])
@pytest.mark.parametrize(("name", "value"), [("claimcheck-size", "7"), ("claimcheck-checksum", "crc32:00000000")])
def test_claims_that_are_there_are_checked_and_the_failure_has_the_senders_headers(cc, strategy, name, value):
    lying = [
        dataclasses.replace(each, headers=each.headers | {name: value})
        for each in sent_by(strategy, headers={"mine": "1"})
    ]
    (outcome,) = feed_all(cc.resolver(), lying)
    assert isinstance(outcome.error, IntegrityError)
    assert outcome.error.expected == value
    assert (outcome.key, outcome.headers) == (None, {"mine": "1"})


@pytest.mark.parametrize("claim", [b"x:" + b"A" * 1000, "crc32:" + "0" * 1000])
@pytest.mark.parametrize("kind", ["chunk", "pointer"])
def test_a_claim_that_is_too_long_never_matches_and_is_not_quoted_whole(claim, kind):
    data = envelope.encode_chunk(UUID, 0, 1, b"x") if kind == "chunk" else envelope.encode_pointer(b"p")
    headers = [("claimcheck-type", kind), ("claimcheck-checksum", claim)]
    [outcome] = claimcheck.Resolver(lambda pointer: b"x").feed("s", 0, data, headers=headers)
    assert isinstance(outcome.error, IntegrityError)
    assert len(str(outcome.error)) < 300
    assert len(outcome.error.expected) < 120


def test_a_checksum_of_a_kind_that_is_unknown_is_not_compared():
    claims = hints.declared({"claimcheck-type": "chunk", "claimcheck-checksum": "sha3:" + "0" * 64})
    hints.check(claims, size=1, checksum=lambda: "crc32:00000000")


def test_the_last_chunk_has_the_checksum_and_all_say_that_their_key_was_null():
    chunks = sent_by("chunking")
    assert [("claimcheck-checksum" in chunk.headers) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert {chunk.headers["claimcheck-null-key"] for chunk in chunks} == {"1"}
    assert not any("claimcheck-null-key" in chunk.headers for chunk in sent_by("chunking", key=b"k"))
    assert [chunk.headers["chunk_id"] for chunk in chunks] == [str(number) for number in range(len(chunks))]
    assert not any("chunk_id" in chunk.headers for chunk in sent_by("chunking", headers={"uuid": "the sender's"}))


# Stores and secrets of this process -------------------------------------------------------------------------------

V1 = encode_pointer(b"\x01\x00\x00\x00\x01kafka-over-redis-orders-6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def pointer_to(store, **fields):
    body = {"key": "claimcheck:k", "store": store, "size": 1, "segments": 1, "checksum": "crc32:0"} | fields
    return encode_pointer(b"\x02" + json.dumps(body).encode())


def attempts(cc, message):
    """Every way to read a message, as functions."""
    yield lambda: cc.resolve(message)
    yield lambda: cc.open(message).read(1)
    yield lambda: cc.read(cc.pointer(message))
    yield lambda: _raise(cc.resolver().feed("orders-0", 0, message)[0].error)


def _raise(error):
    raise error


@pytest.fixture
def config(monkeypatch, tmp_path):
    monkeypatch.delenv("CLAIM_NOT_SET", raising=False)
    for name in ("redis", "boto3", "pulsar", "obstore"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    (tmp_path / "claims").mkdir()
    disk = {"type": "filesystem", "path": str(tmp_path / "claims")}
    stores = {
        "disk": disk,
        "other": disk,
        "variable": {"type": "redis", "url": "redis://:${CLAIM_NOT_SET}@localhost"},
        "redis": {"type": "redis", "url": "redis://localhost", "v1_pointers": True},
        "s3": {"type": "s3", "bucket": "b"},
        "obstore": {"type": "obstore", "url": "s3://b"},
        "topic": {"type": "pulsar-topic", "url": "pulsar://localhost", "topic": "t"},
    }
    return {"strategy": "external", "store": "disk", "stores": stores}


@pytest.mark.parametrize(
    ("name", "key"),
    [("variable", "claimcheck:k"), ("redis", "claimcheck:k"), ("s3", "k"), ("obstore", "k"), ("topic", "x@-1.1.0")],
)
def test_a_store_that_this_process_cannot_use_is_an_error_of_the_message_and_of_its_user(config, name, key):
    cc = claimcheck.from_dict(config)
    with pytest.raises((ConfigError, MissingDependencyError)) as original:
        cc.store(name).write(b"x")
    extra, notes = (getattr(original.value, name, None) for name in ("extra", "__notes__"))
    assert "CLAIM_NOT_SET" in str(original.value) or extra == {"topic": "pulsar"}.get(name, name)
    assert not notes, "nothing was undone"
    message = pointer_to(name, key=key)
    for read in attempts(cc, message):
        with pytest.raises(PointerRejectedError, match=f"names the store '{name}', which this process cannot use") as e:
            read()
        assert (e.value.reason, e.value.store, e.value.key) == ("store", name, key)
        assert type(e.value.__cause__) is type(original.value)
    for read in (lambda p: cc.store(name).read(p), lambda p: cc.store(name).open(p).read()):
        with pytest.raises(type(original.value)):
            read(cc.pointer(message))


def test_only_listed_stores_are_read_from(config):
    writer, reader = claimcheck.from_dict(config), claimcheck.from_dict(config | {"reads_from": ["other"]})
    listed, unlisted = (writer.seal(writer.store(name).write(BIG)) for name in ("other", "disk"))
    assert writer.resolve(listed) == writer.resolve(unlisted) == reader.resolve(listed) == BIG
    for read in attempts(reader, unlisted):
        with pytest.raises(PointerRejectedError, match="'disk', which is not listed in reads_from") as caught:
            read()
        assert (caught.value.reason, caught.value.store) == ("store", "disk")
    assert reader.store("disk").write(b"x").store == "disk", "writers may still use it"


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_pointer_of_version_1_leads_to_listed_stores_only(config, is_marked):
    if not is_marked:  # it is the only one of Redis
        config["stores"]["redis"] = {"type": "redis", "url": "redis://localhost"}
        config["stores"]["variable"]["v1_pointers"] = False
    for listed, why in (("disk", "'redis', which is not listed in reads_from"), ("redis", "cannot use")):
        with pytest.raises(PointerRejectedError, match=why):
            claimcheck.from_dict(config | {"reads_from": [listed]}).resolve(V1)


def test_a_signature_that_cannot_be_checked_is_an_error_of_the_message_where_signatures_are_optional(config):
    keys = {"k1": "${CLAIM_NOT_SET}"}
    cc = claimcheck.from_dict(config | {"signing": {"keys": keys, "require": False}})
    with pytest.raises(PointerRejectedError, match="cannot be checked here.*CLAIM_NOT_SET") as caught:
        cc.resolve(pointer_to("disk", mac="00", key_id="k1"))
    assert caught.value.reason == "signature"
    assert cc.resolve(cc.seal(cc.store("disk").write(BIG))) == BIG
    strict = claimcheck.from_dict(config | {"signing": {"keys": keys}})
    for message in (pointer_to("disk", mac="00", key_id="k1"), pointer_to("disk")):
        with pytest.raises(ConfigError, match="CLAIM_NOT_SET"):
            strict.resolve(message)


# Many messages at once -------------------------------------------------------------------------------------------

SIZE = 10_000


class Gate:
    """A store whose reads wait for permission, and are counted."""

    def __init__(self, store, *, open_=False):
        self._read, self._open = store.read, open_
        self.changed, self.allowed = threading.Condition(), set()
        self.begun, self.running, self.most, self.most_bytes, self.bytes = [], 0, 0, 0, 0
        store.read = self.read

    def read(self, pointer):
        with self.changed:
            self.begun.append(pointer.key)
            self.running, self.bytes = self.running + 1, self.bytes + pointer.size
            self.most, self.most_bytes = max(self.most, self.running), max(self.most_bytes, self.bytes)
            self.changed.notify_all()
            try:
                while not self.changed.wait_for(lambda: self._open or pointer.key in self.allowed, 0.01):
                    _threads.check_interrupt()
            finally:
                self.running, self.bytes = self.running - 1, self.bytes - pointer.size
                self.changed.notify_all()
        return self._read(pointer)

    def allow(self, *pointers):
        with self.changed:
            self.allowed |= {pointer.key for pointer in pointers}
            self._open = self._open or not pointers
            self.changed.notify_all()

    def reached(self, condition):
        with self.changed:
            return self.changed.wait_for(condition, 10)


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads of the test's own, so that a full pool is not another test's."""
    pool = IoThreads()
    monkeypatch.setattr(_threads, "_io", [pool])
    yield pool
    pool._executor.shutdown()


@pytest.fixture
def rig():
    return Rig()


def payload(n, size=SIZE):
    return n.to_bytes(4, "big") * (size // 4)


def stored(rig, count, size=SIZE):
    pointers = [rig.cc.store("hot").write(payload(n, size)) for n in range(count)]
    return pointers, [rig.cc.seal(pointer) for pointer in pointers]


def blocking(cc, messages, **options):
    return list(cc.resolve_many(messages, **options))


def in_a_loop(cc, messages, **options):
    async def main():
        return [each async for each in cc.aresolve_many(messages, **options)]

    return asyncio.run(main())


@pytest.fixture(params=[blocking, in_a_loop])
def resolve(request):
    return request.param


def test_payloads_come_in_the_order_of_their_messages_whatever_their_kind(rig, resolve):
    _, sealed = stored(rig, 20)
    messages = [message for pair in zip(sealed, [b"plain", None] * 10, strict=True) for message in pair]
    found = resolve(rig.cc, messages, concurrency=7)
    assert [each.payload for each in found][::2] == [payload(n) for n in range(20)]
    assert [each.payload for each in found][1::2] == [b"plain", None] * 10
    assert [each.message for each in found] == messages


def test_a_bad_message_is_an_error_of_its_own(rig, resolve):
    pointers, sealed = stored(rig, 6)
    store = rig.cc.store("hot")
    store.rollback(pointers[1])
    store._payloads[pointers[3].key] = bytes(SIZE)
    chunk = Rig("chunking")
    chunk.publisher()("t", payload(0), b"k")
    found = resolve(rig.cc, [*sealed, chunk.sent[0][1], sealed[0][:-9]])
    expected = [None, PayloadNotFoundError, None, IntegrityError, None, None, ChunkError, claimcheck.ClaimCheckError]
    for each, kind in zip(found, expected, strict=True):
        assert each.error is None if kind is None else isinstance(each.error, kind)
    with pytest.raises(PayloadNotFoundError):
        _ = found[1].payload
    assert found[5].payload == payload(5)


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_payloads_are_read_than_the_caller_allows(rig, resolve, most):
    _, sealed = stored(rig, 40)
    gate = Gate(rig.cc.store("hot"), open_=True)
    assert len(resolve(rig.cc, sealed, concurrency=most)) == 40
    assert 1 <= gate.most <= most


def test_declared_bytes_are_bounded_and_a_larger_payload_is_read_alone(rig, resolve):
    _, small = stored(rig, 12)
    _, [large] = stored(rig, 1, 8 * SIZE)
    gate = Gate(rig.cc.store("hot"), open_=True)
    found = resolve(rig.cc, [*small[:6], large, *small[6:]], max_bytes=3 * SIZE)
    assert [len(each.payload) for each in found] == [SIZE] * 6 + [8 * SIZE] + [SIZE] * 6
    assert gate.most_bytes == 8 * SIZE  # and nothing beside it
    assert gate.most <= 3


def test_as_many_bytes_are_read_ahead_as_are_allowed(rig):
    pointers, sealed = stored(rig, 5)
    gate = Gate(rig.cc.store("hot"))
    many = rig.cc.resolve_many(sealed, max_bytes=3 * SIZE)
    first = threading.Thread(target=lambda: next(many))
    first.start()
    assert gate.reached(lambda: len(gate.begun) == 3)
    gate.allow(*pointers[1:3])
    assert gate.reached(lambda: gate.running == 1)
    assert len(gate.begun) == 3, "what the caller did not take counts"
    gate.allow()
    first.join(10)
    many.close()


@pytest.mark.parametrize(("pipelined", "order"), [(None, "++++++-+-+-+------"), (object(), "++++++---+++------")])
def test_reads_that_are_requested_together_are_added_together(monkeypatch, pipelined, order):
    lazy = types.SimpleNamespace(submit=lambda call, **_: types.SimpleNamespace(result=call, done=bool))
    monkeypatch.setattr(messages, "io_threads", lambda: lazy)
    work, log = messages.Work(bytes, blocks=True, size=1, pipelined=pipelined), []
    source = (log.append("+") for _ in range(9))
    log.extend("-" for _ in messages.resolve_many(source, lambda *_: work, concurrency=6, max_bytes=6))
    assert "".join(log) == order


def test_messages_are_taken_as_they_are_needed(rig):
    """An endless source is fine, and what is resolved is not held back for the sake of a full window."""
    _, [sealed] = stored(rig, 1)
    taken = itertools.count()
    many = rig.cc.resolve_many((sealed if n % 2 else b"plain" for n in taken), concurrency=4)
    assert next(many).payload == b"plain"
    assert next(taken) == 1
    many.close()


def test_a_slow_source_does_not_hold_back_payloads(rig):
    _, sealed = stored(rig, 1)

    async def source():
        yield sealed[0]
        await asyncio.Event().wait()

    async def main():
        async with contextlib.aclosing(rig.cc.aresolve_many(source())) as many:
            assert (await asyncio.wait_for(anext(many), 10)).payload == payload(0)

    asyncio.run(main())


def test_reads_stop_when_the_caller_stops(rig):
    """On an event loop: see the harness of cancellations."""
    pointers, sealed = stored(rig, 20)
    gate = Gate(rig.cc.store("hot"))
    gate.allow(pointers[0])
    many = rig.cc.resolve_many(sealed, concurrency=4)
    next(many)
    many.close()
    assert gate.reached(lambda: not gate.running)
    assert len(gate.begun) <= 5


@pytest.mark.parametrize("is_async", [False, True])
def test_what_came_before_the_error_of_the_source_is_delivered(rig, is_async):
    _, sealed = stored(rig, 10)
    found = []

    def source():
        yield from sealed
        raise LookupError("the source")

    async def asynchronous():
        for message in source():
            yield message

    async def main():
        nonlocal found
        async for each in rig.cc.aresolve_many(asynchronous()):
            found += [each]

    with pytest.raises(LookupError):
        asyncio.run(main()) if is_async else found.extend(rig.cc.resolve_many(source()))
    assert [each.payload for each in found] == [payload(n) for n in range(10)]


def test_a_tuple_of_another_length_is_an_error_of_its_own(rig, resolve):
    found = resolve(rig.cc, [(b"a", None), (b"a",), (b"a", None, 1)])
    assert [type(each.error) for each in found] == [type(None), PayloadTypeError, PayloadTypeError]


def test_arguments_are_checked_at_once(rig):
    for call in (rig.cc.resolve_many, rig.cc.aresolve_many):
        for options in ({"concurrency": 0}, {"max_bytes": 0}, {"concurrency": "4"}):
            with pytest.raises(ConfigError):
                call([], **options)
        for message in (b"message", "message"):
            with pytest.raises(PayloadTypeError):
                call(message)
