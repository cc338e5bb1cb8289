"""The SQLite file of the embedded broker: its tables, the statements on them, transactions and SQLite's errors.

The file is in WAL mode: readers never wait for a writer, and writers wait for each other. A committed change survives
the crash of any process; after a loss of power the last few changes may be missing (``synchronous=NORMAL``), but the
file is intact. WAL needs shared memory: every process has to run on the machine that has the disk, and network file
systems are refused.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from claimcheck.transports.local._errors import (
    BrokerBusyError,
    BrokerClosedError,
    BrokerCommitError,
    BrokerStorageError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)

BUSY_TIMEOUT_SECONDS = 30.0
"""How long a change waits for other processes before it fails with `BrokerBusyError`."""

MAX_PARTITIONS = 10_000
MESSAGE_COLUMNS = "m.topic, m.partition, m.offset, m.value, m.key, m.headers, m.timestamp"
"""The columns of a `LocalMessage`, from ``messages m``."""

_APPLICATION_ID = 0x636C636B  # "clck": distinguishes the broker's files from other SQLite files
_SCHEMA_VERSION = 1
_WAL_ATTEMPTS = 100
_WAL_PAUSE_SECONDS = 0.05

_SCHEMA = (
    """CREATE TABLE topics (
        topic TEXT PRIMARY KEY, partitions INTEGER NOT NULL, turn INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID""",
    """CREATE TABLE partitions (
        topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL DEFAULT 0,
        bytes INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (topic, partition)
    ) WITHOUT ROWID""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
        timestamp REAL NOT NULL, key BLOB, headers BLOB NOT NULL, value BLOB, UNIQUE (topic, partition, offset)
    )""",
    # AUTOINCREMENT: the order of joining decides who has the larger share, so ids must never be reused.
    """CREATE TABLE members (
        id INTEGER PRIMARY KEY AUTOINCREMENT, grp TEXT NOT NULL, topic TEXT NOT NULL, member TEXT NOT NULL,
        expires_at REAL NOT NULL, UNIQUE (grp, topic, member)
    )""",
    """CREATE TABLE leases (
        grp TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, member TEXT,
        epoch INTEGER NOT NULL DEFAULT 0, floor INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (grp, topic, partition)
    ) WITHOUT ROWID""",
    """CREATE TABLE acks (
        grp TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
        PRIMARY KEY (grp, topic, partition, offset)
    ) WITHOUT ROWID""",
    """CREATE TABLE redeliveries (
        grp TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
        count INTEGER NOT NULL, due_at REAL, PRIMARY KEY (grp, topic, partition, offset)
    ) WITHOUT ROWID""",
)

_ERRORS: dict[int, tuple[type[BrokerStorageError], str]] = {
    sqlite3.SQLITE_BUSY: (BrokerBusyError, "was locked by another process for too long; try again"),
    sqlite3.SQLITE_LOCKED: (BrokerBusyError, "was locked by another connection for too long; try again"),
    sqlite3.SQLITE_FULL: (BrokerStorageError, "cannot grow, the disk is full; free some space and try again"),
    sqlite3.SQLITE_NOTADB: (BrokerStorageError, "is not a SQLite database; use another path for the broker"),
    sqlite3.SQLITE_CORRUPT: (BrokerStorageError, "is damaged; move it away and create the topics again"),
    sqlite3.SQLITE_CANTOPEN: (BrokerStorageError, "cannot be opened; its folder has to exist and be writable"),
    sqlite3.SQLITE_READONLY: (BrokerStorageError, "is read-only; readers need permission to write, too"),
    sqlite3.SQLITE_IOERR: (BrokerStorageError, "cannot be read or written, the disk failed; check the disk"),
}

Place = tuple[str, str, int]
"""Group, topic, partition."""

Row = tuple[Any, ...]


class Lease(NamedTuple):
    """The lease of a partition: its epoch, and the lowest offset that is not acknowledged."""

    epoch: int
    floor: int


class StoredMessage(NamedTuple):
    """A valid message in the form in which it is stored; ``size`` is what counts towards the limit."""

    key: bytes | None
    headers: bytes
    value: bytes | bytearray | memoryview | None
    size: int


# Topics and messages ------------------------------------------------------------------------------------------------


def create_topic(db: sqlite3.Connection, topic: str, partitions: int) -> None:
    """Create the topic unless it exists with as many partitions; raises `TopicExistsError` otherwise."""
    found = db.execute("SELECT partitions FROM topics WHERE topic = ?", (topic,)).fetchone()
    if found is None:
        db.execute("INSERT INTO topics (topic, partitions) VALUES (?, ?)", (topic, partitions))
        rows = ((topic, partition) for partition in range(partitions))
        db.executemany("INSERT INTO partitions (topic, partition) VALUES (?, ?)", rows)
    elif found[0] != partitions:
        text = f"topic {topic} has {found[0]} partitions, not {partitions}, and keeps them; use another topic"
        raise TopicExistsError(text, destination=topic, partitions=found[0])


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
    valid = isinstance(partition, int) and 0 <= partition < MAX_PARTITIONS
    row: tuple[int] | None = db.execute(query, (topic, partition)).fetchone() if valid else None
    if row is None:
        partitions = count_partitions(db, topic)
        text = f"topic {topic} has no partition {partition!r}, only 0 to {partitions - 1}"
        raise UnknownPartitionError(text, destination=topic, partition=partition, partitions=partitions)
    return row[0]


def check_offset(db: sqlite3.Connection, topic: str, partition: int, offset: int) -> None:
    """Check that the offset is that of a message or of the next one; raises `OffsetOutOfRangeError` otherwise."""
    end = end_offset(db, topic, partition)
    if not 0 <= offset <= end:
        text = f"partition {partition} of {topic} has no offset {offset}, only 0 to {end}, its end"
        raise OffsetOutOfRangeError(text, destination=topic, partition=partition, offset=offset, end=end)


def choose_partition(db: sqlite3.Connection, topic: str, key: bytes | None) -> int:
    """Return the partition of a key, the same in every process; without a key partitions are used in turn."""
    partitions, turn = _partitions_and_turn(db, topic)
    if key is not None:
        return zlib.crc32(key) % partitions
    # The turn is kept in the file, so that many short-lived producers use all partitions equally.
    db.execute("UPDATE topics SET turn = ? WHERE topic = ?", ((turn + 1) % partitions, topic))
    return turn


def insert_message(db: sqlite3.Connection, topic: str, partition: int, message: StoredMessage, timestamp: float) -> int:
    """Append a message to a partition and return its offset."""
    offset = end_offset(db, topic, partition)
    db.execute(
        "INSERT INTO messages (topic, partition, offset, timestamp, key, headers, value) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (topic, partition, offset, timestamp, message.key, message.headers, message.value),
    )
    db.execute(
        "UPDATE partitions SET next_offset = next_offset + 1, bytes = bytes + ? WHERE topic = ? AND partition = ?",
        (message.size, topic, partition),
    )
    return offset


# Positions of groups ------------------------------------------------------------------------------------------------

_AT = "grp = ? AND topic = ? AND partition = ?"
_REDELIVERY = "ON r.grp = ? AND r.topic = m.topic AND r.partition = m.partition AND r.offset = m.offset"


def holds_lease(db: sqlite3.Connection, place: Place, member: str, epoch: int) -> bool:
    """Return whether the member still holds the partition under the lease with this epoch."""
    row = db.execute(f"SELECT member, epoch FROM leases WHERE {_AT}", place).fetchone()
    return bool(row == (member, epoch))


def acknowledge(db: sqlite3.Connection, place: Place, offsets: Iterable[int]) -> None:
    """Never deliver these offsets to the group again; idempotent. Offsets without a gap become the new floor."""
    floor = end = _floor(db, place)
    rows = [(*place, offset) for offset in offsets if offset >= floor]
    db.executemany("INSERT OR IGNORE INTO acks (grp, topic, partition, offset) VALUES (?, ?, ?, ?)", rows)
    db.executemany(f"DELETE FROM redeliveries WHERE {_AT} AND offset = ?", rows)
    for (offset,) in db.execute(f"SELECT offset FROM acks WHERE {_AT} ORDER BY offset", place):
        if offset != end:
            break
        end += 1
    if end > floor:
        db.execute(f"UPDATE leases SET floor = ? WHERE {_AT}", (end, *place))
        db.execute(f"DELETE FROM acks WHERE {_AT} AND offset < ?", (*place, end))


def redeliver(db: sqlite3.Connection, place: Place, offsets: Iterable[int], due_at: float) -> None:
    """Deliver these offsets again at ``due_at`` and count that; acknowledged offsets are skipped."""
    floor = _floor(db, place)
    acked = f"SELECT 1 FROM acks WHERE {_AT} AND offset = ?"
    for offset in offsets:
        if offset >= floor and not db.execute(acked, (*place, offset)).fetchone():
            db.execute(
                "INSERT INTO redeliveries (grp, topic, partition, offset, count, due_at) VALUES (?, ?, ?, ?, 1, ?)"
                " ON CONFLICT (grp, topic, partition, offset)"
                " DO UPDATE SET count = count + 1, due_at = excluded.due_at",
                (*place, offset, due_at),
            )


def mark_redelivered(db: sqlite3.Connection, place: Place, offsets: Iterable[int]) -> None:
    """Record that offsets that were due have been delivered again."""
    rows = ((*place, offset) for offset in offsets)
    db.executemany(f"UPDATE redeliveries SET due_at = NULL WHERE {_AT} AND offset = ?", rows)


def seek(db: sqlite3.Connection, place: Place, offset: int) -> None:
    """Continue at ``offset``: everything before counts as acknowledged, and nothing from there on does."""
    db.execute(
        "INSERT INTO leases (grp, topic, partition, epoch, floor) VALUES (?, ?, ?, 1, ?)"
        " ON CONFLICT (grp, topic, partition) DO UPDATE SET epoch = epoch + 1, floor = excluded.floor",
        (*place, offset),
    )
    db.execute(f"DELETE FROM acks WHERE {_AT}", place)
    db.execute(f"DELETE FROM redeliveries WHERE {_AT}", place)


def rows_after(db: sqlite3.Connection, place: Place, offset: int, limit: int) -> list[Row]:
    """Return unacknowledged messages from ``offset`` on: `MESSAGE_COLUMNS`, then the number of redeliveries."""
    query = f"""SELECT {MESSAGE_COLUMNS}, coalesce(r.count, 0) FROM messages m LEFT JOIN redeliveries r {_REDELIVERY}
        WHERE m.topic = ? AND m.partition = ? AND m.offset >= ? AND NOT EXISTS (SELECT 1 FROM acks a
            WHERE a.grp = ? AND a.topic = m.topic AND a.partition = m.partition AND a.offset = m.offset)
        ORDER BY m.offset LIMIT ?"""
    return db.execute(query, (*place, offset, place[0], limit)).fetchall()


def rows_due(db: sqlite3.Connection, place: Place, now: float, limit: int) -> list[Row]:
    """Return messages whose redelivery is due, in the form of `rows_after`."""
    query = f"""SELECT {MESSAGE_COLUMNS}, r.count FROM redeliveries r JOIN messages m {_REDELIVERY}
        WHERE r.grp = ? AND r.topic = ? AND r.partition = ? AND r.due_at <= ? ORDER BY r.offset LIMIT ?"""
    return db.execute(query, (place[0], *place, now, limit)).fetchall()


def _floor(db: sqlite3.Connection, place: Place) -> int:
    floor: int = db.execute(f"SELECT floor FROM leases WHERE {_AT}", place).fetchone()[0]
    return floor


# Members and leases -------------------------------------------------------------------------------------------------


def renew(
    db: sqlite3.Connection, group: str, member: str, topics: Iterable[str], now: float, lease_seconds: float
) -> None:
    """Register a member until ``now + lease_seconds``, end expired leases, and adjust its own to its fair share."""
    for topic in topics:
        count_partitions(db, topic)
        db.execute(
            "INSERT INTO members (grp, topic, member, expires_at) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (grp, topic, member) DO UPDATE SET expires_at = excluded.expires_at",
            (group, topic, member, now + lease_seconds),
        )
        new = "SELECT ?, topic, partition FROM partitions WHERE topic = ?"
        db.execute(f"INSERT OR IGNORE INTO leases (grp, topic, partition) {new}", (group, topic))
    db.execute("DELETE FROM members WHERE grp = ? AND expires_at <= ?", (group, now))
    db.execute(
        "UPDATE leases SET member = NULL WHERE grp = ? AND member NOT IN (SELECT member FROM members WHERE grp = ?)",
        (group, group),
    )
    for topic in topics:
        _balance(db, group, topic, member)


def leave(db: sqlite3.Connection, group: str, member: str) -> None:
    """Remove a member and end its leases."""
    db.execute("DELETE FROM members WHERE grp = ? AND member = ?", (group, member))
    db.execute("UPDATE leases SET member = NULL WHERE grp = ? AND member = ?", (group, member))


def held_leases(db: sqlite3.Connection, group: str, member: str) -> dict[tuple[str, int], Lease]:
    """Return a member's leases by topic and partition, sorted."""
    query = "SELECT topic, partition, epoch, floor FROM leases WHERE grp = ? AND member = ? ORDER BY topic, partition"
    rows = db.execute(query, (group, member))
    return {(topic, partition): Lease(epoch, floor) for topic, partition, epoch, floor in rows}


