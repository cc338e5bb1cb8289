"""Any mix of messages to outcomes: bad ones isolated, positions watched, metadata as it was sent."""

from __future__ import annotations

import dataclasses

import pytest

import claimcheck
from claimcheck import Dropped, Failed, Resolved
from claimcheck._wire import envelope
from claimcheck.config import HEADER
from claimcheck.errors import (
    ChunkError,
    ConfigError,
    EnvelopeError,
    IntegrityError,
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


def test_what_was_given_back_holds_the_safe_position_until_it_came_again(cc):
    resolver = cc.resolver()
    (first,) = resolver.feed("s", 5, b"x")
    (second,) = resolver.feed("s", 6, b"y")
    resolver.settle(first, acked=False)
    resolver.settle(second, acked=True)
    assert resolver.safe_position("s") == 5
    (again,) = resolver.feed("s", 5, b"x")
    resolver.settle(again, acked=True)
    assert resolver.safe_position("s") is None


def test_a_chunked_payload_given_back_comes_again_whole(cc):
    resolver, chunks = cc.resolver(), sent_by("chunking")
    (first,) = feed_all(resolver, chunks)
    resolver.settle(first, acked=False)
    (again,) = feed_all(resolver, chunks)
    assert again.payload == BIG
    assert again.positions == tuple(range(len(chunks)))


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


def test_one_chunk_alone_is_refused_with_the_way_to_go(cc):
    with pytest.raises(ChunkError, match=r"ClaimCheck\.resolver"):
        cc.resolve(golden("chunk_middle"))
    with pytest.raises(ChunkError):
        cc.open(golden("abort"))


@pytest.mark.parametrize("payload", [b"small", HEADER + b"\x02x", BIG])
def test_resolve_and_open_give_the_same_bytes(cc, payload):
    (message,) = sent_by("external", payload)
    assert cc.resolve(message.data) == payload
    with cc.open(message.data) as file:
        assert file.read() == payload


def test_pointer_reads_no_store(cc):
    (message,) = sent_by("external")
    cc.store("hot").rollback(cc.pointer(message.data))
    assert cc.pointer(message.data).size == len(BIG)
    assert cc.pointer(b"plain") is None


def test_signatures_are_made_and_required(monkeypatch):
    monkeypatch.setenv("CLAIM_SECRET", "s3cret-of-16-bytes")
    signing = {"signing": {"key_id": "k1", "keys": {"k1": "${CLAIM_SECRET}"}, "require": True}}
    (signed,), (unsigned,) = sent_by("external", **signing), sent_by("external")
    reader = claimcheck.from_dict(CONFIG | signing)
    assert reader.resolve(signed.data, destination="orders") == BIG
    with pytest.raises(PointerRejectedError, match="not signed"):
        reader.resolve(unsigned.data, destination="orders")
    with pytest.raises(PointerRejectedError, match="does not match its signature"):
        reader.resolve(signed.data.replace(b'"size":10240', b'"size":10241'), destination="orders")
    assert "s3cret-of-16-bytes" not in repr(reader) + repr(reader.config)


@pytest.mark.parametrize("value", [None, ""])
def test_a_signing_secret_that_is_missing_or_empty_is_a_config_error(monkeypatch, value):
    monkeypatch.delenv("CLAIM_SECRET", raising=False)
    if value is not None:
        monkeypatch.setenv("CLAIM_SECRET", value)
    cc = claimcheck.from_dict(CONFIG | {"signing": {"key_id": "k1", "keys": {"k1": "${CLAIM_SECRET}"}}})
    with pytest.raises(ConfigError, match=r"signing\.keys\.k1"):
        cc.outbound(BIG, destination="orders").__enter__()


def test_a_store_that_is_not_configured_is_rejected_by_name(cc):
    with pytest.raises(PointerRejectedError, match="'cold'") as caught:
        cc.resolve(golden("pointer_v2").replace(b'"store":"hot"', b'"store":"cold"'))
    assert caught.value.reason == "store"


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


def test_an_outcome_from_before_a_clear_settles_nothing_that_came_after(cc):
    resolver = cc.resolver()
    (before,) = resolver.feed("s", 5, b"x")
    resolver.clear("s")
    resolver.feed("s", 5, b"x")
    resolver.settle(before, acked=True)
    assert resolver.safe_position("s") == 5


def test_a_position_that_came_twice_is_settled_once(cc):
    resolver = cc.resolver()
    resolver.feed("s", 5, b"x")
    (again,) = resolver.feed("s", 5, b"x")
    resolver.settle(again, acked=True)
    assert resolver.safe_position("s") is None


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
