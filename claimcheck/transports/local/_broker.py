"""The embedded broker and its messages: topics with partitions in one SQLite file, for processes of one machine.

It is made for demonstrations, tests and single machines. It refuses large messages as other brokers do, keeps every
message until its file is deleted, and does not interpret messages.
"""

from __future__ import annotations

import os
import re
import sqlite3
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from claimcheck._envelope import Buffer
from claimcheck._validation import check_int, fail
from claimcheck.errors import PayloadTypeError, TransportError
from claimcheck.transports._common.delegation import Closing
from claimcheck.transports.local._database import Database
from claimcheck.transports.local._errors import (
    MessageTooLargeError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)

MESSAGE_OVERHEAD_BYTES = 32
"""What every message counts towards the size limit in addition to its value, key and headers."""

MESSAGE_COLUMNS = "m.topic, m.partition, m.offset, m.value, m.key, m.headers, m.timestamp"
"""The columns of a `LocalMessage`, from ``messages m``."""

Headers = Mapping[str, str | bytes] | Sequence[tuple[str, str | bytes]]
"""A mapping, or pairs in order with duplicates allowed; ``str`` values are encoded as UTF-8."""

MessageRow = tuple[str, int, int, bytes | None, bytes | None, bytes, float]
"""The values of `MESSAGE_COLUMNS`."""

_NAME = re.compile(r"[A-Za-z0-9._/:-]{1,249}")
_HEADER_LENGTHS = struct.Struct(">II")
_MAX_PARTITIONS = 10_000
_LARGEST_LIMIT = 1 << 29  # SQLite itself refuses rows of 10**9 bytes


@dataclass(frozen=True, order=True, slots=True)
class MessageId:
    """The position of a message; offsets of a partition begin at 0 and have no gaps."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class LocalMessage:
    """A message in the broker.

    Attributes:
        topic: The topic.
        partition: The partition, from 0.
        offset: The position in the partition, from 0, without gaps.
        value: The bytes that were appended; ``None`` is a tombstone.
        key: The key that was appended, if any.
        headers: Name and value pairs in the order of appending, duplicates kept.
        timestamp: Seconds since 1970 at the time of appending, by the broker's clock.
    """

    topic: str
    partition: int
    offset: int
    value: bytes | None = field(repr=False)
    key: bytes | None = field(repr=False)
    headers: list[tuple[str, bytes]] = field(repr=False)
    timestamp: float

    @property
    def message_id(self) -> MessageId:
        """Topic, partition and offset in one value."""
        return MessageId(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The number of messages appended to a topic since it was created, and their ``bytes`` as the limit counts them."""

    messages: int
    bytes: int


class StoredMessage(NamedTuple):
    """A valid message in the form in which it is stored; ``size`` counts towards the limit."""

    key: bytes | None
    headers: bytes
    value: Buffer | None
    size: int


