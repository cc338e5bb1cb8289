"""Any mix of messages to outcomes: bad ones isolated, positions watched, metadata as it was sent."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

import claimcheck
from claimcheck import Dropped, Failed, Resolved
from claimcheck._wire import envelope
from claimcheck._wire import headers as hints
from claimcheck._wire.envelope import encode_pointer
from claimcheck.config import HEADER
from claimcheck.errors import (
    ConfigError,
    EnvelopeError,
    IntegrityError,
    MissingDependencyError,
    PayloadNotFoundError,
    PointerRejectedError,
)
from claimcheck.hooks import DropEvent
from tests.vectors import UUID, golden

BIG = bytes(range(256)) * 40


CONFIG = {"strategy": "external", "threshold_bytes": 2000, "stores": {"hot": {"type": "memory", "space": "resolver"}}}


def sent_by(strategy, payload=BIG, *, headers=None, key=None, **config):
    """The messages that one payload becomes."""
    cc = claimcheck.from_dict(CONFIG | {"strategy": strategy} | config)
    messages = []
    with cc.outbound(payload, destination="orders", headers=headers, key=key) as out:
        out.send(messages.append)
    return messages


def feed_all(resolver, messages, *, start=0, source="orders-0"):
    return [
        outcome
        for offset, message in enumerate(messages, start)
        for outcome in resolver.feed(
            source, offset, message.data, headers=message.headers, key=message.key, handle=offset
        )
    ]


@pytest.fixture
def cc():
    return claimcheck.from_dict(CONFIG)


@pytest.mark.parametrize("reader", ["external", "chunking", "hybrid", "inline"])
@pytest.mark.parametrize("writer", ["external", "chunking", "hybrid", "inline"])
@pytest.mark.parametrize("payload", [BIG, b"small", b"", None, HEADER + b"\x02x", HEADER + BIG])
def test_every_reader_understands_every_writer(reader, writer, payload):
    resolver = claimcheck.from_dict(CONFIG | {"strategy": reader}).resolver()
    (outcome,) = feed_all(resolver, sent_by(writer, payload))
    assert isinstance(outcome, Resolved)
    assert outcome.payload == payload


@pytest.mark.parametrize(
    "headers", [None, {"a": "1", "uuid": "mine"}, [("a", b"1"), ("a", b"2"), ("chunk_id", b"x")], (("a", "1"),)]
)
@pytest.mark.parametrize("key", [None, b"k", "k"])
@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_keys_and_headers_come_back_as_they_were_sent(strategy, key, headers):
    before = None if headers is None else type(headers)(headers)
    (outcome,) = feed_all(claimcheck.from_dict(CONFIG).resolver(), sent_by(strategy, headers=headers, key=key))
    assert (outcome.key, outcome.headers or None) == (key, headers)
    assert headers == before


def test_plain_messages_are_not_copied(cc):
    message = b"plain"
    (outcome,) = cc.resolver().feed("s", 0, message)
    assert outcome.payload is message


def test_one_bad_message_never_stops_the_others(cc):
    gone = sent_by("external")[0]
    cc.store("hot").rollback(cc.pointer(gone.data))
    bad = [HEADER + b"\x09?", golden("pointer_v2").replace(b"hot", b"ice"), golden("pointer_v1"), gone.data]
    resolver = cc.resolver()
    outcomes = [o for offset, raw in enumerate([*bad, b"good"]) for o in resolver.feed("s", offset, raw, handle=offset)]
    errors = [type(outcome.error) for outcome in outcomes[:-1] if isinstance(outcome, Failed)]
    assert errors == [EnvelopeError, PointerRejectedError, PointerRejectedError, PayloadNotFoundError]
    assert outcomes[-1].payload == b"good"
    assert [outcome.handles for outcome in outcomes] == [(0,), (1,), (2,), (3,), (4,)]


def test_safe_position_is_the_lowest_that_is_not_settled(cc):
    resolver = cc.resolver()
    chunks = sent_by("chunking")
    feed_all(resolver, chunks[:1], start=10)
    (plain,) = resolver.feed("orders-0", 20, b"x")
    resolver.settle(plain, acked=True)
    assert resolver.safe_position("orders-0") == 10
    assert resolver.safe_position("orders-1") is None
    (whole,) = feed_all(resolver, chunks[1:], start=21)
    assert resolver.safe_position("orders-0") == 10
    resolver.settle(whole, acked=True)
    assert resolver.safe_position("orders-0") is None


def test_seek_into_the_middle_waits_for_all_chunks_again(cc):
    resolver, chunks = cc.resolver(), sent_by("chunking")
    feed_all(resolver, chunks[:3])
    assert resolver.clear("orders-0") == (0, 1, 2)
    assert feed_all(resolver, chunks[3:], start=3) == []
    assert resolver.safe_position("orders-0") == 3


def test_expiry_goes_through_tick_and_hooks_with_the_injected_clock():
    events, now = [], [0.0]
    cc = claimcheck.from_dict(CONFIG | {"chunking": {"on_expire": "dead_letter"}}, hooks=[events.append])
    resolver = cc.resolver(clock=lambda: now[0])
    feed_all(resolver, sent_by("chunking")[:2])
    assert resolver.tick() == []
    now[0] = 61
    (outcome,) = resolver.tick()
    assert isinstance(outcome, Dropped)
    assert (outcome.reason, outcome.action, outcome.handles) == ("expired", "dead_letter", (0, 1))
    assert [type(event) for event in events] == [DropEvent]
    assert events[0].messages == 2


@pytest.mark.parametrize(("name", "value"), [("claimcheck-size", "7"), ("claimcheck-checksum", "crc32:00000000")])
def test_hints_that_are_there_are_checked(cc, name, value):
    chunks = sent_by("chunking")
    lying = [dataclasses.replace(c, headers=c.headers | {name: value}) for c in chunks]
    (outcome,) = feed_all(cc.resolver(), lying)
    assert isinstance(outcome.error, IntegrityError)
    assert outcome.error.expected == value


def test_chunks_of_the_published_format_alone_need_no_headers(cc):
    resolver = cc.resolver()
    assert resolver.feed("s", 0, envelope.encode_chunk(UUID, 0, 3, b"a")) == []
    assert resolver.feed("s", 2, envelope.encode_chunk(UUID, 2, 3, b"c")) == []
    (outcome,) = resolver.feed("s", 1, golden("chunk_middle"))
    assert (outcome.payload, outcome.positions, outcome.uuid) == (b"amiddlec", (0, 1, 2), UUID)


def test_pointer_reads_no_store(cc):
    (message,) = sent_by("external")
    cc.store("hot").rollback(cc.pointer(message.data))
    assert cc.pointer(message.data).size == len(BIG)
    assert cc.pointer(b"plain") is None


@pytest.mark.parametrize("value", [None, ""])
def test_a_signing_secret_that_is_missing_or_empty_is_a_config_error(monkeypatch, value):
    monkeypatch.delenv("CLAIM_SECRET", raising=False)
    if value is not None:
        monkeypatch.setenv("CLAIM_SECRET", value)
    cc = claimcheck.from_dict(CONFIG | {"signing": {"key_id": "k1", "keys": {"k1": "${CLAIM_SECRET}"}}})
    with pytest.raises(ConfigError, match=r"signing\.keys\.k1"):
        cc.outbound(BIG, destination="orders").__enter__()


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


def test_an_error_that_is_not_ours_becomes_one_and_keeps_its_cause(cc, monkeypatch):
    (message,) = sent_by("external")

    def out_of_memory(pointer):
        raise MemoryError("5 GiB")

    monkeypatch.setattr(cc.store("hot"), "read", out_of_memory)
    (outcome,) = cc.resolver().feed("s", 0, message.data)
    assert isinstance(outcome.error, claimcheck.ClaimCheckError)
    assert isinstance(outcome.error.__cause__, MemoryError)


def test_headers_that_cannot_be_read_lose_no_handle(cc):
    chunks = sent_by("chunking")
    broken = [*chunks[:-1], dataclasses.replace(chunks[-1], headers=5)]
    outcomes = feed_all(cc.resolver(), broken)
    assert sorted(handle for outcome in outcomes for handle in outcome.handles) == [len(chunks) - 1]
    assert isinstance(outcomes[0], Failed)


@pytest.mark.parametrize(("name", "value"), [("claimcheck-size", "7"), ("claimcheck-checksum", "crc32:00000000")])
def test_hints_on_a_pointer_are_checked_too(cc, name, value):
    (message,) = sent_by("external")
    (outcome,) = cc.resolver().feed("s", 0, message.data, headers=message.headers | {name: value})
    assert isinstance(outcome.error, IntegrityError)


def test_the_writer_says_checksum_and_null_key(cc):
    chunks = sent_by("chunking")
    assert [("claimcheck-checksum" in chunk.headers) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert {chunk.headers["claimcheck-null-key"] for chunk in chunks} == {"1"}
    assert not any("claimcheck-null-key" in chunk.headers for chunk in sent_by("chunking", key=b"k"))


def test_a_stuck_position_does_not_make_the_others_pile_up(cc):
    resolver = cc.resolver()
    resolver.feed("s", 0, b"stuck")
    for position in range(1, 2000):
        (outcome,) = resolver.feed("s", position, b"x")
        resolver.settle(outcome, acked=True)
    assert resolver.safe_position("s") == 0
    assert len(resolver._unsettled["s"]._heap) < 100


def test_key_and_headers_of_a_failure_are_as_they_were_sent(cc):
    chunks = sent_by("chunking", headers={"mine": "1"})
    lying = [dataclasses.replace(chunk, headers=chunk.headers | {"claimcheck-size": "7"}) for chunk in chunks]
    (outcome,) = feed_all(cc.resolver(), lying)
    assert (outcome.key, outcome.headers) == (None, {"mine": "1"})


OTHER_UUID = "00000000-0000-4000-8000-000000000000"


CHILD = """
import gc, uuid
import claimcheck
from claimcheck._wire import envelope

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

