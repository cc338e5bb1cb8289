"""Signed messages on a real Pulsar: forged and replayed messages of a plain client, partitions and dead letters."""

import pytest

from claimcheck.config import HEADER
from tests.integration.pulsar_rig import LIMIT, content, receive

SIGNING = {"key_id": "k1", "keys": {"k1": "a secret of ours"}}
LITERAL = HEADER + b" and then some"
BIG = content(3 * LIMIT)
STRATEGIES = ("external", "chunking")


def signed(lab, strategy="external", **signing):
    return lab.claimcheck(strategy, signing=SIGNING | signing, stores=stores(lab))


def stores(lab):
    return {"m": {"type": "memory", "space": lab.topic}}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("partitions", [0, 3])
def test_all_names_of_a_topic_are_one(lab, strategy, partitions):
    if partitions:
        lab.broker.create_partitioned(lab.topic, partitions)
    consumer = lab.consumer(cc=signed(lab))
    producer = lab.producer(signed(lab, strategy))
    for number, payload in enumerate((BIG, LITERAL, b"small", BIG + b"1")):
        producer.send(payload, {"a": "b"}, f"k{number}")

    messages = receive(consumer, 4)

    assert sorted(message.data() for message in messages) == sorted((BIG, LITERAL, b"small", BIG + b"1"))
    assert all(message.properties() == {"a": "b"} for message in messages)
