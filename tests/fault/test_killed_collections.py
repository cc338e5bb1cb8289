"""Garbage collections and sweeps all the time, while broker, store and collections are killed: lost 0, orphans 0.

`tests/property/test_garbage_property.py` searches the orders of events; this is one long run with real servers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

import claimcheck
from claimcheck._operate.garbage import reference_of
from claimcheck._operate.gc import KafkaTopics
from claimcheck.errors import ClaimCheckError
from claimcheck.transports.kafka._queries import KafkaTarget
from tests import servers
from tests.integration.kafka_rig import Rig, rig
from tests.unit.cli.rig import command

PAYLOADS, WRITERS = int(os.environ.get("CLAIMCHECK_TEST_GARBAGE_PAYLOADS", "1000")), 4
PAUSE = 0.02  # seconds between the sends of a writer
GRACE = 15  # longer than a producer waits for store and broker
TIMEOUT_MS = 5_000
LIMIT = 100_000

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Lab:
    """Kafka and Redis of the test's own, writers, and commands that are run again and again."""

    config: Path
    clients: Rig
    sent: set[bytes] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)
    exits: Counter[int] = field(default_factory=Counter)

    def collection(self) -> list[str]:
        broker = ["--kafka", self.clients.servers["bootstrap.servers"], "--topic", self.clients.topic]
        options = ["--grace", f"{GRACE}s", "--yes", "--claim", "--rate", "200"]
        return ["--config", str(self.config), "gc", *broker, *options]

    def write(self, number: int) -> None:
        """Send payloads again until the broker has confirmed them; every tenth one is also stored and never sent."""
        left = [b"%d-%d " % (number, i) * 50 for i in range(PAYLOADS // WRITERS)]
        native = {"message_max_bytes": LIMIT, "message_timeout_ms": TIMEOUT_MS}
        while left:
            with claimcheck.load(self.config) as cc:
                producer = self.clients.producer(cc, wrap={"max_message_bytes": LIMIT}, **native)
                for i, payload in enumerate(left):
                    with contextlib.suppress(ClaimCheckError):
                        if i % 10 == 0:
                            cc.store("hot").write(b"never sent", destination=self.clients.topic)
                        producer.produce(
                            self.clients.topic, payload, on_delivery=functools.partial(self.confirm, payload)
                        )
                        producer.poll(0)
                    time.sleep(PAUSE)
                producer.flush(2 * TIMEOUT_MS / 1000)
                producer.close()
            left = [payload for payload in left if payload not in self.sent]

    def confirm(self, payload: bytes, error: object, _: object) -> None:
        if error is None:
            self.sent.add(payload)

    def repeat(self, seed: int, *arguments: str) -> None:
        """Run a command again and again, and kill every other run at some moment."""
        chance = random.Random(seed)
        while not self.stop.is_set():
            process = subprocess.Popen(**command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.5, 4) if chance.random() < 0.5 else 120)
            process.kill()
            self.exits[process.wait()] += 1

    def kill(self, *breakable: servers.Server) -> None:
        chance = random.Random(1)
        while not self.stop.wait(chance.uniform(2, 6)):
            server = chance.choice(breakable)
            server.kill()
            self.stop.wait(chance.uniform(0, 3))
            server.start()

    def compare(self) -> None:
        topics = KafkaTopics(KafkaTarget(self.clients.servers["bootstrap.servers"], (self.clients.topic,)))
        with claimcheck.load(self.config) as cc:
            values = [bytes(message.value or b"") for message in topics.read()]
            pointed = {key for value in values if (key := reference_of(value))}
            stored = {entry.key for entry in cc.store("hot").scan()}
            assert (pointed - stored, stored - pointed) == (set(), set()), "lost, orphans"
            assert self.sent == {cc.resolve(value) for value in values}
        assert len(self.sent) == PAYLOADS


def test_killed_collections_lose_nothing_and_keep_no_orphan(own_kafka_jars, redis_programs, topic, tmp_path):
    durable = "--appendonly", "yes", "--appendfsync", "always"
    config = tmp_path / "claimcheck.yaml"
    with servers.kafka() as kafka, servers.redis_server(*durable) as redis, rig(kafka, topic, partitions=3) as clients:
        assert kafka.server is not None
        store = {"type": "redis", "url": servers.redis_url(redis), "ttl_seconds": 86_400, "timeout_seconds": 2}
        options = {"strategy": "external", "threshold_bytes": 100, "stores": {"hot": store}}
        config.write_text(yaml.safe_dump(options))
        lab = Lab(config, clients)
        sweep = ["--config", str(config), "sweep", "--grace", "1s", "--yes"]
        writers = [threading.Thread(target=lab.write, args=(number,)) for number in range(WRITERS)]
        others = [threading.Thread(target=lab.kill, args=(kafka.server, redis))]
        for seed, arguments in enumerate((lab.collection(), lab.collection(), sweep)):
            others.append(threading.Thread(target=lab.repeat, args=(seed, *arguments)))
        for thread in writers + others:
            thread.start()
        for thread in writers:
            thread.join()
        time.sleep(GRACE)  # collections go on, and now find garbage
        lab.stop.set()
        for thread in others:
            thread.join()
        time.sleep(1)
        subprocess.run(**command(*lab.collection()), check=True)
        print(f"collections by exit code {dict(lab.exits)}")
        lab.compare()
