"""The embedded broker: topics, messages, limits and failures, and its groups with one open consumer each."""

from __future__ import annotations

import os
import pickle
import sqlite3
import tempfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import claimcheck
from claimcheck.errors import ConfigError, PayloadTypeError
from claimcheck.transports.local import (
    MESSAGE_OVERHEAD_BYTES,
    BrokerBusyError,
    BrokerClosedError,
    BrokerCommitError,
    BrokerStorageError,
    GroupTakenOverError,
    LocalBroker,
    LocalConsumer,
    MessageId,
    MessageTooLargeError,
    ReceivedMessage,
    TopicStats,
    UnknownPartitionError,
    UnknownTopicError,
)
from claimcheck.transports.local import _broker as database
from tests.clocks import Clock
from tests.hypothesis_examples import examples


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sqlite"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(path: Path, clock: Clock):
    with LocalBroker(path, clock=clock, sleep=clock.sleep) as broker:
        broker.create_topic("orders", partitions=2)
        broker.create_topic("single")
        yield broker


# Topics and messages -----------------------------------------------------------------------------------------------


def test_only_the_owner_may_read_a_new_file(path):
    before = os.umask(0)
    try:
        with LocalBroker(path) as broker:
            broker.create_topic("orders")
            broker.append("orders", b"payload")
            modes = {each.name: oct(each.stat().st_mode & 0o777) for each in path.parent.glob("broker.sqlite*")}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["broker.sqlite", "broker.sqlite-shm", "broker.sqlite-wal"], "0o600")


def test_a_message_has_its_place_and_time_and_does_not_show_its_contents(broker, clock):
    broker.create_topic(topic := "persistent://tenant/ns/t-1_".ljust(249, "x"))
    assert broker.append(topic, b"payload", headers=[("a", "1")]) == MessageId(topic, 0, 0)
    (message,) = broker.fetch(topic, 0, 0, 10)
    assert (message.timestamp, message.headers, "payload" in repr(message)) == (clock.now, [("a", b"1")], False)


NAMES = ["", "x" * 250, "a\n", "\ud800", None]
HEADERS = ["ab", [("a", 1)], {"a": None}, [("\ud800", b"")]]


@pytest.mark.parametrize(
    ("method", "arguments", "error", "text"),
    [
        *(("append", {"topic": name}, ConfigError, "topic: found") for name in NAMES),
        *(("append", {"headers": headers}, ConfigError, "header") for headers in HEADERS),
        *(("append", {"value": value}, PayloadTypeError, "bytes-like or None") for value in ("text", [b"x"])),
        *(("append", {"key": key}, ConfigError, "key") for key in (5, "\ud800")),
        *(("append", {"partition": number}, UnknownPartitionError, "only 0 to 1") for number in (-1, 2, "0")),
        ("append", {"value": memoryview(bytes(1 << 20)).cast("I")}, MessageTooLargeError, "1048576"),
        *(("create_topic", {"name": name}, ConfigError, "topic: found") for name in NAMES),
        *(("create_topic", {"name": "new", "partitions": number}, ConfigError, "partitions") for number in (0, 10_001)),
        ("create_topic", {"name": "orders", "partitions": 3}, ConfigError, "found 3, expected 2"),
        *((name, {"topic": "no"}, UnknownTopicError, r"create_topic\('no'\)") for name in ("partitions", "stats")),
        *(("fetch", {"offset": at, "limit": limit}, ConfigError, "found -1") for at, limit in ((-1, 1), (0, -1))),
        ("fetch", {"topic": "no"}, UnknownTopicError, r"create_topic\('no'\)"),
        ("fetch", {"partition": 2}, UnknownPartitionError, "only 0 to 1"),
        ("end_offset", {"partition": -1}, UnknownPartitionError, "only 0 to 1"),
        ("delete_group", {"name": ""}, ConfigError, "group"),
    ],
)
def test_a_call_that_is_refused_changes_nothing(broker, method, arguments, error, text):
    needed = {
        "append": {"topic": "orders", "value": b"x"},
        "fetch": {"topic": "orders", "partition": 0, "offset": 0, "limit": 1},
        "end_offset": {"topic": "orders"},
    }
    with pytest.raises(error, match=text) as caught:
        getattr(broker, method)(**(needed.get(method, {}) | arguments))
    assert len(str(caught.value)) < 250
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert (broker.topics(), broker.partitions("orders")) == (["orders", "single"], 2)
    assert broker.stats("orders") == TopicStats(messages=0, bytes=0)


