"""Where rows wait in the embedded broker's file until all tasks of a write are done; then they are messages at once.

Two tables of our own lie beside the broker's, and nobody sees them: rows that wait, and which batch of each streaming
query came last. A commit moves rows and notes the batch in one transaction, so that a batch is there once or not at
all, whenever anything dies.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from claimcheck.transports.local import LocalBroker
from claimcheck.transports.local._broker import choose_partition, insert_message
from claimcheck.transports.local._messages import NewMessage

__all__ = ["StagedRow", "append_stages", "drop_stages", "add_rows", "pointers_in"]

StagedRow = tuple[str, NewMessage, bool]
"""Topic, message, and whether it is a pointer to what the sink itself has stored."""

_TABLES = (
    """CREATE TABLE IF NOT EXISTS spark_rows (
        stage TEXT NOT NULL, number INTEGER NOT NULL, created REAL NOT NULL, topic TEXT NOT NULL, key BLOB,
        headers BLOB NOT NULL, value BLOB, size INTEGER NOT NULL, stored INTEGER NOT NULL, PRIMARY KEY (stage, number)
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS spark_batches (query TEXT PRIMARY KEY, batch INTEGER NOT NULL) WITHOUT ROWID",
)
_FORGOTTEN_SECONDS = 7 * 86_400  # tasks that were killed leave rows that nobody will ever commit
_ADD = """INSERT INTO spark_rows (stage, number, created, topic, key, headers, value, size, stored)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def add_rows(broker: LocalBroker, stage: str, first: int, rows: Iterable[StagedRow]) -> None:
    """Let rows wait.

    Args:
        broker: Whose file.
        stage: The task's own name.
        first: Number of the first row.
        rows: In order.
    """
    now = time.time()
    with broker.database.write() as connection:
        _make_tables(connection)
        connection.executemany(
            _ADD,
            (
                (stage, number, now, topic, row.key, row.headers, row.value, row.size, stored)
                for number, (topic, row, stored) in enumerate(rows, first)
            ),
        )


def append_stages(broker: LocalBroker, stages: Sequence[str], place: tuple[str, int] | None) -> bool:
    """Make messages of all rows of some stages, in order, at once.

    Args:
        broker: Whose file.
        stages: Those of the tasks that were done.
        place: The streaming query that this is a batch of, and the batch's number.

    Returns:
        False when this batch is there already: nothing was done, the rows still wait.
    """
    with broker.database.write() as connection:
        _make_tables(connection)
        if place is not None and not _is_new(connection, *place):
            return False
        for stage in stages:
            _append(connection, stage, broker.clock())
        _delete(connection, stages)
        connection.execute("DELETE FROM spark_rows WHERE created < ?", (time.time() - _FORGOTTEN_SECONDS,))
        return True


def pointers_in(broker: LocalBroker, stages: Iterable[str]) -> list[bytes]:
    """Give the messages that point at what the sink has stored for rows that still wait."""
    with broker.database.write() as connection:
        _make_tables(connection)
        query = "SELECT value FROM spark_rows WHERE stage = ? AND stored ORDER BY number"
        return [value for stage in stages for (value,) in connection.execute(query, (stage,))]


def drop_stages(broker: LocalBroker, stages: Sequence[str]) -> None:
    """Forget rows that wait."""
    with broker.database.write() as connection:
        _make_tables(connection)
        _delete(connection, stages)


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES:
        connection.execute(statement)


def _is_new(connection: sqlite3.Connection, query: str, batch: int) -> bool:
    row = connection.execute("SELECT batch FROM spark_batches WHERE query = ?", (query,)).fetchone()
    if row is not None and row[0] >= batch:
        return False
    connection.execute("INSERT OR REPLACE INTO spark_batches (query, batch) VALUES (?, ?)", (query, batch))
    return True


def _append(connection: sqlite3.Connection, stage: str, now: float) -> None:
    for topic, message in _waiting(connection, stage):
        insert_message(connection, topic, choose_partition(connection, topic, message.key), message, now)


def _waiting(connection: sqlite3.Connection, stage: str) -> Iterator[tuple[str, NewMessage]]:
    query = "SELECT topic, value, key, headers, size FROM spark_rows WHERE stage = ? ORDER BY number"
    with closing(connection.execute(query, (stage,))) as rows:
        for topic, value, key, headers, size in rows:
            yield topic, NewMessage(value, key, headers, size)


def _delete(connection: sqlite3.Connection, stages: Iterable[str]) -> None:
    connection.executemany("DELETE FROM spark_rows WHERE stage = ?", ((stage,) for stage in stages))