def headers(name, number):
    return [("claimcheck-type", b"chunk"), (name, b"%08d" % number + b"A" * 100_000)]

def settle(outcomes):
    for outcome in outcomes:
        resolver.settle(outcome, acked=True)

resolver = claimcheck.from_dict({{"strategy": "chunking"}}).resolver()
for number in range(10_000):
    if number == 100:
        gc.collect()
        before = rss()
    chunk = envelope.encode_chunk(str(uuid.uuid4()), 0, 1 if {whole} else 2, b"x")
    key = b"%08d" % number + b"K" * 10_000
    settle(resolver.feed("s", 2 * number, chunk, headers=headers("{name}", number), key=key))
    if not {whole}:
        abort = envelope.encode_abort(chunk[21:57].decode())
        settle(resolver.feed("s", 2 * number + 1, abort, headers=headers("{name}", number), key=key))
gc.collect()
assert resolver.safe_position("s") is None
print(rss() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["claimcheck-checksum", "claimcheck-size"])
def test_acknowledged_payloads_leave_nothing_of_their_headers_in_memory(name, whole):
    code = CHILD.format(name=name, whole=whole)
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert grown < 32


@pytest.mark.parametrize(
    "claim", [("claimcheck-checksum", b"x:" + b"A" * 1000), ("claimcheck-checksum", "crc32:" + "0" * 1000)]
)
@pytest.mark.parametrize("kind", ["chunk", "pointer"])
def test_a_claim_that_is_too_long_never_matches_and_is_not_quoted_whole(claim, kind):
    if kind == "chunk":
        resolver, data = (
            claimcheck.from_dict({"strategy": "chunking"}).resolver(),
            envelope.encode_chunk(OTHER_UUID, 0, 1, b"x"),
        )
    else:
        resolver, data = claimcheck.Resolver(lambda pointer: b"x"), envelope.encode_pointer(b"p")
    [outcome] = resolver.feed("s", 0, data, headers=[("claimcheck-type", kind), claim])
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, IntegrityError)
    assert len(str(outcome.error)) < 300
    assert len(outcome.error.expected) < 120


