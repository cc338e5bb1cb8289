"""Signed messages through the embedded broker: what a writer without the key, or of another topic, cannot do."""

import os

import pytest

import claimcheck
from claimcheck._operate.redrive import Redrive, RedriveReport
from claimcheck._wire.envelope import decode, encode_abort
from claimcheck.config import HEADER
from claimcheck.errors import PointerRejectedError
from claimcheck.transports.local import LocalConsumer, LocalProducer
from tests.local_letters import LocalLetters, dead_letter
from tests.local_rig import BIG, LIMIT, drain

SIGNING = {"key_id": "k1", "keys": {"k1": "a secret of ours"}}
LITERAL = HEADER + b" and then some"
PAYLOADS = [BIG, LITERAL, os.urandom(3 * LIMIT)]


@pytest.fixture
def signed(configure):
    """Sends stored payloads to ``wide``, and chunks to all other topics."""
    return configure("chunking", signing=SIGNING, destinations={"wide": {"strategy": "external"}})


def resend(broker, source, target, *, keep=lambda headers: headers):
    """Copy all messages of a topic to another one, byte by byte, as anybody can who may read and write both."""
    for partition in range(broker.partitions(source)):
        for message in broker.fetch(source, partition, 0, 99):
            headers = keep(message.headers)
            broker.append(target, message.value, key=message.key, headers=headers, partition=0)


@pytest.mark.parametrize("topic", ["orders", "wide"])
def test_signed_payloads_arrive_with_the_headers_of_their_sender(broker, signed, consume, topic):
    producer = LocalProducer(broker, signed)
    for payload in [*PAYLOADS, b"small", None]:
        producer.send(topic, payload, key="k", headers={"a": "b"})

    messages = drain(consume(topic, cc=signed))

    assert [message.value for message in messages] == [*PAYLOADS, b"small", None]
    assert all(message.headers == [("a", b"b")] for message in messages)


@pytest.mark.parametrize("topic", ["orders", "wide"])
def test_messages_of_another_topic_are_refused(broker, signed, configure, consume, topic):
    broker.create_topic("salaries", partitions=1)
    for payload in PAYLOADS:
        LocalProducer(broker, signed).send(topic, payload, key="k")
    resend(broker, topic, "salaries")

    messages = drain(consume("salaries", cc=signed))

    assert len(messages) == len(PAYLOADS)
    for message in messages:
        assert isinstance(message.error, PointerRejectedError)
        assert message.error.reason == "destination"

    mirror = configure(signing=SIGNING | {"accept_from": {"sal*": [topic]}})
    assert [message.value for message in drain(consume("salaries", cc=mirror, group="other"))] == PAYLOADS


@pytest.mark.parametrize("topic", ["orders", "wide"])
def test_messages_without_a_signature_are_refused(broker, signed, configure, consume, topic):
    unsigned = configure("chunking", destinations={"wide": {"strategy": "external"}})
    for payload in PAYLOADS:
        LocalProducer(broker, unsigned).send(topic, payload, key="k")

    messages = drain(consume(topic, cc=signed))

    assert len(messages) == len(PAYLOADS)
    assert all(message.error.reason == "signature" for message in messages)


def test_an_abort_envelope_without_a_signature_drops_nothing(broker, signed, consume):
    limit = claimcheck.WireLimit(LIMIT, lambda key, headers: 1500)
    with signed.outbound(BIG, destination="orders", key=b"k", limit=limit) as out:
        first, *rest = out.envelopes
    for envelope in (first, claimcheck.Envelope(encode_abort(decode(first.data).uuid), None, b"k"), *rest):
        broker.append("orders", envelope.data, key=b"k", headers=envelope.headers)

    refused, whole = drain(consume(cc=signed))

    assert isinstance(refused.error, PointerRejectedError)
    assert refused.offset == 1
    assert whole.value == BIG


def test_plain_messages_are_refused_where_envelopes_are_required(broker, configure, consume):
    strict = configure(signing=SIGNING | {"require_envelope": True})
    producer = LocalProducer(broker, strict)
    for payload in [b"small", b"", None, *PAYLOADS]:
        producer.send("orders", payload, key="k")
    broker.append("orders", b"forged", key=b"k")

    *messages, forged = drain(consume(cc=strict))

    assert [message.value for message in messages] == [b"small", b"", None, *PAYLOADS]
    assert forged.error.reason == "envelope"


@pytest.mark.parametrize("topic", ["orders", "wide"])
def test_dead_letters_go_back_without_further_configuration(broker, configure, topic):
    signing = SIGNING | {"max_age_seconds": 3600}
    cc = configure("chunking", signing=signing, destinations={"wide": {"strategy": "external"}})
    letters = f"{topic}.dead_letter"
    for payload in PAYLOADS:
        LocalProducer(broker, cc).send(topic, payload, key="k", headers={"a": "b"})
    with LocalConsumer(broker, cc, topics=[topic], group="app") as consumer:
        while (message := consumer.receive(timeout=0)) is not None:
            dead_letter(broker, cc, consumer, message)
    with LocalConsumer(broker, cc, topics=[letters], group="app") as consumer:
        assert consumer.receive(timeout=0).error.reason == "destination"
    reader = configure(signing=SIGNING | {"accept_from": {"*.dead_letter": [topic]}})
    with LocalConsumer(broker, reader, topics=[letters], group="other") as consumer:
        assert [message.value for message in drain(consumer)] == PAYLOADS

    dead, report = LocalLetters(broker, cc, source=letters, target=topic, group="redrive"), RedriveReport(False)
    Redrive(dry_run=False).run(dead.letters(), report, lambda: None)
    dead.close()

    assert (report.sent, report.unreadable) == (len(PAYLOADS), 0)
    with LocalConsumer(broker, cc, topics=[topic], group="app") as consumer:
        assert [message.value for message in drain(consumer)] == PAYLOADS


def test_a_redrive_signs_no_message_of_a_third_topic(broker, signed):
    """Whoever can write to the dead-letter topic could otherwise have any message of another topic signed."""
    for name in ("orders.dead_letter", "salaries"):
        broker.create_topic(name, partitions=1)
    LocalProducer(broker, signed).send("salaries", BIG, key="k")
    origin = [("dead-letter-topic", b"orders")]
    resend(broker, "salaries", "orders.dead_letter", keep=lambda headers: [*headers, *origin])

    topic = LocalLetters(broker, signed, source="orders.dead_letter", target="orders", group="redrive")
    report = RedriveReport(dry_run=False)
    Redrive(dry_run=False).run(topic.letters(), report, lambda: None)
    topic.close()

    assert (report.sent, report.unreadable) == (0, 1)
    assert broker.end_offset("orders", 0) == 0
