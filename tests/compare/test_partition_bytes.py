"""The bytes of a payload in its partition."""

import pytest

from tests.benchmarks.compare import partition_bytes
from tests.benchmarks.compare.broker import connect
from tests.compare.rig import KIB, MIB, embedded, lab_on


class ChunksInPlaceOfPointers:
    """A broker whose producers send chunks in every mode."""

    def __init__(self, broker):
        self._broker = broker

    def __getattr__(self, name):
        return getattr(self._broker, name)

    def producer(self, mode, topic, cc, **options):
        return self._broker.producer("native", topic, cc, max_message_bytes=4 * MIB)


class EverythingTwice(ChunksInPlaceOfPointers):
    """A broker whose producers send each payload twice."""

    def producer(self, mode, topic, cc, **options):
        made = self._broker.producer(mode, topic, cc, **options)
        send = made.send
        made.send = lambda payload: (send(payload), send(payload))
        return made


def test_embedded_broker(tmp_path):
    with lab_on(embedded(tmp_path), tmp_path, sizes=(64 * KIB, 2 * MIB)) as lab:
        found = partition_bytes.run(lab)
        assert lab.topics == []
    assert found.verdict == "agrees"
    assert set(found.measured) == {"external", "chunking", "hybrid", "native"}
    assert 200 < found.facts[f"bytes_per_payload/external/{2 * MIB}"] < 500
    assert 2 * MIB < found.facts[f"bytes_per_payload/chunking/{2 * MIB}"] < 2.01 * MIB
    assert found.facts[f"bytes_per_payload/hybrid/{64 * KIB}"] > 64 * KIB  # small enough for the broker
    assert found.facts[f"bytes_per_payload/hybrid/{2 * MIB}"] < 500
    assert "embedded broker" in found.explanation


@pytest.mark.parametrize("wrong", [ChunksInPlaceOfPointers, EverythingTwice])
def test_a_wrong_producer_is_seen(tmp_path, wrong):
    with lab_on(wrong(embedded(tmp_path)), tmp_path, sizes=(2 * MIB,)) as lab:
        assert partition_bytes.run(lab).verdict == "partly"


@pytest.mark.parametrize(
    ("pointer", "chunks", "verdict"),
    [
        (300, 1.01 * MIB, "agrees"),
        (300, 2.1 * MIB, "partly"),  # everything is stored twice
        (300, 0.2 * MIB, "partly"),  # something is missing
        (5000, 1.01 * MIB, "partly"),
        (0, 1.01 * MIB, "partly"),  # nothing arrived
        (MIB, 2.1 * MIB, "disagrees"),
    ],
)
def test_verdicts(pointer, chunks, verdict):
    measured = {("external", MIB): pointer, ("chunking", MIB): chunks}
    assert partition_bytes.judge(measured)[0] == verdict


def test_without_a_store_there_is_no_verdict():
    found = partition_bytes.result({("chunking", MIB): MIB + 100.0}, source="somewhere")
    assert found.verdict == "not measured"
    assert set(found.measured) == {"chunking"}


def test_payloads_until_a_partition_is_full():
    found = partition_bytes.result({("external", MIB): 400.0, ("chunking", MIB): 2e6}, source="somewhere")
    assert [row[-1] for row in found.rows] == [25_000_000, 5000]
    assert "25,000,000 payloads fill 10 GB" in found.measured["external"]


def test_a_size_that_the_broker_refuses_is_left_out(tmp_path):
    class Refusing(ChunksInPlaceOfPointers):
        def create_topic(self, topic, settings):
            if (settings.max_message_bytes or 0) > MIB:
                raise partition_bytes.NotMeasuredError("the broker accepts requests of at most 1048576 bytes")
            self._broker.create_topic(topic, settings)

        def producer(self, mode, topic, cc, **options):
            return self._broker.producer(mode, topic, cc, **options)

    with lab_on(Refusing(embedded(tmp_path)), tmp_path, sizes=(64 * KIB, 2 * MIB)) as lab:
        found = partition_bytes.run(lab)
    assert f"bytes_per_payload/native/{2 * MIB}" not in found.facts
    assert "native, 2 MiB: the broker accepts requests of at most" in found.explanation
    assert "64 KiB" in found.measured["native"]


def test_on_real_brokers(real_address, tmp_path):
    with lab_on(connect(real_address), tmp_path, sizes=(2 * MIB,)) as lab:
        found = partition_bytes.run(lab)
    assert found.verdict == "agrees"
    assert {"kafka": "sizes of the records", "pulsar": "statistics"}[real_address.kind] in found.explanation
    assert 1 < found.facts[f"bytes_per_payload/native/{2 * MIB}"] / (2 * MIB) < 1.01
