"""A pytest plugin for a run without `hiredis`, which cannot be imported; says what redis-py parses with instead."""

import sys

sys.modules["hiredis"] = None  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter):
    import redis

    terminalreporter.write_line(f"hiredis: {redis.utils.HIREDIS_AVAILABLE}, parser: {redis.connection.DefaultParser}")
