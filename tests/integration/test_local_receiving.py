"""Consumers of the embedded broker: ack, nack, seek, and bad messages. Time is injected."""

from __future__ import annotations

import pytest

from claimcheck.transports.local import (
    BrokerClosedError,
    LocalBroker,
    LocalConsumer,
    LocalProducer,
)
from tests.local_rig import BIG, drain, send

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
