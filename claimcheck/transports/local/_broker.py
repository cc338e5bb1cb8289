"""The embedded broker and its messages: topics with partitions in one SQLite file, for processes of one machine.

It is made for demonstrations, tests and single machines. It refuses large messages as other brokers do, keeps every
message until its file is deleted, and does not interpret messages. `claimcheck.transports.local._groups` has the
consumer groups.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from claimcheck._validation import check_int
from claimcheck.errors import PayloadTypeError
from claimcheck.transports.local import _database as sql
from claimcheck.transports.local._database import MAX_PARTITIONS, MESSAGE_COLUMNS, Database, StoredMessage
from claimcheck.transports.local._errors import BrokerArgumentError, MessageTooLargeError, checking_arguments

__all__ = [
    "MESSAGE_OVERHEAD_BYTES",
    "Headers",
    "LocalBroker",
    "LocalMessage",
    "MessageId",
    "TopicStats",
    "check_name",
    "encode_message",
    "message_size",
    "pack_headers",
    "to_message",
    "unpack_headers",
]

MESSAGE_OVERHEAD_BYTES = 32
"""What every message counts towards the size limit in addition to its value, key and headers."""

Buffer = bytes | bytearray | memoryview
Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]
"""A mapping, or pairs in order with duplicates allowed; ``str`` values are encoded as UTF-8."""

_NAME = re.compile(r"[A-Za-z0-9._/:-]{1,249}")
_HEADER_LENGTHS = struct.Struct(">II")
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
    """Totals of a topic since it was created.

    Attributes:
        messages: The number of messages.
        bytes: Their sizes as the limit counts them: values, keys, headers and `MESSAGE_OVERHEAD_BYTES` for each.
    """

    messages: int
    bytes: int


class LocalBroker:
    """Topics in one SQLite file. Opened at first use; threads may share it, and it may be pickled or forked.

    Args:
        path: The file; created when it does not exist. Its folder has to exist, on a disk of this machine.
        max_message_bytes: The largest message that `append` of this object accepts, as `message_size` counts,
            1 to 536,870,912. It is not stored in the file, and reading has no limit.
        clock: Returns seconds since 1970. All processes on one file have to agree on it: leases depend on it.
        sleep: Called with seconds, for the short pauses of polling.

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
        """Create a topic; do nothing when it exists with as many partitions.

        Args:
            name: 1 to 249 of ``A-Z a-z 0-9 . _ / : -``.
            partitions: 1 to 10,000; never changes later.

        Raises:
            BrokerArgumentError: The name or the number is invalid.
            TopicExistsError: It exists with another number of partitions, which it keeps.
        """
        check_name("topic", name)
        with checking_arguments(name):
            check_int("partitions", partitions, minimum=1, maximum=MAX_PARTITIONS)
        with self.database.write() as db:
            sql.create_topic(db, name, partitions)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        with self.database.read() as db:
            return [name for (name,) in db.execute("SELECT topic FROM topics ORDER BY topic")]

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, which are numbered from 0.

        Raises:
            UnknownTopicError: The topic does not exist.
        """
        check_name("topic", topic)
        with self.database.read() as db:
            return sql.count_partitions(db, topic)

    def partition_for(self, topic: str, key: bytes | str | None = None) -> int:
        """Choose a partition as `append` does, to send several messages to the same one.

        Args:
            topic: The topic.
            key: Equal keys have the same partition in every process; without a key partitions are used in turn.

        Raises:
            UnknownTopicError: The topic does not exist.
        """
        stored_key = encode_message(topic, None, key, None).key
        with self.database.write() as db:
            return sql.choose_partition(db, topic, stored_key)

    def append(
        self,
        topic: str,
        value: Buffer | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Append one message to a partition; when this returns every reader sees it.

        Args:
            topic: An existing topic.
            value: The message; ``None`` is a tombstone.
            key: Determines the partition unless one is given; ``str`` is encoded as UTF-8.
            headers: A mapping or pairs; order and duplicates are kept.
            partition: From 0; by default the key's, or each in turn without a key.

        Returns:
            Its position. Offsets of a partition have no gaps.

        Raises:
            MessageTooLargeError: Over ``max_message_bytes``; nothing was written.
            UnknownTopicError: The topic does not exist; nothing was written.
            UnknownPartitionError: The topic has no such partition; nothing was written.
            BrokerArgumentError: The key or a header is of a wrong type; nothing was written.
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
            chosen = sql.choose_partition(db, topic, message.key) if partition is None else partition
            return MessageId(topic, chosen, sql.insert_message(db, topic, chosen, message, self.clock()))

    def fetch(self, topic: str, partition: int, offset: int, limit: int) -> list[LocalMessage]:
        """Read messages of one partition in order, independently of consumer groups.

        Args:
            topic: The topic.
            partition: From 0.
            offset: The first offset to read, from 0.
            limit: The largest number of messages, from 0. All of them are in memory at once.

        Returns:
            An empty list when there is no message at or after ``offset``.

        Raises:
            UnknownTopicError: The topic does not exist.
            UnknownPartitionError: The topic has no such partition.
            BrokerArgumentError: ``offset`` or ``limit`` is not an integer from 0.
        """
        check_name("topic", topic)
        with checking_arguments(topic):
            check_int("offset", offset, minimum=0)
            check_int("limit", limit, minimum=0)
        with self.database.read() as db:
            sql.end_offset(db, topic, partition)  # raises where there is no such partition
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
            return sql.end_offset(db, topic, partition)

    def stats(self, topic: str) -> TopicStats:
        """Return the number of messages and bytes appended to a topic since it was created.

        Raises:
            UnknownTopicError: The topic does not exist.
        """
        check_name("topic", topic)
        with self.database.read() as db:
            sql.count_partitions(db, topic)  # raises where there is no such topic
            query = "SELECT sum(next_offset), sum(bytes) FROM partitions WHERE topic = ?"
            return TopicStats(*db.execute(query, (topic,)).fetchone())

    def close(self) -> None:
        """Close the file and keep it with all its messages. Closing twice is harmless."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        create = partial(LocalBroker, max_message_bytes=self.max_message_bytes, clock=self.clock, sleep=self.sleep)
        return create, (self.database.path,)

    def __repr__(self) -> str:
        return f"<LocalBroker {self.database.path} max_message_bytes={self.max_message_bytes}>"


