"""Orders of events that the simulation meets once in thousands of schedules, and that lost something before."""

import pulsar
import pytest

import claimcheck
from claimcheck.transports.kafka import KafkaConsumer
from claimcheck.transports.pulsar import PulsarConsumer
from tests.harness import kafka_model, pulsar_model
from tests.harness.scheduler import patched
from tests.harness.topic import topic_of
from tests.kit.transport_harness import chunks_of

PAYLOAD = b"payload " * 100


@pytest.fixture
def cc():
    with claimcheck.from_dict({"strategy": "chunking"}) as cc, patched(kafka_model.CLIENTS):
        yield cc


def pulsar_consumer(cc, topic, process):
    group = pulsar_model.Subscription("s", topic)
    client = pulsar_model.ConsumerClient(group, process)
    return group, client, PulsarConsumer(client, cc, consumer_type=pulsar.ConsumerType.Exclusive, prefetch_bytes=0)


def kafka_consumer(cc, topic, process, committed):
    group = kafka_model.Group("g", topic)
    group.committed[0] = (committed, None)
    consumer = KafkaConsumer(kafka_model.ConsumerClient(group, process), cc)
    consumer.subscribe(["t"])
    return consumer


def test_pulsar_a_duplicate_that_arrives_while_its_payload_is_acknowledged(cc):
    chunks = chunks_of(PAYLOAD, 2)
    group, client, consumer = pulsar_consumer(cc, *topic_of([*chunks, chunks[1]]))
    message, acknowledge = consumer.receive(0), client.acknowledge

    def with_arrival(message_id):
        if group.next_for(client) is not None:
            consumer.take(client.take())
        acknowledge(message_id)

    client.acknowledge = with_arrival
    consumer.acknowledge(message)

    assert message.data() == PAYLOAD
    assert group.acked == {0, 1, 2}


def test_pulsar_a_cumulative_acknowledgement_of_what_was_redelivered_since(cc):
    chunks = chunks_of(PAYLOAD, 2)
    group, client, consumer = pulsar_consumer(cc, *topic_of([*chunks, b"waits", chunks[1]]))
    consumer.take(*client.batch_receive())
    message = consumer.receive(0)
    group.release(client)
    consumer.take(client.take())

    consumer.acknowledge_cumulative(message)

    assert 2 not in group.acked


def test_kafka_chunks_of_a_payload_that_an_earlier_owner_reported(cc):
    chunks = chunks_of(PAYLOAD, 3)
    topic, process = topic_of([chunks[0], chunks[1], b"before", chunks[2], b"after"])
    topic.low[0] = 1
    consumer = kafka_consumer(cc, topic, process, committed=3)

    assert [message.value() for message in consumer.consume(5, 1)] == [b"after"]


def test_kafka_a_payload_that_waits_while_its_consumer_looks_back(cc):
    old, new = chunks_of(PAYLOAD, 2), chunks_of(PAYLOAD[1:], 2)
    topic, process = topic_of([*old, new[0], b"between", new[1], old[1]])
    consumer = kafka_consumer(cc, topic, process, committed=2)

    for _ in range(2):  # all records, before the first one is returned; then all once more
        consumer._receiver.gather(6, 1)
    message = consumer.poll(0)
    [position] = consumer.position(consumer.assignment())

    assert message.value() == b"between"
    assert position.offset == 2
