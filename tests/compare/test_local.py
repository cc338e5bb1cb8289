"""The embedded broker as a broker under test, and the processes that use it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from claimcheck._wire.envelope import Chunk, decode
from claimcheck.transports.local import LocalBroker
from tests.benchmarks.compare.broker import BrokerAddress, TopicSettings
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.local import connect
from tests.benchmarks.compare.model import MODES, CompareError, Mode
from tests.benchmarks.compare.process import Worker, WorkerDiedError
from tests.compare import broker_checks as checks
from tests.compare.rig import KIB, MIB, embedded, lab_on

SECRET = "hunter2-hunter2-hunter2"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_on(embedded(tmp_path), tmp_path) as made:
        yield made


# The broker ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_payloads_are_delivered_and_committed(lab, mode: Mode):
    checks.check_delivery_and_commit(lab, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_seek_back_delivers_again(lab, mode: Mode):
    checks.check_seek(lab, mode, skips=mode == "chunking")


def test_partitions_bytes_and_topics(lab):
    checks.check_partitions(lab)
    checks.check_bytes(lab)


def test_a_deleted_topic_leaves_no_file(lab, tmp_path):
    topic = lab.topic("native", "gone", TopicSettings(partitions=2))
    assert lab.broker.topics("claimcheck-compare-") == [topic]

    lab.delete_topic(topic)
    lab.broker.delete_topic(topic)  # a missing one is not an error

    assert list((tmp_path / "broker").iterdir()) == []
    assert lab.topics == []


def test_the_sample_counts_a_chunked_payload_once(lab):
    checks.check_sample(lab)


def test_a_retention_is_refused(lab):
    with pytest.raises(CompareError, match="indefinitely"):
        lab.broker.create_topic("t", TopicSettings(retention_seconds=1.0))


@pytest.mark.parametrize("topic", ["../up", "a/b", ""])
def test_a_topic_is_not_a_path(lab, topic):
    with pytest.raises(CompareError, match="not the name of a topic"):
        lab.broker.delete_topic(topic)


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(CompareError, match="does not exist"):
        connect(BrokerAddress("local", str(tmp_path / "missing")))


# Worker processes ----------------------------------------------------------------------------------------------


def _pair(lab: Lab, mode: Mode, **options) -> tuple[str, Worker, Worker]:
    settings = lab.settings(mode, 4 * MIB)
    topic = lab.topic(mode, "pair", settings)
    producer = lab.worker("producer", mode, topic, max_message_bytes=settings.max_message_bytes, **options)
    return topic, producer, lab.worker("consumer", mode, topic)


@pytest.mark.parametrize("mode", MODES)
def test_workers_deliver_every_payload_unchanged(lab, mode: Mode):
    _, producer, consumer = _pair(lab, mode)

    sent = producer.send(3 * MIB, 7, 3)
    received = consumer.receive(3)

    assert (sent.count, sent.size, sent.errors, sent.partitions) == (3, 9 * MIB, (), (0, 0, 0))
    assert (received.count, received.size) == (3, 9 * MIB)
    assert [(each.number, each.correct) for each in consumer.delivered] == [(7, True), (8, True), (9, True)]
    assert len(sent.latencies) == len(received.latencies) == 3


def test_a_consumer_reports_wrong_content(lab):
    topic, producer, consumer = _pair(lab, "native")
    producer.send(3 * MIB, 0, 1)
    damaged = bytearray(lab.payload(3 * MIB, 1))
    damaged[-1] ^= 1
    LocalBroker(Path(lab.broker.address.url, f"{topic}.sqlite"), max_message_bytes=4 * MIB).append(topic, damaged)

    consumer.receive(2)

    assert [(each.number, each.correct) for each in consumer.delivered] == [(0, True), (1, False)]


@pytest.mark.parametrize("passed", [0, 1, 3])
def test_a_producer_is_killed_at_an_exact_chunk(lab, passed):
    topic, producer, _ = _pair(lab, "chunking", kill_after=passed)

    with pytest.raises(WorkerDiedError, match="status -9"):
        producer.send(4 * MIB, 0, 1)

    assert lab.broker.readable_messages(topic) == passed


def test_a_consumer_is_killed_at_an_exact_chunk(lab):
    topic, producer, _ = _pair(lab, "chunking")
    producer.send(2 * MIB, 0, 2)  # 3 chunks each
    for passed, delivered in ((3, 0), (4, 1)):
        victim = lab.worker("consumer", "chunking", topic, group=f"g{passed}", kill_after=passed)

        with pytest.raises(WorkerDiedError):
            victim.receive(2)

        assert [each.number for each in victim.delivered] == list(range(delivered))


def test_interleaved_payloads_take_turns(lab):
    topic, producer, consumer = _pair(lab, "chunking")

    producer.send(3 * MIB, 0, 4, interleaved=True)
    consumer.receive(4)

    path = Path(lab.broker.address.url, f"{topic}.sqlite")
    with LocalBroker(path) as broker:
        chunks = [decode(message.value or b"") for message in broker.fetch(topic, 0, 0, 100)]
    rounds = [chunks[begin : begin + 4] for begin in range(0, len(chunks), 4)]
    assert len(rounds) == 4
    for number, each in enumerate(rounds):
        assert all(isinstance(chunk, Chunk) and chunk.position == number for chunk in each)
        assert len({chunk.uuid for chunk in each if isinstance(chunk, Chunk)}) == 4
    assert sorted(each.number or 0 for each in consumer.delivered) == [0, 1, 2, 3]


def test_the_peak_of_a_consumer_grows_with_what_it_buffers(lab):
    _, producer, consumer = _pair(lab, "chunking")
    peaks = []
    for together in (1, 4):
        consumer.start("receive", count=together, idle=10.0, commit="each", verify=True, peak=True)
        producer.send(4 * MIB, 0, together, interleaved=together > 1)
        peaks.append(consumer.report(60.0).peak_bytes)

    assert peaks[1] - peaks[0] > 2 * 4 * MIB


def test_secrets_are_not_on_the_command_line(tmp_path):
    store = {"type": "redis", "url": f"redis://:{SECRET}@localhost:1/0"}
    with lab_on(embedded(tmp_path), tmp_path, store=store) as lab:
        lab.stored = True  # the store cannot be reached, and nothing is in it
        topic = lab.topic("external", "secret")
        with lab.worker("producer", "external", topic) as worker:
            command = Path(f"/proc/{worker.pid}/cmdline").read_bytes()
            report = worker.send(64 * KIB, 0, 1)
        lab.stored = False

    assert SECRET.encode() not in command
    assert SECRET not in repr(worker.spec)
    assert len(report.errors) == 1
    assert SECRET not in report.errors[0]


def test_a_worker_that_cannot_start_reports_why(lab):
    with pytest.raises(CompareError, match="no topic missing"):
        lab.worker("consumer", "chunking", "missing", group=uuid.uuid4().hex)


def test_a_command_that_takes_too_long_kills_the_worker(lab):
    _, _, consumer = _pair(lab, "native")
    consumer.start("receive", count=1, idle=600.0, commit="each", verify=True)

    with pytest.raises(CompareError, match="did not answer within"):
        consumer.report(0.01)

    assert consumer.wait(10) == -9
