"""Garbage collections and sweeps all the time, while broker, store and collections are killed: lost 0, orphans 0."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import threading
import time

import pytest
import yaml

import claimcheck
from claimcheck._doctor._topics import KafkaTarget
from claimcheck._garbage import reference_of
from claimcheck._gc._kafka import KafkaTopics
from claimcheck.errors import ClaimCheckError
from tests import servers
from tests.integration.kafka_rig import rig
from tests.unit.cli.rig import command

PAYLOADS, WRITERS = 2_000, 4
GRACE = 30  # longer than a producer waits for the broker
TIMEOUT_MS = 10_000

pytestmark = pytest.mark.slow


@pytest.fixture
def kafka(kafka_jars):
    if servers.KAFKA_JARS not in os.environ:
        pytest.skip("no jars to start a broker of one's own")
    with servers.kafka() as broker:
        yield broker


@pytest.fixture
def redis(redis_programs):
    with servers.redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def lab(kafka, topic):
    with rig(kafka, topic, partitions=3) as lab:
        yield lab


@pytest.fixture
def config(redis, tmp_path):
    path = tmp_path / "claimcheck.yaml"
    store = {"type": "redis", "url": servers.redis_url(redis), "ttl_seconds": 86_400}
    path.write_text(yaml.safe_dump({"strategy": "external", "threshold_bytes": 100, "stores": {"hot": store}}))
    return path


def write(lab, config, number: int, sent: list[int]) -> None:
    """Send payloads; every tenth one is stored and never sent."""
    with (
        claimcheck.load(config) as cc,
        contextlib.closing(
            lab.producer(
                cc, wrap={"max_message_bytes": 100_000}, message_max_bytes=100_000, message_timeout_ms=TIMEOUT_MS
            )
        ) as producer,
    ):
        for i in range(PAYLOADS // WRITERS):
            with contextlib.suppress(ClaimCheckError):
                if i % 10 == 0:
                    cc.store("hot").write(b"never sent", destination=lab.topic)
                producer.produce(
                    lab.topic,
                    b"%d " % number * 100,
                    on_delivery=lambda error, _: None if error else sent.append(number),
                )
            producer.poll(0.02)
        producer.flush(2 * TIMEOUT_MS / 1000)


def repeat(stop: threading.Event, seed: int, *arguments: str) -> None:
    """Run a command again and again, and kill every other run at some moment."""
    chance = random.Random(seed)
    while not stop.is_set():
        process = subprocess.Popen(**command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.5, 4) if chance.random() < 0.5 else 120)
        process.kill()
        process.wait()


def break_servers(stop: threading.Event, *broken: servers.Server) -> None:
    chance = random.Random(1)
    while not stop.wait(chance.uniform(2, 6)):
        server = chance.choice(broken)
        server.kill()
        stop.wait(chance.uniform(0, 3))
        server.start()


def test_nothing_is_lost_and_no_orphan_stays(lab, kafka, redis, config, topic):
    address = ["--kafka", kafka.bootstrap_servers, "--topic", topic, "--config", str(config)]
    collection = ["gc", *address, "--grace", f"{GRACE}s", "--yes", "--rate", "200/s"]
    sent = []
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(lab, config, number, sent)) for number in range(WRITERS)]
    others = [
        threading.Thread(target=repeat, args=(stop, 1, *collection)),
        threading.Thread(target=repeat, args=(stop, 2, *collection)),
        threading.Thread(target=repeat, args=(stop, 3, "sweep", "--config", str(config), "--grace", "1s", "--yes")),
        threading.Thread(target=break_servers, args=(stop, kafka.server, redis)),
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
    subprocess.run(**command(*collection), check=True)

    with claimcheck.load(config) as cc:
        topics = KafkaTopics(KafkaTarget(kafka.bootstrap_servers, (topic,)))
        values = [message.value for message in topics.read()]
        pointed = {reference_of(value).key for value in values}
        stored = {entry.key for entry in cc.store("hot").scan()}
        lost = [value for value in values if len(cc.resolve(value)) < 200]
        print(f"{len(sent)} sent, {len(values)} in the topic, {len(stored)} stored")
        assert (lost, stored - pointed) == ([], set())
        assert len(values) >= len(sent) > PAYLOADS // 10
