"""Producer and consumer over the embedded broker: every kind of envelope, all that can go wrong. Time is injected."""

from __future__ import annotations

import array
import importlib
import io
import json
import logging
import multiprocessing
import os
import threading
from pathlib import Path

import pytest

import claimcheck
from claimcheck import HEADER
from claimcheck.envelope import Chunk, decode, encode_chunk, encode_pointer
from claimcheck.transports.local import (
    MESSAGE_OVERHEAD_BYTES,
    BrokerArgumentError,
    BrokerBusyError,
    BrokerClosedError,
    BrokerCommitError,
    BrokerStorageError,
    GroupMember,
    LocalBroker,
    LocalConsumer,
    LocalProducer,
    MessageId,
    MessageTooLargeError,
    StaleDeliveryError,
    UnknownPartitionError,
    UnknownTopicError,
)

LIMIT = 4096
BIG = os.urandom(10_000)
STRATEGIES = ("external", "chunking", "hybrid")


class Clock:
    """Time that passes only when somebody sleeps or the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(tmp_path: Path, clock: Clock):
    with LocalBroker(tmp_path / "broker.sqlite", max_message_bytes=LIMIT, clock=clock, sleep=clock.sleep) as broker:
        broker.create_topic("orders", partitions=1)
        broker.create_topic("wide", partitions=4)
        yield broker


@pytest.fixture
def configure(tmp_path: Path):
    opened = []

    def configure(strategy: str = "external", **more: object) -> claimcheck.ClaimCheck:
        stores = {"disk": {"type": "filesystem", "path": str(tmp_path / "store")}}
        opened.append(claimcheck.from_dict({"strategy": strategy, "stores": stores, **more}))
        return opened[-1]

    yield configure
    for cc in opened:
        cc.close()


@pytest.fixture
def consume(broker: LocalBroker, configure):
    opened = []

    def consume(*topics: str, cc: claimcheck.ClaimCheck | None = None, group: str = "g", **more) -> LocalConsumer:
        opened.append(LocalConsumer(broker, cc or configure(), topics=topics or ["orders"], group=group, **more))
        return opened[-1]

    yield consume
    for consumer in opened:
        consumer.close()


def stored(tmp_path: Path) -> list[str]:
    return os.listdir(tmp_path / "store") if (tmp_path / "store").exists() else []


def drain(consumer: LocalConsumer, *, timeout: float = 0.0) -> list:
    """Receive and acknowledge everything that is there."""
    found = []
    while (message := consumer.receive(timeout=timeout)) is not None:
        found.append(message)
        consumer.ack(message)
    return found


def append_chunks(broker: LocalBroker, cc: claimcheck.ClaimCheck, payload: bytes, numbers: slice | None = None) -> int:
    """Append some of the chunks of a payload, as a producer that is slow, or dies, would; returns how many it has."""
    limit = claimcheck.WireLimit(LIMIT, lambda key, headers: 600)
    with cc.outbound(payload, destination="orders", limit=limit) as out:
        envelopes = list(out.envelopes)
    for envelope in envelopes[numbers or slice(None)]:
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    return len(envelopes)


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
        ids = LocalProducer(broker, configure("chunking")).send_all("orders", file)
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
    ids = LocalProducer(broker, configure("chunking")).send_all("orders", os.urandom(50_000), key=b"k" * 100)
    messages = broker.fetch("orders", 0, 0, 100)
    assert [message.message_id for message in messages] == list(ids)
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
    producer = LocalProducer(broker, configure("chunking"))
    for n in range(8):
        small = producer.send("wide", b"x", key=b"key-%d" % n)
        ids = producer.send_all("wide", BIG, key=b"key-%d" % n)
        assert {each.partition for each in ids} == {small.partition}


def test_chunks_without_a_key_share_a_partition_and_payloads_take_turns(broker, configure, consume):
    producer = LocalProducer(broker, configure("chunking"))
    used = [{each.partition for each in producer.send_all("wide", BIG)} for _ in range(8)]
    assert used == [{n % 4} for n in range(8)]
    assert [message.value for message in drain(consume("wide"))] == [BIG] * 8


def test_a_partition_can_be_asked_for(broker, configure):
    producer = LocalProducer(broker, configure("chunking"))
    assert producer.send("wide", BIG, key=b"k", partition=2) == MessageId("wide", 2, 0)
    assert {each.partition for each in producer.send_all("wide", BIG, partition=3)} == {3}


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
    importlib.import_module("tests.conftest")  # finds the stores of a bare checkout
    with LocalBroker(path, max_message_bytes=LIMIT) as broker, claimcheck.from_dict(config) as cc:
        for n in range(count):
            LocalProducer(broker, cc).send("orders", b"%d" % n * 5000, key=b"%d" % n)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_writer_in_another_process(tmp_path, strategy):
    config = {"strategy": strategy, "stores": {"disk": {"type": "filesystem", "path": str(tmp_path / "store")}}}
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
    with pytest.raises(BrokerArgumentError):
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
    assert heir._resolver.pending_payloads == 0  # two chunks and the word that no more will come: acknowledged
    assert [broker.end_offset("wide", n) for n in range(4)] == [4, 0, 0, 0]


def test_hybrid_goes_by_chunks_while_the_store_is_down(broker, configure, consume, tmp_path):
    (tmp_path / "store").write_text("a file where the directory should be")
    cc = configure("hybrid")
    assert len(LocalProducer(broker, cc).send_all("orders", BIG)) > 1
    assert [message.value for message in drain(consume(cc=cc))] == [BIG]


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
    assert consumer._resolver.safe_position(("orders", 0)) is None  # nothing is left to settle
    consumer.close()
    assert consume().receive(timeout=0) is None


# Consumers that die, and chunks that never come


def test_chunks_half_received_by_a_consumer_that_died_come_again_to_the_next(broker, configure, consume, clock):
    cc = configure("chunking")
    total = append_chunks(broker, cc, BIG, slice(2))
    dead = consume(lease_seconds=30)
    assert dead.receive(timeout=0) is None
    heir = consume(lease_seconds=30)
    for envelope in _rest_of(broker, total):
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


def _rest_of(broker: LocalBroker, total: int):
    """The chunks that are missing, made again with the uuid of those that are there."""
    first = broker.fetch("orders", 0, 0, 1)[0]
    chunk = decode(first.value or b"")
    assert isinstance(chunk, Chunk)
    size = len(chunk.piece)
    for position in range(2, total):
        piece = BIG[position * size : (position + 1) * size]
        data = encode_chunk(chunk.uuid, position, total, piece)
        yield claimcheck.Envelope(data, {}, first.key)


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
    for envelope in _rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    assert consumer.receive(timeout=30).value == BIG


def test_payloads_that_had_to_make_room_come_again(broker, configure, consume):
    cc = configure("chunking", chunking={"max_pending_payloads": 1})
    total = append_chunks(broker, cc, BIG, slice(2))
    append_chunks(broker, cc, b"other" * 2000)
    consumer = consume(cc=cc)
    assert [m.value for m in drain(consumer)] == [b"other" * 2000]
    for envelope in _rest_of(broker, total):
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
    for envelope in _rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    assert [m.value for m in drain(consumer, timeout=30)] == [BIG]


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
    for envelope in _rest_of(broker, total):
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
    broker.append("orders", broker.fetch("orders", 0, 0, 1)[0].value)
    assert consumer.receive(timeout=0) is None
    assert consumer._resolver.pending_payloads == 0  # known as a duplicate, whatever happened to the old one


# Bad messages


def test_a_bad_message_is_an_error_of_its_own(broker, configure, consume, tmp_path):
    cc = configure()
    producer = LocalProducer(broker, cc)
    producer.send("orders", b"first")
    producer.send("orders", BIG, key=b"k", headers={"h": b"1"})
    (tmp_path / "store" / stored(tmp_path)[0]).unlink()
    evil = {"key": "../../etc/passwd", "store": "disk", "size": 1, "segments": 1}
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


def test_chunks_that_cannot_be_put_aside_come_again(broker, configure, consume, monkeypatch, caplog):
    cc = configure("chunking", chunking={"expire_after_seconds": 10, "on_expire": "dead_letter"})
    append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc)

    def create_topic(*args: object) -> None:
        raise BrokerStorageError("the disk is full", path="broker.sqlite")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(broker, "create_topic", create_topic)
        assert consumer.receive(timeout=12) is None
    assert "could not be put aside" in caplog.text
    assert consumer.receive(timeout=15) is None
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
