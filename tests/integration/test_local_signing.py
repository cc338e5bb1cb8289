"""Signed messages through the embedded broker: what a writer without the key, or of another topic, cannot do."""

import os

import pytest

from claimcheck._operate.redrive import Redrive, RedriveReport
from claimcheck.config import HEADER
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