def test_the_partition_is_that_of_the_key_or_else_the_one_with_the_fewest_messages(broker, path):
    broker.create_topic("many", partitions=7)
    for key in (b"", b"k", b"key-2", "k"):
        stored = key.encode() if isinstance(key, str) else key
        assert broker.append("many", b"", key=key).partition == zlib.crc32(stored) % 7
    broker.append("orders", b"", partition=0)
    with LocalBroker(path) as other:
        turns = [appender.append("orders", b"").partition for appender in (broker, other, other, broker)]
    assert turns == [1, 0, 1, 0]


def test_the_limit_counts_value_key_headers_and_overhead_and_so_do_statistics(path):
    limit = 4 + 3 + (1 + 2) + (2 + 1) + MESSAGE_OVERHEAD_BYTES
    with LocalBroker(path, max_message_bytes=limit) as broker:
        broker.create_topic("t", partitions=2)
        broker.create_topic("other")
        broker.append("other", b"x")
        for partition in (0, 0, 1):
            broker.append("t", b"1234", key="ä1", headers=[("h", b"12"), ("ä", "1")], partition=partition)
        with pytest.raises(MessageTooLargeError) as caught:
            broker.append("t", b"12345", key="ä1", headers=[("h", b"12"), ("ä", "1")])
        assert broker.stats("t") == TopicStats(messages=3, bytes=3 * limit)
    assert (caught.value.size, caught.value.limit, caught.value.destination) == (limit + 1, limit, "t")
    assert not caught.value.retryable


# Lifetime and failures ---------------------------------------------------------------------------------------------


def test_the_file_is_opened_at_first_use_and_closing_keeps_it_and_refuses_further_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broker = LocalBroker("b.sqlite")
    monkeypatch.chdir("/")  # the path is fixed when the broker is made
    assert list(tmp_path.iterdir()) == []
    broker.create_topic("t")
    broker.append("t", b"kept")
    broker.close()
    broker.close()
    with pytest.raises(BrokerClosedError, match="was closed"):
        broker.stats("t")
    with LocalBroker(tmp_path / "b.sqlite") as again:
        assert again.fetch("t", 0, 0, 1)[0].value == b"kept"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"my diary" * 1000, "cannot be used as the file of a broker: file is not a database"),
        ("CREATE TABLE diary (entry TEXT)", "of another application"),
        (f"CREATE TABLE x (x); PRAGMA application_id={database._APPLICATION_ID + 1}", "another version of claimcheck"),
    ],
)
def test_a_file_that_is_not_a_brokers_is_refused_and_left_alone(path, content, text):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        connection = sqlite3.connect(path)
        connection.executescript(content)
        connection.close()
    before = path.read_bytes()
    with pytest.raises(BrokerStorageError, match=text):
        LocalBroker(path).create_topic("t")
    assert path.read_bytes() == before


def test_a_missing_folder_and_a_file_that_cannot_be_written_are_named(broker, tmp_path):
    with broker.database.read() as db:
        db.execute("PRAGMA query_only=ON")
    lost = LocalBroker(tmp_path / "missing" / "b.sqlite")
    for refusing, text in ((lost, str(tmp_path / "missing")), (broker, "readonly database")):
        with pytest.raises(BrokerStorageError, match=f"{text}.*folder has to exist") as caught:
            refusing.create_topic("t")
        assert isinstance(caught.value.__cause__, sqlite3.Error)


def test_a_locked_file_is_retryable_and_changes_nothing(broker, path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_TIMEOUT_SECONDS", 0.01)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with LocalBroker(path) as hasty:
        with pytest.raises(BrokerBusyError, match="locked by another process") as caught:
            hasty.append("orders", b"x")
        assert caught.value.retryable
        assert hasty.stats("orders").messages == 0  # readers do not wait
        connection.close()
        hasty.append("orders", b"x")


def test_a_full_disk_is_reported_and_nothing_is_half_done(broker):
    with broker.database.read() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + 4}")
    with pytest.raises(BrokerStorageError, match="disk is full"):
        broker.append("orders", bytes(100_000), partition=0)
    assert broker.stats("orders") == TopicStats(messages=0, bytes=0)
    assert broker.append("orders", b"small", partition=0).offset == 0


