"""Consumers join, leave and crash during traffic, with each protocol of a real Kafka: nothing is lost."""

import collections
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
from typing import Any

import confluent_kafka as kafka
import pytest

import claimcheck
from tests import servers
from tests.integration.kafka_rig import LIMIT, chunks_of, content, receive, rig, values

WORKER = """
import hashlib, json, signal, sys
from confluent_kafka import Consumer
import claimcheck
from claimcheck.transports.kafka import KafkaConsumer

topic, folder, conf = sys.argv[1:]
cc = claimcheck.from_dict({"stores": {"disk": {"type": "filesystem", "path": folder}}})
consumer, stopping = KafkaConsumer(Consumer(json.loads(conf)), cc), []
signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
consumer.subscribe([topic], on_assign=lambda _, partitions: print("assigned", len(partitions), flush=True))
while not stopping:
    message = consumer.poll(0.2)
    if message is None or message.error() is not None:
        continue
    name = dict(message.headers())["name"].decode()
    print(name, hashlib.sha256(message.value()).hexdigest(), flush=True)
    consumer.commit(message=message)
consumer.close()
"""
"""A consumer in a process of its own: it prints what it is assigned, and each message with its checksum."""
QUICK = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range", **QUICK},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky", **QUICK},
    "consumer": {"group.protocol": "consumer"},
}
PAYLOADS, PARTITIONS = 100, 4


def told(protocol):
    """Return the options of a protocol as arguments of the rig."""
    return {name.replace(".", "_"): value for name, value in PROTOCOLS[protocol].items()}


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic, PARTITIONS) as lab:
        yield lab


@pytest.fixture
def worker(lab, tmp_path):
    """Starts worker processes."""
    with contextlib.ExitStack() as stack:
        yield lambda conf: stack.enter_context(Worker(lab, tmp_path, conf))


class Worker:
    """One consumer in its own process, and its output."""

    def __init__(self, lab, folder, conf):
        self.lines, self.partitions = [], 0
        kept = {"auto.offset.reset": "earliest", "enable.auto.offset.store": False, "enable.auto.commit": False}
        told = json.dumps({**lab.servers, "group.id": lab.group, **kept, **conf})
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", WORKER, lab.topic, str(folder), told]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        for line in self.process.stdout:
            word, *rest = line.split()
            if word == "assigned":
                self.partitions += int(rest[0])
            elif line.endswith("\n"):  # else it was killed in the middle
                self.lines.append([word, *rest])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def leave(self):
        self.process.terminate()
        assert self.process.wait(30) == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.thread.join()
        self.process.stdout.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_lost_or_mixed_while_consumers_come_and_go(lab, worker, tmp_path, protocol):
    """Four producers send payloads of both strategies, interleaved."""
    stores = {"stores": {"disk": {"type": "filesystem", "path": str(tmp_path)}}}
    ccs = [claimcheck.from_dict({"strategy": strategy, **stores}) for strategy in ("chunking", "external")]
    producers, workers, sent = [lab.producer(cc) for cc in ccs * 2], [], {}

    def received():
        return [line for each in workers for line in each.lines]

    def until(count):
        """Send more than so many payloads, and wait until so many came."""
        for i in range(len(sent), min(count + 20, PAYLOADS)):
            payload, name = content((1 + i % 7) * 2 * LIMIT, i), f"p{i}"
            sent[name] = hashlib.sha256(payload).hexdigest()
            producers[i % 4].produce(lab.topic, payload, b"%d" % i, headers={"name": name})
        servers.wait_until(lambda: len({line[0] for line in received()}) >= count, f"{count} payloads came", 60)

    for count in (15, 35, 55):
        workers.append(worker(PROTOCOLS[protocol]))
        servers.wait_until(lambda: workers[-1].partitions, "it has partitions", 60)
        until(count)
    workers[1].leave()
    until(75)
    workers[0].kill()
    until(PAYLOADS)
    counts = collections.Counter(line[0] for line in received())
    print(f"{protocol}: {len(sent)} sent, {sum(count > 1 for count in counts.values())} received twice")
    assert {line[0]: line[1] for line in received()} == sent
    assert all(each.lines for each in workers)


@pytest.mark.parametrize("protocol", PROTOCOLS)
class TestHandover:
    def test_callbacks_get_this_consumer_and_may_choose_places_and_commit(self, lab, protocol):
        heard, consumer = [], lab.consumer(subscribe=False, **told(protocol))
        incomplete = chunks_of(content(700), 2)[0]
        lab.send_raw(*chunks_of(content(900), 3), incomplete, *chunks_of(content(800), 2), b"end", partition=0)

        def on_assign(told_consumer, partitions):
            heard.append(("assigned", told_consumer is consumer, len(partitions)))
            for each in partitions:
                each.offset = 3 if each.partition == 0 else kafka.OFFSET_END
            take = told_consumer.assign if protocol == "eager" else told_consumer.incremental_assign
            take(partitions)

        def on_revoke(told_consumer, partitions):
            heard.append(("revoked", told_consumer is consumer, len(partitions)))
            told_consumer.commit(offsets=told_consumer.position(partitions)[:1], asynchronous=False)

        consumer.subscribe([lab.topic], on_assign=on_assign, on_revoke=on_revoke)
        assert values(receive(consumer, 2)) == [content(800), b"end"]
        consumer.close()
        assert [each for each in heard if each[2]] == [("assigned", True, PARTITIONS), ("revoked", True, PARTITIONS)]
        assert lab.committed(0).offset == 3
        again = lab.consumer(**told(protocol))
        lab.send_raw(b"more", partition=0)
        assert values(receive(again, 1)) == [b"more"]

    def test_what_a_callback_raises_comes_out_of_poll(self, lab, protocol):
        """The client replaces it with a `KafkaError`, which is not an exception class."""
        lab.send_raw(b"one", partition=0)
        consumer = lab.consumer(subscribe=False, **told(protocol))
        consumer.subscribe([lab.topic], on_assign=lambda mine, _: mine.commit(asynchronous=False))
        with pytest.raises(kafka.KafkaException, match="_NO_OFFSET"):
            receive(consumer, 1)
        assert values(receive(consumer, 1)) == [b"one"]


@pytest.mark.parametrize("end", ["unsubscribe", "unassign", "close"])
def test_the_end_of_an_assignment_commits_what_was_processed(lab, end):
    """Offsets are stored at intervals; those since the last time must be, too."""
    consumer = lab.consumer(wrap={"auto_offset_store": True}, enable_auto_commit=True, auto_commit_interval_ms=60_000)
    lab.send_raw(*[b"plain"] * 20)
    assert len(receive(consumer, 20)) == 20
    getattr(consumer, end)()
    if end != "close":
        consumer.poll(0.5)
        consumer.close()
    assert lab.committed().offset == 20


def test_unsubscribe_keeps_partitions_that_were_assigned_manually_as_the_client_does(lab):
    lab.send_raw(b"0", b"1", *chunks_of(content(900), 2))
    consumer = lab.consumer(subscribe=False, wrap={"prefetch_bytes": 100 * LIMIT})
    consumer.assign([kafka.TopicPartition(lab.topic, 0)])
    found = receive(consumer, 1)
    consumer.unsubscribe()
    assert values(found + receive(consumer, 2)) == [b"0", b"1", content(900)]
