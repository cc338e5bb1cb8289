"""Dead letters of Kafka: what was received goes to another topic whole, and its payload lives longer."""

import asyncio

import confluent_kafka as kafka
import pytest
from confluent_kafka.aio import AIOConsumer

from claimcheck._wire.envelope import encode_literal, encode_pointer
from claimcheck.errors import ArgumentTypeError, ClaimCheckError, ConfigError
from claimcheck.transports.kafka import AsyncKafkaConsumer
from tests.integration.kafka_rig import LIMIT, chunks_of, content, receive, rig

KEY = {"key_id": "a", "keys": {"a": "0123456789abcdef"}}


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        lab.create(2, f"{topic}.dlq")
        yield lab


def letters(lab, count, cc=None):
    """Return the messages of the dead-letter topic."""
    return receive(lab.consumer(f"{lab.topic}.dlq", group="letters", cc=cc), count)


def dead_letter(lab, count=1, *, cc=None, **wrap):
    """Receive messages, send them to the dead-letter topic and commit them."""
    wrap = {"dead_letter_producer": lab.native(message_max_bytes=LIMIT + 2000), **wrap}
    consumer = lab.consumer(cc=cc, wrap=wrap)
    for message in receive(consumer, count):
        consumer.dead_letter(message, f"{lab.topic}.dlq", reason="no sense in it")
        consumer.commit(message, asynchronous=False)
    (place,) = consumer.committed([kafka.TopicPartition(lab.topic, 0)], timeout=10)
    return place.offset


def test_the_pointer_of_a_stored_payload_is_unchanged(lab):
    cc = lab.claimcheck("external", signing=KEY)
    producer = lab.producer(cc)
    producer.produce(lab.topic, payload := content(5 * LIMIT), key=b"k", headers={"a": b"b"})
    producer.flush()

    assert dead_letter(lab, cc=cc) == 1

    consumer = lab.native_consumer("letters")
    consumer.subscribe([f"{lab.topic}.dlq"])
    (record,) = receive(consumer, 1)
    consumer.close()
    assert cc.resolve(record.value(), destination=lab.topic) == payload
    about = dict(record.headers())
    assert (record.key(), about["a"], about["dead-letter-reason"]) == (b"k", b"b", b"no sense in it")
    assert (about["dead-letter-topic"], about["dead-letter-partition"], about["dead-letter-offset"]) == (
        lab.topic.encode(),
        b"0",
        b"0",
    )


@pytest.mark.parametrize("key", [b"k", None])
def test_chunks_arrive_as_one_payload(lab, key):
    producer = lab.producer("chunking")
    producer.produce(lab.topic, payload := content(5 * LIMIT), key=key, headers={"a": b"b"})
    producer.flush()

    dead_letter(lab)

    (letter,) = letters(lab, 1)
    assert (letter.value(), letter.key(), dict(letter.headers())["a"]) == (payload, key, b"b")
    assert dict(letter.headers())["dead-letter-reason"] == b"no sense in it"


def test_what_cannot_be_read_arrives_unchanged(lab):
    first, _ = chunks_of(content(100), 2)
    damaged = encode_pointer(b"no pointer")
    look_alike = encode_literal(encode_pointer(b"a payload that looks like an envelope"))
    lab.send_raw(first, damaged, look_alike, None, b"plain")

    cc = lab.claimcheck("external", chunking={"max_redeliveries": 0})
    dead_letter(lab, 5, cc=cc, clock=Hurried())

    consumer = lab.native_consumer("letters")
    consumer.subscribe([f"{lab.topic}.dlq"])
    values = [record.value() for record in receive(consumer, 5)]
    consumer.close()
    assert sorted(values, key=str) == sorted([first, damaged, look_alike, None, b"plain"], key=str)


class Hurried:
    """A clock that passes a minute at each look, so that chunks expire at once."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 60
        return self.now


def test_a_consumer_without_a_producer_keeps_no_chunks(lab):
    producer = lab.producer("chunking")
    producer.produce(lab.topic, content(5 * LIMIT))
    producer.flush()
    consumer = lab.consumer()
    (message,) = receive(consumer, 1)

    assert message.records == ()
    with pytest.raises(ConfigError, match="dead_letter_producer"):
        consumer.dead_letter(message, f"{lab.topic}.dlq")
    other = lab.consumer(group="other", subscribe=False, wrap={"dead_letter_producer": lab.native()})
    with pytest.raises(ClaimCheckError, match="the chunks were not kept"):
        other.dead_letter(message, f"{lab.topic}.dlq")
    with pytest.raises(ArgumentTypeError, match="dead_letter_producer"):
        lab.consumer(group="third", subscribe=False, wrap={"dead_letter_producer": producer})


def test_a_refused_dead_letter_is_an_error(lab):
    lab.send_raw(b"plain")
    consumer = lab.consumer(wrap={"dead_letter_producer": lab.native()})
    (message,) = receive(consumer, 1)

    with pytest.raises(kafka.KafkaException):
        consumer.dead_letter(message, "not a valid name")


def test_on_an_event_loop(lab):
    lab.send_raw(b"plain")

    async def run():
        native = AIOConsumer(
            {**lab.servers, "group.id": "aio", "auto.offset.reset": "earliest", "enable.auto.offset.store": False}
        )
        async with AsyncKafkaConsumer(native, lab.cc, dead_letter_producer=lab.native()) as consumer:
            await consumer.subscribe([lab.topic])
            message = await consumer.poll(30)
            await consumer.dead_letter(message, f"{lab.topic}.dlq")

    asyncio.run(run())

    (letter,) = letters(lab, 1)
    assert letter.value() == b"plain"
