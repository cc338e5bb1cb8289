"""The SQLite file of the embedded broker: its tables, transactions and errors.

The file is in WAL mode: readers never wait for a writer, and writers wait for each other. A committed change survives
the crash of any process; after a loss of power the last few changes may be missing (``synchronous=NORMAL``), but the
file is intact. WAL needs shared memory: every process has to run on the machine that has the disk.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator

from claimcheck.errors import TransportError

BUSY_TIMEOUT_SECONDS = 30.0
"""How long a change waits for other processes before it fails with `BrokerBusyError`."""

_APPLICATION_ID = 0x636C6302  # "clc" and the version of the tables: distinguishes the files from other SQLite files
_WAL_ATTEMPTS = 100
_WAL_PAUSE_SECONDS = 0.05

_TABLES = (
    "CREATE TABLE broker (id TEXT NOT NULL)",
    """CREATE TABLE topics (
        topic TEXT PRIMARY KEY, partitions INTEGER NOT NULL, turn INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID""",
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


class MessageTooLargeError(TransportError):
    """The message exceeds the broker's limit; nothing was written. ``size`` and ``limit`` are bytes."""


class UnknownTopicError(TransportError):
    """The topic does not exist; nothing was changed."""


class UnknownPartitionError(TransportError):
    """The topic has no such ``partition``, only 0 to ``partitions`` - 1; nothing was changed."""

    partition: int | None = None
    partitions: int | None = None


class StaleDeliveryError(TransportError):
    """The message was received before a seek, which decides what is delivered next; nothing was acknowledged."""


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

    def read(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Return a context manager with a connection that sees one snapshot of the file."""
        return self._transaction("DEFERRED")

    def write(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Return a context manager that commits all changes together, or rolls them back if the block raises."""
        return self._transaction("IMMEDIATE")

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
                raise BrokerCommitError(f"{text}: check before you try again", path=self.path) from error

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
            raise BrokerStorageError(f"{text}; use another path for the broker", path=path)
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
