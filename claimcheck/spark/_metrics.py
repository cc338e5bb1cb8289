"""What a job did with payloads: counted by tasks, and shown by `progress`."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast

from claimcheck._texts import size_text
from claimcheck._validation import MAX_SECONDS, Range, check_value, fail

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

_ROWS, _BYTES, _WAITING = "rows", "payload_bytes", "waiting_seconds"
_ERRORS, _STORES = "errors.", "store_bytes."

_log = logging.getLogger(__name__)


class Metrics:
    """Counts of all tasks that use this object; updated on the driver as tasks end.

    Spark counts a task when it succeeds, and recomputed rows again. Use it for display, not for accounting.

    Args:
        spark: The session. Spark Connect has no accumulators: use ``df.observe`` there.

    Raises:
        ConfigError: A Spark Connect session, or not a session.
    """

    def __init__(self, spark: SparkSession) -> None:
        if not hasattr(spark, "_jsparkSession"):
            expected = "a SparkSession with a SparkContext; with Spark Connect, use df.observe"
            fail("spark", found=f"a {type(spark).__name__}", expected=expected)
        self.context = spark.sparkContext
        self._counts: Accumulator[dict[str, float]] = self.context.accumulator(
            {}, _Sum()  # type: ignore[arg-type]  # duck-typed, so that pyspark is not imported here
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """Rows, including those with errors."""
        return int(self._counts.value.get(_ROWS, 0))

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payloads that were read or written."""
        return int(self._counts.value.get(_BYTES, 0))

    @property
    def waiting_seconds(self) -> float:
        """Seconds that all tasks together spent waiting for stores."""
        return float(self._counts.value.get(_WAITING, 0.0))

    @property
    def errors(self) -> dict[str, int]:
        """Rows without a payload, by type of error."""
        return self._by(_ERRORS)

    @property
    def store_bytes(self) -> dict[str, int]:
        """Payload bytes read from or written to each store, by name."""
        return self._by(_STORES)

    def __reduce__(self) -> Any:
        return self._counts.__reduce__()  # a worker needs nothing but the accumulator

    def __repr__(self) -> str:
        return f"<Metrics {self.rows} rows, {self.payload_bytes} bytes, {sum(self.errors.values())} errors>"

    def _by(self, prefix: str) -> dict[str, int]:
        counts = self._counts.value
        return {name[len(prefix) :]: int(count) for name, count in counts.items() if name.startswith(prefix)}


class _Sum:
    def zero(self, value: Mapping[str, float]) -> dict[str, float]:
        return {}

    def addInPlace(self, one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:  # noqa: N802
        return dict(Counter(one) + Counter(other))


class Tally:
    """The counts of one task; in a worker ``metrics`` is an accumulator: see `Metrics.__reduce__`."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._counts = cast("Accumulator[dict[str, float]] | None", metrics)
        self._sums: Counter[str] = Counter()

    def row(self, size: int, *, store: str | None = None, error: str | None = None) -> None:
        """Count one row: the bytes of its payload, the store, and the type of its error."""
        self._sums[_ROWS] += 1
        self._sums[_BYTES] += size
        if store is not None:
            self._sums[_STORES + store] += size
        if error is not None:
            self._sums[_ERRORS + error] += 1

    def close(self, waited_seconds: float = 0.0) -> None:
        if self._counts is not None:
            self._counts.add({**self._sums, _WAITING: waited_seconds})


@contextmanager
def progress(
    metrics: Metrics, *, every_seconds: float = 5.0, say: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Report the progress of the jobs inside the block, at intervals and at the end.

    A payload counts once for each function that uses these metrics.

    Args:
        metrics: What the jobs count; updated as tasks end.
        every_seconds: Seconds between reports, at least 0.01.
        say: Called with each line. By default lines go to a terminal on stderr, overwriting each other, or else to the
            log at level INFO.

    Raises:
        ConfigError: ``every_seconds`` is out of range.
    """
    check_value("every_seconds", every_seconds, Annotated[float, Range(0.01, MAX_SECONDS)])
    write, done, begin, before = say or _default_output(), threading.Event(), time.monotonic(), _totals(metrics)

    def watch() -> None:
        while not done.wait(every_seconds):
            write(_line(metrics, before, time.monotonic() - begin))

    watcher = threading.Thread(target=watch, name="claimcheck-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        write(_line(metrics, before, time.monotonic() - begin))
        if say is None and sys.stderr.isatty():
            sys.stderr.write("\n")


def _default_output() -> Callable[[str], object]:
    if sys.stderr.isatty():
        return lambda line: sys.stderr.write(f"\r\033[K{line}") and sys.stderr.flush()
    return lambda line: _log.info("%s", line)


def _totals(metrics: Metrics) -> tuple[float, ...]:
    return metrics.rows, metrics.payload_bytes, metrics.waiting_seconds, sum(metrics.errors.values())


def _line(metrics: Metrics, before: tuple[float, ...], seconds: float) -> str:
    """For example ``12 of 40 tasks, 1,234 payloads, 5.1 GiB, 410 MiB/s, waited 3.2 s, 2 errors``."""
    rows, size, waited, errors = (now - then for now, then in zip(_totals(metrics), before, strict=True))
    tracker = metrics.context.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    done, tasks = (sum(getattr(stage, name) for stage in stages) for name in ("numCompletedTasks", "numTasks"))
    parts = [f"{done} of {tasks} tasks"] if stages else []
    parts += [f"{rows:,} payloads", size_text(size, digits=3), f"{size_text(size / max(seconds, 1e-3), digits=3)}/s"]
    return ", ".join([*parts, f"waited {waited:,.1f} s", *([f"{errors:,} errors"] if errors else [])])
