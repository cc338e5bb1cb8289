"""Commits never pass an incomplete payload, and retention that removes records of one ends it; on a real Kafka."""

import confluent_kafka as kafka
import pytest

from claimcheck.transports.kafka import last_offset
from claimcheck.transports.kafka._partition import CommitMetadata
from tests.integration.kafka_rig import (
    LIMIT,
    Clock,
    chunks_of,
    content,
    nothing_comes,
    receive,
    rig,
    says_removed,
    values,
)

# Commits -----------------------------------------------------------------------------------------------------------


A, B = (content(600, n) for n in range(2))


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        yield lab


def at(lab, offset=kafka.OFFSET_INVALID, *metadata):
    return kafka.TopicPartition(lab.topic, 0, offset, *metadata)


class TestCommits:
    """On the topic: a0 b0 b1 plain a1 end; b is complete first, then the plain record, then a."""

    @pytest.fixture(autouse=True)
    def records(self, lab):
        a, b = chunks_of(A, 2), chunks_of(B, 2)
        lab.send_raw(a[0], b[0], b[1], b"plain", a[1], b"end")

    @pytest.mark.parametrize(
        ("how", "received", "offset", "mark"),
        [
            *((how, 2, 0, CommitMetadata(4)) for how in ("message", "asynchronously", "offsets", "stored", "position")),
            ("stored offsets", 2, 0, CommitMetadata(4)),
            ("automatic", 1, 0, CommitMetadata(3)),
            ("automatic", 3, 5, None),
            ("message", 4, 6, None),
        ],
    )
    def test_no_way_of_committing_passes_the_head_of_an_incomplete_payload(self, lab, how, received, offset, mark):
        automatic = how == "automatic"
        consumer = lab.consumer(
            wrap={"auto_offset_store": automatic}, enable_auto_commit=automatic, auto_commit_interval_ms=10
        )
        message = receive(consumer, received)[-1]
        behind = at(lab, last_offset(message) + 1)
        if how == "message":
            consumer.commit(message=message, asynchronous=False)
        elif how == "asynchronously":
            consumer.commit(message=message)  # done when the consumer is closed
        elif how == "offsets":
            consumer.commit(offsets=[behind], asynchronous=False)
        elif how == "position":
            consumer.commit(offsets=consumer.position([at(lab)]), asynchronous=False)
        elif how == "stored":
            consumer.store_offsets(message)
            consumer.commit(asynchronous=False)
        elif how == "stored offsets":
            consumer.store_offsets(offsets=[behind])
            consumer.commit(asynchronous=False)
        consumer.close()

        committed = lab.committed()

        assert (committed.offset, CommitMetadata.decode(committed.metadata)) == (offset, mark)

    def test_a_crash_behind_an_open_payload_gives_each_payload_once(self, lab):
        first = lab.consumer()
        found = receive(first, 2)
        first.commit(message=found[-1], asynchronous=False)
        first._native.close()  # as a crash does: nothing is said any more

        second = lab.consumer()
        found += receive(second, 2)

        assert values(found) == [B, b"plain", A, b"end"]
        assert nothing_comes(second)

    def test_where_the_metadata_is_the_users_own_payloads_come_at_least_once(self, lab):
        first = lab.consumer()
        message = receive(first, 2)[-1]
        first.commit(offsets=[at(lab, message.offset() + 1, "my own")], asynchronous=False)
        first.close()

        assert (lab.committed().offset, lab.committed().metadata) == (0, "my own")
        assert values(receive(lab.consumer(), 4)) == [B, b"plain", A, b"end"]

    def test_what_is_delivered_behind_an_open_payload_is_noted_each_time(self, lab):
        """The offset stays the same; only the metadata is new."""
        consumer, marks = lab.consumer(wrap={"auto_offset_store": True}), []
        for _ in range(2):
            receive(consumer, 1)
            consumer.commit(asynchronous=False)
            marks.append((lab.committed().offset, CommitMetadata.decode(lab.committed().metadata)))

        assert marks == [(0, CommitMetadata(3)), (0, CommitMetadata(4))]
        with pytest.raises(kafka.KafkaException, match="_NO_OFFSET"):
            consumer.commit(asynchronous=False)  # nothing new

    def test_automatic_commits_go_on_while_nothing_comes(self, lab):
        """Messages returned shortly after the last store of offsets are stored while the next poll waits."""
        consumer = lab.consumer(wrap={"auto_offset_store": True}, enable_auto_commit=True, auto_commit_interval_ms=10)
        receive(consumer, 4)
        assert nothing_comes(consumer)
        consumer.poll(0.5)

        assert lab.committed().offset == 6


