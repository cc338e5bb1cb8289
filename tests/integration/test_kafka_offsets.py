"""Commits never pass an incomplete payload, and what is read again is not delivered again; on a real Kafka."""

import uuid

import confluent_kafka as kafka
import pytest

from claimcheck._wire.envelope import encode_abort
from claimcheck.errors import IncompletePayloadError
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

A, B, C = (content(600, n) for n in range(3))


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

    @pytest.mark.parametrize("how", ["message", "offsets", "stored", "stored offsets", "automatic", "position"])
    @pytest.mark.parametrize(
        ("received", "offset", "mark"),
        [(1, 0, CommitMetadata(3)), (2, 0, CommitMetadata(4)), (3, 5, None), (4, 6, None)],
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

    @pytest.mark.parametrize("received", [1, 2, 3, 4])
    def test_a_crash_after_any_record_gives_each_payload_once(self, lab, received):
        first = lab.consumer()
        found = receive(first, received)
        first.commit(message=found[-1], asynchronous=False)
        first._native.close()  # as a crash does: nothing is said any more

        second = lab.consumer()
        found += receive(second, 4 - received)

        assert values(found) == [B, b"plain", A, b"end"]
        assert nothing_comes(second)

    def test_where_the_metadata_is_the_users_own_payloads_come_at_least_once(self, lab):
        first = lab.consumer()
        message = receive(first, 2)[-1]
        first.commit(offsets=[at(lab, message.offset() + 1, "my own")], asynchronous=False)
        first.close()

        assert (lab.committed().offset, lab.committed().metadata) == (0, "my own")
        assert values(receive(lab.consumer(), 4)) == [B, b"plain", A, b"end"]

    def test_an_older_message_committed_last_brings_what_came_after_it_again(self, lab):
        first = lab.consumer()
        b, _, a, _ = receive(first, 4)
        first.commit(message=a, asynchronous=False)
        first.commit(message=b, asynchronous=False)
        first.close()

        assert values(receive(lab.consumer(), 3)) == [b"plain", A, b"end"]

    @pytest.mark.parametrize("how", ["stored", "automatic"])
    def test_what_is_delivered_behind_an_open_payload_is_noted_each_time(self, lab, how):
        """The offset stays the same; only the metadata is new."""
        consumer = lab.consumer(wrap={"auto_offset_store": how == "automatic"})
        marks = []
        for _ in range(2):
            (message,) = receive(consumer, 1)
            if how == "stored":
                consumer.store_offsets(message)
            consumer.commit(asynchronous=False)
            marks.append((lab.committed().offset, CommitMetadata.decode(lab.committed().metadata)))

        assert marks == [(0, CommitMetadata(3)), (0, CommitMetadata(4))]
        with pytest.raises(kafka.KafkaException, match="_NO_OFFSET"):
            consumer.commit(asynchronous=False)  # nothing new

    def test_asynchronously_too(self, lab):
        consumer = lab.consumer()
        consumer.commit(message=receive(consumer, 1)[0])
        consumer.close()

        assert (lab.committed().offset, CommitMetadata.decode(lab.committed().metadata)) == (0, CommitMetadata(3))

    def test_the_position_is_unknown_before_the_first_record(self, lab):
        consumer = lab.consumer()

        assert [each.offset for each in consumer.position([at(lab)])] == [kafka.OFFSET_INVALID]

    def test_automatic_commits_leave_out_what_is_still_being_worked_on(self, lab):
        """A message counts as processed when the next one is requested, not when it is returned."""
        consumer = lab.consumer(wrap={"auto_offset_store": True}, enable_auto_commit=True)
        receive(consumer, 3)
        consumer._receiver.stored_at = float("-inf")
        consumer.poll(5)  # the fourth
        consumer._native.commit(asynchronous=False)

        assert lab.committed().offset == 5

    def test_automatic_commits_go_on_while_nothing_comes(self, lab):
        """Messages returned shortly after the last store of offsets are stored while the next poll waits."""
        consumer = lab.consumer(wrap={"auto_offset_store": True}, enable_auto_commit=True, auto_commit_interval_ms=10)
        receive(consumer, 4)
        assert nothing_comes(consumer)
        consumer.poll(0.5)

        assert lab.committed().offset == 6

    def test_what_consume_has_found_is_not_stored_before_its_user_has_it(self, lab):
        consumer = lab.consumer(wrap={"auto_offset_store": True}, enable_auto_commit=True)
        consumer._receiver.stored_at = float("-inf")
        assert len(consumer.consume(5, 2.0)) == 4  # it waits for a fifth, and offsets might be stored meanwhile

        with pytest.raises(kafka.KafkaException, match="_NO_OFFSET"):
            consumer._native.commit(asynchronous=False)


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

    def test_what_came_twice_does_not_hold_the_offset(self, lab):
        first, second = chunks_of(A, 2)
        lab.send_raw(first, second, first, second)
        consumer = lab.consumer(wrap={"auto_offset_store": True})
        assert values(receive(consumer, 1)) == [A]
        assert nothing_comes(consumer)

        consumer.commit(asynchronous=False)

        assert lab.committed().offset == 4

    def test_a_late_duplicate_does_not_bring_a_payload_again(self, lab):
        """The first chunk is before the committed offset, and the payload was delivered from there."""
        first, second = chunks_of(A, 2)
        lab.send_raw(first, second, second, b"end")
        consumer = lab.consumer()
        consumer.commit(message=receive(consumer, 1)[0], asynchronous=False)
        consumer.close()

        again = lab.consumer()

        assert values(receive(again, 1)) == [b"end"]
        assert nothing_comes(again)

    def test_one_that_comes_behind_the_others_is_waited_for(self, lab):
        """Retries of a client without idempotence change the order."""
        chunks = chunks_of(A, 4)
        lab.send_raw(*chunks[1:], chunks[0], b"end")

        messages = receive(lab.consumer(), 2)

        assert values(messages) == [A, b"end"]
        assert (messages[0].offset(), last_offset(messages[0])) == (0, 3)

    def test_one_that_retention_has_removed_is_reported_at_once(self, lab):
        lab.send_raw(*chunks_of(A, 4), b"end")
        lab.remove_below(2)
        consumer = lab.consumer()

        bad, end = receive(consumer, 2)
        consumer.commit(message=end, asynchronous=False)

        assert says_removed(bad, low=2)
        assert (bad.offset(), end.value(), lab.committed().offset) == (2, b"end", 5)

    def test_and_so_is_one_that_it_removed_behind_the_committed_offset(self, lab):
        """The consumer is away, and the broker silently moves it forward."""
        lab.send_raw(b"zero", *chunks_of(A, 4), b"end")
        consumer = lab.consumer()
        receive(consumer, 1)
        consumer.commit(offsets=[at(lab, 1)], asynchronous=False)
        consumer.close()
        lab.remove_below(3)

        bad, end = receive(lab.consumer(), 2)

        assert says_removed(bad, low=3)
        assert end.value() == b"end"

    def test_one_whose_chunks_changed_their_order_is_delivered_behind_what_was_removed(self, lab):
        """Only near the start can a first chunk be missing because retention removed it."""
        lab.send_raw(b"gone", *[b"plain"] * 1100)
        lab.remove_below(1)
        chunks = chunks_of(A, 3)
        lab.send_raw(chunks[1], chunks[0], chunks[2])

        messages = receive(lab.consumer(), 1101)

        assert messages[-1].value() == A

    @pytest.mark.parametrize("chunking", [{}, {"max_redeliveries": 0}])
    def test_from_the_end_on_a_payload_that_began_before_is_passed_over(self, lab, chunking):
        chunks = chunks_of(A, 3)
        lab.send_raw(*chunks[:2])
        consumer = lab.consumer(auto_offset_reset="latest", cc=self.impatient(lab, **chunking))
        while not consumer.assignment():
            consumer.poll(0.1)
        assert nothing_comes(consumer, 0.5)
        lab.send_raw(chunks[2], b"end")

        (message,) = receive(consumer, 1)
        assert nothing_comes(consumer, 3.0)
        consumer.commit(message=message, asynchronous=False)

        assert message.value() == b"end"
        assert lab.committed().offset == 4

    def impatient(self, lab, **chunking):
        return lab.claimcheck("external", chunking={"expire_after_seconds": 1.5, **chunking})


class TestSeek:
    def test_forward(self, lab):
        lab.send_raw(*chunks_of(A, 3), b"plain", *chunks_of(B, 2))
        consumer = lab.consumer()
        receive(consumer, 1)

        consumer.seek(at(lab, 4))

        assert values(receive(consumer, 1)) == [B]

    def test_back_to_a_committed_place_with_its_metadata_brings_nothing_twice(self, lab):
        a, b = chunks_of(A, 2), chunks_of(B, 2)
        lab.send_raw(a[0], b[0], b[1], b"plain", a[1])
        consumer = lab.consumer()
        consumer.commit(message=receive(consumer, 1)[0], asynchronous=False)
        receive(consumer, 2)

        (committed,) = consumer.committed([at(lab)], 10)
        consumer.seek(committed)

        assert values(receive(consumer, 2)) == [b"plain", A]

    def test_what_was_read_ahead_is_forgotten(self, lab):
        producer = lab.producer("external")
        for n in range(4):
            producer.produce(lab.topic, content(2 * LIMIT, n))
        producer.flush(30)
        consumer = lab.consumer(wrap={"prefetch_bytes": 10 * LIMIT})
        receive(consumer, 1)

        consumer.seek(at(lab, 0))

        assert values(receive(consumer, 4)) == [content(2 * LIMIT, n) for n in range(4)]
        assert nothing_comes(consumer, 0.5)


class TestPause:
    @pytest.mark.parametrize("prefetch_bytes", [0, 10 * LIMIT])
    def test_nothing_comes_meanwhile_and_nothing_is_lost(self, lab, prefetch_bytes):
        producer = lab.producer("external")
        for n in range(4):
            producer.produce(lab.topic, content(2 * LIMIT, n))
        producer.flush(30)
        consumer = lab.consumer(wrap={"prefetch_bytes": prefetch_bytes})
        found = receive(consumer, 1)

        consumer.pause([at(lab)])
        assert nothing_comes(consumer)
        consumer.resume([at(lab)])

        assert values(found + receive(consumer, 3)) == [content(2 * LIMIT, n) for n in range(4)]

    def test_in_the_middle_of_a_payload(self, lab):
        chunks = chunks_of(A, 4)
        lab.send_raw(*chunks[:2])
        consumer = lab.consumer()
        assert nothing_comes(consumer)
        consumer.pause([at(lab)])
        lab.send_raw(*chunks[2:])
        assert nothing_comes(consumer)

        consumer.resume([at(lab)])

        assert values(receive(consumer, 1)) == [A]

    def test_nothing_is_read_again_meanwhile(self, lab):
        """Retention could remove the record to which the consumer went back."""
        clock = Clock()
        lab.send_raw(chunks_of(A, 2)[0], b"plain")
        consumer = lab.consumer(wrap={"clock": clock})
        assert values(receive(consumer, 1)) == [b"plain"]
        consumer.pause([at(lab)])
        clock.ahead += 61
        assert nothing_comes(consumer, 0.5)
        lab.remove_below(1)

        consumer.resume([at(lab)])

        (bad,) = receive(consumer, 1)
        assert says_removed(bad, low=1)


class TestNeverComplete:
    """Incomplete payloads, with each action that the configuration allows."""

    def consumer(self, lab, action="redeliver", expire=0.5, wrap=None, **chunking):
        told = {"expire_after_seconds": expire, "on_expire": action, "on_evict": action, **chunking}
        return lab.consumer(cc=lab.claimcheck("external", chunking=told), wrap=wrap)

    def test_not_read_again_where_that_is_not_wanted(self, lab):
        lab.send_raw(chunks_of(A, 3)[0], b"plain")
        consumer = self.consumer(lab, max_redeliveries=0)

        plain, bad = receive(consumer, 2)

        assert plain.value() == b"plain"
        assert isinstance(bad.payload_error, IncompletePayloadError)

    def test_dead_letter_hands_it_out_at_once_and_only_once(self, lab):
        chunks = chunks_of(A, 3)
        lab.send_raw(chunks[0], b"plain")
        consumer = self.consumer(lab, "dead_letter")
        plain, bad = receive(consumer, 2)
        lab.send_raw(chunks[1], b"end")

        (end,) = receive(consumer, 1)
        consumer.commit(message=end, asynchronous=False)

        assert isinstance(bad.payload_error, IncompletePayloadError)
        assert (plain.value(), end.value(), lab.committed().offset) == (b"plain", b"end", 4)

    def test_and_by_the_next_owner_if_this_one_dies_meanwhile(self, lab):
        a, b = chunks_of(A, 2), chunks_of(B, 2)
        lab.send_raw(a[0], b[0], b[1], b"plain")
        first = self.consumer(lab, expire=60, max_pending_payloads=1)
        found = receive(first, 2)
        first.commit(message=found[-1], asynchronous=False)
        first._native.close()
        assert CommitMetadata.decode(lab.committed().metadata) == CommitMetadata(4, frozenset({0}))
        lab.send_raw(a[1])

        assert values(receive(self.consumer(lab), 1)) == [A]

    def test_a_writer_that_gave_up_after_it_was_let_go_of(self, lab):
        identity = str(uuid.uuid4())
        lab.send_raw(chunks_of(A, 3, identity)[0], *chunks_of(B, 2), b"plain")
        consumer = self.consumer(lab, expire=60, max_pending_payloads=1, max_redeliveries=5)
        receive(consumer, 2)
        lab.send_raw(encode_abort(identity), b"end")

        (end,) = receive(consumer, 1)
        consumer.commit(message=end, asynchronous=False)

        assert end.value() == b"end"
        assert lab.committed().offset == 6

    def test_bounded_in_bytes(self, lab):
        a, b = chunks_of(A, 2), chunks_of(B, 2)
        lab.send_raw(a[0], b[0], b[1], a[1])
        consumer = self.consumer(lab, expire=60, max_pending_bytes=700, max_payload_bytes=700)

        assert sorted(values(receive(consumer, 2))) == sorted([A, B])
        assert consumer.pending_bytes == 0
