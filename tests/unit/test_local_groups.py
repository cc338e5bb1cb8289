"""Groups of the embedded broker: one position per partition, and one open consumer, which the next one replaces."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import claimcheck
from claimcheck.errors import ConfigError
from claimcheck.transports.local import (
    BrokerClosedError,
    GroupTakenOverError,
    LocalBroker,
    LocalConsumer,
    ReceivedMessage,
    UnknownPartitionError,
)
from tests.clocks import Clock
from tests.hypothesis_examples import examples


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cc():
    with claimcheck.from_dict({"strategy": "inline"}) as cc:
        yield cc


@pytest.fixture
def broker(tmp_path: Path, clock: Clock):
    with LocalBroker(tmp_path / "broker.sqlite", clock=clock, sleep=clock.sleep) as broker:
        broker.create_topic("orders")
        broker.create_topic("wide", partitions=4)
        yield broker


@pytest.fixture
def join(broker: LocalBroker, cc):
    def join(*topics: str, group: str = "g") -> LocalConsumer:
        return LocalConsumer(broker, cc, topics=topics or ["orders"], group=group, redelivery_delay_seconds=0)

    return join


def fill(broker: LocalBroker, count: int, topic: str = "orders") -> None:
    for number in range(count):
        broker.append(topic, b"%d" % number)


def take(consumer: LocalConsumer, limit: int = 10_000) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < limit and (message := consumer.receive(timeout=0)) is not None:
        found.append(message)
    return found


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [message.offset for message in messages]


def position(broker: LocalBroker, group: str = "g", topic: str = "orders", partition: int = 0) -> int:
    query = "SELECT offset FROM positions WHERE grp = ? AND topic = ? AND partition = ?"
    with broker.database.read() as db:
        return int(db.execute(query, (group, topic, partition)).fetchone()[0])


# Reading


def test_a_busy_partition_does_not_keep_the_others_waiting(broker, join):
    for partition in (0, 0, 0, 0, 3):
        broker.append("wide", b"", partition=partition)
    assert 3 in [message.partition for message in take(join("wide"), 2)]


def test_a_message_that_is_always_rejected_does_not_keep_the_others_waiting(broker, join):
    fill(broker, 3)
    consumer, found = join(), set()
    for _ in range(6):
        message = consumer.receive(timeout=0)
        found.add(message.offset)
        consumer.nack(message)
    assert found == {0, 1, 2}


def test_waiting_ends_as_soon_as_something_comes(broker, join, clock):
    consumer, before = join(), clock.now

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        broker.append("orders", b"x")

    broker.sleep = sleep
    assert consumer.receive(timeout=60) is not None
    assert clock.now - before < 0.1


# Positions


def test_the_position_is_that_of_the_oldest_message_that_is_not_acknowledged(broker, join):
    fill(broker, 4)
    consumer = join()
    messages = take(consumer)
    for number, expected in ((1, 0), (3, 0), (0, 2), (2, 4)):
        consumer.ack(messages[number])
        assert position(broker) == expected
    consumer.ack(messages[0])  # again: harmless
    consumer.close()
    assert take(join()) == []


def test_consumed_is_what_all_groups_have_acknowledged(broker, join):
    fill(broker, 3)
    assert broker.consumed_offset("orders", 0) == 0
    for group, count in (("a", 3), ("b", 2)):
        consumer = join(group=group)
        for message in take(consumer, count):
            consumer.ack(message)
    assert broker.consumed_offset("orders", 0) == 2


# One open consumer


def test_the_next_consumer_takes_over_and_the_first_can_change_nothing(broker, join):
    fill(broker, 3)
    first = join()
    messages = take(first)
    first.ack(messages[0])
    second = join()
    for call in (
        first.receive,
        lambda: first.ack(messages[1]),
        lambda: first.seek("orders", 0, 3),
    ):
        with pytest.raises(GroupTakenOverError, match="another consumer of group g was opened"):
            call()
    assert position(broker) == 1
    assert offsets(take(second)) == [1, 2]
    first.close()
    assert offsets(take(join())) == [1, 2]


def test_a_consumer_of_another_topic_takes_nothing_over(broker, join):
    fill(broker, 1)
    fill(broker, 1, "wide")
    orders, wide = join("orders"), join("wide")
    assert (len(take(orders)), len(take(wide))) == (1, 1)
    join("orders", "wide")
    for consumer in (orders, wide):
        with pytest.raises(GroupTakenOverError):
            consumer.receive(timeout=0)


def test_a_deleted_group_begins_again(broker, join):
    fill(broker, 2)
    consumer = join()
    consumer.ack(consumer.receive(timeout=0))
    broker.delete_group("g")
    broker.delete_group("g")
    with pytest.raises(GroupTakenOverError, match="or the group was deleted"):
        consumer.receive(timeout=0)
    assert broker.consumed_offset("orders", 0) == 0
    assert offsets(take(join())) == [0, 1]


# Seeking


def test_seeking_before_the_first_message_and_to_the_end(broker, join):
    fill(broker, 4)
    consumer = join()
    consumer.seek("orders", 0, broker.end_offset("orders", 0))
    assert take(consumer) == []
    fill(broker, 1)
    assert offsets(take(consumer)) == [4]


@pytest.mark.parametrize("offset", [-1, 3, "0"])
def test_offsets_that_are_not_there_cannot_be_sought(broker, join, offset):
    fill(broker, 2)
    consumer = join()
    with pytest.raises(ConfigError, match="offset: found"):
        consumer.seek("orders", 0, offset)
    assert offsets(take(consumer)) == [0, 1]


def test_other_places_that_cannot_be_sought(join):
    consumer = join()
    with pytest.raises(UnknownPartitionError):
        consumer.seek("orders", 1, 0)
    with pytest.raises(ConfigError, match="one of this consumer's: orders"):
        consumer.seek("wide", 0, 0)


# Opening and closing


def test_a_closed_consumer_refuses_everything_but_closing(broker, join):
    fill(broker, 1)
    consumer = join()
    message = consumer.receive(timeout=0)
    consumer.close()
    consumer.close()
    for call in (
        consumer.receive,
        lambda: consumer.ack(message),
        lambda: consumer.nack(message),
        lambda: consumer.seek("orders", 0, 0),
    ):
        with pytest.raises(BrokerClosedError, match="group g was closed"):
            call()
    assert repr(consumer) == "<LocalConsumer of g on orders: closed>"


@pytest.mark.parametrize(
    ("group", "topics"), [("", ["orders"]), ("a b", ["orders"]), ("g", []), ("g", "orders"), ("g", ["a\0"])]
)
def test_names_that_are_refused(broker, cc, group, topics):
    with pytest.raises(ConfigError):
        LocalConsumer(broker, cc, topics=topics, group=group)


# A model

_VERDICTS = st.just(["ack"] * 9) | st.lists(st.sampled_from(["ack", "ack", "nack", "keep"]), min_size=9, max_size=9)


class GroupMachine(RuleBasedStateMachine):
    """Consumers replace each other, die, receive, ack, nack and seek at random.

    No position ever passes a message that is not acknowledged, and no consumer receives what it has acknowledged again.
    """

    @initialize(partitions=st.integers(1, 2))
    def start(self, partitions: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.cc = claimcheck.from_dict({"strategy": "inline"})
        self.broker = LocalBroker(Path(self.folder.name) / "b.sqlite", clock=self.clock, sleep=self.clock.sleep)
        self.broker.create_topic("t", partitions=partitions)
        fill(self.broker, 6, "t")
        self.done: set[tuple[int, int]] = set()  # acknowledged by any consumer, or passed over by a seek
        self.closed: LocalConsumer | None = None
        self.open()

    def open(self) -> None:
        self.consumer = LocalConsumer(self.broker, self.cc, topics=["t"], group="g", redelivery_delay_seconds=1)
        self.held: list[ReceivedMessage] = []
        self.acked: set[tuple[int, int]] = set()

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        fill(self.broker, count, "t")

    @rule(leave=st.booleans())
    def replace(self, leave: bool) -> None:
        old, held = self.consumer, self.held
        if leave:
            old.close()
        self.open()
        if not leave and held:
            with pytest.raises(GroupTakenOverError):
                old.ack(held[0])

    @rule(limit=st.integers(1, 6), verdicts=_VERDICTS)
    def receive(self, limit: int, verdicts: list[str]) -> None:
        for message in take(self.consumer, limit):
            assert _place(message) not in self.acked
            assert _place(message) not in map(_place, self.held)
            self.held.append(message)
        self.judge(verdicts)

    @rule(verdicts=_VERDICTS)
    def judge(self, verdicts: list[str]) -> None:
        """Ack, nack or keep what was received, oldest first."""
        judged = list(zip(self.held, verdicts, strict=False))
        self.held = [message for message in self.held if (message, "keep") in judged or message not in dict(judged)]
        for message, verdict in judged:
            if verdict == "ack":
                self.consumer.ack(message)
                self.acked.add(_place(message))
            elif verdict == "nack":
                self.consumer.nack(message)
        self.done |= self.acked
        self.check_positions()

    @rule(partition=st.integers(0, 1), back=st.integers(0, 8))
    def seek(self, partition: int, back: int) -> None:
        partition %= self.broker.partitions("t")
        offset = max(self.broker.end_offset("t", partition) - back, 0)
        self.consumer.seek("t", partition, offset)
        self.held = [message for message in self.held if message.partition != partition]
        self.acked = {place for place in self.acked if place[0] != partition}
        others = {place for place in self.done if place[0] != partition}
        self.done = others | {(partition, before) for before in range(offset)}

    @rule(seconds=st.sampled_from([0.5, 1, 20]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def check_positions(self) -> None:
        for partition in range(self.broker.partitions("t")):
            passed = range(position(self.broker, "g", "t", partition))
            assert {(partition, offset) for offset in passed} <= self.done

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.check_positions()
            self.open()
            rest = set(map(_place, take(self.consumer)))
            appended = {
                (n, at) for n in range(self.broker.partitions("t")) for at in range(self.broker.end_offset("t", n))
            }
            assert rest | self.done == appended
            self.consumer.close()
            self.broker.close()
            self.cc.close()
            self.folder.cleanup()


def _place(message: ReceivedMessage) -> tuple[int, int]:
    return message.partition, message.offset


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = examples(100, stateful_step_count=50)


def test_a_message_given_back_holds_the_position_and_can_be_acknowledged_later(broker, join):
    fill(broker, 3)
    consumer = join()
    first, second, _ = take(consumer)
    consumer.nack(first)
    consumer.ack(second)
    assert position(broker) == 0
    again = consumer.receive(timeout=0)
    assert (again.offset, again.redelivery_count) == (0, 1)
    consumer.nack(again)
    consumer.ack(again)
    assert position(broker) == 2
    assert consumer.receive(timeout=0) is None