_FETCH = f"""SELECT {MESSAGE_COLUMNS} FROM messages m
    WHERE m.topic = ? AND m.partition = ? AND m.offset >= ? ORDER BY m.offset LIMIT ?"""


def message_size(value: Buffer | None, key: bytes | None, headers: Iterable[tuple[str, bytes]]) -> int:
    """Count the bytes of a message as the size limit does: value, key, names and values of headers, and a constant.

    Returns:
        At least `MESSAGE_OVERHEAD_BYTES`.
    """
    in_headers = sum(len(name.encode()) + len(content) for name, content in headers)
    return MESSAGE_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + in_headers


def check_name(kind: str, name: object) -> None:
    """Check the name of a ``topic`` or a ``group``; raises `BrokerArgumentError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:77]}..."
        raise BrokerArgumentError(f"{shown} cannot name a {kind}: use 1 to 249 of A-Z a-z 0-9 . _ / : -")


def encode_message(topic: str, value: object, key: object, headers: object) -> StoredMessage:
    """Check the arguments of `LocalBroker.append`, and convert them to the form in which they are stored.

    Raises:
        PayloadTypeError: The value is neither bytes-like nor ``None``.
        BrokerArgumentError: The topic's name is invalid, or the key or a header is of a wrong type.
    """
    check_name("topic", topic)
    stored_key = None if key is None else _as_bytes(key, f"the key of a message for {topic}")
    pairs = _header_pairs(headers, topic)
    buffer = _as_buffer(value, topic)
    return StoredMessage(stored_key, pack_headers(pairs), buffer, message_size(buffer, stored_key, pairs))


def to_message(row: tuple[Any, ...]) -> LocalMessage:
    """Make a message of the first columns of a row, `MESSAGE_COLUMNS`."""
    topic, partition, offset, value, key, headers, timestamp = row[:7]
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
        raise PayloadTypeError(
            f"a message for {topic} has to be bytes-like or None, not {type(value).__name__}; encode it first"
        ) from None
    return view.cast("B") if view.c_contiguous else view.tobytes()


def _as_bytes(value: object, what: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise BrokerArgumentError(f"{what} has to be bytes or str, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise BrokerArgumentError(f"{what} is not valid Unicode; pass bytes") from error


def _header_pairs(headers: object, topic: str) -> list[tuple[str, bytes]]:
    if headers is None:
        return []
    if not isinstance(headers, Iterable):
        raise BrokerArgumentError(f"headers for {topic} have to be a mapping or pairs, not {type(headers).__name__}")
    pairs = []
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BrokerArgumentError(f"a header for {topic} has to be a pair of a str and its value")
        _as_bytes(pair[0], f"the name of a header for {topic}")
        pairs.append((pair[0], _as_bytes(pair[1], f"the value of header {pair[0]!r} for {topic}")))
    return pairs
