"""A third-party store: payloads in one SQLite file, in pieces, so that they can be larger than memory."""

import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from claimcheck.errors import StoreError, StoreUnavailableError
from claimcheck.stores.base import Pointer, Source, Store

TABLE = "CREATE TABLE IF NOT EXISTS pieces (key TEXT, i INTEGER, piece BLOB, PRIMARY KEY (key, i)) WITHOUT ROWID"

PUT = "INSERT OR REPLACE INTO pieces VALUES (?, ?, ?)"


class SqliteStore(Store):
    """Stores payloads in one file, for programs that share a disk."""

    def __init__(self, *, path: str, ttl_seconds: float | None = None, busy_seconds: float = 30.0) -> None:
        self.path = path
        self.ttl_seconds = ttl_seconds
        self.busy_seconds = busy_seconds

    def _write(self, pointer: Pointer, source: Source) -> None:
        with self._transaction() as database:
            pieces = ((pointer.key, i, piece) for i, piece in enumerate(source, 1))
            database.execute(PUT, (pointer.key, 0, b""))  # so that an empty payload exists, too
            database.executemany(PUT, pieces)

    def _read(self, pointer: Pointer) -> Iterable[bytes]:
        with self._transaction() as database:
            rows = database.execute("SELECT piece FROM pieces WHERE key = ? ORDER BY i", (pointer.key,))
            if rows.fetchone() is None:
                raise self.missing(pointer)
            for (piece,) in rows:
                yield piece

    def _delete(self, pointer: Pointer) -> None:
        with self._transaction() as database:
            database.execute("DELETE FROM pieces WHERE key = ?", (pointer.key,))

    def _translate(self, error: Exception) -> type[StoreError] | None:
        return StoreUnavailableError if isinstance(error, sqlite3.OperationalError) else super()._translate(error)

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=self.busy_seconds, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not block each other
            with database:  # commits, or rolls back
                database.execute(TABLE)
                yield database
        finally:
            database.close()