def test_a_checksum_of_a_kind_that_is_unknown_is_not_compared():
    claims = hints.declared({"claimcheck-type": "chunk", "claimcheck-checksum": "sha3:" + "0" * 64})
    hints.check(claims, size=1, checksum=lambda: "crc32:00000000")


V1 = encode_pointer(b"\x01\x00\x00\x00\x01kafka-over-redis-orders-6ba7b810-9dad-11d1-80b4-00c04fd430c8")


PAYLOAD = b"x" * 1_000_000


def pointer_to(store, **fields):
    body = {"key": "claimcheck:k", "store": store, "size": 1, "segments": 1, "checksum": "crc32:0"} | fields
    return encode_pointer(b"\x02" + json.dumps(body).encode())


def attempts(cc, message):
    """Every way to read a message, as functions."""
    yield lambda: cc.resolve(message)
    yield lambda: cc.open(message).read()
    yield lambda: cc.open(message).read(1)
    yield lambda: cc.read(cc.pointer(message))


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


@pytest.mark.parametrize("name", ["variable", "redis", "s3", "obstore", "topic"])
def test_a_store_that_this_process_cannot_use_is_an_error_of_the_message(config, name):
    cc = claimcheck.from_dict(config)
    with pytest.raises((ConfigError, MissingDependencyError)) as original:
        cc.store(name).write(b"x")
    key = "somebody@-1.1.0" if name == "topic" else "claimcheck:k" if name in ("variable", "redis") else "k"
    message = pointer_to(name, key=key)
    for read in attempts(cc, message):
        with pytest.raises(PointerRejectedError, match=f"names the store '{name}', which this process cannot use") as e:
            read()
        assert (e.value.reason, e.value.store, e.value.key) == ("store", name, key)
        assert type(e.value.__cause__) is type(original.value)
    [outcome] = cc.resolver().feed("orders-0", 0, message)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, PointerRejectedError)


