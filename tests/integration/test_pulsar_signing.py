"""Signed messages on a real Pulsar: forged and replayed messages of a plain client, partitions and dead letters."""

import pytest

import claimcheck
from claimcheck._wire.envelope import encode_abort
from claimcheck.config import HEADER
from claimcheck.errors import PointerRejectedError
from tests.integration.pulsar_rig import LIMIT, chunk, content, receive, rig_on

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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_messages_of_another_topic_are_refused(lab, strategy):
    other = rig_on(lab, f"{lab.topic}-salaries")
    plain, producer = lab.subscribe("plain"), lab.producer(signed(lab, strategy))
    for payload in (BIG, LITERAL):
        producer.send(payload, partition_key="k")
    native = lab.client.create_producer(other.topic)
    for _ in range(2 if strategy == "external" else 5):
        found = plain.receive(5000)
        native.send(found.data(), properties=found.properties(), partition_key="k")

    replayed = receive(other.consumer(cc=signed(lab)), 2)

    assert [message.error.reason for message in replayed] == ["destination"] * 2
    accepting = signed(lab, accept_from={other.topic: [lab.topic]})
    assert [message.data() for message in receive(other.consumer("t", cc=accepting), 2)] == [BIG, LITERAL]


def test_forged_messages_of_a_plain_client(lab):
    """The abort envelope comes from a producer of the same name as the writer of the signed chunks."""
    cc = signed(lab, "chunking")
    consumer = lab.consumer(cc=cc)
    native = lab.client.create_producer(lab.topic, producer_name="writer", max_pending_messages=10)
    unsigned = lab.claimcheck("external", stores=stores(lab))
    native.send(unsigned.seal(unsigned.store("m").write(BIG, destination=lab.topic)))
    for data in (chunk(1, 0, 2, b"for"), chunk(1, 1, 2, b"ged"), HEADER + b"\x00" + LITERAL):
        native.send(data)
    limit = claimcheck.WireLimit(LIMIT, lambda key, headers: 2000)
    with cc.outbound(BIG, destination=lab.topic, key="k", limit=limit) as out:
        first, *rest = out.envelopes
    native.send(first.data, properties=first.headers, partition_key="k")
    native.send(encode_abort(out.uuid), partition_key="k")
    for each in rest:
        native.send(each.data, properties=each.headers, partition_key="k")

    messages = receive(consumer, 5)

    assert [type(message.error) for message in messages] == [PointerRejectedError] * 4 + [type(None)]
    assert [message.error.reason for message in messages[:4]] == ["signature"] * 4
    assert messages[4].data() == BIG
    for message in messages:
        consumer.acknowledge(message)
    lab.settled()


def test_plain_messages_are_refused_where_envelopes_are_required(lab):
    strict = signed(lab, require_envelope=True)
    consumer, producer = lab.consumer(cc=strict), lab.producer(strict)
    for payload in (b"small", BIG, None):
        producer.send(payload)
    lab.client.create_producer(lab.topic).send(b"forged")

    small, big, tombstone, forged = receive(consumer, 4)

    assert [small.data(), big.data()] == [b"small", BIG]
    assert tombstone.has_null_value()
    assert forged.error.reason == "envelope"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dead_letters_keep_their_signature(lab, strategy):
    aside = lab.client.create_producer(f"{lab.topic}-dlq")
    lab.producer(signed(lab, strategy)).send(BIG, partition_key="k")
    consumer = lab.consumer(cc=signed(lab), wrap={"dead_letter_producer": aside})
    consumer.dead_letter(consumer.receive(5000))

    letters = rig_on(lab, f"{lab.topic}-dlq")
    assert letters.consumer("a", cc=signed(lab)).receive(5000).error.reason == "destination"
    accepting = signed(lab, accept_from={"*-dlq": [lab.topic]})
    assert letters.consumer("b", cc=accepting).receive(5000).data() == BIG
