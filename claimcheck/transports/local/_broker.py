"""An embedded broker: topics with partitions in one SQLite file, for many processes and threads of one machine at once.

It is small and honest, made for demonstrations, tests and single machines. It refuses large messages as real brokers
do, keeps every message until its file is deleted, and knows nothing of claimcheck. Reading in consumer groups is in
`claimcheck.transports.local._groups`.
"""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from claimcheck._validation import check_int
from claimcheck.transports.local._database import Database
from claimcheck.transports.local._errors import (
    MessageTooLargeError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
    checking_arguments,
)
from claimcheck.transports.local._messages import (
    MESSAGE_OVERHEAD_BYTES,
    Headers,
    LocalMessage,
    MessageId,
    NewMessage,
    check_name,
    unpack_headers,
)

__all__ = [
    "check_offset",
    "check_partition",
    "choose_partition",
    "count_partitions",
    "create_topic",
    "end_offset",
    "insert_message",
    "LocalBroker",
    "MESSAGE_COLUMNS",
    "to_message",
    "TopicStats",
]

MESSAGE_COLUMNS = "m.topic, m.partition, m.offset, m.value, m.key, m.headers, m.timestamp"
"""What `to_message` wants of a row of ``messages m``."""


def create_topic(connection: sqlite3.Connection, topic: str, partitions: int) -> None:
    """Make the topic, or find it as it should be.

    Raises:
        TopicExistsError: It has another number of partitions.
    """
    found = connection.execute("SELECT partitions FROM topics WHERE topic = ?", (topic,)).fetchone()
    if found is None:
        connection.execute("INSERT INTO topics (topic, partitions) VALUES (?, ?)", (topic, partitions))
        rows = ((topic, partition) for partition in range(partitions))
        connection.executemany("INSERT INTO partitions (topic, partition) VALUES (?, ?)", rows)
    elif found[0] != partitions:
        text = f"topic {topic} has {found[0]} partitions, not {partitions}, and keeps them; use another topic"
        raise TopicExistsError(text, destination=topic, partitions=found[0])


def count_partitions(connection: sqlite3.Connection, topic: str) -> int:
    """Give the number of partitions.

    Raises:
        UnknownTopicError: Nobody has created the topic.
    """
    row: tuple[int] | None = connection.execute("SELECT partitions FROM topics WHERE topic = ?", (topic,)).fetchone()
    if row is None:
        raise UnknownTopicError(f"there is no topic {topic}; create it with create_topic({topic!r})", destination=topic)
    return row[0]


def check_partition(connection: sqlite3.Connection, topic: str, partition: int) -> None:
    """Make sure that the topic has this partition.

    Raises:
        UnknownTopicError: Nobody has created the topic.
        UnknownPartitionError: The topic has fewer.
    """
    partitions = count_partitions(connection, topic)
    if not isinstance(partition, int) or not 0 <= partition < partitions:
        text = f"topic {topic} has no partition {partition!r}, only 0 to {partitions - 1}"
        raise UnknownPartitionError(text, destination=topic, partition=partition, partitions=partitions)


def check_offset(connection: sqlite3.Connection, topic: str, partition: int, offset: int) -> None:
    """Make sure that a message is, or will be next, at this offset.

    Raises:
        UnknownTopicError: Nobody has created the topic.
        UnknownPartitionError: The topic has fewer.
        OffsetOutOfRangeError: It lies beyond the end.
    """
    end = end_offset(connection, topic, partition)
    if not 0 <= offset <= end:
        text = f"partition {partition} of {topic} has no offset {offset}, only 0 to {end}, its end"
        raise OffsetOutOfRangeError(text, destination=topic, partition=partition, offset=offset, end=end)


def end_offset(connection: sqlite3.Connection, topic: str, partition: int) -> int:
    """Give the offset of the partition's next message.

    Raises:
        UnknownTopicError: Nobody has created the topic.
        UnknownPartitionError: The topic has fewer.
    """
    check_partition(connection, topic, partition)
    query = "SELECT next_offset FROM partitions WHERE topic = ? AND partition = ?"
    end: int = connection.execute(query, (topic, partition)).fetchone()[0]
    return end


