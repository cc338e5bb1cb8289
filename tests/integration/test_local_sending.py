"""Producers of the embedded broker: every kind of envelope, and failed sends."""

from __future__ import annotations

import io
import multiprocessing
import os
import threading

import pytest

import claimcheck
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
    UnknownTopicError,
)
from tests.local_rig import BIG, LIMIT, STRATEGIES, drain, send, stored

# What goes in comes out


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


# Partitions


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


# Sends that fail


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
