"""What is compared, and the results, as plain values that can be written to JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from claimcheck.errors import ClaimCheckError
from tests.benchmarks.rounds import interval

Mode = Literal["external", "chunking", "hybrid", "native"]
"""How a payload travels through the broker.

``native`` uses no claimcheck: a topic with a raised limit (Kafka, embedded broker), or the client's chunking
(Pulsar).
"""

MODES: tuple[Mode, ...] = ("external", "chunking", "hybrid", "native")


class CompareError(ClaimCheckError):
    """The comparison cannot run: what is missing, and what to do. Everything it had created was removed."""


class NotMeasuredError(CompareError):
    """This broker, or the way in which it is connected, does not permit a measurement; the others go on."""


Verdict = Literal["agrees", "disagrees", "partly", "measured", "not measured"]
"""Whether a measurement agrees with the published table; ``measured`` for rows that the table does not have."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value with its 95 % confidence interval.

    Attributes:
        x: The payload's size in bytes, seconds since the start, or whatever `Series.x_label` says.
        y: The median.
        low: The lower end of the interval; equal to ``y`` if the value was measured once.
        high: The upper end.
    """

    x: float
    y: float
    low: float
    high: float


def median_point(x: float, values: Sequence[float]) -> Point:
    """Return the median of one value per round, with its interval."""
    return Point(x, statistics.median(values), *interval(values))


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one plot.

    Attributes:
        name: Identifies the plot, for example ``produce_throughput``.
        title: The plot's title.
        x_label: With its unit.
        y_label: With its unit.
        points: For each line of the plot, usually a `Mode`, its points by rising ``x``.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    points: dict[str, tuple[Point, ...]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """The result of one experiment: one row of the published table, with numbers.

    Attributes:
        name: Identifies the experiment: ``services``, ``partition``, ``expiry``, ``seek``, ``memory``, ``partitions``,
            ``rebalance``, ``rollback``, ``speed`` or ``cost``.
        title: The row's title in the published table.
        claimed: What the published table says of each strategy, in a few words; empty for rows that it does not have.
        measured: For each mode, the result in one short line with its numbers.
        verdict: Whether ``measured`` agrees with ``claimed``.
        explanation: Why, in one or two sentences; also why something could not be measured.
        columns: The titles of the detailed table.
        rows: The detailed table: texts and numbers.
        series: The plots.
        facts: Numbers by name that other parts use, for example ``bytes_per_payload/external/1048576``.
    """

    name: str
    title: str
    claimed: dict[str, str]
    measured: dict[str, str]
    verdict: Verdict
    explanation: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | float | int | None, ...], ...] = ()
    series: tuple[Series, ...] = ()
    facts: dict[str, float] | None = None


Row = dict[str, Any]
"""One line of a detailed table: texts and numbers by column; the first column is ``mode``."""


class Tally:
    """The rows of an experiment, and the sums of their numbers by mode."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.modes: list[str] = list(dict.fromkeys(str(row["mode"]) for row in rows))

    def __getitem__(self, mode: str) -> Counter[str]:
        """Return the sums of a mode, of those columns that hold numbers; 0 for all others."""
        return self.where(mode=mode)

    def where(self, **cells: str) -> Counter[str]:
        """Return the sums of the rows with these cells."""
        found: Counter[str] = Counter()
        for row in self.rows:
            if all(row[column] == value for column, value in cells.items()):
                found.update({name: value for name, value in row.items() if isinstance(value, int | float)})
        return found

    def faulty(self, *columns: str) -> list[str]:
        """Return the modes in which one of these columns is not 0."""
        return [mode for mode in self.modes if any(self[mode][column] for column in columns)]

    def experiment(
        self,
        name: str,
        title: str,
        claimed: dict[str, str],
        line: Callable[[str], str],
        verdict: Verdict,
        explanation: str,
        *,
        series: tuple[Series, ...] = (),
        facts: dict[str, float] | None = None,
    ) -> Experiment:
        """Return the result, with what ``line`` says of each mode; the sums are its facts, beside further ones."""
        sums = {f"{column}/{mode}": float(value) for mode in self.modes for column, value in self[mode].items()}
        return Experiment(
            name,
            title,
            claimed,
            {mode: line(mode) for mode in self.modes},
            verdict,
            explanation,
            columns=tuple(self.rows[0]) if self.rows else (),
            rows=tuple(tuple(row.values()) for row in self.rows),
            series=series,
            facts=sums | (facts or {}),
        )


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which strategy, store and threshold fit, and why.

    Attributes:
        strategy: For the configuration.
        store: Name of the store in the configuration; ``None`` for chunking.
        threshold_bytes: Smaller payloads are sent unchanged.
        yaml: To paste.
        reasons: One sentence each, with the numbers behind it, the most important first.
        crossovers: Sizes at which another mode becomes better, one sentence each, with their intervals.
        confidence: How sure this is: ``high``, ``medium`` or ``low``, and why.
    """

    strategy: str
    store: str | None
    threshold_bytes: int
    yaml: str
    reasons: tuple[str, ...]
    crossovers: tuple[str, ...]
    confidence: str
