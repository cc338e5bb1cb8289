"""Chunks whose consumer or producer dies: nothing is lost, and no payload stays incomplete. Time is injected."""

from __future__ import annotations

import pytest

from claimcheck._wire.envelope import decode, encode_abort, encode_chunk
from claimcheck.errors import ArgumentTypeError, ChunkConflictError, ConfigError, IncompletePayloadError
from claimcheck.transports.local import (
    BrokerBusyError,
    GroupTakenOverError,
    LocalConsumer,
    LocalProducer,
)
from tests.local_rig import BIG, append_chunks, drain, rest_of

# Consumers that die, and chunks that never come


def test_chunks_half_received_by_a_consumer_that_died_come_again_to_the_next(broker, configure, consume, clock):
    cc = configure("chunking")
    total = append_chunks(broker, cc, BIG, slice(2))
    dead = consume()
    assert dead.receive(timeout=0) is None
    heir = consume()
    for envelope in rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    message = heir.receive(timeout=0)
    assert message.value == BIG
    assert message.positions == tuple(range(total))
    with pytest.raises(GroupTakenOverError):
        dead.receive(timeout=0)
    heir.ack(message)


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


@pytest.mark.parametrize("action", ["redeliver", "dead_letter", "ack"])
def test_chunks_that_wait_too_long_do_as_configured(broker, configure, consume, clock, action):
    cc = configure("chunking", chunking={"expire_after_seconds": 10, "on_expire": action})
    append_chunks(broker, cc, BIG, slice(2))
    broker.append("orders", b"next")
    consumer = consume(cc=cc)
    assert [message.value for message in drain(consumer)] == [b"next"]
    report = consumer.receive(timeout=12)
    assert (report is not None) is (action == "dead_letter")  # which this transport leaves to the application
    if report is not None:
        assert isinstance(report.error, IncompletePayloadError)
        consumer.ack(report)
    consumer.close()
    fresh = consume(cc=cc)
    fresh.receive(timeout=0)
    assert fresh._resolver.pending_payloads == (1 if action == "redeliver" else 0)


def test_chunks_that_expired_are_whole_when_the_rest_comes_after_all(broker, configure, consume, clock):
    cc = configure("chunking", chunking={"expire_after_seconds": 10})
    total = append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc)
    assert consumer.receive(timeout=15) is None
    for envelope in rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    assert consumer.receive(timeout=30).value == BIG


def test_payloads_that_had_to_make_room_come_again(broker, configure, consume):
    cc = configure("chunking", chunking={"max_pending_payloads": 1})
    total = append_chunks(broker, cc, BIG, slice(2))
    append_chunks(broker, cc, b"other" * 2000)
    consumer = consume(cc=cc)
    assert [m.value for m in drain(consumer)] == [b"other" * 2000]
    for envelope in rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    assert [m.value for m in drain(consumer, timeout=5)] == [BIG]


# Limits of redelivery


def test_chunks_of_a_dead_producer_are_redelivered_and_then_reported(broker, configure, consume, clock):
    cc = configure("chunking", chunking={"expire_after_seconds": 10})
    append_chunks(broker, cc, BIG, slice(2))
    consumer, begin = consume(cc=cc, redelivery_delay_seconds=1), clock.now
    message = consumer.receive(timeout=200)
    assert (message.redelivery_count, message.positions, message.key) == (3, (0, 1), None)
    assert 4 * 10 <= clock.now - begin <= 4 * 10 + 3 * 2 + 4  # the attempts and the delays between them
    with pytest.raises(IncompletePayloadError, match=r"only 2 of \d chunks .* after 3 redeliveries") as caught:
        _ = message.value
    assert caught.value.seen == 2
    consumer.ack(message)
    assert consumer._resolver.safe_position(("orders", 0)) is None
    assert consumer.receive(timeout=30) is None
    consumer.close()
    assert consume().receive(timeout=0) is None


def test_a_report_that_is_given_back_is_reported_again(broker, configure, consume):
    cc = configure("chunking", chunking={"expire_after_seconds": 10, "max_redeliveries": 0})
    append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc)
    for _ in range(3):
        message = consumer.receive(timeout=20)
        assert isinstance(message.error, IncompletePayloadError)
        consumer.nack(message)