def test_an_error_before_the_commit_undoes_a_change_and_one_of_the_commit_is_unknown(broker):
    def change() -> None:
        with broker.database.write() as connection:
            connection.execute("DELETE FROM partitions")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change()
    assert broker.topics() == ["orders", "single"]
    with broker.database.write() as connection:
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    with broker.database.read() as connection:
        pass
    connection.execute("PRAGMA foreign_keys=ON")
    with pytest.raises(BrokerCommitError, match="unknown"), broker.database.write() as connection:
        connection.execute("INSERT INTO child VALUES (1)")
    broker.append("orders", b"goes on")


# Several threads and processes -------------------------------------------------------------------------------------


def test_writers_that_open_a_new_file_at_the_same_moment_lose_and_mix_nothing(tmp_path):
    """Each with a broker of its own, as processes have; an older version mistook one in eight new files for others'."""
    start = threading.Barrier(4)

    def write(path: Path, writer: int) -> None:
        start.wait()
        with LocalBroker(path) as broker:
            broker.create_topic("busy")
            for number in range(10):
                broker.append("busy", b"%d%d" % (writer, number))

    with ThreadPoolExecutor(4) as pool:
        for path in [tmp_path / f"{number}.sqlite" for number in range(30)]:
            for written in [pool.submit(write, path, writer) for writer in range(4)]:
                written.result()
            with LocalBroker(path) as broker:
                messages = broker.fetch("busy", 0, 0, 1000)
            assert [message.offset for message in messages] == list(range(40))
            values = [message.value or b"" for message in messages]
            assert len({*values}) == 40
            assert sorted(values) == sorted(values, key=lambda value: value[:1]), "each writer's order is kept"


def test_a_forked_child_uses_the_broker_of_its_parent(broker):
    broker.append("orders", b"parent", partition=0)
    inherited = broker.database._connection
    child = os.fork()
    if child == 0:
        code = 1
        try:
            broker.append("orders", b"child", partition=0)
            code = int(broker.database._connection is inherited)  # which SQLite forbids
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    broker.append("orders", b"parent again", partition=0)
    assert [m.value for m in broker.fetch("orders", 0, 0, 9)] == [b"parent", b"child", b"parent again"]


# Groups ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def join(broker: LocalBroker):
    def join(*topics: str, group: str = "g") -> LocalConsumer:
        cc = claimcheck.from_dict({"strategy": "inline"})
        return LocalConsumer(broker, cc, topics=topics or ["single"], group=group, redelivery_delay_seconds=0)

    return join


def fill(broker: LocalBroker, count: int, topic: str = "single") -> None:
    for number in range(count):
        broker.append(topic, b"%d" % number)


def take(consumer: LocalConsumer, limit: int = 10_000) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < limit and (message := consumer.receive(timeout=0)) is not None:
        found.append(message)
    return found


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [message.offset for message in messages]


def test_neither_a_busy_partition_nor_a_message_that_is_always_rejected_keeps_others_waiting(broker, join):
    for partition in (0, 0, 0, 0, 1):
        broker.append("orders", b"", partition=partition)
    assert 1 in [message.partition for message in take(join("orders"), 2)]
    fill(broker, 3)
    consumer, found = join(), set()
    for _ in range(6):
        (message,) = take(consumer, 1)
        found.add(message.offset)
        consumer.nack(message)
    assert found == {0, 1, 2}


def test_waiting_ends_as_soon_as_something_comes(broker, join, clock):
    consumer, before = join(), clock.now
    broker.sleep = lambda seconds: (clock.sleep(seconds), broker.append("single", b"x"))
    assert consumer.receive(timeout=60) is not None
    assert clock.now - before < 0.1


def test_consumed_is_what_all_groups_have_acknowledged_and_a_deleted_group_begins_again(broker, join):
    fill(broker, 3)
    consumers = {group: join(group=group) for group in ("a", "b")}
    for group, count in (("a", 3), ("b", 2)):
        for message in take(consumers[group], count):
            consumers[group].ack(message)
    assert broker.consumed_offset("single", 0) == 2
    broker.delete_group("b")
    with pytest.raises(GroupTakenOverError, match="or the group was deleted"):
        consumers["b"].receive(timeout=0)
    assert broker.consumed_offset("single", 0) == 3
    assert offsets(take(join(group="b"))) == [0, 1, 2]


def test_the_next_consumer_of_a_topic_takes_over_and_the_first_can_change_nothing(broker, join):
    fill(broker, 3)
    first, elsewhere = join(), join("orders")  # another topic: takes nothing over
    message, *_ = take(first)
    second = join("single", "orders")
    for call in (first.receive, elsewhere.receive, lambda: first.ack(message), lambda: first.seek("single", 0, 3)):
        with pytest.raises(GroupTakenOverError, match="another consumer of group g was opened"):
            call()
    assert offsets(take(second)) == [0, 1, 2]


