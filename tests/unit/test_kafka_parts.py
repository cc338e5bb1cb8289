"""Kafka without a broker: commit metadata, partition state, and the wrappers on the client's own mock cluster."""

import asyncio
import contextlib
import copy
import pickle

import confluent_kafka as kafka
import pytest
from confluent_kafka.aio import AIOConsumer
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from claimcheck.errors import TransportError
from claimcheck.transports._common.received import StoredPayload
from claimcheck.transports.kafka import AsyncKafkaConsumer, KafkaConsumer, KafkaMessage, KafkaProducer
from claimcheck.transports.kafka._client import classify
from claimcheck.transports.kafka._message import message_of, stored_of
from claimcheck.transports.kafka._partition import MAX_SPANS, CommitMetadata, Offsets
from tests.structure import calls

OFFSETS = st.integers(0, 2**63 - 1)


@given(OFFSETS, st.frozensets(OFFSETS, max_size=20))
def test_commit_metadata_comes_back_as_it_was(upto, owed):
    mark = CommitMetadata(upto, owed)
    assert CommitMetadata.decode(mark.encode()) == mark
    assert CommitMetadata.decode(mark.encode() + "\0") == mark  # as other clients read it


def test_metadata_of_others_is_none_and_what_the_broker_would_refuse_is_left_out():
    for text in (None, "", "mine", "claimcheck:1", "claimcheck:1;x;", "claimcheck:2;5;", "\0"):
        assert CommitMetadata.decode(text) is None
    assert CommitMetadata(10**18, frozenset(range(10**18, 10**18 + 300))).encode() == ""
    assert len(CommitMetadata(10**18, frozenset(range(10**18, 10**18 + 190))).encode()) < 4096


def test_where_nobody_commits_memory_is_bounded_and_errs_on_the_side_of_twice():
    offsets = Offsets(start=0, read=10**9)
    for n in range(MAX_SPANS + 500):
        offsets.delivered(10 * n, 10 * n + 5)
    assert len(offsets.spans) == MAX_SPANS
    assert offsets.safe(10 * 300, None) == 0
    last = 10 * (MAX_SPANS + 400)
    assert offsets.safe(last + 5, None) == last


def message(payload):
    native = kafka.Message(topic="t", partition=1, offset=5, key=b"k", value=b"envelope", timestamp=(1, 1000))
    return message_of(native, payload)


def test_a_stored_payload_is_read_once_and_when_it_is_asked_for():
    reads = []
    stored = message(StoredPayload(lambda: reads.append(1) or b"payload", size=7))
    assert (len(stored), reads, repr(stored)) == (7, [], "<KafkaMessage t[1] at 5>")
    assert (stored.value(), stored.value(), len(stored), reads) == (b"payload", b"payload", 7, [1])
    assert isinstance(stored, kafka.Message)
    assert isinstance(stored, KafkaMessage)
    again = pickle.loads(pickle.dumps(stored))  # with its payload, and not as a tombstone
    assert (again.value(), again.topic(), again.offset(), again.key()) == (b"payload", "t", 5, b"k")


def test_a_bad_message_has_everything_but_its_value():
    error = TransportError("no")
    bad = message(error)
    assert (bad.topic(), bad.partition(), bad.offset(), bad.key()) == ("t", 1, 5, b"k")
    assert (bad.error(), bad.payload_error, bad.timestamp()) == (None, error, (1, 1000))
    for use in (KafkaMessage.value, pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TransportError):
            use(bad)
    assert bad, "`if message:` must not skip an error"
    assert message(StoredPayload(lambda: b"payload", size=0))


def test_a_value_that_the_user_sets_takes_the_place_of_the_payload():
    changed = message(StoredPayload(lambda: pytest.fail("it was read"), size=7))
    changed.set_value(b"other")
    assert (changed.value(), len(changed), stored_of(changed)) == (b"other", 5, None)


@pytest.mark.parametrize("error", [BufferError("full"), RuntimeError("closed"), TypeError("key"), ValueError("topic")])
def test_what_the_call_itself_raises_was_not_sent(error):
    assert classify(error) == "failed"


@pytest.fixture
def servers():
    """The client's own mock cluster, which needs neither a JVM nor a broker."""
    cluster = kafka.Producer({"bootstrap.servers": "nobody", "test.mock.num.brokers": 1})
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    yield {"bootstrap.servers": f"{broker.host}:{broker.port}"}
    cluster.close()


PARTITIONS = [kafka.TopicPartition("t", number) for number in range(4)]  # the mock cluster makes four
CONSUMER = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.offset.store": False}
CONSUMER["fetch.wait.max.ms"] = 10


class BrokenError(Exception):
    """The application fails."""


def committed(servers):
    with contextlib.closing(kafka.Consumer({**servers, **CONSUMER})) as consumer:
        return sorted(each.offset for each in consumer.committed(PARTITIONS, timeout=10) if each.offset >= 0)


@pytest.mark.parametrize(
    ("way", "payload"),
    [("with", b"z" * 3_000_000), ("finally", b"small"), ("async with", b"z" * 3_000_000), ("cancelled", b"small")],
    ids=["with", "finally", "async with", "cancelled"],
)
def test_a_message_on_which_the_application_failed_is_not_committed_by_close(way, payload, servers):
    with claimcheck.from_dict({"stores": {"m": {"type": "memory"}}}) as cc:
        with KafkaProducer(kafka.Producer(servers), cc) as producer:
            producer.produce("t", payload, b"k")
        options = {**servers, **CONSUMER, "enable.auto.commit": True}
        if way in ("with", "finally"):
            consumer = KafkaConsumer(kafka.Consumer(options), cc, auto_offset_store=True)
            with pytest.raises(BrokenError):
                _fail_on_the_first(consumer, way)
        else:
            with pytest.raises((BrokenError, asyncio.CancelledError)):
                asyncio.run(_fail_asynchronously(options, cc, cancel=way == "cancelled"))
        assert committed(servers) == []
        with KafkaConsumer(kafka.Consumer(options), cc, auto_offset_store=True) as consumer:
            consumer.assign(PARTITIONS)
            assert consumer.poll(30).value() == payload
        assert committed(servers) == [1]


def _fail_on_the_first(consumer, way):
    consumer.assign(PARTITIONS)
    if way == "with":
        with consumer:
            consumer.poll(30).value()
            raise BrokenError
    try:
        consumer.poll(30).value()
        raise BrokenError
    finally:
        consumer.close()


async def _fail_asynchronously(options, cc, *, cancel):
    async with AsyncKafkaConsumer(AIOConsumer(options), cc, auto_offset_store=True) as consumer:
        await consumer.assign(PARTITIONS)
        (await consumer.poll(30)).value()
        if cancel:
            asyncio.current_task().cancel()
            await asyncio.sleep(10)
        raise BrokenError


def test_plain_records_take_no_more_than_one_or_two_calls(servers):
    """A guard for the overhead of each record: time cannot be asserted, the number of calls can."""
    with claimcheck.from_dict({"stores": {"m": {"type": "memory"}}}) as cc:
        with KafkaProducer(kafka.Producer(servers), cc) as producer:
            producer.produce("t", b"first", b"k")
            assert calls(lambda: producer.produce("t", b"small", b"k"))[0] == 1
        with KafkaConsumer(kafka.Consumer({**servers, **CONSUMER}), cc) as consumer:
            consumer.assign(PARTITIONS)
            assert consumer.poll(30).value() == b"first"
            assert calls(lambda: consumer.poll(30))[0] == 2
