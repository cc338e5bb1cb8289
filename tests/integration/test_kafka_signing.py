"""Signed messages on a real Kafka: forged and replayed records of a plain client, and dead letters."""

import pytest

from claimcheck.config import HEADER
from tests.integration.kafka_rig import LIMIT, content, receive, rig

SIGNING = {"key_id": "k1", "keys": {"k1": "a secret of ours"}}
LITERAL = HEADER + b" and then some"
BIG = content(5 * LIMIT)


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        yield lab


def sent(lab, strategy, topic, *payloads, **signing):
    producer = lab.producer(lab.claimcheck(strategy, signing=SIGNING | signing))
    for payload in payloads:
        producer.produce(topic, payload, key=b"k", headers={"a": b"b"})
    producer.flush()


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
