"""The embedded broker and its messages: topics with partitions in one SQLite file, for processes of one machine.

It is made for demonstrations, tests and single machines. It refuses large messages as other brokers do, keeps every
message until its file is deleted, and does not interpret messages.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from claimcheck._validation import check_int, fail
from claimcheck._wire import headers as hints
from claimcheck._wire.buffers import Buffer, as_view
from claimcheck.transports._common.delegation import Closing
from claimcheck.transports.local._database import (
    Database,
    MessageTooLargeError,
    UnknownPartitionError,
    UnknownTopicError,
)

MESSAGE_OVERHEAD_BYTES = 32
"""What every message counts towards the size limit in addition to its value, key and headers."""

Headers = Mapping[str, str | bytes] | Sequence[tuple[str, str | bytes]]
"""A mapping, or pairs in order with duplicates allowed; ``str`` values are encoded as UTF-8."""

_NAME = re.compile(r"[A-Za-z0-9._/:-]{1,249}")
_MAX_PARTITIONS = 10_000
_LARGEST_LIMIT = 1 << 29  # SQLite itself refuses rows of 10**9 bytes


class MessageId(NamedTuple):
    """The position of a message; offsets of a partition begin at 0 and have no gaps."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class LocalMessage:
    """A message: without a value it is a tombstone, and ``timestamp`` is in seconds since 1970."""

    topic: str
    partition: int
    offset: int
    value: bytes | None = field(repr=False)
    key: bytes | None = field(repr=False)
    headers: list[tuple[str, bytes]] = field(repr=False)
    timestamp: float


class TopicStats(NamedTuple):
    """The number of messages appended to a topic since it was created, and their ``bytes`` as the limit counts them."""

    messages: int
    bytes: int