def fair_share(partitions: int, members: int, rank: int, *, before: int) -> int:
    """Return how many partitions a member should hold when a group's partitions are assigned round robin.

    ``rank`` is the member's index, from 0, among the ``members`` that share the topic. ``before`` is the number of
    partitions of the group's earlier topics: without it the first member would receive the odd one of every topic.
    """
    return len(range(before + (rank - before) % members, before + partitions, members))


def _balance(db: sqlite3.Connection, group: str, topic: str, member: str) -> None:
    held, free = (_partitions_of(db, group, topic, holder) for holder in (member, None))
    share = _share(db, group, topic, member)
    moved: list[tuple[int, str | None]] = [(partition, None) for partition in held[share:]]
    moved += [(partition, member) for partition in free[: max(0, share - len(held))]]
    for partition, holder in moved:
        place = (group, topic, partition)
        db.execute(f"UPDATE leases SET member = ?, epoch = epoch + 1 WHERE {_AT}", (holder, *place))
        # A new holder reads everything from the floor on, so nothing has to be redelivered in addition.
        db.execute(f"UPDATE redeliveries SET due_at = NULL WHERE {_AT}", place)


def _partitions_of(db: sqlite3.Connection, group: str, topic: str, member: str | None) -> list[int]:
    query = "SELECT partition FROM leases WHERE grp = ? AND topic = ? AND member IS ? ORDER BY partition"
    return [partition for (partition,) in db.execute(query, (group, topic, member))]


