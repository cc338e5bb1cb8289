"""A pytest plugin that hides `hiredis` and reports which parser redis-py uses instead."""

import sys

sys.modules["hiredis"] = None  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter):
    import redis

    terminalreporter.write_line(f"hiredis: {redis.utils.HIREDIS_AVAILABLE}, parser: {redis.connection.DefaultParser}")
