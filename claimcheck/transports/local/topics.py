"""Topics, partitions and messages as rows: each function works inside a transaction that the caller has begun."""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any

from claimcheck.transports.local.errors import (
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from claimcheck.transports.local.messages import LocalMessage, MessageId, NewMessage, unpack_headers

__all__ = [
    "MESSAGE_COLUMNS",
    "check_offset",
    "check_partition",
    "choose_partition",
    "count_partitions",
    "create_topic",
    "end_offset",
    "insert_message",
    "to_message",
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
