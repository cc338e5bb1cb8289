"""Chunks whose consumer or producer dies: nothing is lost, and no payload stays incomplete. Time is injected."""

from __future__ import annotations

import pytest

from claimcheck._envelope import decode, encode_abort, encode_chunk
from claimcheck.errors import ArgumentTypeError, ChunkConflictError, ConfigError, IncompletePayloadError
from claimcheck.transports.local import (
    BrokerBusyError,
    BrokerStorageError,
    LocalConsumer,
    LocalProducer,
    StaleDeliveryError,
)
from claimcheck.transports.local._groups import GroupMember
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
    assert dead._resolver.pending_payloads == 0  # it was only slow, and has cleared its chunks
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
    slow.nack(late)  # skipped: another member holds the partition
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


# Limits of redelivery


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
    assert f"sent to the dead-letter topic: rejected after {limit} redeliveries" in caplog.text
    letter = broker.fetch("orders.dead_letter", 0, 0, 9)[-1]  # only the last chunk has room for the reason
    assert dict(letter.headers)["dead-letter-reason"] == f"rejected after {limit} redeliveries".encode()
    assert [m.value for m in drain(consume("orders.dead_letter"))] == [BIG]
    consumer.close()
    assert consume().receive(timeout=0) is None


def test_chunks_of_a_dead_producer_become_dead_letters_where_the_consumer_has_a_limit(broker, configure, consume):
    cc = configure("chunking", chunking={"expire_after_seconds": 10})
    append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc, max_redeliveries=2)
    assert consumer.receive(timeout=200) is None
    assert consumer._resolver.pending_payloads == 0
    letters = broker.fetch("orders.dead_letter", 0, 0, 9)
    assert [m.value for m in letters] == [m.value for m in broker.fetch("orders", 0, 0, 9)]
    reason = dict(letters[0].headers)["dead-letter-reason"].decode()
    assert reason.startswith("expired after 2 redeliveries: IncompletePayloadError: ")
    consumer.close()
    assert consume().receive(timeout=0) is None


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
    assert broker.topics() == ["orders", "wide"]  # dead letters are not configured
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


def test_an_incomplete_payload_is_reported_where_dead_letters_fail(broker, configure, consume, monkeypatch):
    cc = configure("chunking", chunking={"expire_after_seconds": 10, "max_redeliveries": 1})
    append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc, max_redeliveries=5)

    def append(*args: object, **more: object) -> None:
        raise BrokerStorageError("the disk is full", path="broker.sqlite")

    with monkeypatch.context() as patch:
        patch.setattr(broker, "append", append)
        message = consumer.receive(timeout=30)
    assert isinstance(message.error, IncompletePayloadError)
    consumer.ack(message)
    assert consumer._resolver.safe_position(("orders", 0)) is None


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
    assert [type(error) for error in errors] == [IncompletePayloadError] * (action == "redeliver")
    assert ("orders.dead_letter" in broker.topics()) is (action == "dead_letter")
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


@pytest.mark.parametrize("action", ["ack", "dead_letter"])
def test_an_abort_envelope_of_the_writer_ends_its_chunks(broker, configure, consume, action):
    cc = configure("chunking", chunking={"on_abort": action})
    append_chunks(broker, cc, BIG, slice(2))
    first = broker.fetch("orders", 0, 0, 1)[0]
    broker.append("orders", encode_abort(decode(first.value).uuid), key=first.key)
    consumer = consume(cc=cc)
    assert consumer.receive(timeout=0) is None
    assert consumer._resolver.safe_position(("orders", 0)) is None
    letters = broker.fetch("orders.dead_letter", 0, 0, 9) if "orders.dead_letter" in broker.topics() else []
    originals = broker.fetch("orders", 0, 0, 9) if action == "dead_letter" else []
    assert [letter.value for letter in letters] == [original.value for original in originals]


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


def test_what_cannot_be_dead_lettered_comes_again_however_often(broker, configure, consume, monkeypatch, caplog):
    LocalProducer(broker, configure()).send("orders", BIG)
    consumer = consume(max_redeliveries=0)

    def append(*args: object, **more: object) -> None:
        raise BrokerStorageError("the disk is full", path="broker.sqlite")

    with monkeypatch.context() as patch:
        patch.setattr(broker, "append", append)
        consumer.nack(consumer.receive(timeout=0))
    assert "could not be sent to the dead-letter topic: the disk is full" in caplog.text
    assert [m.value for m in drain(consumer, timeout=2)] == [BIG]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_redeliveries", value) for value in (-1, True, "2", 1.5)),
        *(("redelivery_delay_seconds", value) for value in (-5, "1", True, float("nan"))),
        *(("lease_seconds", value) for value in (-1, 0, "30", True, None)),
    ],
)
def test_numbers_that_are_refused(consume, name, value):
    with pytest.raises(ConfigError, match=f"{name}: found") as caught:
        consume(**{name: value})
    assert isinstance(caught.value, ConfigError)
    assert caught.value.path == name


@pytest.mark.parametrize("wrong", ["broker", "cc"])
def test_objects_of_another_type_are_refused_before_the_consumer_joins_its_group(broker, configure, consume, wrong):
    objects = {"broker": broker, "cc": configure(), wrong: "claimcheck.yaml"}
    with pytest.raises(ArgumentTypeError, match=f"{wrong}: found"):
        LocalConsumer(objects["broker"], objects["cc"], topics=["orders"], group="g")
    LocalProducer(broker, configure()).send("orders", b"x")
    assert [message.value for message in drain(consume())] == [b"x"]


@pytest.mark.parametrize("value", [-1, "1", True])
def test_a_delay_that_is_refused_changes_nothing(broker, configure, consume, value):
    LocalProducer(broker, configure()).send("orders", b"x")
    consumer = consume()
    message = consumer.receive(timeout=0)
    with pytest.raises(ConfigError, match="delay_seconds"):
        consumer.nack(message, delay_seconds=value)
    consumer.ack(message)


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
