"""The embedded broker: topics, messages, limits and failures. Groups are in test_local_groups.py."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sqlite3
import tempfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimcheck.errors import ConfigError, PayloadTypeError
from claimcheck.transports.local import (
    MESSAGE_OVERHEAD_BYTES,
    BrokerBusyError,
    BrokerClosedError,
    BrokerCommitError,
    BrokerStorageError,
    LocalBroker,
    MessageId,
    MessageTooLargeError,
    TopicStats,
    UnknownPartitionError,
    UnknownTopicError,
)
from claimcheck.transports.local import _broker as database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sqlite"


@pytest.fixture
def broker(path: Path):
    with LocalBroker(path, clock=lambda: 1000.5) as broker:
        broker.create_topic("orders", partitions=2)
        yield broker


# Topics


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


def test_creating_a_topic_again_with_the_same_partitions_changes_nothing(broker):
    broker.append("orders", b"a", partition=1)
    broker.create_topic("orders", partitions=2)
    assert broker.partitions("orders") == 2
    assert broker.end_offset("orders", 1) == 1


def test_creating_a_topic_again_with_other_partitions_is_refused(broker):
    with pytest.raises(ConfigError, match="partitions: found 3, expected 2, which topic orders has"):
        broker.create_topic("orders", partitions=3)
    assert broker.partitions("orders") == 2


@pytest.mark.parametrize("name", ["persistent://tenant/ns/t-1", "a.b_c", "x" * 249])
def test_topic_names_that_are_allowed(broker, name):
    broker.create_topic(name)
    assert broker.append(name, b"x") == MessageId(name, 0, 0)


def test_an_unknown_topic_is_named_with_the_way_to_create_it(broker):
    calls = [
        lambda: broker.append("other", b"x"),
        lambda: broker.fetch("other", 0, 0, 1),
        lambda: broker.partitions("other"),
        lambda: broker.end_offset("other", 0),
        lambda: broker.stats("other"),
    ]
    for call in calls:
        with pytest.raises(UnknownTopicError, match="create_topic") as caught:
            call()
        assert caught.value.destination == "other"


# Messages


def test_a_message_comes_back_as_it_was_appended(broker):
    headers = [("h", b"1"), ("h", "zwei ä"), ("", b"")]
    where = broker.append("orders", b"value", key=b"k", headers=headers, partition=1)
    (message,) = broker.fetch("orders", 1, 0, 10)
    assert where == MessageId("orders", 1, 0)
    assert (message.value, message.key, message.timestamp) == (b"value", b"k", 1000.5)
    assert message.headers == [("h", b"1"), ("h", "zwei ä".encode()), ("", b"")]


def test_tombstones_and_empty_values_and_keys_stay_apart(broker):
    broker.append("orders", None, partition=0)
    broker.append("orders", b"", key=b"", partition=0)
    assert [(m.value, m.key, m.headers) for m in broker.fetch("orders", 0, 0, 9)] == [(None, None, []), (b"", b"", [])]


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.binary())))
def test_headers_survive_storage(pairs):
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder) / "b") as broker:
        broker.create_topic("t")
        broker.append("t", b"", headers=pairs)
        assert broker.fetch("t", 0, 0, 1)[0].headers == pairs


def test_fetch_begins_at_the_offset_and_stops_at_the_limit(broker):
    for number in range(5):
        broker.append("orders", b"%d" % number, partition=0)
    assert [m.offset for m in broker.fetch("orders", 0, 1, 3)] == [1, 2, 3]
    assert (
        broker.fetch("orders", 0, 5, 3) == broker.fetch("orders", 0, 2**62, 3) == broker.fetch("orders", 0, 0, 0) == []
    )


NAMES = ["", "x" * 250, "x" * 100_000, "a\0b", "ä", "a b", "a\n", "\ud800", None, b"orders", 7]
HEADERS = [5, "ab", [("a",)], [("a", 1)], [(b"a", b"")], {"a": None}, [("\ud800", b"")]]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        *(({"topic": name}, ConfigError, "topic: found") for name in NAMES),
        *(({"headers": headers}, ConfigError, "header") for headers in HEADERS),
        *(({"value": value}, PayloadTypeError, "bytes-like or None") for value in ("text", 5, [b"x"])),
        *(({"key": key}, ConfigError, "key") for key in (5, "\ud800")),
        *(({"partition": number}, UnknownPartitionError, "only 0 to 1") for number in (-1, 2, "0")),
        ({"value": bytes(1 << 20)}, MessageTooLargeError, "1048576"),
        ({"value": memoryview(bytes(1 << 20)).cast("I")}, MessageTooLargeError, "1048576"),
    ],
)
def test_a_message_that_is_refused_leaves_nothing(broker, arguments, error, text):
    with pytest.raises(error, match=text) as caught:
        broker.append(**({"topic": "orders", "value": b"x"} | arguments))
    assert len(str(caught.value)) < 250
    assert broker.stats("orders") == TopicStats(messages=0, bytes=0)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (error, str(caught.value))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        *((lambda broker, name=name: broker.create_topic(name), ConfigError) for name in NAMES),
        *((lambda broker, n=n: broker.create_topic("new", partitions=n), ConfigError) for n in (0, -1, 10_001)),
        (lambda broker: broker.fetch("", 0, 0, 1), ConfigError),
        (lambda broker: broker.partitions(""), ConfigError),
        (lambda broker: broker.stats(""), ConfigError),
        (lambda broker: broker.fetch("orders", 0, -1, 1), ConfigError),
        (lambda broker: broker.fetch("orders", 0, 0, -1), ConfigError),
        (lambda broker: broker.fetch("orders", 2, 0, 1), UnknownPartitionError),
        (lambda broker: broker.end_offset("orders", -1), UnknownPartitionError),
    ],
)
def test_other_calls_that_are_refused(broker, call, error):
    with pytest.raises(error):
        call(broker)
    assert broker.topics() == ["orders"]


def test_a_message_does_not_show_its_contents(broker):
    broker.append("orders", b"secret", key=b"secret", headers={"h": "secret"}, partition=0)
    assert "secret" not in repr(broker.fetch("orders", 0, 0, 1))


# Partitions


def test_a_key_decides_on_the_partition_for_ever(broker):
    broker.create_topic("many", partitions=7)
    for key in (b"", b"k", b"key-2"):
        assert broker.append("many", b"", key=key).partition == zlib.crc32(key) % 7
    assert broker.append("many", b"", key="k").partition == zlib.crc32(b"k") % 7


def test_without_a_key_partitions_are_taken_by_turns_across_processes_and_restarts(broker, path):
    with LocalBroker(path) as other:
        turns = [appender.append("orders", b"").partition for appender in (broker, other, other, broker)]
        assert [*turns, other.append("orders", b"").partition] == [0, 1, 0, 1, 0]


def test_without_a_key_the_partition_with_the_fewest_messages_is_taken(broker):
    for _ in range(2):
        broker.append("orders", b"", partition=0)
    assert [broker.append("orders", b"").partition for _ in range(3)] == [1, 1, 0]


def test_offsets_are_dense_in_each_partition_after_refusals_too(broker):
    broker.append("orders", b"", partition=1)
    with pytest.raises(MessageTooLargeError):
        broker.append("orders", bytes(2 << 20), partition=1)
    assert broker.append("orders", b"", partition=1).offset == 1
    assert broker.append("orders", b"", partition=0).offset == 0


# The size limit


def test_the_limit_counts_value_key_headers_and_overhead(path):
    limit = 4 + 3 + (1 + 2) + (2 + 1) + MESSAGE_OVERHEAD_BYTES
    with LocalBroker(path, max_message_bytes=limit) as broker:
        broker.create_topic("t")
        broker.append("t", b"1234", key="ä1", headers=[("h", b"12"), ("ä", "1")])
        with pytest.raises(MessageTooLargeError) as caught:
            broker.append("t", b"12345", key="ä1", headers=[("h", b"12"), ("ä", "1")])
    assert (caught.value.size, caught.value.limit, caught.value.destination) == (limit + 1, limit, "t")
    assert str(limit) in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize("limit", [0, -1, 1 << 30])
def test_limits_that_are_refused(path, limit):
    with pytest.raises(ConfigError, match="max_message_bytes"):
        LocalBroker(path, max_message_bytes=limit)
    assert not path.exists()


def test_statistics_count_all_partitions_of_one_topic(broker):
    broker.create_topic("other")
    broker.append("other", b"x")
    for _ in range(3):
        broker.append("orders", b"12345")
    assert broker.stats("orders") == TopicStats(messages=3, bytes=3 * (5 + MESSAGE_OVERHEAD_BYTES))


# Lifetime


def test_nothing_is_opened_before_the_first_use(path):
    broker = LocalBroker(path)
    assert not path.exists()
    broker.create_topic("t")
    assert path.exists()
    broker.close()


def test_closing_keeps_the_data_and_refuses_further_use(broker, path):
    broker.append("orders", b"kept", partition=0)
    broker.close()
    broker.close()
    with pytest.raises(BrokerClosedError, match="was closed"):
        broker.stats("orders")
    with LocalBroker(path) as again:
        assert again.fetch("orders", 0, 0, 1)[0].value == b"kept"


def test_a_relative_path_is_fixed_when_the_broker_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with LocalBroker("b.sqlite") as broker:
        monkeypatch.chdir("/")
        broker.create_topic("t")
    assert (tmp_path / "b.sqlite").exists()


# Failures


def test_a_folder_that_is_missing_is_said(tmp_path):
    broker = LocalBroker(tmp_path / "missing" / "b.sqlite")
    with pytest.raises(BrokerStorageError, match="folder has to exist") as caught:
        broker.create_topic("t")
    assert caught.value.path == str(tmp_path / "missing" / "b.sqlite")
    assert isinstance(caught.value.__cause__, sqlite3.Error)


def test_a_file_that_is_no_database_is_refused_and_left_alone(path):
    path.write_bytes(b"my diary" * 1000)
    with pytest.raises(BrokerStorageError, match="cannot be used as the file of a broker: file is not a database"):
        LocalBroker(path).create_topic("t")
    assert path.read_bytes() == b"my diary" * 1000


def test_a_file_that_cannot_be_written_is_reported(broker):
    with broker.database.read() as db:
        db.execute("PRAGMA query_only=ON")
    with pytest.raises(
        BrokerStorageError, match="readonly database; its folder has to exist, and both have to be writable"
    ):
        broker.create_topic("t")


def test_somebody_elses_database_is_refused_and_left_alone(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE diary (entry TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(BrokerStorageError, match="of another application"):
        LocalBroker(path).create_topic("t")
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(broker, path):
    broker.close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id={database._APPLICATION_ID + 1}")
    connection.close()
    with pytest.raises(BrokerStorageError, match="of another version of claimcheck"):
        LocalBroker(path).topics()


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


def test_a_full_disk_is_said_and_nothing_is_half_done(broker):
    with broker.database.read() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + 4}")
    with pytest.raises(BrokerStorageError, match="disk is full"):
        broker.append("orders", bytes(100_000), partition=0)
    assert broker.stats("orders") == TopicStats(messages=0, bytes=0)
    assert broker.append("orders", b"small", partition=0).offset == 0


def test_a_failure_at_the_very_end_is_told_apart(broker):
    with broker.database.write() as connection:
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    with broker.database.read() as connection:
        pass
    connection.execute("PRAGMA foreign_keys=ON")
    with pytest.raises(BrokerCommitError, match="unknown"), broker.database.write() as connection:
        connection.execute("INSERT INTO child VALUES (1)")
    broker.append("orders", b"goes on")


def test_an_error_inside_a_change_undoes_it(broker):
    def change() -> None:
        with broker.database.write() as connection:
            connection.execute("DELETE FROM partitions")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change()
    assert broker.topics() == ["orders"]


# Several threads and processes


def _append_many(path: Path, name: str, count: int) -> None:
    with LocalBroker(path) as broker:
        broker.create_topic("busy", partitions=2)
        for number in range(count):
            broker.append("busy", f"{name}:{number}".encode())


def _assert_complete(broker: LocalBroker, writers: int, count: int) -> None:
    messages = [m for partition in range(2) for m in broker.fetch("busy", partition, 0, writers * count)]
    values = [(message.value or b"").decode().split(":") for message in messages]
    assert len(messages) == writers * count == len({message.value for message in messages})
    for partition in range(2):
        offsets = [m.offset for m in messages if m.partition == partition]
        assert offsets == list(range(writers * count // 2))
        for name in {name for name, _ in values}:  # each writer's order is kept in each partition
            mine = [
                int(v[1]) for v, m in zip(values, messages, strict=True) if v[0] == name and m.partition == partition
            ]
            assert mine == sorted(mine)


def test_threads_with_a_broker_each_make_one_file(tmp_path):
    start = threading.Barrier(4)

    def make(path: Path) -> None:
        start.wait()
        with LocalBroker(path) as broker:
            broker.create_topic("orders", partitions=2)

    with ThreadPoolExecutor(4) as pool:
        for number in range(40):  # an older version mistook one in eight new files for those of other applications
            for made in [pool.submit(make, tmp_path / f"{number}.sqlite") for _ in range(4)]:
                made.result()


def test_processes_that_open_a_new_file_at_the_same_moment_and_write_at_once(path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_append_many, args=(path, str(index), 100)) for index in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with LocalBroker(path) as broker:
        _assert_complete(broker, 3, 100)


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


def test_an_abandoned_broker_closes_its_file(path):
    broker = LocalBroker(path)
    broker.create_topic("t")
    connection = broker.database._connection
    del broker
    assert connection is not None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