class LocalBroker(Closing):
    """Topics in one SQLite file. Opened at first use; threads may share it, and it may be pickled or forked.

    Args:
        path: The file; created if it does not exist. Its folder must exist, on a local disk of this machine.
        max_message_bytes: The largest message that `append` of this object accepts, as `message_size` counts,
            1 to 536,870,912. It is not stored in the file, and reading has no limit.
        clock: Returns seconds since 1970. All processes that use the file must agree on it: leases depend on it.
        sleep: Called with seconds, for the short pauses of polling.

    Raises:
        ConfigError: The limit is not an integer of that range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_message_bytes: int = 1 << 20,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        check_int("max_message_bytes", max_message_bytes, minimum=1, maximum=_LARGEST_LIMIT)
        self.max_message_bytes = max_message_bytes
        self.clock = clock
        self.sleep = sleep
        self.database = Database(path, sleep=sleep)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; does nothing if it exists with the same number of partitions.

        Args:
            name: 1 to 249 of ``A-Z a-z 0-9 . _ / : -``.
            partitions: 1 to 10,000; never changes later.

        Raises:
            ConfigError: The name or the number is invalid.
            TopicExistsError: It exists with another number of partitions, which it keeps.
        """
        check_name("topic", name)
        check_int("partitions", partitions, minimum=1, maximum=_MAX_PARTITIONS)
        with self.database.write() as db:
            row = db.execute("SELECT partitions FROM topics WHERE topic = ?", (name,)).fetchone()
            if row is None:
                db.execute("INSERT INTO topics (topic, partitions) VALUES (?, ?)", (name, partitions))
                rows = ((name, partition) for partition in range(partitions))
                db.executemany("INSERT INTO partitions (topic, partition) VALUES (?, ?)", rows)
            elif row[0] != partitions:
                text = f"topic {name} has {row[0]} partitions, not {partitions}, which cannot change; use another topic"
                raise TopicExistsError(text, destination=name, partitions=row[0])

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        with self.database.read() as db:
            return [name for (name,) in db.execute("SELECT topic FROM topics ORDER BY topic")]

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, which are numbered from 0; raises `UnknownTopicError`."""
        check_name("topic", topic)
        with self.database.read() as db:
            return count_partitions(db, topic)

    def partition_for(self, topic: str, key: Buffer | str | None = None) -> int:
        """Choose a partition as `append` does, to send several messages to the same one.

        Args:
            topic: The topic.
            key: Equal keys have the same partition in every process; without a key partitions are used in turn.

        Raises:
            UnknownTopicError: The topic does not exist.
        """
        message = encode_message(topic, None, key, None)
        with self.database.write() as db:
            return _choose_partition(db, topic, message.key)

    def append(
        self,
        topic: str,
        value: Buffer | None,
        *,
        key: Buffer | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Append one message to a partition; once this returns, every reader sees it.

        Args:
            topic: An existing topic.
            value: The message; ``None`` is a tombstone.
            key: Determines the partition unless one is given; ``str`` is encoded as UTF-8.
            headers: A mapping or pairs; order and duplicates are kept.
            partition: From 0; by default chosen by the key, or each in turn without a key.

        Returns:
            Its position.

        Raises:
            MessageTooLargeError: Over ``max_message_bytes``; nothing was written.
            UnknownTopicError: The topic does not exist; nothing was written.
            UnknownPartitionError: The topic has no such partition; nothing was written.
            ConfigError: The topic's name, the key or a header is invalid; nothing was written.
            PayloadTypeError: The value is neither bytes-like nor ``None``; nothing was written.
            BrokerCommitError: The disk failed during the commit; whether the message was appended is unknown.
            BrokerStorageError: The file cannot be used; nothing was written.
        """
        message = encode_message(topic, value, key, headers)
        if message.size > self.max_message_bytes:
            text = (
                f"a message of {message.size} bytes for {topic} is over the broker's limit of {self.max_message_bytes}"
                f" (value, key, headers and {MESSAGE_OVERHEAD_BYTES} bytes of framing); offload or chunk the payload"
            )
            raise MessageTooLargeError(text, destination=topic, size=message.size, limit=self.max_message_bytes)
        with self.database.write() as db:
            return insert_message(db, topic, message, self.clock(), partition=partition)

    def fetch(self, topic: str, partition: int, offset: int, limit: int) -> list[LocalMessage]:
        """Read messages of one partition in order, independently of consumer groups.

        Args:
            topic: The topic.
            partition: From 0.
            offset: The first offset to read, from 0.
            limit: The largest number of messages, from 0. All of them are in memory at once.

        Returns:
            An empty list if there is no message at or after ``offset``.

        Raises:
            UnknownTopicError: The topic does not exist.
            UnknownPartitionError: The topic has no such partition.
            ConfigError: ``offset`` or ``limit`` is not an integer from 0.
        """
        check_name("topic", topic)
        check_int("offset", offset, minimum=0)
        check_int("limit", limit, minimum=0)
        with self.database.read() as db:
            end_offset(db, topic, partition)  # raises where there is no such partition
            rows = db.execute(_FETCH, (topic, partition, offset, limit)).fetchall()
        return [to_message(row) for row in rows]

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the offset of the partition's next message, which is also the number of its messages.

        Raises:
            UnknownTopicError: The topic does not exist.
            UnknownPartitionError: The topic has no such partition.
        """
        check_name("topic", topic)
        with self.database.read() as db:
            return end_offset(db, topic, partition)

    def delete_group(self, name: str) -> None:
        """Delete an unused consumer group with all its positions; harmless if there is none.

        A consumer that joins a group with this name later begins at offset 0.

        Raises:
            TransportError: The group has members; nothing was deleted.
            ConfigError: The name is invalid.
        """
        check_name("group", name)
        with self.database.write() as db:
            query = "SELECT count(DISTINCT member) FROM members WHERE grp = ? AND expires_at > ?"
            (members,) = db.execute(query, (name, self.clock())).fetchone()
            if members:
                raise TransportError(f"group {name} has {members} members: close them first")
            for table in ("members", "leases", "acks", "redeliveries"):
                db.execute(f"DELETE FROM {table} WHERE grp = ?", (name,))

    def stats(self, topic: str) -> TopicStats:
        """Return the totals of a topic; raises `UnknownTopicError`."""
        check_name("topic", topic)
        with self.database.read() as db:
            count_partitions(db, topic)  # raises where there is no such topic
            query = "SELECT sum(next_offset), sum(bytes) FROM partitions WHERE topic = ?"
            return TopicStats(*db.execute(query, (topic,)).fetchone())

    def close(self) -> None:
        """Close the file, which is kept with all its messages. Closing twice is harmless."""
        self.database.close()

    def __reduce__(self) -> tuple[Callable[[str], LocalBroker], tuple[str]]:
        create = partial(LocalBroker, max_message_bytes=self.max_message_bytes, clock=self.clock, sleep=self.sleep)
        return create, (self.database.path,)

    def __repr__(self) -> str:
        return f"<LocalBroker {self.database.path} max_message_bytes={self.max_message_bytes}>"


_FETCH = f"""SELECT {MESSAGE_COLUMNS} FROM messages m
    WHERE m.topic = ? AND m.partition = ? AND m.offset >= ? ORDER BY m.offset LIMIT ?"""


def message_size(value: Buffer | None, key: bytes | None, headers: Iterable[tuple[str, bytes]]) -> int:
    """Return the bytes of a message as the size limit counts them: value, key, headers, `MESSAGE_OVERHEAD_BYTES`."""
    in_headers = sum(len(name.encode()) + len(content) for name, content in headers)
    return MESSAGE_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + in_headers


def check_name(kind: str, name: object) -> None:
    """Check the name of a ``topic`` or a ``group``; raises `ConfigError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:77]}..."
        fail(kind, found=shown, expected="a name of 1 to 249 of A-Z a-z 0-9 . _ / : -")


# Statements ---------------------------------------------------------------------------------------------------------


def count_partitions(db: sqlite3.Connection, topic: str) -> int:
    """Return the number of partitions of a topic; raises `UnknownTopicError`."""
    return _partitions_and_turn(db, topic)[0]


def _partitions_and_turn(db: sqlite3.Connection, topic: str) -> tuple[int, int]:
    row: tuple[int, int] | None
    row = db.execute("SELECT partitions, turn FROM topics WHERE topic = ?", (topic,)).fetchone()
    if row is None:
        raise UnknownTopicError(f"there is no topic {topic}; create it with create_topic({topic!r})", destination=topic)
    return row


def end_offset(db: sqlite3.Connection, topic: str, partition: int) -> int:
    """Return the offset of the partition's next message; raises `UnknownTopicError` or `UnknownPartitionError`."""
    query = "SELECT next_offset FROM partitions WHERE topic = ? AND partition = ?"
    valid = isinstance(partition, int) and 0 <= partition < _MAX_PARTITIONS
    row: tuple[int] | None = db.execute(query, (topic, partition)).fetchone() if valid else None
    if row is None:
        partitions = count_partitions(db, topic)
        text = f"topic {topic} has no partition {partition!r}, only 0 to {partitions - 1}"
        raise UnknownPartitionError(text, destination=topic, partition=partition, partitions=partitions)
    return row[0]


def _choose_partition(db: sqlite3.Connection, topic: str, key: bytes | None) -> int:
    partitions, turn = _partitions_and_turn(db, topic)
    if key is not None:
        return zlib.crc32(key) % partitions
    # The turn is kept in the file, so that many short-lived producers use all partitions equally.
    db.execute("UPDATE topics SET turn = ? WHERE topic = ?", ((turn + 1) % partitions, topic))
    return turn


def insert_message(
    db: sqlite3.Connection, topic: str, message: StoredMessage, timestamp: float, *, partition: int | None = None
) -> MessageId:
    """Append a message to a partition, by default the key's, or each in turn without a key."""
    if partition is None:
        partition = _choose_partition(db, topic, message.key)
    offset = end_offset(db, topic, partition)
    db.execute(
        "INSERT INTO messages (topic, partition, offset, timestamp, key, headers, value) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (topic, partition, offset, timestamp, message.key, message.headers, message.value),
    )
    db.execute(
        "UPDATE partitions SET next_offset = next_offset + 1, bytes = bytes + ? WHERE topic = ? AND partition = ?",
        (message.size, topic, partition),
    )
    return MessageId(topic, partition, offset)


# Messages as they are stored ----------------------------------------------------------------------------------------


def encode_message(topic: str, value: object, key: object, headers: object) -> StoredMessage:
    """Check the arguments of `LocalBroker.append`, and convert them to the form in which they are stored."""
    check_name("topic", topic)
    stored_key = None if key is None else _as_bytes("key", key)
    pairs = _header_pairs(headers)
    buffer = _as_buffer(value, topic)
    return StoredMessage(stored_key, pack_headers(pairs), buffer, message_size(buffer, stored_key, pairs))


def to_message(row: MessageRow) -> LocalMessage:
    """Return the message of a row of `MESSAGE_COLUMNS`."""
    topic, partition, offset, value, key, headers, timestamp = row
    return LocalMessage(topic, partition, offset, value, key, unpack_headers(headers), timestamp)


def pack_headers(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode headers as they are stored: for each pair two lengths, the name, the value."""
    named = [(name.encode(), content) for name, content in pairs]
    return b"".join(_HEADER_LENGTHS.pack(len(name), len(content)) + name + content for name, content in named)


def unpack_headers(packed: bytes) -> list[tuple[str, bytes]]:
    """Decode the result of `pack_headers`."""
    pairs: list[tuple[str, bytes]] = []
    start = 0
    while start < len(packed):
        name_length, length = _HEADER_LENGTHS.unpack_from(packed, start)
        name_end = start + _HEADER_LENGTHS.size + name_length
        pairs.append((packed[name_end - name_length : name_end].decode(), packed[name_end : name_end + length]))
        start = name_end + length
    return pairs


def _as_buffer(value: object, topic: str) -> Buffer | None:
    if value is None or isinstance(value, bytes | bytearray):
        return value
    try:
        view = memoryview(value)  # type: ignore[arg-type]  # anything with the buffer protocol: an array, an mmap
    except TypeError:
        text = f"a message for {topic} must be bytes-like or None, not {type(value).__name__}; encode it first"
        raise PayloadTypeError(text) from None
    return view.cast("B") if view.c_contiguous else view.tobytes()


def _as_bytes(name: str, value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        fail(name, found=f"an object of type {type(value).__name__}", expected="bytes or str")
    try:
        return value.encode()
    except UnicodeEncodeError:
        fail(name, found="a str that is not valid Unicode", expected="bytes or valid Unicode")


def _header_pairs(headers: object) -> list[tuple[str, bytes]]:
    expected = "a mapping, or pairs of a str and bytes or str"
    if not isinstance(headers, Iterable | None):
        fail("headers", found=f"an object of type {type(headers).__name__}", expected=expected)
    pairs = []
    for pair in headers.items() if isinstance(headers, Mapping) else headers or ():
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            fail("headers", found="an entry that is not such a pair", expected=expected)
        _as_bytes("the name of a header", pair[0])
        pairs.append((pair[0], _as_bytes("the value of a header", pair[1])))
    return pairs
