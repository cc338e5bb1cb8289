"""Subscriptions of several consumers: one receives all messages of a payload, or an error explains why not."""

import pulsar
import pytest

from claimcheck.transports.pulsar import PulsarConsumer, SharedSubscriptionError
from tests import servers
from tests.integration.pulsar_rig import KEYED, LIMIT, MANY, UUID, chunk, content, nothing_comes, pending, receive


class TestShared:
    def test_chunks_are_refused_and_the_way_out_is_named(self, lab):
        consumer = lab.consumer(consumer_type=pulsar.ConsumerType.Shared)
        lab.producer("chunking").send(content(LIMIT + 1))
        lab.producer("external").send(payload := content(LIMIT + 2))

        first, second, pointer = receive(consumer, 3)

        for refused in (first, second):
            with pytest.raises(SharedSubscriptionError, match="Key_Shared"):
                refused.data()
            consumer.acknowledge(refused)
        assert pointer.data() == payload
        consumer.acknowledge(pointer)
        lab.settled()

    @pytest.mark.parametrize("partitions", [0, 2])
    @MANY
    def test_a_type_that_nobody_told_is_found_out(self, lab, kind, partitions):
        if partitions:
            lab.broker.create_partitioned(lab.topic, partitions)
        consumer = PulsarConsumer(lab.subscribe(consumer_type=kind), lab.cc)
        lab.producer("chunking").send(content(LIMIT + 1))

        assert "consumer_type" in str(consumer.receive(5000).error)

    @pytest.mark.parametrize("partitions", [0, 2])
    @pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover], ids=str)
    def test_of_others_nothing_has_to_be_told(self, lab, kind, partitions):
        if partitions:
            lab.broker.create_partitioned(lab.topic, partitions)
        consumer = PulsarConsumer(lab.subscribe(consumer_type=kind), lab.cc)
        lab.producer("chunking").send(payload := content(LIMIT + 1))

        assert consumer.receive(5000).data() == payload


class TestManyConsumers:
    def test_key_shared_keeps_payloads_whole_while_a_consumer_joins(self, lab):
        """The broker holds the last chunks for their new owner until the old one releases the first: they expire."""
        cc = lab.claimcheck("external", chunking={"expire_after_seconds": 1})
        first = lab.consumer(cc=cc, consumer_type=KEYED)
        native = lab.client.create_producer(lab.topic)
        payloads = {i: [b"%d-%d" % (i, n) for n in range(4)] for i in range(9)}

        def send(numbers):
            for n in numbers:
                for i, pieces in payloads.items():
                    native.send(chunk(i, n, 4, pieces[n]), partition_key=UUID.format(i))

        send([0, 1])
        assert nothing_comes(first)
        second = lab.consumer(cc=cc, consumer_type=KEYED)
        send([2, 3])

        got = []
        for consumer in (first, second) * 10:
            while len(got) < len(payloads) and (message := _next(consumer)) is not None:
                got.append(message.data())
                consumer.acknowledge(message)
        assert sorted(got) == sorted(b"".join(pieces) for pieces in payloads.values())
        lab.settled()

    def test_failover_in_the_middle_of_a_payload(self, lab):
        kind = pulsar.ConsumerType.Failover
        first, second = (lab.consumer(consumer_type=kind, consumer_name=name) for name in "ab")
        native = lab.client.create_producer(lab.topic)
        for i in range(2):
            native.send(chunk(1, i, 3, b"%d" % i))
        servers.wait_until(lambda: pending(first) + pending(second) == 1, "one of them has the head")
        (active,), (other,) = ([one for one in (first, second) if one.pending_payloads == held] for held in (1, 0))

        active.close()
        native.send(chunk(1, 2, 3, b"2"))

        message = other.receive(10_000)
        assert message.data() == b"012"
        other.acknowledge(message)
        lab.settled()


def _next(consumer):
    try:
        return consumer.receive(500)
    except pulsar.Timeout:
        return None