def choose_partition(connection: sqlite3.Connection, topic: str, key: bytes | None) -> int:
    """Give the key's partition, the same for ever and in every process; without a key the next in turn.

    Raises:
        UnknownTopicError: Nobody has created the topic.
    """
    partitions = count_partitions(connection, topic)
    if key is not None:
        return zlib.crc32(key) % partitions
    # The turn is kept in the file: many short-lived producers together still go round.
    turn: int = connection.execute("SELECT turn FROM topics WHERE topic = ?", (topic,)).fetchone()[0]
    connection.execute("UPDATE topics SET turn = ? WHERE topic = ?", ((turn + 1) % partitions, topic))
    return turn


def insert_message(
    connection: sqlite3.Connection, topic: str, partition: int, message: NewMessage, timestamp: float
) -> MessageId:
    """Put the message at the end of a partition.

    Raises:
        UnknownTopicError: Nobody has created the topic.
        UnknownPartitionError: The topic has fewer.
    """
    offset = end_offset(connection, topic, partition)
    connection.execute(
        "INSERT INTO messages (topic, partition, offset, timestamp, key, headers, value) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (topic, partition, offset, timestamp, message.key, message.headers, message.value),
    )
    connection.execute(
        "UPDATE partitions SET next_offset = next_offset + 1, bytes = bytes + ? WHERE topic = ? AND partition = ?",
        (message.size, topic, partition),
    )
    return MessageId(topic, partition, offset)


def to_message(row: tuple[Any, ...]) -> LocalMessage:
    """Turn the first columns of a row, `MESSAGE_COLUMNS`, into a message."""
    topic, partition, offset, value, key, headers, timestamp = row[:7]
    return LocalMessage(topic, partition, offset, value, key, unpack_headers(headers), timestamp)


_LARGEST_LIMIT = 1 << 29  # SQLite itself refuses rows of 10**9 bytes


@dataclass(frozen=True, slots=True)
class TopicStats:
    """What went through a topic since it was created.

    Attributes:
        messages: How many messages.
        bytes: Their sizes as the limit counts them: values, keys, headers and `MESSAGE_OVERHEAD_BYTES` for each.
    """

    messages: int
    bytes: int


