"""Consumers of the embedded broker: ack, nack, seek, bad messages and dead letters. Time is injected."""

from __future__ import annotations

import json
import logging

import pytest

import claimcheck
from claimcheck import HEADER
from claimcheck._envelope import encode_pointer
from claimcheck.errors import IncompletePayloadError
from claimcheck.transports.local import (
    BrokerClosedError,
    BrokerStorageError,
    LocalBroker,
    LocalConsumer,
    LocalProducer,
    StaleDeliveryError,
)
from tests.local_rig import BIG, STRATEGIES, append_chunks, drain, rest_of, stored

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
    consumer.nack(consumer.receive(timeout=0), delay_seconds=0)
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
    ids = LocalProducer(broker, configure("chunking")).send_all("orders", BIG)
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
    producer = LocalProducer(broker, cc)
    ids = producer.send_all("orders", BIG)
    producer.send("orders", b"next")
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
    with pytest.raises(StaleDeliveryError):
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


# Dead letters


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dead_letters_are_the_original_messages(broker, configure, consume, strategy):
    LocalProducer(broker, configure(strategy)).send("orders", BIG, key=b"k", headers={"h": b"1"})
    originals = broker.fetch("orders", 0, 0, 100)
    consumer = consume()
    consumer.dead_letter(consumer.receive(timeout=0), reason="not today")
    consumer.close()
    assert consume().receive(timeout=0) is None
    letters = broker.fetch("orders.dead_letter", 0, 0, 100)
    assert [(m.value, m.key) for m in letters] == [(m.value, m.key) for m in originals]
    assert [m.headers[: len(o.headers)] for m, o in zip(letters, originals, strict=True)] == [
        o.headers for o in originals
    ]
    last = dict(letters[-1].headers)
    assert last["dead-letter-topic"] == b"orders"
    assert last["dead-letter-offset"] == str(originals[-1].offset).encode()
    assert last["dead-letter-reason"] == b"not today"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dead_letters_can_be_read_like_any_topic(broker, configure, consume, strategy):
    LocalProducer(broker, configure(strategy)).send("orders", BIG, key=b"k")
    consumer = consume()
    consumer.dead_letter(consumer.receive(timeout=0))
    assert [m.value for m in drain(consume("orders.dead_letter"))] == [BIG]


def test_the_reason_of_a_dead_letter_is_the_error(broker, consume):
    broker.append("orders", HEADER + b"\x09what is this")
    consumer = consume()
    consumer.dead_letter(consumer.receive(timeout=0))
    headers = dict(broker.fetch("orders.dead_letter", 0, 0, 1)[0].headers)
    assert headers["dead-letter-reason"].startswith(b"rejected: EnvelopeError: unknown envelope type 9")


def test_a_dead_letter_topic_may_have_more_partitions(broker, configure, consume):
    broker.create_topic("orders.dead_letter", partitions=3)
    LocalProducer(broker, configure("chunking")).send("orders", BIG, key=b"k")
    consumer = consume()
    consumer.dead_letter(consumer.receive(timeout=0))
    filled = [n for n in range(3) if broker.end_offset("orders.dead_letter", n)]
    assert len(filled) == 1


def test_chunks_that_cannot_be_dead_lettered_are_reported(broker, configure, consume, monkeypatch, caplog):
    cc = configure("chunking", chunking={"expire_after_seconds": 10, "on_expire": "dead_letter"})
    append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc)

    def create_topic(*args: object) -> None:
        raise BrokerStorageError("the disk is full", path="broker.sqlite")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(broker, "create_topic", create_topic)
        message = consumer.receive(timeout=12)
    assert isinstance(message.error, IncompletePayloadError)
    assert "could not be sent to the dead-letter topic" in caplog.text
    consumer.dead_letter(message)
    assert broker.end_offset("orders.dead_letter", 0) == 2


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


def test_iterating_ends_when_the_consumer_is_closed(broker, configure, consume):
    for n in range(3):
        LocalProducer(broker, configure()).send("orders", b"%d" % n)
    consumer, found = consume(), []
    for message in consumer:
        found.append(message.value)
        consumer.ack(message)
        if len(found) == 3:
            consumer.close()
    assert found == [b"0", b"1", b"2"]
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
