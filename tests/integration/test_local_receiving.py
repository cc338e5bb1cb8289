"""Consumers of the embedded broker: ack, nack, seek, and bad messages. Time is injected."""

from __future__ import annotations

import json

import pytest

import claimcheck
from claimcheck import HEADER
from claimcheck._wire.envelope import encode_pointer
from claimcheck.transports.local import (
    BrokerClosedError,
    LocalBroker,
    LocalConsumer,
    LocalProducer,
)
from tests.local_rig import BIG, STRATEGIES, append_chunks, drain, rest_of, send, stored

# Ack, nack, redelivery


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_given_back_comes_again_whole_and_counted(broker, configure, consume, clock, strategy):
    LocalProducer(broker, configure(strategy)).send("orders", BIG, key=b"k")
    consumer = consume(redelivery_delay_seconds=5)
    for count in range(3):
        message = consumer.receive(timeout=0)
        assert (message.value, message.key, message.redelivery_count) == (BIG, b"k", count)
        consumer.nack(message)
        assert consumer.receive(timeout=0) is None
        clock.now += 5
    consumer.nack(consumer.receive(timeout=0))
    clock.now += 5
    assert len(drain(consumer)) == 1
    assert drain(consume()) == []


def test_the_next_payload_does_not_wait_for_one_that_was_given_back(broker, configure, consume, clock):
    producer = LocalProducer(broker, configure("chunking"))
    producer.send("orders", BIG)
    producer.send("orders", b"next")
    consumer = consume()
    consumer.nack(consumer.receive(timeout=0))
    assert consumer.receive(timeout=0).value == b"next"
    assert consumer.receive(timeout=2).value == BIG


def test_an_acknowledgement_is_for_all_chunks(broker, configure, consume):
    ids = send(broker, configure("chunking"), "orders", BIG)
    consumer = consume()
    message = consumer.receive(timeout=0)
    assert message.positions == tuple(each.offset for each in ids)
    consumer.ack(message)
    consumer.ack(message)
    consumer.close()
    assert consume().receive(timeout=0) is None


def test_what_was_not_acknowledged_comes_again_after_close(broker, configure, consume):
    LocalProducer(broker, configure("chunking")).send("orders", BIG)
    with consume() as first:
        assert first.receive(timeout=0).value == BIG
    assert consume().receive(timeout=0).value == BIG


def test_chunks_sent_twice_are_acknowledged_with_their_payload(broker, configure, consume):
    append_chunks(broker, configure("chunking"), BIG)
    for message in broker.fetch("orders", 0, 0, 100):
        broker.append("orders", message.value, key=message.key, headers=message.headers)
    consumer = consume()
    assert [message.value for message in drain(consumer)] == [BIG]
    assert consumer._resolver.safe_position(("orders", 0)) is None  # everything is settled
    consumer.close()
    assert consume().receive(timeout=0) is None


# Seek


def test_a_seek_brings_everything_again(broker, configure, consume):
    producer = LocalProducer(broker, configure("chunking"))
    first = producer.send("orders", BIG)
    producer.send("orders", b"next")
    consumer = consume()
    assert [message.value for message in drain(consumer)] == [BIG, b"next"]
    consumer.seek("orders", 0, first.offset)
    assert [message.value for message in drain(consumer)] == [BIG, b"next"]


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


def test_chunks_from_before_a_seek_never_complete_with_chunks_from_after_it(broker, configure, consume):
    cc = configure("chunking")
    total = append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc)
    assert consumer.receive(timeout=0) is None
    consumer.seek("orders", 0, 2)
    for envelope in rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    assert consumer.receive(timeout=0) is None
    consumer.seek("orders", 0, 0)
    assert consumer.receive(timeout=0).value == BIG


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


def test_a_bad_message_is_an_error_of_its_own(broker, configure, consume, tmp_path):
    cc = configure()
    producer = LocalProducer(broker, cc)
    producer.send("orders", b"first")
    producer.send("orders", BIG, key=b"k", headers={"h": b"1"})
    (tmp_path / "store" / stored(tmp_path)[0]).unlink()
    evil = {"key": "../../etc/passwd", "store": "disk", "size": 1, "segments": 1, "checksum": "crc32:00000000"}
    broker.append("orders", encode_pointer(b"\x02" + json.dumps(evil).encode()))
    broker.append("orders", HEADER + b"\x09what is this")
    broker.append("orders", HEADER + b"\x01cut")
    producer.send("orders", b"last")
    consumer = consume()
    found = drain(consumer)
    kinds = [type(message.error).__name__ for message in found]
    assert kinds == [
        "NoneType",
        "PayloadNotFoundError",
        "PointerRejectedError",
        "EnvelopeError",
        "EnvelopeError",
        "NoneType",
    ]
    with pytest.raises(claimcheck.PayloadNotFoundError):
        _ = found[1].value
    assert (found[1].key, found[1].headers) == (b"k", [("h", b"1")])
    assert [found[0].value, found[-1].value] == [b"first", b"last"]


def test_a_store_that_was_down_gives_the_payload_later(broker, configure, consume, tmp_path):
    LocalProducer(broker, configure()).send("orders", BIG)
    (tmp_path / "store").rename(tmp_path / "unmounted")
    consumer = consume()
    message = consumer.receive(timeout=0)
    assert message.error is not None
    assert message.error.retryable
    consumer.nack(message)
    (tmp_path / "unmounted").rename(tmp_path / "store")
    assert [m.value for m in drain(consumer, timeout=2)] == [BIG]


def test_two_chunks_for_one_place_fail_and_the_others_go_on(broker, configure, consume, clock):
    cc = configure("chunking")
    append_chunks(broker, cc, BIG, slice(2))
    first = broker.fetch("orders", 0, 0, 1)[0]
    broker.append("orders", first.value[:-1] + b"?", key=first.key, headers=first.headers)
    broker.append("orders", b"next")
    consumer = consume(cc=cc)
    found = drain(consumer, timeout=70)
    assert [type(message.error).__name__ for message in found] == ["NoneType", "ChunkConflictError"]
    assert found[1].key is None
    assert found[1].positions == (0, 1, 2)


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


def test_closing_leaves_broker_and_claimcheck_open(broker, configure, consume):
    cc = configure()
    consume(cc=cc).close()
    LocalProducer(broker, cc).send("orders", BIG)
    assert len(drain(consume(cc=cc))) == 1


def test_handles_hold_no_second_copy_of_the_payload(broker, configure, consume):
    LocalProducer(broker, configure("chunking")).send("orders", BIG)
    message = consume().receive(timeout=0)
    assert all(delivery.message.value is None for delivery in message.outcome.handles)


def test_reprs_show_no_payload_and_no_key(broker, configure, consume):
    LocalProducer(broker, configure()).send("orders", b"hidden payload", key=b"hidden key", headers={"h": b"hidden"})
    consumer = consume()
    message = consumer.receive(timeout=0)
    assert "hidden" not in repr(message) + repr(consumer) + repr(LocalProducer(broker, configure()))
