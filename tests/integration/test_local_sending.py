"""Producers of the embedded broker: every kind of envelope, and failed sends."""

from __future__ import annotations

import array
import io
import multiprocessing
import os
import threading

import pytest

import claimcheck
from claimcheck import HEADER
from claimcheck.errors import ConfigError
from claimcheck.hooks import SendEvent
from claimcheck.transports.local import (
    MESSAGE_OVERHEAD_BYTES,
    BrokerBusyError,
    BrokerClosedError,
    BrokerCommitError,
    BrokerStorageError,
    LocalBroker,
    LocalConsumer,
    LocalProducer,
    MessageId,
    MessageTooLargeError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tests.local_rig import BIG, LIMIT, STRATEGIES, drain, send, stored

# What goes in comes out


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "payload",
    [
        b"small",
        b"",
        BIG,
        HEADER + b"\x02 looks like a pointer",
        HEADER + b"\x01" + BIG,
        HEADER,
        bytearray(BIG),
        memoryview(BIG),
    ],
    ids=["plain", "empty", "big", "literal", "big lookalike", "header alone", "bytearray", "memoryview"],
)
def test_payloads_come_out_as_they_went_in(broker, configure, consume, strategy, payload):
    LocalProducer(broker, configure(strategy)).send("orders", payload, key=b"k", headers={"h": b"1"})
    (message,) = drain(consume())
    assert message.value == payload
    assert (message.key, message.headers, message.error) == (b"k", [("h", b"1")], None)
    assert (message.topic, message.partition, message.offset) == ("orders", 0, 0)
    assert (message.timestamp, message.redelivery_count) == (1000.0, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("count", [10, 10_000])
def test_whatever_has_a_buffer_is_a_payload(broker, configure, consume, strategy, count):
    numbers = array.array("H", range(count))
    LocalProducer(broker, configure(strategy)).send("orders", numbers)
    LocalProducer(broker, configure(strategy)).send("orders", memoryview(numbers)[::2])
    assert [m.value for m in drain(consume())] == [numbers.tobytes(), memoryview(numbers)[::2].tobytes()]


@pytest.mark.parametrize("strategy", [*STRATEGIES, "inline"])
def test_a_tombstone_stays_one(broker, configure, consume, strategy):
    LocalProducer(broker, configure(strategy)).send("orders", None, key=b"k")
    (message,) = drain(consume())
    assert message.value is None
    assert (message.key, message.error) == (b"k", None)
    assert broker.fetch("orders", 0, 0, 1)[0].value is None


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [10, 10_000])
def test_files_are_sent_from_where_they_stand(broker, configure, consume, tmp_path, strategy, size):
    (tmp_path / "file").write_bytes(b"head" + BIG[:size])
    with open(tmp_path / "file", "rb") as file:
        file.seek(4)
        LocalProducer(broker, configure(strategy)).send("orders", file)
    assert [message.value for message in drain(consume())] == [BIG[:size]]


def test_files_that_cannot_seek_are_chunked(broker, configure, consume):
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as out, os.fdopen(reader, "rb") as file:
        out.write(BIG)
        out.close()
        ids = send(broker, configure("chunking"), "orders", file)
    assert len(ids) > 1
    assert [message.value for message in drain(consume())] == [BIG]


def test_pointers_into_memory(broker, consume):
    cc = claimcheck.from_dict({"strategy": "external", "stores": {"here": {"type": "memory", "space": "transport"}}})
    LocalProducer(broker, cc).send("orders", BIG)
    assert [message.value for message in drain(consume(cc=cc))] == [BIG]


def test_a_pointer_is_small_and_the_payload_is_in_the_store(broker, configure, tmp_path):
    LocalProducer(broker, configure()).send("orders", BIG)
    (message,) = broker.fetch("orders", 0, 0, 10)
    assert len(message.value) < 500
    assert (tmp_path / "store" / stored(tmp_path)[0]).read_bytes() == BIG