class LocalBroker(Closing):
    """Topics in one SQLite file. Opened at first use; threads may share it, and a forked child may use it.

    Args:
        path: The file; created if it does not exist. Its folder must exist, on a local disk of this machine.
        max_message_bytes: The largest message that `append` of this object accepts, 1 to 536,870,912: value, key,
            headers and `MESSAGE_OVERHEAD_BYTES`. It is not stored in the file, and reading has no limit.
        clock: Returns seconds since 1970.
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
        """Create a topic with 1 to 10,000 partitions; does nothing if it exists with the same number.

        Raises:
            ConfigError: An argument is invalid, or the topic has another number of partitions, which it keeps.
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
                fail("partitions", found=str(partitions), expected=f"{row[0]}, which topic {name} has and keeps")

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        with self.database.read() as db:
            return [name for (name,) in db.execute("SELECT topic FROM topics ORDER BY topic")]

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, which are numbered from 0; raises `UnknownTopicError`."""
        check_name("topic", topic)
        with self.database.read() as db:
            return _partitions_and_turn(db, topic)[0]

    def partition_for(self, topic: str, key: Buffer | str | None = None) -> int:
        """Choose a partition as `append` does, to send several messages to the same one."""
        stored_key = encode_message(topic, None, key, None).key
        with self.database.write() as db:
            return _choose_partition(db, topic, stored_key)

    def append(
        self,
        topic: str,
        value: Buffer | None,
        *,
        key: Buffer | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Append one message, and return its position; once this returns, every reader sees it.

        Args:
            topic: An existing topic.
            value: The message; ``None`` is a tombstone.
            key: Equal keys have the same partition; ``str`` is encoded as UTF-8.
            headers: A mapping or pairs; order and duplicates are kept.
            partition: From 0; by default chosen by the key, or each in turn without a key.

        Raises:
            BrokerCommitError: The disk failed during the commit; whether the message was appended is unknown.
            TransportError: The message is too large, or there is no such place; nothing was written.
            ConfigError: The topic's name, the key or a header is invalid; nothing was written.
            PayloadTypeError: The value is neither bytes-like nor ``None``; nothing was written.
        """
        message = encode_message(topic, value, key, headers)
        if message.size > self.max_message_bytes:
            text = (
                f"a message of {message.size} bytes for {topic} is over the broker's limit of {self.max_message_bytes}"
                f" (value, key, headers and {MESSAGE_OVERHEAD_BYTES} bytes of framing); offload or chunk the payload"
            )
            raise MessageTooLargeError(text, destination=topic, size=message.size, limit=self.max_message_bytes)
        with self.database.write() as db:
            if partition is None:
                partition = _choose_partition(db, topic, message.key)
            offset = _end_offset(db, topic, partition)
            columns = "topic, partition, offset, timestamp, key, headers, value"
            row = (topic, partition, offset, self.clock(), message.key, message.headers, message.value)
            db.execute(f"INSERT INTO messages ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            grown = "UPDATE partitions SET next_offset = next_offset + 1, bytes = bytes + ?"
            db.execute(f"{grown} WHERE topic = ? AND partition = ?", (message.size, topic, partition))
        return MessageId(topic, partition, offset)

    def fetch(self, topic: str, partition: int, offset: int, limit: int) -> list[LocalMessage]:
        """Return up to ``limit`` messages of one partition from an offset on, independently of consumer groups.

        Raises:
            UnknownTopicError: The topic does not exist, or for `UnknownPartitionError` the partition.
            ConfigError: ``offset`` or ``limit`` is not an integer from 0.
        """
        check_int("offset", offset, minimum=0)
        check_int("limit", limit, minimum=0)
        check_name("topic", topic)
        with self.database.read() as db:
            _end_offset(db, topic, partition)  # raises where there is no such partition
            return list(read_messages(db, topic, partition, offset, limit))

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the offset of the partition's next message; raises `UnknownTopicError` or `UnknownPartitionError`."""
        check_name("topic", topic)
        with self.database.read() as db:
            return _end_offset(db, topic, partition)

    def consumed_offset(self, topic: str, partition: int) -> int:
        """Return the offset below which every group has acknowledged everything; 0 without groups."""
        query = "SELECT coalesce(min(offset), 0) FROM positions WHERE topic = ? AND partition = ?"
        with self.database.read() as db:
            return int(db.execute(query, (topic, partition)).fetchone()[0])

    def delete_group(self, name: str) -> None:
        """Delete a group with its positions; harmless if there is none. Its open consumer cannot be used further."""
        check_name("group", name)
        with self.database.write() as db:
            db.execute("DELETE FROM positions WHERE grp = ?", (name,))

    def stats(self, topic: str) -> TopicStats:
        """Return the totals of a topic; raises `UnknownTopicError`."""
        self.partitions(topic)  # raises where there is no such topic
        with self.database.read() as db:
            query = "SELECT sum(next_offset), sum(bytes) FROM partitions WHERE topic = ?"
            return TopicStats(*db.execute(query, (topic,)).fetchone())

    def close(self) -> None:
        """Close the file, which is kept with all its messages. Closing twice is harmless."""
        self.database.close()

    def __repr__(self) -> str:
        return f"<LocalBroker {self.database.path} max_message_bytes={self.max_message_bytes}>"


def check_name(kind: str, name: object) -> None:
    """Check the name of a ``topic`` or a ``group``; raises `ConfigError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        fail(kind, found=f"{name!r:.80}", expected="a name of 1 to 249 of A-Z a-z 0-9 . _ / : -")


def read_messages(
    db: sqlite3.Connection, topic: str, partition: int, offset: int, limit: int
) -> Iterator[LocalMessage]:
    """Yield messages of one partition from an offset on."""
    query = "SELECT offset, value, key, headers, timestamp FROM messages WHERE topic = ? AND partition = ?"
    where = (topic, partition, offset, limit)
    for at, value, key, packed, timestamp in db.execute(f"{query} AND offset >= ? ORDER BY offset LIMIT ?", where):
        headers = [(name, content.encode("latin-1")) for name, content in json.loads(packed)]
        yield LocalMessage(topic, partition, at, value, key, headers, timestamp)


def _partitions_and_turn(db: sqlite3.Connection, topic: str) -> tuple[int, int]:
    row: tuple[int, int] | None
    row = db.execute("SELECT partitions, turn FROM topics WHERE topic = ?", (topic,)).fetchone()
    if row is None:
        raise UnknownTopicError(f"there is no topic {topic}; create it with create_topic({topic!r})", destination=topic)
    return row


def _choose_partition(db: sqlite3.Connection, topic: str, key: bytes | None) -> int:
    partitions, turn = _partitions_and_turn(db, topic)
    if key is not None:
        return zlib.crc32(key) % partitions
    # The turn is kept in the file, so that many short-lived producers use all partitions equally.
    db.execute("UPDATE topics SET turn = ? WHERE topic = ?", ((turn + 1) % partitions, topic))
    return turn


def _end_offset(db: sqlite3.Connection, topic: str, partition: int) -> int:
    partitions, _ = _partitions_and_turn(db, topic)
    if not isinstance(partition, int) or not 0 <= partition < partitions:
        text = f"topic {topic} has no partition {partition!r}, only 0 to {partitions - 1}"
        raise UnknownPartitionError(text, destination=topic, partition=partition, partitions=partitions)
    query = "SELECT next_offset FROM partitions WHERE topic = ? AND partition = ?"
    return int(db.execute(query, (topic, partition)).fetchone()[0])


class _StoredMessage(NamedTuple):
    """A valid message in the form in which it is stored; ``size`` counts towards the limit."""

    key: bytes | None
    headers: str  # JSON, with a character for each byte of a value
    value: Buffer | None
    size: int


def encode_message(topic: str, value: object, key: object, headers: object) -> _StoredMessage:
    """Check the arguments of `LocalBroker.append`, and convert them to the form in which they are stored."""
    check_name("topic", topic)
    try:
        stored_key = None if key is None else _as_bytes(key)
    except (TypeError, UnicodeError):
        fail("key", found=f"an object of type {type(key).__name__}", expected="bytes or valid Unicode")
    size, pairs = MESSAGE_OVERHEAD_BYTES + len(stored_key or b""), []
    try:
        for name, content in hints.pairs(headers):
            stored = _as_bytes(content)
            size += len(str.encode(name)) + len(stored)
            pairs.append((name, stored.decode("latin-1")))
    except (TypeError, UnicodeError):
        found = f"an object of type {type(headers).__name__}"
        fail("headers", found=found, expected="a mapping, or pairs of a str and bytes or valid Unicode")
    view = None if value is None else as_view(value, expected=f"a message for {topic} must be bytes-like or None")
    return _StoredMessage(stored_key, json.dumps(pairs), view, size + len(view or b""))


def _as_bytes(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(as_view(value))
