"""How far a job is, in a line now and then: payloads say more than Spark's own bar of tasks."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from claimcheck.spark.core import check_seconds
from claimcheck.spark.metrics import Metrics

__all__ = ["progress"]

_log = logging.getLogger(__name__)


@contextmanager
def progress(
    metrics: Metrics, *, every_seconds: float = 5.0, say: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Say how far the jobs within the block are, and at its end what they did.

    Args:
        metrics: What the jobs count in; it grows as tasks end.
        every_seconds: Between lines, from 0.01.
        say: Takes a line; by default the error stream where it is a terminal, on one line that changes, else the log,
            at level INFO.

    Raises:
        ConfigError: The seconds cannot be meant.
    """
    check_seconds("every_seconds", every_seconds, minimum=0.01)
    tell, done, begin = say or _teller(), threading.Event(), time.monotonic()

    def watch() -> None:
        while not done.wait(every_seconds):
            tell(_line(metrics, time.monotonic() - begin))

    watcher = threading.Thread(target=watch, name="claimcheck-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        tell(_line(metrics, time.monotonic() - begin))
        if say is None and sys.stderr.isatty():
            sys.stderr.write("\n")


def _teller() -> Callable[[str], object]:
    if sys.stderr.isatty():
        return lambda line: sys.stderr.write(f"\r\033[K{line}") and sys.stderr.flush()
    return lambda line: _log.info("%s", line)


def _line(metrics: Metrics, seconds: float) -> str:
    """For example ``12 of 40 tasks, 1,234 payloads, 5.1 GB, 410 MB/s, waited 3.2 s, 2 errors``."""
    size, errors = metrics.payload_bytes, sum(metrics.errors.values())
    parts = [_tasks(metrics), f"{metrics.rows:,} payloads", f"{size / 1e9:,.2f} GB"]
    parts += [f"{size / 1e6 / max(seconds, 1e-3):,.0f} MB/s", f"waited {metrics.waiting_seconds:,.1f} s"]
    if errors:
        parts.append(f"{errors:,} errors")
    return ", ".join(part for part in parts if part)


def _tasks(metrics: Metrics) -> str:
    tracker = metrics.context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    if not known:
        return ""
    return f"{sum(stage.numCompletedTasks for stage in known)} of {sum(stage.numTasks for stage in known)} tasks"