def test_no_chunk_is_over_the_limit_and_none_is_needlessly_small(broker, configure):
    ids = send(broker, configure("chunking"), "orders", os.urandom(50_000), key=b"k" * 100)
    messages = broker.fetch("orders", 0, 0, 100)
    assert [message.offset for message in messages] == [each.offset for each in ids]
    assert min(len(message.value) for message in messages[:-1]) > LIMIT * 0.9


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("key", [None, b"key", "schlüssel"])
@pytest.mark.parametrize("headers", [None, {"a": b"1"}, [("a", b"1"), ("a", "zwei"), ("b", b"\xff")]])
def test_the_threshold_is_exact(broker, configure, strategy, key, headers):
    producer = LocalProducer(broker, configure(strategy))
    flat = [] if headers is None else list(headers.items()) if isinstance(headers, dict) else headers
    counted = [part.encode() if isinstance(part, str) else part for part in [key or b"", *(p for h in flat for p in h)]]
    room = LIMIT - MESSAGE_OVERHEAD_BYTES - sum(map(len, counted))
    for more, plain in ((-1, True), (0, True), (1, False)):
        before = broker.end_offset("orders", 0)
        payload = bytes(room + more)
        producer.send("orders", payload, key=key, headers=headers)
        assert (broker.fetch("orders", 0, before, 1)[0].value == payload) is plain


def test_keys_and_headers_are_kept_in_every_shape(broker, configure, consume):
    headers = [("a", b"1"), ("a", b"2"), ("ü", "ü"), ("uuid", b"mine")]
    for strategy in STRATEGIES:
        LocalProducer(broker, configure(strategy)).send("orders", BIG, key="schlüssel", headers=headers)
    for message in drain(consume()):
        assert message.key == "schlüssel".encode()
        assert message.headers == [("a", b"1"), ("a", b"2"), ("ü", "ü".encode()), ("uuid", b"mine")]


def test_a_key_that_is_missing_stays_missing(broker, configure, consume):
    for strategy in STRATEGIES:
        LocalProducer(broker, configure(strategy)).send("orders", BIG)
    assert [(m.key, m.headers) for m in drain(consume())] == [(None, [])] * 3


# Partitions


def test_chunks_of_a_key_go_where_its_small_messages_go(broker, configure):
    cc = configure("chunking")
    producer = LocalProducer(broker, cc)
    for n in range(8):
        small = producer.send("wide", b"x", key=b"key-%d" % n)
        ids = send(broker, cc, "wide", BIG, key=b"key-%d" % n)
        assert {each.partition for each in ids} == {small.partition}


def test_chunks_without_a_key_share_a_partition(broker, configure, consume):
    cc = configure("chunking")
    used = [{each.partition for each in send(broker, cc, "wide", BIG)} for _ in range(8)]
    assert [len(each) for each in used] == [1] * 8
    assert [message.value for message in drain(consume("wide"))] == [BIG] * 8


def test_a_partition_can_be_asked_for(broker, configure):
    cc = configure("chunking")
    assert LocalProducer(broker, cc).send("wide", BIG, key=b"k", partition=2) == MessageId("wide", 2, 0)
    assert {each.partition for each in send(broker, cc, "wide", BIG, partition=3)} == {3}


# Many writers, many readers