def test_what_a_consumer_refuses(broker, join):
    for group, topics in (("a b", ["single"]), ("g", []), ("g", "single"), ("g", ["a\0"])):
        with pytest.raises(ConfigError):
            LocalConsumer(broker, claimcheck.from_dict({"strategy": "inline"}), topics=topics, group=group)
    fill(broker, 2)
    consumer = join()
    for offset in (-1, 3, "0"):
        with pytest.raises(ConfigError, match="offset: found"):
            consumer.seek("single", 0, offset)
    with pytest.raises(UnknownPartitionError):
        consumer.seek("single", 1, 0)
    with pytest.raises(ConfigError, match="one of this consumer's: single"):
        consumer.seek("orders", 0, 0)
    first, _ = take(consumer)
    consumer.close()
    for call in (consumer.receive, lambda: consumer.ack(first), lambda: consumer.nack(first)):
        with pytest.raises(BrokerClosedError, match="group g was closed"):
            call()


_VERDICTS = st.just(["ack"] * 9) | st.lists(
    st.sampled_from(["ack", "ack", "twice", "nack", "both", "keep"]), min_size=9, max_size=9
)


class GroupMachine(RuleBasedStateMachine):
    """Consumers replace each other, die, receive, ack, nack and seek at random.

    The position is that of the oldest message that this consumer has not acknowledged, and no consumer receives again
    what it has acknowledged.
    """

    @initialize(partitions=st.integers(1, 2))
    def start(self, partitions: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.cc = claimcheck.from_dict({"strategy": "inline"})
        self.broker = LocalBroker(Path(self.folder.name) / "b.sqlite", clock=self.clock, sleep=self.clock.sleep)
        self.broker.create_topic("t", partitions=partitions)
        fill(self.broker, 6, "t")
        self.position = dict.fromkeys(range(partitions), 0)
        self.open()

    def open(self) -> None:
        self.consumer = LocalConsumer(self.broker, self.cc, topics=["t"], group="g", redelivery_delay_seconds=1)
        self.held: list[ReceivedMessage] = []
        self.acked: set[tuple[int, int]] = set()
        self.nacks: dict[tuple[int, int], int] = {}

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
            assert message.redelivery_count == self.nacks.get(_place(message), 0)
            self.held.append(message)
        self.judge(verdicts)

    @rule(verdicts=_VERDICTS)
    def judge(self, verdicts: list[str]) -> None:
        """Ack, nack or keep what was received, oldest first."""
        judged = list(zip(self.held, verdicts, strict=False))
        self.held = [message for message in self.held if (message, "keep") in judged or message not in dict(judged)]
        for message, verdict in judged:
            if verdict in ("nack", "both"):  # what was given back can still be acknowledged
                self.consumer.nack(message)
                self.nacks[_place(message)] = self.nacks.get(_place(message), 0) + 1
            if verdict in ("ack", "both", "twice"):
                self.consumer.ack(message)
                self.acked.add(_place(message))
                while (message.partition, self.position[message.partition]) in self.acked:
                    self.position[message.partition] += 1
            if verdict == "twice":
                self.consumer.ack(message)  # again: harmless
        self.check_positions()

    @rule(partition=st.integers(0, 1), back=st.integers(0, 8))
    def seek(self, partition: int, back: int) -> None:
        partition %= self.broker.partitions("t")
        self.position[partition] = max(self.broker.end_offset("t", partition) - back, 0)
        self.consumer.seek("t", partition, self.position[partition])
        self.held = [message for message in self.held if message.partition != partition]
        self.acked = {place for place in self.acked if place[0] != partition}
        self.nacks = {place: count for place, count in self.nacks.items() if place[0] != partition}

    @rule(seconds=st.sampled_from([0.5, 1, 20]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def check_positions(self) -> None:
        assert {number: self.broker.consumed_offset("t", number) for number in self.position} == self.position

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.check_positions()
            self.open()
            ends = {number: self.broker.end_offset("t", number) for number in self.position}
            rest = {(number, at) for number, end in ends.items() for at in range(self.position[number], end)}
            assert set(map(_place, take(self.consumer))) == rest
            self.consumer.close()
            self.broker.close()
            self.cc.close()
            self.folder.cleanup()


def _place(message: ReceivedMessage) -> tuple[int, int]:
    return message.partition, message.offset


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = examples(100, stateful_step_count=50)