@pytest.mark.parametrize("action", ["redeliver", "dead_letter", "ack"])
def test_chunks_expire_on_a_busy_topic(broker, configure, consume, clock, action):
    chunking = {"expire_after_seconds": 10, "on_expire": action}
    cc = configure("chunking", chunking=chunking | ({"max_redeliveries": 0} if action == "redeliver" else {}))
    append_chunks(broker, cc, BIG, slice(2))
    consumer, errors = consume(cc=cc), []
    for number in range(15):  # a message each second, and never an empty poll
        broker.append("orders", b"%d" % number)
        message = consumer.receive(timeout=0)
        errors += [message.error] if message.error else []
        consumer.ack(message)
        clock.now += 1
    assert consumer._resolver.pending_payloads == 0
    assert [type(error) for error in errors] == [IncompletePayloadError] * (action != "ack")
    drain(consumer)
    assert consumer._resolver.safe_position(("orders", 0)) is None


# Other writers


def test_an_abort_envelope_of_another_writer_harms_nobody(broker, configure, consume, caplog):
    cc = configure("chunking")
    total = append_chunks(broker, cc, BIG, slice(2))
    uuid = decode(broker.fetch("orders", 0, 0, 1)[0].value).uuid
    broker.append("orders", encode_abort(uuid), key=b"other")
    for envelope in rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    consumer = consume(cc=cc)
    assert [m.value for m in drain(consumer)] == [BIG]
    [warning] = [record for record in caplog.records if "abort envelope" in record.message]
    assert warning.levelname == "WARNING"
    assert all(word in warning.message for word in ("position 2", "('orders', 0)", uuid))
    consumer.close()
    assert consume().receive(timeout=0) is None


def test_an_abort_envelope_of_the_writer_ends_its_chunks(broker, configure, consume):
    cc = configure("chunking")
    append_chunks(broker, cc, BIG, slice(2))
    first = broker.fetch("orders", 0, 0, 1)[0]
    broker.append("orders", encode_abort(decode(first.value).uuid), key=first.key)
    consumer = consume(cc=cc)
    assert list(drain(consumer)) == []
    assert consumer._resolver.safe_position(("orders", 0)) is None


def test_a_uuid_that_another_writer_took_first_is_delivered_all_the_same(broker, configure, consume):
    cc = configure("chunking")
    append_chunks(broker, cc, BIG)
    chunks = broker.fetch("orders", 0, 0, 99)
    broker.create_topic("copy")
    broker.append("copy", encode_chunk(decode(chunks[0].value).uuid, 0, 1, b"EVIL"), key=b"other")
    for chunk in chunks:
        broker.append("copy", chunk.value, key=chunk.key, headers=chunk.headers)
    consumer = consume("copy", cc=cc)
    assert [m.value for m in drain(consumer)] == [b"EVIL", BIG]


def test_late_chunks_that_contradict_a_payload_are_reported_one_by_one(broker, configure, consume):
    broker.create_topic("copy")
    append_chunks(broker, configure("chunking"), BIG)
    chunks = broker.fetch("orders", 0, 0, 99)
    broker.append("copy", encode_chunk(decode(chunks[0].value).uuid, 0, 1, b"EVIL"), key=chunks[0].key)
    for chunk in chunks:
        broker.append("copy", chunk.value, key=chunk.key, headers=chunk.headers)
    consumer = consume("copy")
    evil = consumer.receive(timeout=0)
    consumer.ack(evil)
    late = drain(consumer)
    assert [type(m.error) for m in late] == [ChunkConflictError] * len(chunks)
    assert [m.positions for m in late] == [(n + 1,) for n in range(len(chunks))]


@pytest.mark.parametrize("value", [-5, "1", True, float("nan")])
def test_delays_that_are_refused(consume, value):
    with pytest.raises(ConfigError, match="redelivery_delay_seconds: found") as caught:
        consume(redelivery_delay_seconds=value)
    assert caught.value.path == "redelivery_delay_seconds"


@pytest.mark.parametrize("wrong", ["broker", "cc"])
def test_objects_of_another_type_are_refused_before_the_consumer_joins_its_group(broker, configure, consume, wrong):
    objects = {"broker": broker, "cc": configure(), wrong: "claimcheck.yaml"}
    with pytest.raises(ArgumentTypeError, match=f"{wrong}: found"):
        LocalConsumer(objects["broker"], objects["cc"], topics=["orders"], group="g")
    LocalProducer(broker, configure()).send("orders", b"x")
    assert [message.value for message in drain(consume())] == [b"x"]


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