def test_several_producers_and_strategies_on_one_topic(broker, configure, consume):
    expected = {}

    def produce(strategy: str) -> None:
        producer = LocalProducer(broker, configure(strategy))
        for n in range(10):
            key = f"{strategy}-{n}".encode()
            expected[key] = key * (n * 150)
            producer.send("wide" if n % 2 else "orders", expected[key], key=key)

    threads = [threading.Thread(target=produce, args=(strategy,)) for strategy in STRATEGIES * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = drain(consume("orders", "wide"))
    assert len(found) == 60
    assert all(message.value == expected[message.key] for message in found)
    broker.database.close()


def test_chunks_of_two_payloads_interleaved(broker, configure, consume):
    limit = claimcheck.WireLimit(LIMIT, lambda key, headers: 600)
    cc, other = configure("chunking"), os.urandom(10_000)
    with cc.outbound(BIG, destination="o", limit=limit) as a, cc.outbound(other, destination="o", limit=limit) as b:
        for pair in zip(a.envelopes, b.envelopes, strict=True):
            for envelope in pair:
                broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
        broker.append("orders", b"plain")
    found = drain(consume())
    assert [message.value for message in found] == [BIG, other, b"plain"]
    assert [message.positions[:2] for message in found] == [(0, 2), (1, 3), (6,)]


def _produce_elsewhere(path: str, config: dict, count: int) -> None:
    with LocalBroker(path, max_message_bytes=LIMIT) as broker, claimcheck.from_dict(config) as cc:
        for n in range(count):
            LocalProducer(broker, cc).send("orders", b"%d" % n * 5000, key=b"%d" % n)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_writer_in_another_process(tmp_path, strategy):
    stores = {"disk": {"type": "filesystem", "path": str(tmp_path / "store"), "create": True}}
    config = {"strategy": strategy, "stores": stores}
    with LocalBroker(tmp_path / "b.sqlite") as broker, claimcheck.from_dict(config) as cc:
        broker.create_topic("orders")
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_produce_elsewhere, args=(str(tmp_path / "b.sqlite"), config, 5))
        process.start()
        with LocalConsumer(broker, cc, topics=["orders"], group="g") as consumer:
            found = []
            while len(found) < 5:
                message = consumer.receive(timeout=30)
                assert message is not None
                consumer.ack(message)
                found.append((message.key, message.value))
        process.join()
    assert process.exitcode == 0
    assert found == [(b"%d" % n, b"%d" % n * 5000) for n in range(5)]


def test_each_group_gets_everything_once(broker, configure, consume):
    LocalProducer(broker, configure("chunking")).send("orders", BIG)
    for group in ("a", "b"):
        assert [m.value for m in drain(consume(group=group))] == [BIG]
        assert drain(consume(group=group)) == []


# Sends that fail


@pytest.mark.parametrize("error", [UnknownTopicError, UnknownPartitionError])
def test_what_the_broker_refuses_leaves_nothing_in_the_store(broker, configure, tmp_path, error):
    topic = "unknown" if error is UnknownTopicError else "orders"
    with pytest.raises(error):
        LocalProducer(broker, configure()).send(topic, BIG, partition=None if topic == "unknown" else 7)
    assert stored(tmp_path) == []


def test_an_unknown_outcome_keeps_the_payload(broker, configure, tmp_path, monkeypatch):
    def append(*args: object, **kwargs: object) -> None:
        raise BrokerCommitError("failed at the very end", path="broker.sqlite")

    monkeypatch.setattr(broker, "append", append)
    with pytest.raises(BrokerCommitError):
        LocalProducer(broker, configure()).send("orders", BIG)
    assert len(stored(tmp_path)) == 1


@pytest.mark.parametrize("error", [BrokerBusyError("locked"), BrokerStorageError("full"), MessageTooLargeError("big")])
def test_every_other_error_of_the_broker_is_definite(broker, configure, tmp_path, monkeypatch, error):
    def append(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(broker, "append", append)
    with pytest.raises(type(error)) as caught:
        LocalProducer(broker, configure()).send("orders", BIG)
    assert caught.value is error
    assert stored(tmp_path) == []


def test_a_closed_broker_leaves_nothing_in_the_store(broker, configure, tmp_path):
    broker.close()
    with pytest.raises(BrokerClosedError):
        LocalProducer(broker, configure()).send("orders", BIG)
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    "wrong",
    [{"topic": "no such\nname"}, {"topic": "x" * 1000}, {"key": 7}, {"headers": {"a": 1}}, {"headers": {1: b"a"}}],
    ids=["name", "long name", "key", "header value", "header name"],
)
def test_arguments_are_refused_before_anything_is_stored(broker, configure, tmp_path, wrong):
    arguments = {"topic": "orders", **wrong}
    with pytest.raises(ConfigError):
        LocalProducer(broker, configure()).send(arguments.pop("topic"), BIG, **arguments)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("payload", ["text", 7, ["list"], iter([b"piece"]), io.StringIO("text")])
