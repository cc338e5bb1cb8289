"""The rows of the tables: how they are declared, what was found, and how a run reports it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.benchmarks.rounds import GIGA, Effort, Series, Variant, compare, size_text, times_as_fast

if TYPE_CHECKING:
    from tests.benchmarks.lab import Lab

METHOD = (
    "Each row is one interleaved run: its variants take turns, round by round, and who begins rotates. A ratio is the "
    "median over the rounds of the ratio within each round. 1 GB is 10^9 bytes."
)

BEST = "between the best rounds of each"


@dataclass(frozen=True, slots=True)
class Findings:
    """What one step found: a figure for each of its rows, the rounds behind them, and what a reader must know."""

    measured: tuple[float, ...]
    series: tuple[Series, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One interleaved run, or one child process: finds the figures of one row or several."""

    rows: tuple[str, ...]
    unit: str
    measure: Callable[[Lab], Findings]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; ``measured`` is ``None`` where it could not be measured, and the note says why."""

    what: str
    unit: str
    measured: float | None
    series: tuple[Series, ...] = ()
    note: str = ""

    @property
    def figure(self) -> str:
        if self.measured is None:
            return "not measured"
        text = f"{self.measured:.0f}" if self.measured >= 100 else f"{self.measured:.2f}"
        return text + ("x" if self.unit == "x" else f" {self.unit}")

    def as_dict(self) -> dict[str, Any]:
        found = {"what": self.what, "measured": self.measured, "unit": self.unit, "note": self.note}
        return {**found, "series": [series.as_dict() for series in self.series]}


def take(step: Step, lab: Lab) -> list[Row]:
    """Take one step; whatever goes wrong costs its rows and not the run."""
    try:
        with lab.step():
            found = step.measure(lab)
    except Exception as error:
        note = f"not measured: {type(error).__name__}: {error}"
        return [Row(what, step.unit, None, note=note) for what in step.rows]
    pairs = zip(step.rows, found.measured, strict=True)
    return [Row(what, step.unit, measured, found.series, found.note) for what, measured in pairs]


Prepare = Callable[..., Sequence[Variant]]
"""Opens what variants need, for a lab and payloads of a size."""
Measure = Callable[..., Findings]


class Rows:
    """The rows of one group, as they are declared."""

    def __init__(self, effort: Effort | None = None) -> None:
        self._effort = effort
        self._makers: list[Callable[[Effort], Step]] = []

    def steps(self, effort: Effort) -> list[Step]:
        return [make(effort) for make in self._makers]

    def ratio(
        self,
        what: str | tuple[str, ...],
        *sizes: float,
        pairs: Sequence[tuple[int, int]] = ((-1, 0),),
        note: str = "",
        operations: int = 0,
        **options: Any,
    ) -> Callable[[Prepare], Prepare]:
        """Declare a row, or several of one run, for each size: the rate of one variant, of that of another.

        Args:
            what: With ``{size}``.
            sizes: In MiB.
            pairs: For each row, the places of the two variants; by default the last and the first.
            note: What a reader must know.
            operations: How many a round makes, if they count and not their bytes.
            options: Of the function.
        """

        def register(prepare: Prepare) -> Prepare:
            def measure(lab: Lab, size: int, **options: Any) -> Findings:
                counts, effort = "operations" if operations else "bytes", self._effort or lab.effort
                effort = lab.effort if lab.effort.is_quick else effort
                series = compare(effort, operations or size, *prepare(lab, size, **options), counts=counts)
                return Findings(tuple(times_as_fast(series[ours], series[base]) for ours, base in pairs), series, note)

            for mib in sizes:
                self.findings(*((what,) if isinstance(what, str) else what), mib=mib, **options)(measure)
            return prepare

        return register

    def findings(self, *rows: str, mib: float = 0, unit: str = "x", **options: Any) -> Callable[[Measure], Measure]:
        """Declare rows that one run finds out, with ``{size}`` in what they say; options go to the function."""

        def register(measure: Measure) -> Measure:
            def make(effort: Effort) -> Step:
                size = effort.size(mib)
                texts = tuple(row.format(size=size_text(size)) for row in rows)
                return Step(texts, unit, partial(measure, size=size, **options))

            self._makers.append(make)
            return measure

        return register


# Where the rows of each group are: a process that measures one group imports no other.
GROUPS = {
    "redis": "store_rows.REDIS",
    "s3": "store_rows.S3",
    "file": "store_rows.FILE",
    "memory": "store_rows.MEMORY",
    "path": "store_rows.PATH",
    "many": "line_rows.MANY",
    "line": "line_rows.LINE",
    "pulsar": "broker_rows.PULSAR",
    "kafka": "broker_rows.KAFKA",
    "spark": "spark_rows.ROWS",
    "spark-source": "spark_rows.SOURCE",
}


def steps_of(group: str, effort: Effort) -> list[Step]:
    module, _, name = GROUPS[group].partition(".")
    rows: Rows = getattr(importlib.import_module(f"tests.benchmarks.{module}"), name)
    return rows.steps(effort)


# What a run says -------------------------------------------------------------------------------------------------


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table in Markdown, and then the medians and spreads behind each row."""
    width = max(len(row.what) for row in rows)
    yield f"| {'what':<{width}} | measured |"
    yield f"|{'-' * (width + 2)}|----------|"
    yield from (f"| {row.what:<{width}} | {row.figure} |" for row in rows)
    shown: tuple[Series, ...] | None = None
    for row in rows:
        yield f"\n{row.what}: {row.figure}"
        if row.note:
            yield f"  {row.note}"
        if row.series:
            yield from ("  (the run above)",) if row.series is shown else map(_rounds, row.series)
        shown = row.series


def _rounds(series: Series) -> str:
    in_bytes, seconds = series.counts == "bytes", series.seconds
    scale, unit, per, number = (GIGA, "GB/s", "GB", ".2f") if in_bytes else (1, "/s", "1000", ".0f")
    median, low, high, best = (
        format(series.amount / scale / each, number)
        for each in (seconds.median, seconds.high, seconds.low, seconds.best)
    )
    return (
        f"  {series.name:<30}{median:>9} {unit} (half of the rounds {low} to {high}, best {best})"
        f"  CPU {series.cpu_ms:5.0f} ms/{per}  {len(series.samples)} rounds"
    )
