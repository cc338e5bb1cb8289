"""What every broker under test has to do, checked against a real one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.compare.broker import Broker, Received, TopicSettings
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Mode

SECONDS = 30.0


class Traffic:
    """One topic, and clients of one mode."""

    def __init__(self, lab: Lab, mode: Mode, topic: str, stack: contextlib.ExitStack, limit: int | None) -> None:
        self.broker, self.mode, self.topic, self._stack, self._limit = lab.broker, mode, topic, stack, limit
        self.cc = stack.enter_context(lab.claimcheck(mode))
        self.reports: list[tuple[Exception | None, int | None]] = []

    def send(self, *payloads: bytes, key: bytes | None = None) -> None:
        producer = self.broker.producer(self.mode, self.topic, self.cc, max_message_bytes=self._limit)
        for payload in payloads:
            producer.send(payload, key=key, done=lambda *report: self.reports.append(report))
        producer.flush(SECONDS)
        producer.close()

    def consumer(self, group: str = "g") -> Any:
        made = self.broker.consumer(self.mode, self.topic, self.cc, group=f"{self.topic}-{group}")
        self._stack.callback(made.close)
        return made


@contextlib.contextmanager
def traffic(
    lab: Lab, mode: Mode, largest: int, *, partitions: int = 1, retention: float | None = None
) -> Iterator[Traffic]:
    """Create a topic for payloads up to a size."""
    wanted = lab.settings(mode, largest, partitions=partitions)
    settings = TopicSettings(partitions, wanted.max_message_bytes, retention)
    with contextlib.ExitStack() as stack:
        topic = lab.topic(mode, "test", settings)
        stack.callback(lab.delete_topic, topic)
        yield Traffic(lab, mode, topic, stack, settings.max_message_bytes)


def receive(consumer: Any, count: int) -> list[Received]:
    """Receive exactly this many payloads."""
    found = [consumer.receive(SECONDS) for _ in range(count)]
    assert all(each is not None and each.error is None for each in found), found
    return found


def payloads_of(found: list[Received]) -> list[bytes | None]:
    return [each.payload for each in found]


def large(lab: Lab, *numbers: int) -> list[bytes]:
    """Return payloads that do not fit into one message."""
    return [lab.payload(3 * lab.broker.limit_bytes, number) for number in numbers]


def check_delivery_and_commit(lab: Lab, mode: Mode) -> None:
    """Payloads arrive whole, each send has one report, and what was committed does not come again."""
    sent = [*large(lab, 0, 1, 2), lab.payload(100, 3)]
    with traffic(lab, mode, len(sent[0])) as lane:
        lane.send(*sent)
        assert lane.reports == [(None, 0)] * 4
        first = lane.consumer()
        found = receive(first, 4)
        assert payloads_of(found) == sent
        for each in found[:2]:
            first.commit(each)
        first.close()
        assert payloads_of(receive(lane.consumer(), 2)) == sent[2:]


def check_seek(lab: Lab, mode: Mode, *, skips: bool) -> None:
    """A seek to the second message: with chunks the middle of a payload, else the second payload."""
    sent = large(lab, 0, 1, 2)
    with traffic(lab, mode, len(sent[0])) as lane:
        lane.send(*sent)
        consumer = lane.consumer()
        found = receive(consumer, 3)
        consumer.seek(0, lab.broker.positions(lane.topic, 0)[1])
        assert payloads_of(receive(consumer, 2)) == sent[1:]
        consumer.seek(0, found[1].position)
        assert payloads_of(receive(consumer, 2)) == sent[1:]
        consumer.seek(0, lab.broker.positions(lane.topic, 0)[0])
        assert payloads_of(receive(consumer, 3)) == sent
        assert (len(lab.broker.positions(lane.topic, 0)) > 3) == skips


def check_partitions(lab: Lab) -> None:
    """Payloads with one key are in one partition; the broker's figures are per partition."""
    sent = [lab.payload(1000, number) for number in range(6)]
    with traffic(lab, "external", 1000, partitions=3) as lane:
        lane.send(*sent, key=b"k")
        (home,) = {partition for _, partition in lane.reports}
        assert home is not None
        counts = [len(lab.broker.positions(lane.topic, partition)) for partition in range(3)]
        assert counts[home] == sum(counts) == lab.broker.readable_messages(lane.topic) == 6
        sizes = lab.broker.topic_bytes(lane.topic)
        assert [size > 0 for size in sizes] == [partition == home for partition in range(3)]
        consumer = lane.consumer()
        found = receive(consumer, 6)
        assert payloads_of(found) == sent
        consumer.seek(home, found[4].position)
        assert payloads_of(receive(consumer, 2)) == sent[4:]


def check_bytes(lab: Lab) -> None:
    """Chunks take the payload's bytes and a little more, pointers a few hundred."""
    (payload,) = large(lab, 0)
    factors = {}
    for mode in ("external", "chunking", "native"):
        with traffic(lab, mode, len(payload)) as lane:
            lane.send(payload)
            factors[mode] = sum(lab.broker.topic_bytes(lane.topic)) / len(payload)
    assert 0 < factors["external"] < 0.01
    assert 1 <= factors["chunking"] < 1.05
    assert 1 <= factors["native"] < 1.05


def check_topics(broker: Broker, prefix: str) -> None:
    """Deleting a missing topic is not an error."""
    names = [f"{prefix}-a", f"{prefix}-b"]
    broker.create_topic(names[0], TopicSettings())
    broker.create_topic(names[1], TopicSettings(partitions=2))
    for name in (*names, names[0]):
        broker.delete_topic(name)


def check_sample(lab: Lab) -> None:
    """Envelopes count with their payload's size, and chunks once."""
    payload = large(lab, 0)[0]
    with traffic(lab, "native", 1000, partitions=2) as lane:
        lane.send(lab.payload(100, 0), key=b"k")
        for mode in ("external", "chunking"):
            with lab.claimcheck(mode) as cc:
                producer = lab.broker.producer(mode, lane.topic, cc)
                producer.send(payload, key=b"k")
                producer.flush(SECONDS)
                producer.close()
        assert sorted(lab.broker.sample_sizes(lane.topic, 100)) == [100, len(payload), len(payload)]
        assert list(lab.broker.sample_sizes(lane.topic, 2)) == [len(payload)]  # each partition's last message