def test_what_is_no_payload_is_refused(broker, configure, payload):
    for strategy in STRATEGIES:
        with pytest.raises(claimcheck.PayloadTypeError):
            LocalProducer(broker, configure(strategy)).send("orders", payload)
    assert broker.end_offset("orders", 0) == 0


def test_a_chunked_send_that_breaks_off_says_so_and_is_dropped_by_readers(broker, configure, consume, monkeypatch):
    append, calls = broker.append, []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise BrokerBusyError("locked by somebody else")
        return append(*args, **kwargs)

    monkeypatch.setattr(broker, "append", failing)
    producer = LocalProducer(broker, configure("chunking"))
    with pytest.raises(claimcheck.PartialSendError) as caught:
        producer.send("wide", BIG)
    assert caught.value.seen == 2
    assert isinstance(caught.value.__cause__, BrokerBusyError)
    producer.send("wide", b"next", partition=0)
    consumer = consume("wide")
    assert [message.value for message in drain(consumer)] == [b"next"]
    consumer.close()
    heir = consume("wide")
    assert heir.receive(timeout=0) is None
    assert heir._resolver.pending_payloads == 0  # two chunks and the abort envelope are acknowledged
    assert sum(broker.end_offset("wide", n) for n in range(4)) == 4


@pytest.mark.parametrize(("strategy", "chunked"), [("external", False), ("chunking", True)])
def test_each_payload_that_does_not_go_as_it_is_has_one_event(broker, tmp_path, monkeypatch, strategy, chunked):
    heard = []
    stores = {"disk": {"type": "filesystem", "path": str(tmp_path / "store"), "create": True}}
    append = broker.append
    with claimcheck.from_dict({"strategy": strategy, "stores": stores}, hooks=[heard.append]) as cc:
        producer = LocalProducer(broker, cc)
        producer.send("orders", b"plain")
        ids = send(broker, cc, "orders", BIG)
        with pytest.raises(UnknownTopicError):
            producer.send("unknown", BIG, key=b"k")
        monkeypatch.setattr(broker, "append", lambda *args, **kwargs: _lost(append(*args, **kwargs)))
        with pytest.raises(claimcheck.PartialSendError if chunked else BrokerCommitError):
            producer.send("orders", BIG)

    sent, failed, unknown = [event for event in heard if isinstance(event, SendEvent)]
    assert (sent.destination, sent.outcome, sent.messages, sent.error) == ("orders", "sent", len(ids), None)
    assert (failed.destination, failed.outcome, type(failed.error)) == ("unknown", "failed", UnknownTopicError)
    assert (unknown.outcome, type(unknown.error)) == ("unknown", BrokerCommitError)
    assert [event.uuid is not None for event in (sent, failed, unknown)] == [chunked] * 3


def _lost(_):
    raise BrokerCommitError("failed at the very end", path="broker.sqlite")


@pytest.mark.parametrize("wrong", ["claimcheck.yaml", None])
def test_what_is_no_broker_or_no_claimcheck_is_refused(broker, configure, wrong):
    with pytest.raises(ConfigError, match="cc: found an object of type"):
        LocalProducer(broker, wrong)
    with pytest.raises(ConfigError, match="broker: found an object of type"):
        LocalProducer(wrong, configure())


def test_hybrid_goes_by_chunks_while_the_store_is_down(broker, configure, consume, tmp_path):
    (tmp_path / "store").write_text("a file where the directory should be")
    cc = configure("hybrid")
    assert len(send(broker, cc, "orders", BIG)) > 1
    assert [message.value for message in drain(consume(cc=cc))] == [BIG]
