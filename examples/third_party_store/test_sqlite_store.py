"""Runs the conformance tests of stores: call `pytest` in this folder."""

import sqlite3

import pytest

from claimcheck.testing import StoreConformance


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def options(self, tmp_path):
        self.path = str(tmp_path / "payloads.sqlite")
        return {"type": "sqlite_store:SqliteStore", "path": self.path}

    def peek(self, pointer):
        pieces = self.sql("SELECT piece FROM pieces WHERE key = ? ORDER BY i", pointer.key)
        return b"".join(piece for (piece,) in pieces if piece) if pieces else None

    def damage(self, pointer, payload):
        self.sql("DELETE FROM pieces WHERE key = ?", pointer.key)
        if payload is not None:
            self.sql("INSERT INTO pieces VALUES (?, 0, ''), (?, 1, ?)", pointer.key, pointer.key, payload)

    def sql(self, statement, *values):
        database = sqlite3.connect(self.path)
        with database:
            rows = database.execute(statement, values).fetchall()
        database.close()
        return rows
