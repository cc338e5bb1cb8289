"""Chunks whose consumer or producer dies: nothing is lost, nothing circles for ever. Time is injected."""

from __future__ import annotations

import pytest

from claimcheck.transports.local import (
    BrokerArgumentError,
    BrokerBusyError,
    BrokerStorageError,
    GroupMember,
    LocalProducer,
    StaleDeliveryError,
)
from tests.local_rig import BIG, STRATEGIES, append_chunks, drain, rest_of

# Consumers that die, and chunks that never come


def test_chunks_half_received_by_a_consumer_that_died_come_again_to_the_next(broker, configure, consume, clock):
    cc = configure("chunking")
    total = append_chunks(broker, cc, BIG, slice(2))
    dead = consume(lease_seconds=30)
    assert dead.receive(timeout=0) is None
    heir = consume(lease_seconds=30)
    for envelope in rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    assert heir.receive(timeout=0) is None
    clock.now += 31
    message = heir.receive(timeout=0)
    assert message.value == BIG
    assert message.positions == tuple(range(total))
    assert dead._resolver.pending_payloads == 1
    assert dead.receive(timeout=0) is None
    assert dead._resolver.pending_payloads == 0  # it lives after all, and has forgotten what it held
    heir.ack(message)


def test_an_acknowledgement_after_the_lease_is_refused_and_does_no_harm(broker, configure, consume, clock):
    LocalProducer(broker, configure("chunking")).send("orders", BIG)
    slow, heir = consume(lease_seconds=30), consume(lease_seconds=30)
    late = slow.receive(timeout=0)
    clock.now += 31
    message = heir.receive(timeout=0)
    assert message.value == BIG
    with pytest.raises(StaleDeliveryError):
        slow.ack(late)
    slow.nack(late)  # passed over: it is another's by now
    heir.ack(message)
    clock.now += 31
    assert slow.receive(timeout=0) is None
    assert heir.receive(timeout=0) is None


@pytest.mark.parametrize("action", ["redeliver", "dead_letter", "ack"])
def test_chunks_that_wait_too_long_do_as_configured(broker, configure, consume, clock, action):
    cc = configure("chunking", chunking={"expire_after_seconds": 10, "on_expire": action})
    append_chunks(broker, cc, BIG, slice(2))
    broker.append("orders", b"next")
    consumer = consume(cc=cc)
    assert [message.value for message in drain(consumer)] == [b"next"]
    assert consumer.receive(timeout=12) is None
    assert (".dead_letter" in "".join(broker.topics())) is (action == "dead_letter")
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


# Enough is enough


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("limit", [0, 2])
def test_a_payload_given_back_too_often_becomes_a_dead_letter(broker, configure, consume, caplog, strategy, limit):
    LocalProducer(broker, configure(strategy)).send("orders", BIG, key=b"k")
    consumer = consume(max_redeliveries=limit, redelivery_delay_seconds=0)
    for count in range(limit + 1):
        message = consumer.receive(timeout=0)
        assert (message.value, message.redelivery_count) == (BIG, count)
        consumer.nack(message)
    assert consumer.receive(timeout=0) is None
    assert consumer._resolver.safe_position(("orders", 0)) is None
    assert f"put aside: rejected after {limit} redeliveries" in caplog.text
    letter = broker.fetch("orders.dead_letter", 0, 0, 9)[-1]  # a full chunk has no room for the reason, the last has
    assert dict(letter.headers)["dead-letter-reason"] == f"rejected after {limit} redeliveries".encode()
    assert [m.value for m in drain(consume("orders.dead_letter"))] == [BIG]
    consumer.close()
    assert consume().receive(timeout=0) is None


@pytest.mark.parametrize("limit", [None, 2])
def test_chunks_of_a_dead_producer_circle_for_ever_or_as_long_as_they_may(broker, configure, consume, limit):
    cc = configure("chunking", chunking={"expire_after_seconds": 10})
    append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc, max_redeliveries=limit)
    assert consumer.receive(timeout=200) is None
    assert consumer._resolver.pending_payloads == (1 if limit is None else 0)
    if limit is None:
        assert broker.topics() == ["orders", "wide"]
        return
    letters = broker.fetch("orders.dead_letter", 0, 0, 9)
    assert [m.value for m in letters] == [m.value for m in broker.fetch("orders", 0, 0, 9)]
    reason = dict(letters[0].headers)["dead-letter-reason"].decode()
    assert reason.startswith("expired after 2 redeliveries: IncompletePayloadError: ")
    consumer.close()
    assert consume().receive(timeout=0) is None


def test_what_cannot_be_put_aside_comes_again_however_often_it_came(broker, configure, consume, monkeypatch, caplog):
    LocalProducer(broker, configure()).send("orders", BIG)
    consumer = consume(max_redeliveries=0)

    def append(*args: object, **more: object) -> None:
        raise BrokerStorageError("the disk is full", path="broker.sqlite")

    with monkeypatch.context() as patch:
        patch.setattr(broker, "append", append)
        consumer.nack(consumer.receive(timeout=0))
    assert "could not be put aside: the disk is full" in caplog.text
    assert [m.value for m in drain(consumer, timeout=2)] == [BIG]


def test_a_limit_below_zero_is_refused(consume):
    with pytest.raises(BrokerArgumentError, match="max_redeliveries"):
        consume(max_redeliveries=-1)


# Interruptions


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_a_message_whose_resolving_was_interrupted_comes_again(broker, configure, consume, monkeypatch, interruption):
    for value in (b"first", b"second"):
        LocalProducer(broker, configure()).send("orders", value)
    consumer = consume()

    def feed(*args: object, **more: object) -> None:
        raise interruption

    poll = GroupMember.poll
    with monkeypatch.context() as patch:
        patch.setattr(GroupMember, "poll", lambda self, timeout: poll(self, limit=2, timeout=timeout))
        patch.setattr(consumer._resolver, "feed", feed, raising=True)
        with pytest.raises(interruption):
            consumer.receive(timeout=0)
    assert [m.value for m in drain(consumer, timeout=2)] == [b"first", b"second"]


def test_chunks_that_could_not_be_let_go_are_let_go_later(broker, configure, consume, monkeypatch):
    cc = configure("chunking", chunking={"expire_after_seconds": 10})
    total = append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc)

    def nack(*args: object, **more: object) -> None:
        raise BrokerBusyError("locked by somebody else")

    with monkeypatch.context() as patch:
        patch.setattr(GroupMember, "nack", nack)
        with pytest.raises(BrokerBusyError):
            consumer.receive(timeout=15)
    for envelope in rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    assert [m.value for m in drain(consumer, timeout=30)] == [BIG]
