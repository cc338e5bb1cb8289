"""The embedded broker: topics with partitions in one SQLite file, for processes of one machine.

It is made for demonstrations, tests and single machines. It refuses large messages as other brokers do, keeps every
message until its file is deleted, and does not interpret messages.

The file is in WAL mode: readers never wait for a writer, and writers wait for each other. A committed change survives
the crash of any process; after a loss of power the last few changes may be missing (``synchronous=NORMAL``), but the
file is intact. WAL needs shared memory: every process has to run on the machine that has the disk.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sqlite3
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from claimcheck._validation import check_int, fail
from claimcheck._wire import headers as hints
from claimcheck._wire.buffers import Buffer, as_view
from claimcheck.errors import TransportError
from claimcheck.transports._common.delegation import Closing

MESSAGE_OVERHEAD_BYTES = 32
"""What every message counts towards the size limit in addition to its value, key and headers."""

BUSY_TIMEOUT_SECONDS = 30.0
"""How long a change waits for other processes before it fails with `BrokerBusyError`."""

_APPLICATION_ID = 0x636C6303  # "clc" and the version of the tables: distinguishes the files from other SQLite files
_WAL_ATTEMPTS = 100
_WAL_PAUSE_SECONDS = 0.05

_NAME = re.compile(r"[A-Za-z0-9._/:-]{1,249}")
_MAX_PARTITIONS = 10_000
_LARGEST_LIMIT = 1 << 29  # SQLite itself refuses rows of 10**9 bytes

_TABLES = (
    "CREATE TABLE broker (id TEXT NOT NULL)",
    """CREATE TABLE partitions (
        topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL DEFAULT 0,
        bytes INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (topic, partition)
    ) WITHOUT ROWID""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
        timestamp REAL NOT NULL, key BLOB, headers TEXT NOT NULL, value BLOB, UNIQUE (topic, partition, offset)
    )""",
    """CREATE TABLE positions (
        grp TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
        owner TEXT NOT NULL, PRIMARY KEY (grp, topic, partition)
    ) WITHOUT ROWID""",
)

_inherited: list[sqlite3.Connection] = []  # SQLite forbids even closing a parent's connection in a forked child

Headers = Mapping[str, str | bytes] | Sequence[tuple[str, str | bytes]]
"""A mapping, or pairs in order with duplicates allowed; ``str`` values are encoded as UTF-8."""


class MessageTooLargeError(TransportError):
    """The message exceeds the broker's limit; nothing was written. ``size`` and ``limit`` are bytes."""


class UnknownTopicError(TransportError):
    """The topic does not exist; nothing was changed."""


class UnknownPartitionError(TransportError):
    """The topic has no such ``partition``, only 0 to ``partitions`` - 1; nothing was changed."""

    partition: int | None = None
    partitions: int | None = None


class GroupTakenOverError(TransportError):
    """Another consumer of the group was opened, or the group was deleted; nothing was changed."""


class BrokerClosedError(TransportError):
    """The broker or the consumer was closed; nothing was changed."""


class BrokerStorageError(TransportError):
    """The broker's file, ``path``, cannot be used; the current change was not made."""

    path: str | None = None


class BrokerBusyError(BrokerStorageError):
    """Another process locked the file for too long; the current change was not made."""

    retryable = True


class BrokerCommitError(BrokerStorageError):
    """The disk failed during a commit; whether the change was made is unknown."""


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
    """Topics in one SQLite file, opened at first use. Threads may share it, and a forked child may use it.

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
            if not (existing := _count(db, name)):
                rows = ((name, partition) for partition in range(partitions))
                db.executemany("INSERT INTO partitions (topic, partition) VALUES (?, ?)", rows)
            elif existing != partitions:
                fail("partitions", found=str(partitions), expected=f"{existing}, which topic {name} has and keeps")

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        with self.database.read() as db:
            return [name for (name,) in db.execute("SELECT DISTINCT topic FROM partitions ORDER BY topic")]

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, which are numbered from 0; raises `UnknownTopicError`."""
        check_name("topic", topic)
        with self.database.read() as db:
            return _partitions(db, topic)

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
            partition: From 0; by default chosen by the key, or without a key the one with the fewest messages.

        Raises:
            BrokerCommitError: The disk failed during the commit; whether the message was appended is unknown.
            TransportError: The message is too large, or there is no such place; nothing was written.
            ConfigError: The topic's name, the key or a header is invalid; nothing was written.
            PayloadTypeError: The value is neither bytes-like nor ``None``; nothing was written.
        """
        message = encode_message(topic, value, key, headers)
        if message.size > self.max_message_bytes:
            size, limit = message.size, self.max_message_bytes
            text = f"a message of {size} bytes for {topic} is over the broker's limit of {limit}: offload the payload"
            raise MessageTooLargeError(text, destination=topic, size=size, limit=limit)
        with self.database.write() as db:
            if partition is None:
                partition = _choose_partition(db, topic, message.key)
            offset = _end_offset(db, topic, partition)
            row = (topic, partition, offset, self.clock(), message.key, message.headers, message.value)
            db.execute("INSERT INTO messages VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", row)
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
        query = "SELECT sum(next_offset), sum(bytes) FROM partitions WHERE topic = ?"
        with self.database.read() as db:
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


def _count(db: sqlite3.Connection, topic: str) -> int:
    """Return the number of a topic's partitions; 0 if there is no such topic."""
    row = db.execute("SELECT max(partition) FROM partitions WHERE topic = ?", (topic,)).fetchone()
    return 0 if row[0] is None else int(row[0]) + 1


def _partitions(db: sqlite3.Connection, topic: str) -> int:
    if not (partitions := _count(db, topic)):
        text = f"there is no topic {topic}; create it with create_topic({topic!r})"
        raise UnknownTopicError(text, destination=topic)
    return partitions