def test_the_user_of_a_store_gets_the_original_error(config):
    cc = claimcheck.from_dict(config)
    with pytest.raises(ConfigError, match="CLAIM_NOT_SET"):
        cc.store("variable")
    pointer = cc.pointer(pointer_to("redis"))
    for read in (cc.store("redis").read, lambda pointer: cc.store("redis").open(pointer).read()):
        with pytest.raises(MissingDependencyError):
            read(pointer)


def test_only_listed_stores_are_read_from(config):
    writer, reader = claimcheck.from_dict(config), claimcheck.from_dict(config | {"reads_from": ["other"]})
    for store in ("disk", "other"):
        message = writer.seal(writer.store(store).write(PAYLOAD))
        assert writer.resolve(message) == PAYLOAD
        if store == "other":
            assert reader.resolve(message) == PAYLOAD
            continue
        for read in attempts(reader, message):
            with pytest.raises(PointerRejectedError, match="'disk', which is not listed in reads_from") as caught:
                read()
            assert (caught.value.reason, caught.value.store) == ("store", "disk")
    assert reader.store("disk").write(b"x").store == "disk", "writers may still use it"


def test_a_pointer_of_version_1_leads_to_listed_stores_only(config):
    with pytest.raises(PointerRejectedError, match="'redis', which is not listed in reads_from"):
        claimcheck.from_dict(config | {"reads_from": ["disk"]}).resolve(V1)
    with pytest.raises(PointerRejectedError, match="cannot use"):
        claimcheck.from_dict(config | {"reads_from": ["redis"]}).resolve(V1)


@pytest.mark.parametrize("require", [None, True, False])
def test_a_pointer_of_version_1_is_refused_wherever_there_are_signing_keys(config, require):
    signing = {"keys": {"k1": "0123456789abcdef"}, "require": require}
    cc = claimcheck.from_dict(config | {"signing": signing})
    with pytest.raises(PointerRejectedError, match="version 1.*no signature") as caught:
        cc.pointer(V1)
    assert caught.value.reason == "signature"


def test_a_signature_that_cannot_be_checked_is_an_error_of_the_message_where_signatures_are_optional(config):
    keys = {"k1": "${CLAIM_NOT_SET}"}
    cc = claimcheck.from_dict(config | {"signing": {"keys": keys, "require": False}})
    with pytest.raises(PointerRejectedError, match="cannot be checked here.*CLAIM_NOT_SET") as caught:
        cc.resolve(pointer_to("disk", mac="00", key_id="k1"))
    assert caught.value.reason == "signature"
    assert cc.resolve(cc.seal(cc.store("disk").write(PAYLOAD))) == PAYLOAD

    strict = claimcheck.from_dict(config | {"signing": {"keys": keys}})
    for message in (pointer_to("disk", mac="00", key_id="k1"), pointer_to("disk")):
        with pytest.raises(ConfigError, match="CLAIM_NOT_SET"):
            strict.resolve(message)
