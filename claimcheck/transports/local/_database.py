"""The SQLite file of the embedded broker: its tables, its transactions, and where SQLite's errors become ours.

The file is in WAL mode: readers never wait for a writer, and writers wait for each other. A committed change survives
the crash of any process; after a loss of power the last few may be missing (``synchronous=NORMAL``), the file is whole.
WAL needs shared memory, so every process has to run on the machine that has the disk: no network file systems.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator

from claimcheck.transports.local._errors import (
    BrokerBusyError,
    BrokerClosedError,
    BrokerCommitError,
    BrokerStorageError,
)

__all__ = ["BUSY_TIMEOUT_SECONDS", "Database"]

BUSY_TIMEOUT_SECONDS = 30.0
"""How long a change waits for other processes before it fails with `BrokerBusyError`."""

_APPLICATION_ID = 0x636C636B  # "clck": tells our files from anybody else's SQLite files
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
    # AUTOINCREMENT: the order of joining decides who has the larger share, so numbers must never be used twice.
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

_MEANINGS: dict[int, tuple[type[BrokerStorageError], str]] = {
    sqlite3.SQLITE_BUSY: (BrokerBusyError, "was kept locked by another process for too long; try again"),
    sqlite3.SQLITE_LOCKED: (BrokerBusyError, "was kept locked by another connection for too long; try again"),
    sqlite3.SQLITE_FULL: (BrokerStorageError, "cannot grow, the disk is full; free some space and try again"),
    sqlite3.SQLITE_NOTADB: (BrokerStorageError, "is not a SQLite database; give the broker a path of its own"),
    sqlite3.SQLITE_CORRUPT: (BrokerStorageError, "is damaged; move it away and create the topics anew"),
    sqlite3.SQLITE_CANTOPEN: (BrokerStorageError, "cannot be opened; its folder has to exist and be writable"),
    sqlite3.SQLITE_READONLY: (BrokerStorageError, "is read-only; readers need to write too, give them the right"),
    sqlite3.SQLITE_IOERR: (BrokerStorageError, "cannot be read or written, the disk failed; check the disk"),
}

_inherited: list[sqlite3.Connection] = []  # SQLite forbids even closing a parent's connection in a forked child


class Database:
    """One process's way into the file; opened at first use, shared by threads, and safe to carry through a fork.

    Args:
        path: The file; made when it is not there. Its folder has to exist.
        sleep: Called with seconds, only while several processes open a new file at the same moment.
    """

    _connection: sqlite3.Connection | None
    _lock: threading.Lock
    _pid: int

    def __init__(self, path: str | os.PathLike[str], *, sleep: Callable[[float], None]) -> None:
        self.path = os.path.abspath(path)
        self._sleep = sleep
        self._closed = False
        self._start_afresh()

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that sees one unchanging state of the file until the block ends.

        Raises:
            BrokerStorageError: The file cannot be used.
            BrokerClosedError: `close` was called.
        """
        with self._transaction("DEFERRED") as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Give a connection whose changes are made together at the end of the block, or not at all when it raises.

        Raises:
            BrokerBusyError: Locked for more than `BUSY_TIMEOUT_SECONDS`; nothing was changed.
            BrokerCommitError: Failed at the very end; whether the changes were made is unknown.
            BrokerStorageError: The file cannot be used; nothing was changed.
            BrokerClosedError: `close` was called; nothing was changed.
        """
        with self._transaction("IMMEDIATE") as connection:
            yield connection

    def close(self) -> None:
        """Release the connection; the file and all that is in it stay. Closing twice is harmless."""
        self._leave_parents_connection()
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @contextlib.contextmanager
    def _transaction(self, mode: str) -> Iterator[sqlite3.Connection]:
        self._leave_parents_connection()
        with self._lock, _our_errors(self.path):
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
            raise BrokerClosedError(f"the broker on {self.path} was closed; make a new LocalBroker on the same path")
        if self._connection is None:
            self._connection = _connect(self.path, self._sleep)
            weakref.finalize(self, _close_own, self._connection, os.getpid())
        return self._connection

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connection = None

    def _leave_parents_connection(self) -> None:
        if self._pid == os.getpid():
            return
        if self._connection is not None:
            _inherited.append(self._connection)
        self._start_afresh()  # the lock too: a thread that lives on in the parent only may have held it


def _close_own(connection: sqlite3.Connection, pid: int) -> None:
    if pid == os.getpid():
        connection.close()
    else:
        _inherited.append(connection)


def _connect(path: str, sleep: Callable[[float], None]) -> sqlite3.Connection:
    with contextlib.suppress(OSError):  # SQLite itself would make it readable to all; what is wrong, it will say
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _make_tables(connection, path)
        _use_wal(connection, path, sleep)
        connection.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("BEGIN")  # one moment's state of the file: another process may be making its tables
    ours = _has_our_tables(connection, path)
    connection.execute("COMMIT")
    if ours:
        return
    connection.execute("BEGIN IMMEDIATE")
    if not _has_our_tables(connection, path):  # another process may have been faster
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
        connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    connection.execute("COMMIT")


def _has_our_tables(connection: sqlite3.Connection, path: str) -> bool:
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise BrokerStorageError(
                f"{path} is somebody else's SQLite file; give the broker a path of its own", path=path
            )
        return False
    version = _pragma(connection, "user_version")
    if version != _SCHEMA_VERSION:
        text = (
            f"{path} has broker format {version}, this claimcheck knows {_SCHEMA_VERSION}; use the version that made it"
        )
        raise BrokerStorageError(text, path=path)
    return True


def _use_wal(connection: sqlite3.Connection, path: str, sleep: Callable[[float], None]) -> None:
    # The change of mode does not wait for locks as other statements do, hence a loop of our own.
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
    # SQLite has often rolled back by itself; whatever fails here must not hide the first error.
    with contextlib.suppress(sqlite3.Error):
        connection.rollback()


def _commit(connection: sqlite3.Connection, path: str) -> None:
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _rollback(connection)
        text = (
            f"{path} failed at the end of a change ({error}); whether it was made is unknown, look before you try again"
        )
        raise BrokerCommitError(text, path=path) from error


@contextlib.contextmanager
def _our_errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind, meaning = _MEANINGS.get(code, (BrokerStorageError, f"could not be used: {error}"))
        raise kind(f"{path} {meaning}", path=path) from error
