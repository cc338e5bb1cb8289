"""A broker that is killed and started again under load: what was reported sent is received, every byte of it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulsar
import pytest

import claimcheck
from claimcheck.errors import ClaimCheckError
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests import servers
from tests.integration.kafka_rig import content, rig

SIZES = [1_000, 50_000, 300_000, 2_000_000, 20_000_000]
WRITERS, EACH = 4, 10
STRATEGIES = ("external", "chunking")
LIMIT = 100_000
OUTAGE_SECONDS = 1.0


@dataclass(frozen=True)
class Lab:
    """A broker to kill, and its clients.

    Attributes:
        server: The broker's process.
        sender: Makes a function that sends a payload under a name, and returns whether it was reported sent.
        receive: Returns the name of the next message and its payload, or ``None``; acknowledges it.
    """

    server: servers.Server
    sender: Callable[[int], Callable[[str, bytes], bool]]
    receive: Callable[[], tuple[str, bytes | None] | None]


@contextlib.contextmanager
def kafka_lab(topic: str) -> Iterator[Lab]:
    with servers.kafka() as broker, rig(broker, topic, partitions=3) as clients:
        consumer = clients.consumer(session_timeout_ms=6000)

        def sender(number: int) -> Callable[[str, bytes], bool]:
            native: dict[str, Any] = {"message_max_bytes": LIMIT, "enable_idempotence": number % 3 != 0}
            producer = clients.producer(STRATEGIES[number % 2], **native)

            def send(name: str, payload: bytes) -> bool:
                errors: list[Any] = []
                with contextlib.suppress(ClaimCheckError):
                    producer.produce(
                        topic, payload, headers={"name": name}, on_delivery=lambda error, _: errors.append(error)
                    )
                assert producer.flush(120) == 0
                return errors == [None]

            return send

        def receive() -> tuple[str, bytes | None] | None:
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                return None
            consumer.commit(message=message)
            bad = getattr(message, "payload_error", None) is not None
            return dict(message.headers())["name"].decode(), None if bad else message.value()

        assert broker.server is not None
        yield Lab(broker.server, sender, receive)


@contextlib.contextmanager
def pulsar_lab(topic: str) -> Iterator[Lab]:
    stores = {"stores": {"m": {"type": "memory", "space": topic}}, "chunking": {"expire_after_seconds": 20}}
    quiet = logging.getLogger("pulsar-client-of-a-killed-broker")
    quiet.setLevel(logging.CRITICAL)
    with servers.pulsar(durable=True) as broker, contextlib.ExitStack() as stack:
        client = pulsar.Client(broker.service_url, logger=quiet)
        stack.callback(client.close)
        checks = {each: stack.enter_context(claimcheck.from_dict({"strategy": each, **stores})) for each in STRATEGIES}
        earliest = pulsar.InitialPosition.Earliest
        native = client.subscribe(topic, "s", initial_position=earliest, receiver_queue_size=50)
        consumer = stack.enter_context(contextlib.closing(PulsarConsumer(native, checks["external"])))

        def sender(number: int) -> Callable[[str, bytes], bool]:
            native = client.create_producer(topic, send_timeout_millis=60_000, block_if_queue_full=True)
            options = {"max_message_bytes": servers.PULSAR_MAX_MESSAGE_BYTES, "deadline_seconds": 90}
            producer = PulsarProducer(native, checks[STRATEGIES[number % 2]], **options)
            stack.callback(producer.close)

            def send(name: str, payload: bytes) -> bool:
                with contextlib.suppress(ClaimCheckError, pulsar.exceptions.PulsarException):
                    producer.send(payload, properties={"name": name})
                    return True
                return False

            return send

        def receive() -> tuple[str, bytes | None] | None:
            try:
                message = consumer.receive(1000)
            except pulsar.Timeout:
                return None
            consumer.acknowledge(message)
            return message.properties().get("name", ""), None if message.error is not None else message.data()

        assert broker.server is not None
        yield Lab(broker.server, sender, receive)


LABS = {"kafka": (kafka_lab, servers.KAFKA_JARS), "pulsar": (pulsar_lab, servers.PULSAR_JARS)}


@pytest.mark.parametrize("broker", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in LABS])
def test_everything_that_was_reported_sent_is_received_whole(request, topic, broker, record_property):
    request.getfixturevalue(f"{broker}_jars")
    lab, jars = LABS[broker]
    if jars not in os.environ:
        pytest.skip("no jars to start a broker of one's own")
    with lab(topic) as opened:
        run(opened, record_property)


def run(lab: Lab, record_property: Callable[[str, object], None]) -> None:
    """Send and receive, kill the broker twice meanwhile, and compare."""
    payloads = {f"{n}-{i}": content(SIZES[i % len(SIZES)], i) for n in range(WRITERS) for i in range(EACH)}
    reported: dict[str, bool] = {}
    got, wrong, stop = Counter[str](), list[str](), threading.Event()

    def send(number: int) -> None:
        call = lab.sender(number)
        for i in range(EACH):
            reported[f"{number}-{i}"] = call(f"{number}-{i}", payloads[f"{number}-{i}"])

    def receive() -> None:
        while not stop.is_set():
            if (found := lab.receive()) is not None:
                name, payload = found
                if payload != payloads[name]:
                    wrong.append(name)
                got[name] += 1

    senders = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(WRITERS)]
    receiver = threading.Thread(target=receive, daemon=True)
    for thread in (receiver, *senders):
        thread.start()
    for wanted in (5, 12):
        servers.wait_until(partial(lambda count: len(got) >= count, wanted), "the load is on", 60)
        lab.server.kill()
        time.sleep(OUTAGE_SECONDS)
        lab.server.start()
    for thread in senders:
        thread.join()
    sent = {name for name, is_sent in reported.items() if is_sent}
    try:
        servers.wait_until(lambda: sent <= got.keys(), "all that was reported has come", 120)
    finally:
        stop.set()
        receiver.join()

    twice = sum(count > 1 for count in got.values())
    counts = f"sent {len(sent)}, not sent {len(reported) - len(sent)}, received {len(got)}, {twice} of them twice"
    record_property("counts", counts)
    print(counts)
    assert wrong == []
    assert len(reported) == len(payloads)
