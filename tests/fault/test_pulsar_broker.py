"""A broker is killed and restarted under load: every payload reported as sent is delivered, byte for byte."""

import logging
import os
import threading
import time

import pulsar
import pytest

import claimcheck
from claimcheck.errors import ClaimCheckError
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests import servers
from tests.integration.pulsar_rig import content

LIMIT = servers.PULSAR_MAX_MESSAGE_BYTES
EACH = 10
SIZES = [1_000, 50_000, 300_000, 2_000_000, 20_000_000]


@pytest.fixture
def broker(pulsar_jars):
    """A separate broker, to be killed."""
    if servers.PULSAR_JARS not in os.environ:
        pytest.skip("no jars to start a broker of one's own")
    with servers.pulsar(durable=True) as broker:
        yield broker


@pytest.fixture
def client(broker):
    logger = logging.getLogger("pulsar-client-of-a-killed-broker")
    logger.setLevel(logging.CRITICAL)
    client = pulsar.Client(broker.service_url, logger=logger)
    yield client
    client.close()


@pytest.fixture
def lab(client, topic):
    """Producers of stored payloads and of chunks, and a consumer of both."""
    lab = Lab(client, topic)
    yield lab
    lab.close()


class Lab:
    def __init__(self, client, topic):
        self.client, self.topic, self.opened = client, topic, []
        stores = {"stores": {"m": {"type": "memory", "space": topic}}, "chunking": {"expire_after_seconds": 20}}
        self.checks = {way: claimcheck.from_dict({"strategy": way, **stores}) for way in ("external", "chunking")}

    def producer(self, way):
        native = self.client.create_producer(self.topic, send_timeout_millis=60_000, block_if_queue_full=True)
        return self._keep(
            PulsarProducer(native, self.checks[way], max_message_bytes=LIMIT, deadline_seconds=90),
        )

    def consumer(self):
        earliest = pulsar.InitialPosition.Earliest
        native = self.client.subscribe(self.topic, "s", initial_position=earliest, receiver_queue_size=50)
        return self._keep(PulsarConsumer(native, self.checks["external"]))

    def close(self):
        for opened in self.opened:
            opened.close()

    def _keep(self, opened):
        self.opened.append(opened)
        return opened


class Sender(threading.Thread):
    """Sends one payload after another and records the results."""

    def __init__(self, producer, number, payloads):
        super().__init__(daemon=True)
        self.producer, self.number = producer, number
        self.payloads = {name: payload for name, payload in payloads.items() if name.startswith(f"{number}-")}
        self.sent, self.failed = [], []

    def run(self):
        for name, payload in self.payloads.items():
            try:
                self.producer.send(payload, properties={"name": name})
            except (ClaimCheckError, pulsar.exceptions.PulsarException) as error:
                self.failed.append((name, type(error).__name__))
            else:
                self.sent.append(name)


class Receiver(threading.Thread):
    """Receives and acknowledges until all payloads reported as sent were received."""

    def __init__(self, consumer, expected):
        super().__init__(daemon=True)
        self.consumer, self.expected = consumer, expected
        self.got, self.wrong, self.stop = {}, [], threading.Event()

    def run(self):
        while not self.stop.is_set():
            try:
                message = self.consumer.receive(1000)
            except pulsar.Timeout:
                continue
            name = message.properties().get("name")
            if message.error is not None or message.data() != self.expected[name]:
                self.wrong.append(name)
            self.got[name] = self.got.get(name, 0) + 1
            self.consumer.acknowledge(message)


def test_everything_that_was_reported_sent_is_delivered_whole(lab, broker, record_property):
    payloads = {f"{n}-{i}": content(SIZES[i % len(SIZES)], i) for n in range(4) for i in range(EACH)}
    senders = [Sender(lab.producer(("external", "chunking")[n % 2]), n, payloads) for n in range(4)]
    receiver = Receiver(lab.consumer(), payloads)
    for thread in (receiver, *senders):
        thread.start()

    for wanted in (5, 10):
        servers.wait_until(lambda wanted=wanted: len(receiver.got) >= wanted, "the load is on", 60)
        broker.server.kill()
        time.sleep(1.0)  # an outage, not a blink
        broker.server.start()
    for sender in senders:
        sender.join()
    sent = {name for sender in senders for name in sender.sent}
    try:
        servers.wait_until(lambda: sent <= receiver.got.keys(), "all that was sent has come", 120)
    finally:
        receiver.stop.set()
        receiver.join()

    twice = sum(count > 1 for count in receiver.got.values())
    failed = [failure for sender in senders for failure in sender.failed]
    counts = f"sent {len(sent)}, failed {failed}, delivered {len(receiver.got)}, {twice} of them twice"
    record_property("counts", counts)
    print(counts)
    assert not receiver.wrong
    assert len(sent) + len(failed) == len(payloads)
