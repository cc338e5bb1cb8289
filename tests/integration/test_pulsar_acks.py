"""Acknowledgements apply to whole payloads, as the broker's statistics show."""

import subprocess
import sys

import pulsar
import pytest

from claimcheck.transports.pulsar import deserialize
from tests.integration.pulsar_rig import (
    KEYED,
    LIMIT,
    MANY,
    chunk,
    content,
    nothing_comes,
    receive,
)


class TestAcknowledge:
    @pytest.mark.parametrize("partitions", [0, 2])
    def test_by_an_id_that_comes_from_another_process(self, lab, partitions):
        if partitions:
            lab.broker.create_partitioned(lab.topic, partitions)
        consumer = lab.consumer()
        lab.producer("chunking").send(content(5 * LIMIT))
        data = consumer.receive(5000).message_id().serialize()
        again = subprocess.run(
            [sys.executable, "-c", _SERIALIZED_AGAIN], input=data, capture_output=True, check=True
        ).stdout

        consumer.acknowledge(deserialize(again))

        lab.settled()

    def test_given_back_by_an_id_that_comes_from_elsewhere(self, lab):
        consumer = lab.consumer(consumer_type=KEYED)
        lab.producer("chunking").send(payload := content(5 * LIMIT))
        first = consumer.receive(5000)

        consumer.negative_acknowledge(deserialize(first.message_id().serialize()))

        again = consumer.receive(5000)
        assert (again.data(), again.redelivery_count()) == (payload, 1)
        consumer.acknowledge(again)
        lab.settled()


A, B = ([chunk(number, position, 2, b"%d%d" % (number, position)) for position in (0, 1)] for number in (1, 2))
CUMULATIVE = {
    "everything": ([b"1", *A, b"2"], [(2, 0)], []),
    "never past the beginning of an incomplete payload": ([b"1", A[0], b"2", b"3"], [(2, 1)], [A[1]]),
    "never past a complete one that goes on behind": ([b"1", A[0], b"2", A[1]], [(1, 2), (2, 0)], []),
    "nothing is known of what lies before": ([A[0], b"2"], [(0, 1)], [A[1]]),
    "the chunks beside another payload that is not settled": ([A[0], B[0], A[1], B[1]], [(0, 2), (1, 0)], []),
    "no late duplicate takes anything else along": ([*A, b"2", A[1]], [(0, 1), (1, 0)], []),
}
"""Messages; which of the received payloads are acknowledged, and the backlog afterwards; what is sent at the end."""


class TestCumulatively:
    @pytest.mark.parametrize(("messages", "acks", "rest"), CUMULATIVE.values(), ids=CUMULATIVE)
    def test_acknowledges(self, lab, messages, acks, rest):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        for message in messages:
            native.send(message)
        payloads = receive(consumer, max(index for index, _ in acks) + 1)
        assert nothing_comes(consumer)

        for index, backlog in acks:
            consumer.acknowledge_cumulative(payloads[index])
            lab.settled(backlog=backlog)

        for message in rest:
            native.send(message)
            consumer.acknowledge_cumulative(consumer.receive(5000))
        lab.settled()

    @pytest.mark.parametrize("id_of", [lambda m: m.message_id(), lambda m: deserialize(m.message_id().serialize())])
    def test_by_an_id(self, lab, id_of):
        consumer, producer = lab.consumer(), lab.producer("chunking", batching_enabled=False)
        for i in range(3):
            producer.send(content(3 * LIMIT, i))

        consumer.acknowledge_cumulative(id_of(receive(consumer, 3)[-1]))

        lab.settled()

    def test_within_a_batch(self, lab):
        """The batch is acknowledged when all of its messages are: two by this call, the chunk with its payload."""
        consumer = lab.consumer()
        native = lab.client.create_producer(lab.topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
        for message in (b"1", chunk(1, 0, 2, b"a"), b"2"):
            native.send_async(message, None)
        native.flush()
        plain = receive(consumer, 2)[-1]
        assert plain.message_id().batch_index() == 2

        consumer.acknowledge_cumulative(plain.message_id())
        lab.settled(backlog=1)

        native.send_async(chunk(1, 1, 2, b"b"), None)
        native.flush()
        consumer.acknowledge(consumer.receive(5000))
        lab.settled()


class TestGiveBack:
    def test_all_that_is_not_acknowledged(self, lab):
        consumer, producer = lab.consumer(), lab.producer("chunking")
        payloads = [content(size, i) for i, size in enumerate([10, 3 * LIMIT, 20])]
        for payload in payloads:
            producer.send(payload)
        receive(consumer, 3)

        consumer.redeliver_unacknowledged_messages()

        again = receive(consumer, 3)
        assert [message.data() for message in again] == payloads
        for message in again:
            consumer.acknowledge(message)
        lab.settled()

    def test_what_the_broker_delivers_again_by_itself(self, lab):
        consumer, producer = lab.consumer(), lab.producer("chunking", batching_enabled=False)
        payloads = [content(size, i) for i, size in enumerate([3 * LIMIT, 10, 4 * LIMIT])]
        for payload in payloads:
            producer.send(payload)
        consumer.acknowledge(receive(consumer, 3)[1])
        lab.settled(backlog=9)

        lab.broker.unload(lab.topic)

        again = receive(consumer, 2, seconds=30)
        assert sorted(message.data() for message in again) == sorted([payloads[0], payloads[2]])
        for message in again:
            consumer.acknowledge(message)
        lab.settled()

    @MANY
    def test_when_its_consumer_goes_it_comes_whole_to_another(self, lab, kind):
        strategy = "external" if kind == pulsar.ConsumerType.Shared else "chunking"
        first = lab.consumer(consumer_type=kind)
        payloads = [content(3 * LIMIT, i) for i in range(4)]
        for payload in payloads:
            lab.producer(strategy).send(payload)
        receive(first, 2)
        second = lab.consumer(consumer_type=kind)

        first.close()

        got = receive(second, 4)
        assert sorted(message.data() for message in got) == sorted(payloads)
        for message in got:
            second.acknowledge(message)
        lab.settled()


_SERIALIZED_AGAIN = """
import sys
from claimcheck.transports.pulsar import deserialize
sys.stdout.buffer.write(deserialize(sys.stdin.buffer.read()).serialize())
"""
