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
from tests.integration import kafka_worker
from tests.integration.kafka_rig import LIMIT, chunks_of, content, receive, rig, values

PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range", "session.timeout.ms": 6000, "heartbeat.interval.ms": 500},
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
    },
    "consumer": {"group.protocol": "consumer"},
}
PAYLOADS, PARTITIONS = 150, 4


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


def child(what, lab, folder, conf):
    """Start a process of kafka_worker.py."""
    told = json.dumps({**lab.servers, "group.id": lab.group, **conf})
    command = [sys.executable, kafka_worker.__file__, what, lab.topic, str(folder), told]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


class Worker:
    """One consumer in its own process, and its output."""

    def __init__(self, lab, folder, conf):
        self.lines, self.partitions = [], 0
        self.process = child("receive", lab, folder, {"enable.auto.commit": False, **conf})
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


class Senders:
    """Producers that send payloads of both strategies, interleaved, as many as `allow` permits."""

    def __init__(self, lab, folder):
        stores = {"stores": {"disk": {"type": "filesystem", "path": str(folder)}}}
        ccs = [claimcheck.from_dict({"strategy": strategy, **stores}) for strategy in ("chunking", "external")]
        self.producers = [lab.producer(cc) for cc in ccs for _ in range(2)]
        self.lab, self.sent = lab, {}
        self.threads = [threading.Thread(target=self.send, args=(n,), daemon=True) for n in range(len(self.producers))]
        self.go = threading.Semaphore(0)
        for thread in self.threads:
            thread.start()

    def send(self, number):
        producer = self.producers[number]
        for i in range(number, PAYLOADS, len(self.producers)):
            self.go.acquire()
            payload, name = content((1 + i % 7) * 2 * LIMIT, i), f"p{i}"
            self.sent[name] = hashlib.sha256(payload).hexdigest()
            producer.produce(self.lab.topic, payload, b"%d" % i, headers={"name": name})
        producer.flush(30)

    def allow(self, count):
        """Permit ``count`` more payloads."""
        self.go.release(count)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_lost_or_mixed_while_consumers_come_and_go(lab, worker, tmp_path, protocol, record_property):
    conf, senders, workers = PROTOCOLS[protocol], Senders(lab, tmp_path), []

    def received():
        return [line for each in workers for line in each.lines]

    def until(count):
        senders.allow(30)
        servers.wait_until(lambda: len({line[0] for line in received()}) >= count, f"{count} payloads came", 60)

    def join():
        workers.append(worker(conf))
        servers.wait_until(lambda: workers[-1].partitions, "it has partitions", 60)

    join()
    until(20)
    join()
    until(50)
    join()
    until(80)
    workers[1].leave()
    until(110)
    workers[0].kill()
    senders.allow(PAYLOADS)
    for thread in senders.threads:
        thread.join()
    servers.wait_until(lambda: {line[0] for line in received()} >= senders.sent.keys(), "all that was sent came", 60)

    counts = collections.Counter(line[0] for line in received())
    twice = sum(count - 1 for count in counts.values())
    record_property("counts", f"{protocol}: {len(senders.sent)} sent, {len(counts)} received, {twice} of them twice")
    print(f"{protocol}: {len(senders.sent)} sent, {len(counts)} received, {twice} of them twice")
    assert {line[0]: line[1] for line in received()} == senders.sent
    assert all(each.lines for each in workers)