def _share(db: sqlite3.Connection, group: str, topic: str, member: str) -> int:
    query = "SELECT member FROM members WHERE grp = ? AND topic = ? ORDER BY id"
    members = [name for (name,) in db.execute(query, (group, topic))]
    query = """SELECT coalesce(sum(partitions), 0) FROM topics
        WHERE topic < ? AND topic IN (SELECT topic FROM members WHERE grp = ?)"""
    (before,) = db.execute(query, (topic, group)).fetchone()
    return fair_share(count_partitions(db, topic), len(members), members.index(member), before=before)


# The file -----------------------------------------------------------------------------------------------------------

_inherited: list[sqlite3.Connection] = []  # SQLite forbids even closing a parent's connection in a forked child


class Database:
    """A connection to the file: opened at first use, shared by threads, and safe in a forked child.

    Args:
        path: The file; created when it does not exist. Its folder has to exist.
        sleep: Called with seconds, only while several processes open a new file at the same time.
    """

    _connection: sqlite3.Connection | None
    _lock: threading.Lock
    _pid: int

    def __init__(self, path: str | os.PathLike[str], *, sleep: Callable[[float], None]) -> None:
        self.path = os.path.abspath(path)
        self._sleep = sleep
        self._closed = False
        self._reset()

    def read(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Return a block with a connection that sees one snapshot of the file."""
        return self._transaction("DEFERRED")

    def write(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Return a block whose changes are committed together at its end, or rolled back when it raises.

        Raises:
            BrokerBusyError: Locked for more than `BUSY_TIMEOUT_SECONDS`; nothing was changed.
            BrokerCommitError: The commit failed; whether the changes were made is unknown.
            BrokerStorageError: The file cannot be used; nothing was changed.
            BrokerClosedError: `close` was called; nothing was changed.
        """
        return self._transaction("IMMEDIATE")

    def close(self) -> None:
        """Close the connection; the file is kept. Closing twice is harmless."""
        self._drop_parents_connection()
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @contextlib.contextmanager
    def _transaction(self, mode: str) -> Iterator[sqlite3.Connection]:
        self._drop_parents_connection()
        with self._lock, _mapped_errors(self.path):
            connection = self._open()
            connection.execute(f"BEGIN {mode}")
            try:
                yield connection
            except BaseException:
                _rollback(connection)
                raise
            _commit(connection, self.path)

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise BrokerClosedError(f"the broker on {self.path} was closed; create a new LocalBroker on the same path")
        if self._connection is None:
            self._connection = _connect(self.path, self._sleep)
            weakref.finalize(self, _close_own, self._connection, os.getpid())
        return self._connection

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connection = None

    def _drop_parents_connection(self) -> None:
        if self._pid != os.getpid():
            if self._connection is not None:
                _inherited.append(self._connection)
            self._reset()  # the lock, too: a thread that only exists in the parent may have held it


def _close_own(connection: sqlite3.Connection, pid: int) -> None:
    if pid == os.getpid():
        connection.close()
    else:
        _inherited.append(connection)


def _connect(path: str, sleep: Callable[[float], None]) -> sqlite3.Connection:
    with contextlib.suppress(OSError):  # SQLite would create it readable to all; it reports what is wrong itself
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _create_tables(connection, path)
        _enable_wal(connection, path, sleep)
        connection.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _create_tables(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("BEGIN")  # one snapshot of the file: another process may be creating its tables
    exists = _has_tables(connection, path)
    connection.execute("COMMIT")
    if exists:
        return
    connection.execute("BEGIN IMMEDIATE")
    if not _has_tables(connection, path):  # another process may have been faster
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
        connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    connection.execute("COMMIT")


def _has_tables(connection: sqlite3.Connection, path: str) -> bool:
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            text = f"{path} is a SQLite file of another application; use a path of its own for the broker"
            raise BrokerStorageError(text, path=path)
        return False
    version = _pragma(connection, "user_version")
    if version != _SCHEMA_VERSION:
        text = (
            f"{path} has broker format {version}, this claimcheck knows {_SCHEMA_VERSION};"
            " use the version that created it"
        )
        raise BrokerStorageError(text, path=path)
    return True


def _enable_wal(connection: sqlite3.Connection, path: str, sleep: Callable[[float], None]) -> None:
    # Changing the mode does not wait for locks as other statements do, hence this loop.
    for attempt in range(_WAL_ATTEMPTS):
        try:
            mode = _pragma(connection, "journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == _WAL_ATTEMPTS - 1:
                raise
            sleep(_WAL_PAUSE_SECONDS)
    if mode != "wal":
        text = f"{path} is on a file system without shared memory (journal mode {mode}); put it on a local disk"
        raise BrokerStorageError(text, path=path)


def _pragma(connection: sqlite3.Connection, text: str) -> object:
    row: tuple[object, ...] = connection.execute(f"PRAGMA {text}").fetchone()
    return row[0]


def _rollback(connection: sqlite3.Connection) -> None:
    # SQLite has often rolled back by itself; a failure here must not hide the first error.
    with contextlib.suppress(sqlite3.Error):
        connection.rollback()


def _commit(connection: sqlite3.Connection, path: str) -> None:
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _rollback(connection)
        text = f"{path}: a commit failed ({error}); whether the change was made is unknown, check before you try again"
        raise BrokerCommitError(text, path=path) from error


@contextlib.contextmanager
def _mapped_errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind, meaning = _ERRORS.get(code, (BrokerStorageError, f"could not be used: {error}"))
        raise kind(f"{path} {meaning}", path=path) from error
