"""The client's locks and the GIL. Each test runs in its own process: a deadlocked one handles no signals."""

import subprocess
import sys

import pytest

HEAD = """
import sys, time
import pulsar
from claimcheck.transports.pulsar._send import BoundedProducer

client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
"""

AT_A_BATCHS_END = """
producer = client.create_producer(sys.argv[2], batching_enabled=True, batching_max_publish_delay_ms=1)
bounded, heard = BoundedProducer(producer, 60), []
for _ in range(200):
    for _ in range(50):
        producer.send_async(b"x", lambda *answer: heard.append(answer))
    until = time.perf_counter() + 0.0015
    while time.perf_counter() < until:  # with the GIL, so that the batch's end has to wait for it
        pass
    bounded.flush()
client.close()
print(len(heard))
"""

A_ROUTER = """
import threading
import claimcheck
from claimcheck.transports.pulsar import PulsarProducer

busy = threading.Event()

def route(message, partitions):
    busy.set()
    time.sleep(0.3)
    return 0

cc = claimcheck.from_dict({"stores": {"m": {"type": "memory"}}})
producer = client.create_producer(sys.argv[2], message_router=route)
wrapped = PulsarProducer(producer, cc, max_message_bytes=100_000)
sender = threading.Thread(target=wrapped.send, args=(b"x",))
sender.start()
busy.wait()
wrapped.send(b"x", sequence_id=7)
sender.join()
client.close()
print(wrapped.producer_name() == producer.producer_name())
"""

NEVER = """
import os, signal, threading
from claimcheck.transports.pulsar._send import SendDeadlineError

producer = client.create_producer(sys.argv[2], batching_enabled=False)
bounded = BoundedProducer(producer, 60)
producer.send_async(bytes(10_000), lambda *answer: None)
interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Timer(0.2, {end}).start()
    bounded.flush()
except (SendDeadlineError, KeyboardInterrupt) as error:
    print(type(error).__name__)
"""


@pytest.fixture
def run(pulsar_broker):
    def run(script, topic):
        command = [sys.executable, "-c", HEAD + script, pulsar_broker.service_url, topic]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    return run


def test_a_batch_that_ends_meanwhile_is_no_deadlock(run, topic):
    ended = run(AT_A_BATCHS_END, topic)
    assert (ended.stdout, ended.stderr) == ("10000\n", "")


def test_a_router_of_ones_own_is_no_deadlock(run, topic, pulsar_broker):
    pulsar_broker.create_partitioned(topic, 2)
    ended = run(A_ROUTER, topic)
    assert (ended.stdout, ended.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    ("end", "expected"),
    [("bounded.lose", "SendDeadlineError"), ("interrupt", "KeyboardInterrupt")],
)
def test_a_program_ends_though_a_flush_never_will(run, topic, pulsar_broker, end, expected):
    pulsar_broker.request("PUT", f"persistent/public/default/{topic}")
    pulsar_broker.set_policy(topic, "maxMessageSize", 5000)  # the client tries for ever
    ended = run(NEVER.replace("{end}", end), topic)
    assert (ended.stdout, ended.stderr, ended.returncode) == (f"{expected}\n", "", 0)