class TestRestartInTheMiddle:
    def test_a_head_before_the_committed_offset_is_found(self, lab):
        """A client that does not support chunks committed an offset in the middle of a payload."""
        chunks = chunks_of(A, 5)
        lab.send_raw(b"one", *chunks[:3])
        native = lab.native_consumer()
        native.assign([at(lab)])
        native.commit(offsets=[at(lab, 3)], asynchronous=False)
        native.close()
        lab.send_raw(*chunks[3:], b"end")

        consumer = lab.consumer()
        messages = receive(consumer, 2)

        assert values(messages) == [A, b"end"]
        assert messages[0].offset() == 1
        assert nothing_comes(consumer)

    def test_one_that_retention_has_removed_is_reported_at_once(self, lab):
        lab.send_raw(*chunks_of(A, 4), b"end")
        lab.remove_below(2)
        consumer = lab.consumer()

        bad, end = receive(consumer, 2)
        consumer.commit(message=end, asynchronous=False)

        assert says_removed(bad, low=2)
        assert (bad.offset(), end.value(), lab.committed().offset) == (2, b"end", 5)

    def test_one_whose_chunks_changed_their_order_is_delivered_behind_what_was_removed(self, lab):
        """Only near the start can a first chunk be missing because retention removed it."""
        lab.send_raw(b"gone", *[b"plain"] * 1100)
        lab.remove_below(1)
        chunks = chunks_of(A, 3)
        lab.send_raw(chunks[1], chunks[0], chunks[2])

        messages = receive(lab.consumer(), 1101)

        assert messages[-1].value() == A

    def test_from_the_end_on_a_payload_that_began_before_is_passed_over(self, lab):
        chunks = chunks_of(A, 3)
        lab.send_raw(*chunks[:2])
        impatient = lab.claimcheck("external", chunking={"expire_after_seconds": 1.0})
        consumer = lab.consumer(auto_offset_reset="latest", cc=impatient)
        while not consumer.assignment():
            consumer.poll(0.1)
        assert nothing_comes(consumer, 0.5)
        lab.send_raw(chunks[2], b"end")

        (message,) = receive(consumer, 1)
        assert nothing_comes(consumer, 2.0)
        consumer.commit(message=message, asynchronous=False)

        assert message.value() == b"end"
        assert lab.committed().offset == 4


class TestSeekAndPause:
    def test_back_to_a_committed_place_with_its_metadata_brings_nothing_twice(self, lab):
        a, b = chunks_of(A, 2), chunks_of(B, 2)
        lab.send_raw(a[0], b[0], b[1], b"plain", a[1])
        consumer = lab.consumer()
        consumer.commit(message=receive(consumer, 1)[0], asynchronous=False)
        receive(consumer, 2)

        (committed,) = consumer.committed([at(lab)], 10)
        consumer.seek(committed)

        assert values(receive(consumer, 2)) == [b"plain", A]

    def test_nothing_comes_while_a_partition_is_paused_and_nothing_is_lost(self, lab):
        producer = lab.producer("external")
        for n in range(4):
            producer.produce(lab.topic, content(2 * LIMIT, n))
        producer.flush(30)
        consumer = lab.consumer(wrap={"prefetch_bytes": 10 * LIMIT})
        found = receive(consumer, 1)

        consumer.pause([at(lab)])
        assert nothing_comes(consumer)
        consumer.resume([at(lab)])

        assert values(found + receive(consumer, 3)) == [content(2 * LIMIT, n) for n in range(4)]


# Retention ---------------------------------------------------------------------------------------------------------


PLAIN = [b"plain %d" % n for n in range(10)]


@pytest.fixture
def begun(kafka_broker, topic):
    with rig(kafka_broker, topic) as begun:
        begun.commit(0)  # else nothing would be read where the client starts at the end
        yield begun


def all_done(begun, consumer, last):
    """Whether everything may be committed, and no more messages arrive."""
    consumer.commit(message=last, asynchronous=False)
    return nothing_comes(consumer, 0.5) and begun.committed().offset == begun.end()


def test_of_chunks_that_expired(begun):
    clock = Clock()
    begun.send_raw(b"before", chunks_of(A, 3)[0], b"behind")
    consumer = begun.consumer(wrap={"clock": clock}, auto_offset_reset="latest")
    assert values(receive(consumer, 2)) == [b"before", b"behind"]
    begun.remove_below(2)
    clock.ahead += 61
    begun.send_raw(*PLAIN)

    messages = receive(consumer, 11)

    (bad,) = [message for message in messages if message.offset() == 1]
    assert says_removed(bad, low=2)
    assert values([message for message in messages if message is not bad]) == PLAIN
    assert all_done(begun, consumer, messages[-1])


@pytest.mark.parametrize(
    ("protocol", "reset"),
    [
        ({}, "latest"),
        ({"partition_assignment_strategy": "cooperative-sticky"}, "earliest"),
        ({"group_protocol": "consumer"}, "error"),
        ({"subscribe": False}, "latest"),
    ],
)
def test_while_no_consumer_is_there(begun, protocol, reset):
    """An incomplete payload holds back the group's offset; later payloads were delivered."""
    begun.send_raw(chunks_of(A, 2)[0], b"one", b"two")
    first = begun.consumer(auto_offset_reset=reset, **protocol)
    assign(begun, first, protocol)
    first.commit(message=receive(first, 1)[0], asynchronous=False)
    first.close()
    assert begun.committed().offset == 0
    begun.remove_below(1)
    second = begun.consumer(auto_offset_reset=reset, **protocol)
    assign(begun, second, protocol)

    messages = receive(second, 1)
    begun.send_raw(*PLAIN)
    messages += receive(second, 10)

    assert values(messages) == [b"two", *PLAIN]
    assert all_done(begun, second, messages[-1])


def assign(begun, consumer, protocol):
    """Assign the partition by hand if the consumer does not subscribe."""
    if protocol == {"subscribe": False}:
        consumer.assign([kafka.TopicPartition(begun.topic, 0)])
