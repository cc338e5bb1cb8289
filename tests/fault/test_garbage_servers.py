"""Garbage collections and sweeps all the time, while broker, store and collections are killed: lost 0, orphans 0."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import claimcheck
from claimcheck._operate.garbage import reference_of
from claimcheck._operate.gc import KafkaTopics, PulsarTopics, Topics
from claimcheck.errors import ClaimCheckError
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.pulsar import PulsarProducer
from claimcheck.transports.pulsar._queries import PulsarTarget
from tests import servers
from tests.integration.kafka_rig import rig
from tests.unit.cli.rig import command

PAYLOADS, WRITERS = int(os.environ.get("CLAIMCHECK_TEST_GARBAGE_PAYLOADS", "1000")), 4
PAUSE = 0.02  # seconds between the sends of a writer
GRACE = 15  # longer than a producer waits for store and broker
TIMEOUT_MS = 5_000
LIMIT = 100_000

pytestmark = pytest.mark.slow

Send = Callable[[bytes, Callable[[], None]], None]
"""Sends a payload, and calls back when the broker has confirmed it."""


@dataclass(frozen=True)
class Lab:
    """A broker and a store of the test's own.

    Attributes:
        config: The file that names the store.
        broker: The options of the command line that name broker and topic.
        sender: Returns what sends, with a producer of its own.
        topics: Returns what reads the topic.
        breakable: The servers to kill.
        pause: The most seconds from the start of a server to the next kill; a third of it is the least.
    """

    config: Path
    broker: Sequence[str]
    sender: Callable[[claimcheck.ClaimCheck], contextlib.AbstractContextManager[Send]]
    topics: Callable[[], Topics]
    breakable: Sequence[servers.Server]
    pause: float = 6

    def collection(self) -> list[str]:
        options = ["--grace", f"{GRACE}s", "--yes", "--claim", "--rate", "200"]
        return ["--config", str(self.config), "gc", *self.broker, *options]


def configured(folder: Path, store: dict[str, Any]) -> Path:
    path = folder / "claimcheck.yaml"
    stores = {"hot": {"ttl_seconds": 86_400, "timeout_seconds": 2, **store}}
    path.write_text(yaml.safe_dump({"strategy": "external", "threshold_bytes": 100, "stores": stores}))
    return path


@pytest.fixture
def kafka_and_redis(own_kafka_jars, redis_programs, topic, tmp_path):
    durable = "--appendonly", "yes", "--appendfsync", "always"
    with servers.kafka() as kafka, servers.redis_server(*durable) as redis, rig(kafka, topic, partitions=3) as clients:

        @contextlib.contextmanager
        def sender(cc: claimcheck.ClaimCheck) -> Iterator[Send]:
            native = {"message_max_bytes": LIMIT, "message_timeout_ms": TIMEOUT_MS}
            with contextlib.closing(clients.producer(cc, wrap={"max_message_bytes": LIMIT}, **native)) as producer:

                def send(payload: bytes, confirmed: Callable[[], None]) -> None:
                    producer.produce(topic, payload, on_delivery=lambda error, _: None if error else confirmed())
                    producer.poll(0)

                yield send
                producer.flush(2 * TIMEOUT_MS / 1000)

        address = kafka.bootstrap_servers
        yield Lab(
            config=configured(tmp_path, {"type": "redis", "url": servers.redis_url(redis)}),
            broker=("--kafka", address, "--topic", topic),
            sender=sender,
            topics=lambda: KafkaTopics(KafkaTarget(address, (topic,))),
            breakable=(kafka.server, redis),
        )


@pytest.fixture
def pulsar_and_s3(own_pulsar_jars, s3_programs, topic, tmp_path):
    import boto3
    import pulsar

    with servers.pulsar(durable=True) as broker, servers.s3() as gateway, contextlib.ExitStack() as stack:
        bucket = f"gc-{uuid.uuid4().hex}"
        boto3.resource("s3", endpoint_url=gateway.endpoint_url).create_bucket(Bucket=bucket)
        quiet = logging.getLogger("pulsar-client-of-garbage")
        quiet.setLevel(logging.CRITICAL)
        client = pulsar.Client(broker.service_url, logger=quiet, operation_timeout_seconds=180)
        stack.callback(client.close)
        broker.create_partitioned(topic, 3)
        client.subscribe(topic, "slow").close()  # it acknowledges nothing, so the broker deletes nothing

        @contextlib.contextmanager
        def sender(cc: claimcheck.ClaimCheck) -> Iterator[Send]:
            native = None
            while native is None:
                with contextlib.suppress(pulsar.ConnectError):  # the client may try just when the broker is killed
                    native = client.create_producer(topic, send_timeout_millis=TIMEOUT_MS, block_if_queue_full=True)
            with contextlib.closing(PulsarProducer(native, cc, max_message_bytes=LIMIT)) as producer:

                def send(payload: bytes, confirmed: Callable[[], None]) -> None:
                    producer.send_async(payload, lambda result, _: confirmed() if result == pulsar.Result.Ok else None)

                yield send
                with contextlib.suppress(pulsar.PulsarException, ClaimCheckError):  # the callbacks have the results
                    producer.flush()

        target = PulsarTarget(broker.service_url, broker.admin_url, (topic,))
        store = {"type": "s3", "bucket": bucket, "prefix": "claims", "endpoint_url": gateway.endpoint_url}
        yield Lab(
            config=configured(tmp_path, store),
            broker=("--pulsar", broker.service_url, "--admin-url", broker.admin_url, "--topic", topic),
            sender=sender,
            topics=lambda: PulsarTopics(target),
            breakable=(broker.server, gateway.server),
            pause=15,  # the broker needs seconds to start, and a collection needs a while without a kill
        )


def write(lab: Lab, topic: str, number: int, sent: set[bytes]) -> None:
    """Send payloads again until the broker has confirmed them; every tenth one is also stored and never sent."""
    left = [b"%d-%d " % (number, i) * 50 for i in range(PAYLOADS // WRITERS)]
    while left:
        with claimcheck.load(lab.config) as cc, lab.sender(cc) as send:
            for i, payload in enumerate(left):
                with contextlib.suppress(ClaimCheckError):
                    if i % 10 == 0:
                        cc.store("hot").write(b"never sent", destination=topic)
                    send(payload, functools.partial(sent.add, payload))
                time.sleep(PAUSE)
        left = [payload for payload in left if payload not in sent]


def repeat(stop: threading.Event, seed: int, exits: Counter[int], *arguments: str) -> None:
    """Run a command again and again, and kill every other run at some moment."""
    chance = random.Random(seed)
    while not stop.is_set():
        process = subprocess.Popen(**command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.5, 4) if chance.random() < 0.5 else 120)
        process.kill()
        exits[process.wait()] += 1


def break_servers(stop: threading.Event, lab: Lab, kills: Counter[int]) -> None:
    chance = random.Random(1)
    while not stop.wait(chance.uniform(lab.pause / 3, lab.pause)):
        server = chance.choice(lab.breakable)
        server.kill()
        kills[lab.breakable.index(server)] += 1
        stop.wait(chance.uniform(0, 3))
        server.start()


def run(lab: Lab, topic: str) -> None:
    """Write, collect and break at once, then collect once more, and compare the topic with the store."""
    sent: set[bytes] = set()
    stop, exits, kills = threading.Event(), Counter[int](), Counter[int]()
    sweep = ["--config", str(lab.config), "sweep", "--grace", "1s", "--yes"]
    writers = [threading.Thread(target=write, args=(lab, topic, number, sent)) for number in range(WRITERS)]
    others = [
        threading.Thread(target=repeat, args=(stop, 1, exits, *lab.collection())),
        threading.Thread(target=repeat, args=(stop, 2, exits, *lab.collection())),
        threading.Thread(target=repeat, args=(stop, 3, Counter[int](), *sweep)),
        threading.Thread(target=break_servers, args=(stop, lab, kills)),
    ]
    for thread in writers + others:
        thread.start()
    for thread in writers:
        thread.join()
    time.sleep(GRACE)  # collections go on, and now find garbage
    stop.set()
    for thread in others:
        thread.join()
    time.sleep(1)
    subprocess.run(**command(*lab.collection()), check=True)
    print(f"kills of broker and store {dict(kills)}, collections by exit code {dict(exits)}")
    compare(lab, sent)


def compare(lab: Lab, sent: set[bytes]) -> None:
    with claimcheck.load(lab.config) as cc:
        values = [bytes(message.value or b"") for message in lab.topics().read()]
        pointed = {key for value in values if (key := reference_of(value))}
        stored = {entry.key for entry in cc.store("hot").scan()}
        print(f"{len(sent)} sent, {len(values)} in the topic, {len(stored)} stored")
        assert (pointed - stored, stored - pointed) == (set(), set()), "lost, orphans"
        assert sent == {cc.resolve(value) for value in values}
    assert len(sent) == PAYLOADS


def test_kafka_and_redis_lose_nothing_and_keep_no_orphan(kafka_and_redis, topic):
    run(kafka_and_redis, topic)


def test_pulsar_and_s3_lose_nothing_and_keep_no_orphan(pulsar_and_s3, topic):
    run(pulsar_and_s3, topic)