def _choose_partition(db: sqlite3.Connection, topic: str, key: bytes | None) -> int:
    partitions = _partitions(db, topic)
    if key is not None:
        return zlib.crc32(key) % partitions
    query = "SELECT partition FROM partitions WHERE topic = ? ORDER BY next_offset, partition LIMIT 1"
    return int(db.execute(query, (topic,)).fetchone()[0])


def _end_offset(db: sqlite3.Connection, topic: str, partition: int) -> int:
    partitions = _partitions(db, topic)
    if not isinstance(partition, int) or not 0 <= partition < partitions:
        text = f"topic {topic} has no partition {partition!r}, only 0 to {partitions - 1}"
        raise UnknownPartitionError(text, destination=topic, partition=partition, partitions=partitions)
    query = "SELECT next_offset FROM partitions WHERE topic = ? AND partition = ?"
    return int(db.execute(query, (topic, partition)).fetchone()[0])


class _StoredMessage(NamedTuple):
    """A valid message in the form in which it is stored."""

    key: bytes | None
    headers: str  # JSON, with a character for each byte of a value
    value: Buffer | None
    size: int  # as the limit counts it


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


# The file -------------------------------------------------------------------------------------------------------------


def is_broker_file(path: str | os.PathLike[str]) -> bool:
    """Whether a broker has created a file; it is only read, and not by SQLite."""
    with open(path, "rb") as file:
        header = file.read(72)
    return header[:16] == b"SQLite format 3\0" and header[68:] == _APPLICATION_ID.to_bytes(4, "big")


def local_cluster(database: Database) -> str:
    """Return the name of a broker, which no other one has."""
    with database.read() as db:
        return f"local:{db.execute('SELECT id FROM broker').fetchone()[0]}"


class Database:
    """A connection to the file: opened at first use, shared by threads, and safe in a forked child."""

    _connection: sqlite3.Connection | None

    def __init__(self, path: str | os.PathLike[str], *, sleep: Callable[[float], None]) -> None:
        self.path = os.path.abspath(path)
        self._sleep = sleep
        self._closed = False
        self._reset()

    def close(self) -> None:
        """Close the connection; the file is kept. Closing twice is harmless."""
        self._leave_parents_connection()
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    __del__ = close

    @contextlib.contextmanager
    def _transaction(self, mode: str) -> Iterator[sqlite3.Connection]:
        """Open a block that sees one snapshot; commits all changes together, or rolls them back if the block raises."""
        self._leave_parents_connection()
        with self._lock, _mapped_errors(self.path):
            if self._closed:
                raise BrokerClosedError(f"the broker on {self.path} was closed; create a new LocalBroker for it")
            if self._connection is None:
                self._connection = _connect(self.path, self._sleep)
            db = self._connection
            db.execute(f"BEGIN {mode}")
            try:
                yield db
            except BaseException:
                _roll_back(db)
                raise
            try:
                db.execute("COMMIT")
            except sqlite3.Error as error:
                _roll_back(db)
                text = f"{self.path}: a commit failed ({error}); whether the change was made is unknown"
                raise BrokerCommitError(text, path=self.path) from error

    read = functools.partialmethod(_transaction, "DEFERRED")
    write = functools.partialmethod(_transaction, "IMMEDIATE")

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connection = None

    def _leave_parents_connection(self) -> None:
        if self._pid != os.getpid():
            if self._connection is not None:
                _inherited.append(self._connection)
            self._reset()  # the lock, too: a thread that only exists in the parent may have held it


def _connect(path: str, sleep: Callable[[float], None]) -> sqlite3.Connection:
    with contextlib.suppress(OSError):  # SQLite would create it readable to all; it reports what is wrong itself
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        if _pragma(db, "application_id") != _APPLICATION_ID:
            _create_tables(db, path)
        _enable_wal(db, path, sleep)
        db.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        db.close()
        raise
    return db


def _create_tables(db: sqlite3.Connection, path: str) -> None:
    db.execute("BEGIN IMMEDIATE")
    if _pragma(db, "application_id") != _APPLICATION_ID:  # no other process has created them meanwhile
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            text = f"{path} is a SQLite file of another application, or of another version of claimcheck"
            raise BrokerStorageError(text, path=path)
        for statement in _TABLES:
            db.execute(statement)
        db.execute("INSERT INTO broker (id) VALUES (?)", (str(uuid.uuid4()),))
        db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    db.execute("COMMIT")


def _enable_wal(db: sqlite3.Connection, path: str, sleep: Callable[[float], None]) -> None:
    for _ in range(_WAL_ATTEMPTS):  # changing the mode does not wait for locks as other statements do
        with contextlib.suppress(sqlite3.OperationalError):
            if _pragma(db, "journal_mode=WAL") == "wal":
                return
        sleep(_WAL_PAUSE_SECONDS)
    text = f"{path} is locked, or on a file system without shared memory; put it on a local disk"
    raise BrokerStorageError(text, path=path)


def _pragma(db: sqlite3.Connection, text: str) -> object:
    row: tuple[object, ...] = db.execute(f"PRAGMA {text}").fetchone()
    return row[0]


def _roll_back(db: sqlite3.Connection) -> None:
    # SQLite has often rolled back by itself; a failure here must not hide the first error.
    with contextlib.suppress(sqlite3.Error):
        db.rollback()


@contextlib.contextmanager
def _mapped_errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            raise BrokerBusyError(f"{path} was locked by another process for too long; try again", path=path) from error
        text = f"{path} cannot be used as the file of a broker: {error}"
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            text += "; its folder has to exist, and both have to be writable, also to read"
        raise BrokerStorageError(text, path=path) from error