class LocalBroker:
    """Topics in one SQLite file. Cheap to make, opened at first use; threads share it, forks and pickling are safe.

    Args:
        path: The file; made when it is not there. Its folder has to exist, on a disk of this machine.
        max_message_bytes: The largest message that `append` of this object accepts, as `message_size` counts,
            1 to 536,870,912. Not kept in the file: it is the appender's limit, readers never refuse.
        clock: Gives seconds since 1970. All processes on one file have to agree on it, leases depend on it.
        sleep: Called with seconds, for the short waits of those who poll.

    Raises:
        BrokerArgumentError: The limit is not an integer of that range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_message_bytes: int = 1 << 20,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        with checking_arguments():
            check_int("max_message_bytes", max_message_bytes, minimum=1, maximum=_LARGEST_LIMIT)
        self.max_message_bytes = max_message_bytes
        self.clock = clock
        self.sleep = sleep
        self.database = Database(path, sleep=sleep)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic; do nothing when it is there with as many partitions.

        Args:
            name: 1 to 249 of ``A-Z a-z 0-9 . _ / : -``.
            partitions: 1 to 10,000; never changes later.

        Raises:
            BrokerArgumentError: Name or number cannot be used.
            TopicExistsError: It is there with another number of partitions, which it keeps.
        """
        check_name("topic", name)
        with checking_arguments(destination=name):
            check_int("partitions", partitions, minimum=1, maximum=10_000)
        with self.database.write() as connection:
            create_topic(connection, name, partitions)

    def topics(self) -> list[str]:
        """Give the names of all topics, sorted."""
        with self.database.read() as connection:
            return [name for (name,) in connection.execute("SELECT topic FROM topics ORDER BY topic")]

    def partitions(self, topic: str) -> int:
        """Give the number of partitions, numbered from 0.

        Raises:
            UnknownTopicError: Nobody has created the topic.
        """
        check_name("topic", topic)
        with self.database.read() as connection:
            return count_partitions(connection, topic)

    def partition_for(self, topic: str, key: bytes | str | None = None) -> int:
        """Choose a partition as `append` does, for those who send several messages to the same one.

        Args:
            topic: The topic.
            key: Equal keys give equal partitions, in every process; without one they are taken by turns.

        Raises:
            UnknownTopicError: Nobody has created the topic.
        """
        check_name("topic", topic)
        message = NewMessage.checked(topic, None, key, None)
        with self.database.write() as connection:
            return choose_partition(connection, topic, message.key)

    def append(
        self,
        topic: str,
        value: bytes | bytearray | memoryview | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Add one message at the end of a partition; when this returns it is there for every reader.

        Args:
            topic: A topic that was created.
            value: The message; ``None`` is a tombstone.
            key: Decides on the partition where none is given; ``str`` travels as UTF-8.
            headers: A mapping or pairs; order and duplicates are kept.
            partition: From 0; by default the key's, or by turns where there is no key.

        Returns:
            Where it rests. Offsets of a partition are dense.

        Raises:
            MessageTooLargeError: Over ``max_message_bytes``; nothing was written.
            UnknownTopicError: Nobody has created the topic; nothing was written.
            UnknownPartitionError: The topic has no such partition; nothing was written.
            BrokerArgumentError: Key or headers are of a wrong type; nothing was written.
            PayloadTypeError: The value is neither bytes-like nor ``None``; nothing was written.
            BrokerCommitError: The disk failed at the very end; the message may or may not be there.
            BrokerStorageError: The file cannot be used; nothing was written.
        """
        check_name("topic", topic)
        message = NewMessage.checked(topic, value, key, headers)
        self._refuse_too_large(topic, message)
        with self.database.write() as connection:
            chosen = choose_partition(connection, topic, message.key) if partition is None else partition
            return insert_message(connection, topic, chosen, message, self.clock())

    def fetch(self, topic: str, partition: int, offset: int, limit: int) -> list[LocalMessage]:
        """Read messages of one partition, in order, outside of any consumer group.

        Args:
            topic: The topic.
            partition: From 0.
            offset: The first one wanted, from 0.
            limit: How many at most, from 1. All of them are in memory at once.

        Returns:
            An empty list when there is nothing at or after ``offset``.

        Raises:
            UnknownTopicError: Nobody has created the topic.
            UnknownPartitionError: The topic has no such partition.
            BrokerArgumentError: ``offset`` or ``limit`` is not an integer from 0.
        """
        with checking_arguments(destination=topic):
            check_int("offset", offset, minimum=0)
            check_int("limit", limit, minimum=0)
        check_name("topic", topic)
        with self.database.read() as connection:
            check_partition(connection, topic, partition)
            rows = connection.execute(_FETCH, (topic, partition, offset, limit)).fetchall()
        return [to_message(row) for row in rows]

    def end_offset(self, topic: str, partition: int) -> int:
        """Give the offset that the partition's next message will have, which is also how many it holds.

        Raises:
            UnknownTopicError: Nobody has created the topic.
            UnknownPartitionError: The topic has no such partition.
        """
        check_name("topic", topic)
        with self.database.read() as connection:
            return end_offset(connection, topic, partition)

    def stats(self, topic: str) -> TopicStats:
        """Say how many messages and bytes went through a topic since it was created.

        Raises:
            UnknownTopicError: Nobody has created the topic.
        """
        check_name("topic", topic)
        with self.database.read() as connection:
            count_partitions(connection, topic)
            query = "SELECT sum(next_offset), sum(bytes) FROM partitions WHERE topic = ?"
            return TopicStats(*connection.execute(query, (topic,)).fetchone())

    def close(self) -> None:
        """Release the file, which stays with all its messages. Closing twice is harmless."""
        self.database.close()

    def _refuse_too_large(self, topic: str, message: NewMessage) -> None:
        if message.size > self.max_message_bytes:
            text = (
                f"a message of {message.size} bytes for {topic} is over the broker's limit of {self.max_message_bytes}"
                f" (value, key, headers and {MESSAGE_OVERHEAD_BYTES} bytes of framing); offload or chunk the payload"
            )
            raise MessageTooLargeError(text, destination=topic, size=message.size, limit=self.max_message_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.database.path, self.max_message_bytes, self.clock, self.sleep)

    def __repr__(self) -> str:
        return f"<LocalBroker {self.database.path} max_message_bytes={self.max_message_bytes}>"


_FETCH = f"""SELECT {MESSAGE_COLUMNS} FROM messages m
    WHERE m.topic = ? AND m.partition = ? AND m.offset >= ? ORDER BY m.offset LIMIT ?"""


def _rebuild(
    path: str, max_message_bytes: int, clock: Callable[[], float], sleep: Callable[[float], None]
) -> LocalBroker:
    return LocalBroker(path, max_message_bytes=max_message_bytes, clock=clock, sleep=sleep)
