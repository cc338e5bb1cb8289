"""Signed messages on a real Kafka: forged and replayed records of a plain client, and dead letters."""

import asyncio
from dataclasses import replace

import pytest
from confluent_kafka.aio import AIOConsumer

import claimcheck
from claimcheck._wire.envelope import encode_abort
from claimcheck.config import HEADER
from claimcheck.errors import PointerRejectedError
from claimcheck.transports.kafka import AsyncKafkaConsumer
from tests.integration.kafka_rig import LIMIT, chunks_of, content, receive, rig

SIGNING = {"key_id": "k1", "keys": {"k1": "a secret of ours"}}
LITERAL = HEADER + b" and then some"
BIG = content(5 * LIMIT)


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        yield lab


@pytest.fixture
def other(lab):
    return lab.create(1, f"{lab.topic}.salaries")


def sent(lab, strategy, topic, *payloads, **signing):
    producer = lab.producer(lab.claimcheck(strategy, signing=SIGNING | signing))
    for payload in payloads:
        producer.produce(topic, payload, key=b"k", headers={"a": b"b"})
    producer.flush()


def records(lab, topic, count):
    """Return the records of a topic as a plain client sees them."""
    consumer = lab.native_consumer("plain")
    consumer.subscribe([topic])
    found = receive(consumer, count)
    consumer.close()
    return found


def append(lab, topic, *found):
    """Send records to a topic, byte by byte, with a plain client."""
    native = lab.native(message_max_bytes=2_000_000)
    for value, headers in found:
        native.produce(topic, value, key=b"k", headers=headers or None)
    assert native.flush(30) == 0


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_records_of_another_topic_are_refused(lab, other, strategy):
    sent(lab, strategy, lab.topic, BIG, LITERAL)
    cc = lab.claimcheck("external", signing=SIGNING)
    own = receive(lab.consumer(cc=cc), 2)
    assert [message.value() for message in own] == [BIG, LITERAL]
    assert all(message.headers() == [("a", b"b")] for message in own)
    found = records(lab, lab.topic, lab.end())
    append(lab, other, *((each.value(), each.headers()) for each in found))

    replayed = receive(lab.consumer(other, group="replayed", cc=cc), 2)

    assert [message.payload_error.reason for message in replayed] == ["destination"] * 2
    mirror = lab.claimcheck("external", signing=SIGNING | {"accept_from": {other: [lab.topic]}})
    accepted = receive(lab.consumer(other, group="mirror", cc=mirror), 2)
    assert [message.value() for message in accepted] == [BIG, LITERAL]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_forged_records_of_a_plain_client(lab, asynchronous):
    """Chunks, a pointer and an escaped payload without a signature, and an abort envelope between signed chunks."""
    cc = lab.claimcheck("chunking", signing=SIGNING)
    pointer = lab.claimcheck("external").seal(lab.cc.store("m").write(BIG, destination=lab.topic))
    chunks = [(data, None) for data in chunks_of(BIG, 3)]
    append(lab, lab.topic, *chunks, (pointer, None), (HEADER + b"\x00" + LITERAL, None))
    with cc.outbound(BIG, destination=lab.topic, key=b"k", limit=claimcheck.WireLimit(LIMIT)) as out:
        first, *rest = out.envelopes
    middle = replace(first, data=encode_abort(out.uuid), headers=None)
    append(lab, lab.topic, *((each.data, each.headers) for each in (first, middle, *rest)))

    messages = received_async(lab, cc, 5) if asynchronous else receive(lab.consumer(cc=cc), 5)

    assert [type(message.payload_error) for message in messages] == [PointerRejectedError] * 4 + [type(None)]
    assert [message.payload_error.reason for message in messages[:4]] == ["signature"] * 4
    assert messages[4].value() == BIG
    assert messages[4].headers() is None


def received_async(lab, cc, count):
    async def run():
        settings = {"auto.offset.reset": "earliest", "enable.auto.offset.store": False, "enable.auto.commit": False}
        native = AIOConsumer({**lab.servers, "group.id": "async", **settings})
        consumer = AsyncKafkaConsumer(native, cc)
        await consumer.subscribe([lab.topic])
        messages = []
        while len(messages) < count:
            messages += await consumer.consume(count, 1.0)
        await consumer.close()
        return messages

    return asyncio.run(run())


def test_a_refused_payload_does_not_hold_back_the_commit(lab):
    append(lab, lab.topic, *((data, None) for data in chunks_of(BIG, 3)), (b"plain", None))
    consumer = lab.consumer(cc=lab.claimcheck("external", signing=SIGNING))
    refused, plain = receive(consumer, 2)
    assert (refused.payload_error.reason, plain.value()) == ("signature", b"plain")
    consumer.commit(plain, asynchronous=False)
    (place,) = consumer.committed(consumer.assignment(), timeout=10)
    assert place.offset == 4


def test_plain_records_are_refused_where_envelopes_are_required(lab):
    sent(lab, "external", lab.topic, b"small", BIG, None, require_envelope=True)
    append(lab, lab.topic, (b"forged", None))
    strict = lab.claimcheck("external", signing=SIGNING | {"require_envelope": True})

    small, big, tombstone, forged = receive(lab.consumer(cc=strict), 4)

    assert [small.value(), big.value(), tombstone.value()] == [b"small", BIG, None]
    assert forged.payload_error.reason == "envelope"


def test_an_escaped_payload_is_a_dead_letter_with_its_signature(lab):
    dlq = lab.create(1, f"{lab.topic}.dlq")
    sent(lab, "chunking", lab.topic, BIG, LITERAL)
    wrap = {"dead_letter_producer": lab.native(message_max_bytes=LIMIT + 5000)}
    consumer = lab.consumer(cc=lab.claimcheck("chunking", signing=SIGNING), wrap=wrap)
    for message in receive(consumer, 2):
        consumer.dead_letter(message, dlq)

    accepting = lab.claimcheck("external", signing=SIGNING | {"accept_from": {"*.dlq": [lab.topic]}})
    letters = receive(lab.consumer(dlq, group="letters", cc=accepting), 2)
    assert [letter.value() for letter in letters] == [BIG, LITERAL]
