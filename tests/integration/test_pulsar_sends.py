"""Sends to a real Pulsar that are large, many, refused or never answered, and what they leave in the store."""

import contextlib
import math
import subprocess
import sys
import threading
from datetime import timedelta

import pulsar
import pytest

import claimcheck
from claimcheck.errors import ConfigError, PayloadTooLargeError
from claimcheck.transports.pulsar import ChunkArgumentError, PulsarProducer, SendDeadlineError
from tests.integration.pulsar_rig import LIMIT, STRATEGIES, content, nothing_comes, receive

RESULT = pulsar.Result


class Heard:
    """A callback that records its arguments."""

    def __init__(self):
        self.calls, self.called = [], threading.Event()

    def __call__(self, result, message_id):
        self.calls.append((result, message_id))
        self.called.set()

    def wait(self):
        assert self.called.wait(20)
        return self.calls[0]


class TestLimit:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_around_it_nothing_is_refused_and_plain_is_what_can_be(self, lab, strategy):
        properties = {f"name {i}": "ü" * 200 for i in range(50)}
        consumer = lab.consumer()
        producer = lab.producer(strategy, producer_name=f"{'n' * 50}-{lab.topic}")
        room = _largest_plain(producer, properties)
        for size in range(room - 3, room + 4):
            producer.send(content(size), properties=properties, partition_key="key", ordering_key="o" * 100)
        assert [len(message.data()) for message in receive(consumer, 7)] == list(range(room - 3, room + 4))
        native = producer._native
        native.send(content(room), properties=properties, partition_key="key", ordering_key="o" * 100)
        with pytest.raises(pulsar.exceptions.MessageTooBig):  # our arithmetic is at most some bytes careful
            native.send(content(room + 64), properties=properties, partition_key="key", ordering_key="o" * 100)

    @pytest.mark.parametrize(
        ("strategy", "native"),
        [
            ("chunking", {"batching_enabled": True, "batching_max_allowed_size_in_bytes": LIMIT // 2}),
            ("external", {"compression_type": pulsar.CompressionType.ZSTD}),
        ],
    )
    def test_with_the_clients_own_batches_and_compression(self, lab, strategy, native):
        consumer, producer, heard = lab.consumer(), lab.producer(strategy, **native), []
        payloads = [content(size, i) for i, size in enumerate([LIMIT - 100, 10, 3 * LIMIT, LIMIT - 150, 20, 5, LIMIT])]
        for payload in payloads:
            producer.send_async(payload, lambda result, _: heard.append(result))
        producer.flush()
        assert sorted(len(message.data()) for message in receive(consumer, 7)) == sorted(map(len, payloads))
        assert set(heard) == {RESULT.Ok}


@pytest.mark.parametrize(
    ("option", "found"),
    [("max_message_bytes", 0), ("max_message_bytes", "5 MiB"), ("deadline_seconds", 0), ("deadline_seconds", math.nan)],
)
def test_numbers_that_make_no_sense(lab, option, found):
    with pytest.raises(ConfigError, match=f"{option}: found {found!r}, expected an? (integer|number)"):
        lab.producer(wrap={option: found})


@pytest.mark.parametrize("blocking", [False, True])
def test_more_chunks_than_the_clients_queue_holds(lab, blocking):
    consumer = lab.consumer()
    producer = lab.producer("chunking", max_pending_messages=1, block_if_queue_full=blocking)
    producer.send_async(first := content(20 * LIMIT), heard := Heard())
    assert heard.wait()[0] == RESULT.Ok
    producer.send(second := content(30 * LIMIT, 1))
    assert [message.data() for message in receive(consumer, 2)] == [first, second]


def test_of_a_refusal_the_callback_hears_and_the_store_is_clean_after_a_flush(lab):
    heard, store = Heard(), lab.cc.store("m")
    before = list(store.scan())
    producer = lab.producer(lab.cc, wrap={"max_message_bytes": 10 * LIMIT})
    producer.send_async(content(20 * LIMIT), heard, properties={"p": "v" * LIMIT})
    assert heard.wait()[0] == RESULT.MessageTooBig
    producer.flush()
    assert (len(heard.calls), list(store.scan())) == (1, before)


def test_what_chunks_cannot_keep_is_refused_before_anything_is_sent(lab):
    consumer, producer = lab.consumer(), lab.producer("chunking")
    with pytest.raises(PayloadTooLargeError):
        producer.send(content(LIMIT), properties={"p": "v" * LIMIT})
    options = {"sequence_id": 7, "deliver_at": 99, "deliver_after": timedelta(seconds=1)}
    for name, value in options.items():
        with pytest.raises(ChunkArgumentError, match=name):
            producer.send(content(LIMIT), **{name: value})
        with pytest.raises(ChunkArgumentError):
            producer.send_async(content(LIMIT), Heard(), **{name: value})
    assert nothing_comes(consumer)
    for name, value in options.items():
        producer.send(content(10), **{name: value})


@pytest.mark.parametrize("asynchronously", [False, True])
def test_the_lifetime_of_the_payload_begins_at_the_delivery(lab, asynchronously):
    stores = {"m": {"type": "memory", "space": lab.topic, "ttl_seconds": 60}}
    with claimcheck.from_dict({"strategy": "external", "stores": stores}) as cc:
        producer = PulsarProducer(lab.client.create_producer(lab.topic), cc, max_message_bytes=LIMIT)
        if asynchronously:
            producer.send_async(content(2 * LIMIT), heard := Heard(), deliver_after=timedelta(hours=1))
            heard.wait()
        else:
            producer.send(content(2 * LIMIT), deliver_after=timedelta(hours=1))
        (entry,) = cc.store("m").scan()
        assert entry.expires_ms - entry.created_ms == pytest.approx(3_660_000, abs=1000)


def test_deduplication_filters_nothing_of_ours_and_an_ok_without_a_place_is_noticed(lab, caplog):
    lab.client.create_producer(lab.topic).close()
    lab.broker.set_policy(lab.topic, "deduplicationEnabled", True)
    lab.broker.unload(lab.topic)
    consumer, producer = lab.consumer(), lab.producer("chunking", producer_name=f"p-{lab.topic}")
    payloads = [content(size, i) for i, size in enumerate([10, 5 * LIMIT, 20, 9 * LIMIT])]
    ids = [producer.send(payload) for payload in payloads]
    messages = receive(consumer, 4)
    assert [message.data() for message in messages] == payloads
    assert ids == [message.message_id() for message in messages]
    assert "returned no position" not in caplog.text
    external = lab.producer(producer_name=f"q-{lab.topic}")
    for sent in (1, 0):
        place = external.send(content(2 * LIMIT), sequence_id=7)
        assert [each.data() for each in receive(consumer, sent)] == [content(2 * LIMIT)] * sent
    assert place.ledger_id() == -1
    assert "returned no position" in caplog.text
    assert nothing_comes(consumer)


def test_a_with_block_ends_without_an_answer(lab, pulsar_broker):
    """If the topic has a lower limit than the producer knows, the client retries forever without an error."""
    lab.client.create_producer(lab.topic).close()
    lab.broker.set_policy(lab.topic, "maxMessageSize", 5000)
    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(lab.topic, batching_enabled=False)
    wrapped = PulsarProducer(producer, lab.cc, max_message_bytes=LIMIT, deadline_seconds=1.0)

    def block():
        with contextlib.suppress(SendDeadlineError), wrapped:
            wrapped.send_async(content(10_000), Heard())  # the deadline passes while the block is left

    thread = threading.Thread(target=block, daemon=True)  # if it does not end, it must not block the other tests
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    with pytest.raises(pulsar.exceptions.AlreadyClosed):
        producer.send(b"x")
    with contextlib.suppress(pulsar.exceptions.AlreadyClosed):  # the broker keeps dropping its connection
        client.close()


def _largest_plain(producer, properties):
    """Return the size of the largest payload that is not offloaded."""
    options = {"ordering_key": "o" * 100}
    limit = producer._limit_for(options)
    return limit.max_message_bytes - limit.overhead("key", properties)


# The client's locks and the GIL ------------------------------------------------------------------------------------


HEAD = """
import sys, time
import pulsar
from claimcheck.transports.pulsar._send import BoundedProducer

client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
"""

AT_A_BATCHS_END = """
producer = client.create_producer(sys.argv[2], batching_enabled=True, batching_max_publish_delay_ms=1)
bounded, heard = BoundedProducer(producer, 60), []
for _ in range(100):
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
    assert (ended.stdout, ended.stderr) == ("5000\n", "")


def test_a_router_of_ones_own_is_no_deadlock(run, topic, pulsar_broker):
    pulsar_broker.create_partitioned(topic, 2)
    ended = run(A_ROUTER, topic)
    assert (ended.stdout, ended.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    ("end", "expected"), [("bounded.lose", "SendDeadlineError"), ("interrupt", "KeyboardInterrupt")]
)
def test_a_program_ends_though_a_flush_never_will(run, topic, pulsar_broker, end, expected):
    pulsar_broker.request("PUT", f"persistent/public/default/{topic}")
    pulsar_broker.set_policy(topic, "maxMessageSize", 5000)  # the client tries for ever
    ended = run(NEVER.replace("{end}", end), topic)
    assert ended.stdout.startswith(f"{expected}\n")  # the client may complain about the broker afterwards
    assert (ended.stderr, ended.returncode) == ("", 0)
