"""A broker that is killed and started again under load: what was reported delivered is readable, every byte of it."""

import os
import threading
import time

import pytest

from claimcheck.errors import ClaimCheckError
from tests import servers
from tests.integration.kafka_rig import content, rig

SIZES = [1_000, 50_000, 300_000, 2_000_000, 20_000_000]
LIMIT = 100_000
EACH = 10


@pytest.fixture
def broker(kafka_jars):
    """One of our own, to be killed."""
    if servers.KAFKA_JARS not in os.environ:
        pytest.skip("no jars to start a broker of one's own")
    with servers.kafka() as broker:
        yield broker


@pytest.fixture
def lab(broker, topic):
    with rig(broker, topic, partitions=3) as lab:
        yield lab


class Sender(threading.Thread):
    """Sends one payload after another, and notes what it was told of each."""

    def __init__(self, lab, strategy, number, payloads):
        super().__init__(daemon=True)
        self.producer = lab.producer(strategy, message_max_bytes=LIMIT, enable_idempotence=number % 3 != 0)
        self.topic, self.number, self.payloads = lab.topic, number, payloads
        self.sent, self.failed = [], []

    def run(self):
        for i in range(EACH):
            name = f"{self.number}-{i}"
            try:
                self.producer.produce(
                    self.topic, self.payloads[name], headers={"name": name},
                    on_delivery=lambda error, _, name=name: (self.failed if error else self.sent).append(name),
                )  # fmt: skip
            except ClaimCheckError:
                self.failed.append(name)
            assert self.producer.flush(120) == 0


class Receiver(threading.Thread):
    """Receives and commits until it is told to stop."""

    def __init__(self, consumer, expected):
        super().__init__(daemon=True)
        self.consumer, self.expected = consumer, expected
        self.got, self.wrong, self.stop = {}, [], threading.Event()

    def run(self):
        while not self.stop.is_set():
            message = self.consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            name = dict(message.headers())["name"].decode()
            if getattr(message, "payload_error", None) is not None or message.value() != self.expected[name]:
                self.wrong.append(name)
            self.got[name] = self.got.get(name, 0) + 1
            self.consumer.commit(message=message)


def test_everything_that_was_reported_delivered_is_received_whole(lab, broker, record_property):
    payloads = {f"{n}-{i}": content(SIZES[i % len(SIZES)], i) for n in range(4) for i in range(EACH)}
    senders = [Sender(lab, ("external", "chunking")[n % 2], n, payloads) for n in range(4)]
    receiver = Receiver(lab.consumer(session_timeout_ms=6000), payloads)
    for thread in (receiver, *senders):
        thread.start()

    for wanted in (5, 15):
        servers.wait_until(lambda wanted=wanted: len(receiver.got) >= wanted, "the load is on", 60)
        broker.server.kill()
        time.sleep(1.0)  # an outage, not a blink
        broker.server.start()
    for sender in senders:
        sender.join()
    sent = {name for sender in senders for name in sender.sent}
    try:
        servers.wait_until(lambda: sent <= receiver.got.keys(), "all that was reported has come", 120)
    finally:
        receiver.stop.set()
        receiver.join()

    twice = sum(count > 1 for count in receiver.got.values())
    failed = [name for sender in senders for name in sender.failed]
    counts = f"delivered {len(sent)}, failed {len(failed)}, received {len(receiver.got)}, {twice} of them twice"
    record_property("counts", counts)
    print(counts)
    assert not receiver.wrong
    assert len(sent) + len(failed) == len(payloads)
