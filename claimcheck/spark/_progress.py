"""How far a job is, in a line now and then: payloads say more than Spark's own bar of tasks."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from claimcheck.spark._fetching import check_seconds
from claimcheck.spark._metrics import Metrics

__all__ = ["progress"]

_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

_log = logging.getLogger(__name__)


@contextmanager
def progress(
    metrics: Metrics, *, every_seconds: float = 5.0, say: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Say how far the jobs within the block are, and at its end what they did.

    A payload that two functions share these metrics for is counted by each of them.

    Args:
        metrics: What the jobs count in; it grows as tasks end.
        every_seconds: Between lines, from 0.01.
        say: Takes a line; by default the error stream where it is a terminal, on one line that changes, else the log,
            at level INFO.

    Raises:
        ConfigError: The seconds cannot be meant.
    """
    check_seconds("every_seconds", every_seconds, minimum=0.01)
    tell, done, begin, before = say or _teller(), threading.Event(), time.monotonic(), _Counts.of(metrics)

    def line() -> str:
        return _line(metrics, _Counts.of(metrics).since(before), time.monotonic() - begin)

    def watch() -> None:
        while not done.wait(every_seconds):
            tell(line())

    watcher = threading.Thread(target=watch, name="claimcheck-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        tell(line())
        if say is None and sys.stderr.isatty():
            sys.stderr.write("\n")


def _teller() -> Callable[[str], object]:
    if sys.stderr.isatty():
        return lambda line: sys.stderr.write(f"\r\033[K{line}") and sys.stderr.flush()
    return lambda line: _log.info("%s", line)


class _Counts(NamedTuple):
    """What is counted until now."""

    rows: int
    size: int
    waiting_seconds: float
    errors: int

    @classmethod
    def of(cls, metrics: Metrics) -> _Counts:
        return cls(metrics.rows, metrics.payload_bytes, metrics.waiting_seconds, sum(metrics.errors.values()))

    def since(self, before: _Counts) -> _Counts:
        rows, size = self.rows - before.rows, self.size - before.size
        return _Counts(rows, size, self.waiting_seconds - before.waiting_seconds, self.errors - before.errors)


def _line(metrics: Metrics, counts: _Counts, seconds: float) -> str:
    """For example ``12 of 40 tasks, 1,234 payloads, 5.1 GB, 410.0 MB/s, waited 3.2 s, 2 errors``."""
    rate = _size_text(counts.size / max(seconds, 1e-3))
    parts = [_tasks(metrics), f"{counts.rows:,} payloads", _size_text(counts.size), f"{rate}/s"]
    parts.append(f"waited {counts.waiting_seconds:,.1f} s")
    if counts.errors:
        parts.append(f"{counts.errors:,} errors")
    return ", ".join(part for part in parts if part)


def _size_text(size: float) -> str:
    unit, factor = next(((unit, factor) for unit, factor in _UNITS if size >= factor), _UNITS[-1])
    return f"{size / factor:,.1f} {unit}"


def _tasks(metrics: Metrics) -> str:
    tracker = metrics.context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    if not known:
        return ""
    return f"{sum(stage.numCompletedTasks for stage in known)} of {sum(stage.numTasks for stage in known)} tasks"
