"""Chunks whose consumer or producer dies: nothing is lost, and no payload stays incomplete. Time is injected."""

from __future__ import annotations

import pytest

from claimcheck.errors import ArgumentTypeError, ConfigError, IncompletePayloadError
from claimcheck.transports.local import (
    BrokerBusyError,
    GroupTakenOverError,
    LocalConsumer,
    LocalProducer,
)
from tests.local_rig import BIG, append_chunks, drain, rest_of

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


# Other writers


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
