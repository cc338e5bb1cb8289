"""Retention removes records of an incomplete payload: it ends, and nothing else is lost; on a real Kafka."""

import time

import confluent_kafka as kafka
import pytest

from claimcheck.transports.kafka import last_offset
from tests.integration.kafka_rig import Clock, chunks_of, content, nothing_comes, receive, rig, says_removed, values

A, B = (content(600, n) for n in range(2))
PLAIN = [b"plain %d" % n for n in range(10)]

KIP_848 = {"group_protocol": "consumer"}

EVERY_RESET = pytest.mark.parametrize("reset", ["latest", "earliest", "error"])


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        lab.commit(0)  # else nothing would be read where the client starts at the end
        yield lab


def consumer_of(lab, reset, clock=time.monotonic, chunking=None, **options):
    cc = lab.claimcheck("external", chunking=chunking or {})
    return lab.consumer(cc=cc, wrap={"clock": clock}, auto_offset_reset=reset, **options)


def all_done(lab, consumer, last):
    """Whether everything may be committed, and no more messages arrive."""
    consumer.commit(message=last, asynchronous=False)
    return nothing_comes(consumer, 0.5) and lab.committed().offset == lab.end()


@EVERY_RESET
def test_of_chunks_that_expired(lab, reset):
    clock = Clock()
    lab.send_raw(b"before", chunks_of(A, 3)[0], b"behind")
    consumer = consumer_of(lab, reset, clock)
    assert values(receive(consumer, 2)) == [b"before", b"behind"]
    lab.remove_below(2)
    clock.ahead += 61
    lab.send_raw(*PLAIN)

    messages = receive(consumer, 11)

    (bad,) = [message for message in messages if message.offset() == 1]
    assert says_removed(bad, low=2)
    assert values([message for message in messages if message is not bad]) == PLAIN
    assert all_done(lab, consumer, messages[-1])


@EVERY_RESET
def test_of_chunks_that_made_room_for_another_payload(lab, reset):
    (a, b) = chunks_of(A, 2), chunks_of(B, 2)
    lab.send_raw(a[0], b[0], b"behind")
    consumer = consumer_of(lab, reset, chunking={"max_pending_payloads": 1})
    assert values(receive(consumer, 1)) == [b"behind"]
    lab.remove_below(1)
    lab.send_raw(a[1], b[1], *PLAIN)

    messages = receive(consumer, 12)

    (bad,) = [message for message in messages if message.offset() == 0]
    assert says_removed(bad, low=1)
    assert values([message for message in messages if message is not bad]) == [B, *PLAIN]
    assert all_done(lab, consumer, messages[-1])


@pytest.mark.parametrize("reset", ["latest", "earliest"])  # with "error" the client reports it, and loses nothing
def test_after_the_low_watermark_was_read(lab, reset):
    """The consumer goes back to a record that retention removes at that moment."""
    clock = Clock()
    a, b = chunks_of(A, 2), chunks_of(B, 2)
    lab.send_raw(a[0], b[0], b"behind")
    consumer = consumer_of(lab, reset, clock)
    assert values(receive(consumer, 1)) == [b"behind"]
    read_low = consumer._assignment.low

    def low(source):
        consumer._assignment.low = read_low
        answer = read_low(source)
        lab.remove_below(1)
        return answer

    consumer._assignment.low = low
    clock.ahead += 61
    lab.send_raw(b[1], *PLAIN)

    messages = receive(consumer, 12, 3.0)
    lab.send_raw(b"last")  # a client that continued at the end notices only now
    messages += receive(consumer, 13 - len(messages))

    (bad,) = [message for message in messages if message.offset() == 0]
    assert says_removed(bad, low=1)
    assert sorted(values([message for message in messages if message is not bad])) == sorted([B, *PLAIN, b"last"])
    assert all_done(lab, consumer, max(messages, key=last_offset))


@EVERY_RESET
@pytest.mark.parametrize("protocol", [{}, {"partition_assignment_strategy": "cooperative-sticky"}, KIP_848])
def test_while_no_consumer_is_there(lab, reset, protocol):
    """An incomplete payload holds back the group's offset; later payloads were delivered."""
    lab.send_raw(chunks_of(A, 2)[0], b"one", b"two")
    first = consumer_of(lab, reset, **protocol)
    first.commit(message=receive(first, 1)[0], asynchronous=False)
    first.close()
    assert lab.committed().offset == 0
    lab.remove_below(1)
    second = consumer_of(lab, reset, **protocol)

    messages = receive(second, 1)
    lab.send_raw(*PLAIN)
    messages += receive(second, 10)

    assert values(messages) == [b"two", *PLAIN]
    assert all_done(lab, second, messages[-1])


@EVERY_RESET
def test_partitions_that_are_assigned_by_hand(lab, reset):
    lab.send_raw(chunks_of(A, 2)[0], b"one", b"two")
    first = consumer_of(lab, reset)
    first.commit(message=receive(first, 1)[0], asynchronous=False)
    first.close()
    lab.remove_below(1)
    second = consumer_of(lab, reset, subscribe=False)

    second.assign([kafka.TopicPartition(lab.topic, 0)])

    assert values(receive(second, 1)) == [b"two"]
