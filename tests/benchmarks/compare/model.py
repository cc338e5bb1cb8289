"""What is compared, and the results, as plain values that can be written to JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
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
STRATEGIES: tuple[Mode, ...] = ("external", "chunking", "hybrid")
"""What claimcheck does, for experiments about correctness; ``native`` is measured where bytes and seconds are."""


class CompareError(ClaimCheckError):
    """The comparison cannot run: what is missing, and what to do. Everything it had created was removed."""


class NotMeasuredError(CompareError):
    """This broker, or the way in which it is connected, does not permit a measurement; the others go on."""


Verdict = Literal["agrees", "disagrees", "partly", "measured", "not measured"]
"""Whether a measurement agrees with the published table; ``measured`` where that claims nothing."""

PUBLISHED: dict[str, tuple[str, ...]] = {
    "services": (
        "Additional services",
        "a store is needed in addition to the broker",
        "no service besides the broker",
    ),
    "partition": (
        "What is put into the broker, partition size",
        "small pointers, partitions stay small",
        "whole payloads, large partitions",
    ),
    "expiry": (
        "Expiry",
        "expiry is maintained separately from the topic's retention; a pointer can outlive its payload",
        "expires with the topic's retention",
    ),
    "seek": (
        "Offset moved explicitly",
        "unproblematic: each message is whole",
        "a jump into the middle of a payload loses it, or needs care",
    ),
    "memory": ("Memory", "one payload at a time", "incomplete payloads are buffered"),
    "partitions": (
        "Partitions",
        "any partition, no key needed",
        "all chunks must be sent to one partition, so a key is needed",
    ),
    "rebalance": (
        "Group switch in the middle",
        "unproblematic",
        "the chunks that the old consumer has read are missing for the new one",
    ),
    "rollback": (
        "Rollback",
        "the payload must be deleted if the send fails",
        "incomplete chunks stay in the topic until retention",
    ),
    "speed": ("Throughput and latency",),
}
"""The rows of the published table by experiment: the title, and what it says of an external store and of chunks."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value, the median of all rounds, with its 95 % confidence interval."""

    x: float
    y: float
    low: float
    high: float


def median_point(x: float, values: Sequence[float]) -> Point:
    """Return the median of one value per round, with its interval."""
    return Point(x, statistics.median(values), *interval(values))


@dataclass(frozen=True, slots=True)
class Series:
    """A plot: for each of its lines, usually a `Mode`, the points by rising ``x``; labels have their units."""

    name: str
    title: str
    x_label: str
    y_label: str
    points: dict[str, tuple[Point, ...]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One row of the published table, with numbers; ``facts`` are those that other parts use, by name."""

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
        line: str | Mapping[str, str],
        verdict: Verdict,
        why: str,
        *,
        faults: Sequence[str] = ("lost", "wrong"),
        series: tuple[Series, ...] = (),
        facts: Mapping[str, float] | None = None,
    ) -> Experiment:
        """Return the result: what is said of each mode, with the sums of its columns in braces, and a verdict.

        The table is not right if one of ``faults`` is not 0. The sums are facts, too.
        """
        if faulty := self.faulty(*faults):
            verdict, why = "disagrees", f"Not 0 are {', '.join(faults)} of {', '.join(faulty)}: see the rows."
        title, *claims = PUBLISHED[name]
        lines = {mode: line if isinstance(line, str) else line[mode] for mode in self.modes}
        sums = {f"{column}/{mode}": float(value) for mode in self.modes for column, value in self[mode].items()}
        return Experiment(
            name,
            title,
            dict(zip(("external", "chunking"), claims, strict=False)),
            {mode: text.format_map(self[mode]) for mode, text in lines.items()},
            verdict,
            why,
            columns=tuple(self.rows[0]) if self.rows else (),
            rows=tuple(tuple(row.values()) for row in self.rows),
            series=series,
            facts={**sums, **(facts or {})},
        )


def agreement(*parts: bool) -> Verdict:
    """Whether all parts of what was published are right, some, or none."""
    return "agrees" if all(parts) else "partly" if any(parts) else "disagrees"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which strategy, store and threshold fit, and why; the most important reason first."""

    strategy: str
    store: str | None
    threshold_bytes: int
    yaml: str
    reasons: tuple[str, ...]
    crossovers: tuple[str, ...]
    confidence: str