@pytest.mark.parametrize("protocol", PROTOCOLS)
class TestHandover:
    def test_chunks_of_a_partition_that_is_taken_away_are_read_again_by_its_new_owner(self, lab, protocol):
        """Each partition has half a payload when the second consumer joins, and gets the other half later."""
        halves = {number: chunks_of(content(900, number), 4) for number in range(PARTITIONS)}
        for number, chunks in halves.items():
            lab.send_raw(*chunks[:2], partition=number)
        conf = told(protocol)
        first = lab.consumer(**conf)
        servers.wait_until(lambda: first.poll(0.1) is None and first.pending_payloads == PARTITIONS, "all are begun")

        second = lab.consumer(**conf)
        servers.wait_until(
            lambda: (
                [each.poll(0.1) for each in (first, second)] == [None, None]
                and len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2
            ),
            "they share",
        )
        servers.wait_until(
            lambda: (
                [each.poll(0.1) for each in (first, second)] == [None, None]
                and (first.pending_payloads, second.pending_payloads) == (PARTITIONS // 2, PARTITIONS // 2)
            ),
            "each has the halves of its own",
        )
        for number, chunks in halves.items():
            lab.send_raw(*chunks[2:], partition=number)

        found = receive(first, PARTITIONS // 2) + receive(second, PARTITIONS // 2)

        assert sorted(values(found)) == sorted(content(900, number) for number in range(PARTITIONS))

    def test_callbacks_get_this_consumer_and_may_commit(self, lab, protocol):
        heard, consumer = [], lab.consumer(subscribe=False, **told(protocol))
        lab.send_raw(chunks_of(content(900), 3)[0], *chunks_of(content(800), 2), b"end", partition=0)

        def on_revoke(told_consumer, partitions):
            heard.append(("revoked", told_consumer is consumer, len(partitions)))
            told_consumer.commit(offsets=told_consumer.position(partitions)[:1], asynchronous=False)

        consumer.subscribe(
            [lab.topic],
            on_assign=lambda told_consumer, partitions: heard.append(
                ("assigned", told_consumer is consumer, len(partitions))
            ),
            on_revoke=on_revoke,
        )
        receive(consumer, 2)
        consumer.close()

        assert [each for each in heard if each[2]] == [("assigned", True, PARTITIONS), ("revoked", True, PARTITIONS)]
        assert lab.committed(0).offset == 0
        again = lab.consumer(**told(protocol))
        lab.send_raw(b"more", partition=0)
        assert values(receive(again, 1)) == [b"more"]

    def test_partitions_by_hand_in_a_callback_begin_where_the_user_says(self, lab, protocol):
        lab.send_raw(*chunks_of(content(900), 3), *chunks_of(content(800), 2), partition=0)
        consumer = lab.consumer(subscribe=False, **told(protocol))

        def on_assign(told_consumer, partitions):
            for each in partitions:
                each.offset = 3 if each.partition == 0 else kafka.OFFSET_END
            take = told_consumer.assign if protocol == "eager" else told_consumer.incremental_assign
            take(partitions)

        consumer.subscribe([lab.topic], on_assign=on_assign)

        assert values(receive(consumer, 1)) == [content(800)]

    def test_what_a_callback_raises_comes_out_of_poll(self, lab, protocol):
        """The client replaces it with a `KafkaError`, which is not an exception class."""
        lab.send_raw(b"one", partition=0)
        consumer = lab.consumer(subscribe=False, **told(protocol))
        consumer.subscribe([lab.topic], on_assign=lambda mine, _: mine.commit(asynchronous=False))

        with pytest.raises(kafka.KafkaException, match="_NO_OFFSET"):
            receive(consumer, 1)

        assert values(receive(consumer, 1)) == [b"one"]

    def test_a_callback_that_raises_while_a_message_waits_loses_nothing(self, lab, protocol):
        """The message is returned, or its partition was revoked, and the next owner gets it."""
        first = lab.consumer(subscribe=False, wrap={"auto_offset_store": True}, **told(protocol))
        second, done, found = lab.native_consumer(**told(protocol)), threading.Event(), []

        def on_revoke(*_):
            raise RuntimeError("revoked")

        def join():
            servers.wait_until(lambda: first._receiver.ready, "consume has the message")
            second.subscribe([lab.topic])
            while not done.is_set():
                if (message := second.poll(0.1)) is not None:
                    found.append(message.value())
            second.close()

        first.subscribe([lab.topic], on_revoke=on_revoke)
        servers.wait_until(lambda: first.poll(0.1) is None and len(first.assignment()) == PARTITIONS, "it has all")
        lab.send_raw(b"one", partition=0)
        other = threading.Thread(target=join)
        other.start()
        try:
            with pytest.raises(RuntimeError, match="revoked"):
                while True:
                    found += values(first.consume(10, timeout=30))
            servers.wait_until(lambda: found.extend(values(receive(first, 1, 0.1))) or found, "it came")
            assert found == [b"one"]
        finally:
            done.set()
            other.join()


@pytest.mark.parametrize("commits", ["automatically", "in its callback"])
def test_a_process_that_dies_in_consume_after_a_rebalance_loses_nothing(lab, tmp_path, commits):
    """It holds ten messages and waits for more, when another member joins."""
    for n in range(10):
        lab.send_raw(b"%d" % n, partition=n % 2)
    with waiting(lab, tmp_path, automatic=commits == "automatically") as (process, said):
        servers.wait_until(lambda: "received 10" in said, "it holds the messages", 60)
        second = lab.consumer(**told("eager"))
        servers.wait_until(lambda: second.poll(0.1) is not None or "revoked" in said, "it was told", 60)
        process.kill()
        process.wait()
    second.close()  # what it received while the other process left is not committed
    third = lab.consumer(**told("eager"))

    found = receive(third, 10, 60)

    assert sorted(values(found)) == sorted(b"%d" % n for n in range(10))
    assert "returned" not in said


@contextlib.contextmanager
def waiting(lab, folder, *, automatic):
    """Start a process that waits in `consume` for more messages than there are; yields it and its lines."""
    process, said = child("consume", lab, folder, {"enable.auto.commit": automatic, **PROTOCOLS["eager"]}), []
    listening = threading.Thread(target=lambda: said.extend(map(str.strip, iter(process.stdout.readline, ""))))
    listening.start()
    try:
        yield process, said
    finally:
        process.kill()
        process.wait()
        listening.join()
        process.stdout.close()


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


def test_records_that_come_in_the_call_in_which_a_callback_raised_wait_for_the_next_one(lab, monkeypatch):
    """The client may rebalance and fetch again within one call."""
    lab.send_raw(b"one", b"two")
    consumer = lab.consumer()
    fetch, fetched = consumer._receiver._records, []

    def fetch_one(count, seconds):
        fetched.extend(found := fetch(1, seconds))
        if found and len(fetched) == 2:
            consumer._receiver.errors.append(RuntimeError("revoked"))
        return found

    monkeypatch.setattr(consumer._receiver, "_records", fetch_one)

    assert values(consumer.consume(10, timeout=30)) == [b"one"]
    with pytest.raises(RuntimeError, match="revoked"):
        consumer.poll(30)
    assert values(receive(consumer, 1)) == [b"two"]
