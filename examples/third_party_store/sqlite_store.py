"""A third-party store: payloads in one SQLite file, in pieces, so that they can be larger than memory."""

import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import count

from claimcheck.errors import StoreError, StoreUnavailableError
from claimcheck.stores.base import Pointer, Source, Store

TABLE = "CREATE TABLE IF NOT EXISTS pieces (key TEXT, i INTEGER, piece BLOB, PRIMARY KEY (key, i)) WITHOUT ROWID"

PUT = "INSERT OR REPLACE INTO pieces VALUES (?, ?, ?)"

GET = "SELECT piece FROM pieces WHERE key = ? AND i = ?"


class SqliteStore(Store):
    """Stores payloads in one file, for programs that share a disk."""

    def __init__(self, *, path: str, ttl_seconds: float | None = None, busy_seconds: float = 30.0) -> None:
        self.path = path
        self.ttl_seconds = ttl_seconds
        self.busy_seconds = busy_seconds

    def _write(self, pointer: Pointer, source: Source) -> None:
        with self._connection() as database:  # each piece on its own, so that others can read and write meanwhile
            for i, piece in enumerate(source, 1):
                database.execute(PUT, (pointer.key, i, piece))
            database.execute(PUT, (pointer.key, 0, b""))  # an empty payload exists, too

    def _read(self, pointer: Pointer) -> Iterable[bytes]:
        with self._connection() as database:
            if not database.execute(GET, (pointer.key, 0)).fetchall():
                raise self.missing(pointer)
            for i in count(1):  # each piece on its own, so that a slow reader does not block writers
                piece = database.execute(GET, (pointer.key, i)).fetchall()
                if not piece:
                    return
                yield piece[0][0]

    def _delete(self, pointer: Pointer) -> None:
        with self._connection() as database:
            database.execute("DELETE FROM pieces WHERE key = ?", (pointer.key,))

    def _translate(self, error: Exception) -> type[StoreError] | None:
        return StoreUnavailableError if isinstance(error, sqlite3.OperationalError) else super()._translate(error)

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection]:
        seconds = self.busy_seconds
        database = sqlite3.connect(self.path, timeout=seconds, isolation_level=None, check_same_thread=False)
        try:
            database.execute(TABLE)
            yield database
        finally:
            database.close()
