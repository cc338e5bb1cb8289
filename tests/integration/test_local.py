"""The embedded broker: exact limits, failed sends, stale acknowledgements, interruptions. Time is injected."""

from __future__ import annotations

import io
import multiprocessing
import os

import pytest

import claimcheck
from claimcheck.errors import ConfigError, IncompletePayloadError
from claimcheck.transports.local import (
    MESSAGE_OVERHEAD_BYTES,
    BrokerBusyError,
    BrokerClosedError,
    BrokerStorageError,
    GroupTakenOverError,
    LocalBroker,
    LocalConsumer,
    LocalProducer,
    MessageId,
    MessageTooLargeError,
)
from tests.local_rig import BIG, LIMIT, STRATEGIES, append_chunks, drain, rest_of, send, stored

# Sending -----------------------------------------------------------------------------------------------------------


# What goes in comes out


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


# Receiving ---------------------------------------------------------------------------------------------------------


# Ack, nack, redelivery


def test_the_next_payload_does_not_wait_for_one_that_was_given_back(broker, configure, consume, clock):
    producer = LocalProducer(broker, configure("chunking"))
    producer.send("orders", BIG)
    producer.send("orders", b"next")
    consumer = consume()
    consumer.nack(consumer.receive(timeout=0))
    assert consumer.receive(timeout=0).value == b"next"
    assert consumer.receive(timeout=2).value == BIG


# Seek


def test_a_seek_into_the_middle_of_chunks_gives_no_half_payload(broker, configure, consume, clock):
    cc = configure("chunking", chunking={"on_expire": "ack"})
    ids = send(broker, cc, "orders", BIG)
    LocalProducer(broker, cc).send("orders", b"next")
    consumer = consume(cc=cc)
    drain(consumer)
    consumer.seek("orders", 0, ids[1].offset)
    assert [message.value for message in drain(consumer, timeout=100)] == [b"next"]
    consumer.close()
    assert consume(cc=cc).receive(timeout=0) is None


def test_what_was_received_before_a_seek_is_stale(broker, configure, consume):
    LocalProducer(broker, configure("chunking")).send("orders", BIG)
    consumer = consume()
    old = consumer.receive(timeout=0)
    consumer.seek("orders", 0, 0)
    consumer.ack(old)
    new = consumer.receive(timeout=0)
    consumer.nack(old)  # passed over
    consumer.ack(new)
    assert consumer.receive(timeout=2) is None
    first = broker.fetch("orders", 0, 0, 1)[0]
    broker.append("orders", first.value, key=first.key, headers=first.headers)
    assert consumer.receive(timeout=0) is None
    assert consumer._resolver.pending_payloads == 0  # recognized as a duplicate


# Bad messages


# The consumer itself


def test_waiting_ends_with_the_timeout(consume, clock):
    consumer = consume()
    begin = clock.now
    assert consumer.receive(timeout=3.5) is None
    assert clock.now - begin == pytest.approx(3.5)


def test_waiting_ends_when_the_clock_stands_still(tmp_path, configure):
    with LocalBroker(tmp_path / "b", clock=lambda: 1.0, sleep=lambda seconds: None) as broker:
        broker.create_topic("orders")
        with LocalConsumer(broker, configure(), topics=["orders"], group="g") as consumer:
            assert consumer.receive(timeout=5) is None


def test_a_closed_consumer_receives_nothing(consume):
    consumer = consume()
    consumer.close()
    with pytest.raises(BrokerClosedError):
        consumer.receive(timeout=0)
    consumer.close()


def test_handles_hold_no_second_copy_of_the_payload(broker, configure, consume):
    LocalProducer(broker, configure("chunking")).send("orders", BIG)
    message = consume().receive(timeout=0)
    assert all(delivery.message.value is None for delivery in message.outcome.handles)


def test_reprs_show_no_payload_and_no_key(broker, configure, consume):
    LocalProducer(broker, configure()).send("orders", b"hidden payload", key=b"hidden key", headers={"h": b"hidden"})
    consumer = consume()
    message = consumer.receive(timeout=0)
    assert "hidden" not in repr(message) + repr(consumer) + repr(LocalProducer(broker, configure()))


# Consumers that die, and chunks that never come --------------------------------------------------------------------


# Consumers that die, and chunks that never come


def test_an_acknowledgement_after_another_consumer_took_over_is_refused_and_does_no_harm(broker, configure, consume):
    LocalProducer(broker, configure("chunking")).send("orders", BIG)
    slow = consume()
    late = slow.receive(timeout=0)
    heir = consume()
    message = heir.receive(timeout=0)
    assert message.value == BIG
    with pytest.raises(GroupTakenOverError):
        slow.ack(late)
    slow.nack(late)
    heir.ack(message)
    assert heir.receive(timeout=0) is None
    heir.close()
    assert consume().receive(timeout=0) is None


# Limits of redelivery


def test_a_report_that_is_given_back_is_reported_again(broker, configure, consume):
    cc = configure("chunking", chunking={"expire_after_seconds": 10, "max_redeliveries": 0})
    append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc)
    for _ in range(3):
        message = consumer.receive(timeout=20)
        assert isinstance(message.error, IncompletePayloadError)
        consumer.nack(message)


# Other writers


@pytest.mark.parametrize("value", [-5, "1", True, float("nan")])
def test_delays_that_are_refused(consume, value):
    with pytest.raises(ConfigError, match="redelivery_delay_seconds: found") as caught:
        consume(redelivery_delay_seconds=value)
    assert caught.value.path == "redelivery_delay_seconds"


# Interruptions


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_a_message_whose_resolving_was_interrupted_comes_again(broker, configure, consume, monkeypatch, interruption):
    for value in (b"first", b"second"):
        LocalProducer(broker, configure()).send("orders", value)
    consumer = consume()

    def feed(*args: object, **more: object) -> None:
        raise interruption

    with monkeypatch.context() as patch:
        patch.setattr(consumer._resolver, "feed", feed, raising=True)
        with pytest.raises(interruption):
            consumer.receive(timeout=0)
    assert sorted(m.value for m in drain(consumer, timeout=2)) == [b"first", b"second"]


def test_chunks_whose_redelivery_was_interrupted_come_again(broker, configure, consume, monkeypatch):
    cc = configure("chunking", chunking={"expire_after_seconds": 10})
    total = append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc)
    assert consumer.receive(timeout=11) is None

    def locked(*args: object) -> None:
        raise BrokerBusyError("locked by somebody else")

    with monkeypatch.context() as patch:
        patch.setattr(broker, "fetch", locked)
        with pytest.raises(BrokerBusyError):
            consumer.receive(timeout=5)
    for envelope in rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    assert [m.value for m in drain(consumer, timeout=30)] == [BIG]
