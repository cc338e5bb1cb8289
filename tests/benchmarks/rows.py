"""The table: what is measured, what must be reached, what was, and how a run says it."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.benchmarks.rounds import GIGA, Effort, Series, Variant, compare, size_text, times_as_fast

if TYPE_CHECKING:
    from tests.benchmarks.lab import Lab

FAR = 10.0  # nothing is shown as further above its target than this
METHOD = (
    "Each row is one interleaved run: its variants take turns, round by round, and who begins rotates. A ratio is the "
    "median over the rounds of the ratio within each round. 1 GB is 10^9 bytes."
)


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the table: a key for JSON, what is printed, and what must be reached; ``x`` is a ratio."""

    key: str
    what: str
    bound: float
    unit: str = "x"
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """What one step found: a figure for each of its targets, the rounds behind them, and what a reader must know."""

    measured: tuple[float, ...]
    series: tuple[Series, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One interleaved run, or one child process: gives one row or several."""

    targets: tuple[Target, ...]
    measure: Callable[[Lab], Findings]


@dataclass(frozen=True, slots=True)
class Row:
    """A target and what came of it; ``measured`` is ``None`` where it could not be measured, and the note says why."""

    target: Target
    measured: float | None
    series: tuple[Series, ...] = ()
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How far the target is reached: 1 and more is met."""
        if self.measured is None:
            return None
        good, bound = (self.target.bound, self.measured) if self.target.at_most else (self.measured, self.target.bound)
        return FAR if bound <= 0 <= good else min(FAR, good / bound)

    @property
    def met(self) -> bool | None:
        return None if self.ratio is None else self.ratio >= 1

    @property
    def cells(self) -> tuple[str, str, str, str]:
        target, unit = self.target, "x" if self.target.unit == "x" else f" {self.target.unit}"
        measured = "-" if self.measured is None else _figure(self.measured) + unit
        bound = f"{'<=' if target.at_most else '>='} {_figure(target.bound)}{unit}"
        return target.what, measured, bound, {True: "yes", False: "NO", None: "not measured"}[self.met]

    def as_dict(self) -> dict[str, Any]:
        target = self.target
        bound = {"target": target.bound, "at_most": target.at_most, "unit": target.unit}
        found = {"measured": self.measured, "ratio": self.ratio, "met": self.met}
        behind = {"note": self.note, "series": [series.as_dict() for series in self.series]}
        return {"key": target.key, "what": target.what, **bound, **found, **behind}


def take(step: Step, lab: Lab) -> list[Row]:
    """Take one step; whatever goes wrong costs its rows and not the run."""
    try:
        with lab.step():
            found = step.measure(lab)
    except Exception as error:
        note = f"not measured: {type(error).__name__}: {error}"
        return [Row(target, None, note=note) for target in step.targets]
    pairs = zip(step.targets, found.measured, strict=True)
    return [Row(target, measured, found.series, found.note) for target, measured in pairs]


Prepare = Callable[["Lab", int], Sequence[Variant]]
"""Opens what variants need, for payloads of a size; the first variant is what the last one is compared with."""
Measure = Callable[..., Findings]


class Rows:
    """The rows of one group, as they are declared."""

    def __init__(self) -> None:
        self._makers: list[Callable[[Effort], Step]] = []

    def steps(self, effort: Effort) -> list[Step]:
        return [make(effort) for make in self._makers]

    def ratio(
        self, key: str, what: str, bounds: Mapping[float, float], *, note: str = "", operations: int = 0
    ) -> Callable[[Prepare], Prepare]:
        """Declare a row for each size: the rate of the last variant, of that of the first.

        Args:
            key: With ``{}`` for the size.
            what: With ``{size}``.
            bounds: What must be reached, by size in MiB.
            note: What a reader must know.
            operations: How many a round makes, if they count and not their bytes.
        """

        def register(prepare: Prepare) -> Prepare:
            def measure(lab: Lab, size: int) -> Findings:
                counts = "operations" if operations else "bytes"
                series = compare(lab.effort, operations or size, *prepare(lab, size), counts=counts)
                return Findings((times_as_fast(series[-1], series[0]),), series, note)

            for mib, bound in bounds.items():
                short = f"{int(mib)}" if mib >= 1 else f"{int(mib * 1024)}k"
                self.findings(Target(key.format(short), what, bound), mib=mib)(measure)
            return prepare

        return register

    def findings(self, *targets: Target, mib: float = 0, **options: Any) -> Callable[[Measure], Measure]:
        """Declare rows that one run finds out, with ``{size}`` in what they say; options go to the function."""

        def register(measure: Measure) -> Measure:
            def make(effort: Effort) -> Step:
                size = effort.size(mib)
                said = tuple(replace(each, what=each.what.format(size=size_text(size))) for each in targets)
                return Step(said, partial(measure, size=size, **options))

            self._makers.append(make)
            return measure

        return register


# What a run says -------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> list[str]:
    """The table of the targets, as Markdown that reads well as it is."""
    cells = [("what", "measured", "target", "met"), *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def behind(rows: Iterable[Row]) -> list[str]:
    """The medians and spreads behind each row."""
    lines: list[str] = []
    shown: tuple[Series, ...] | None = None
    for row in rows:
        what, measured, bound, met = row.cells
        lines += ["", f"{what}: {measured}, target {bound}, {met}", *([f"  {row.note}"] if row.note else [])]
        if row.series:
            lines += ["  (the run above)"] if row.series is shown else map(_rounds, row.series)
        shown = row.series
    return lines


def count(rows: Sequence[Row]) -> str:
    met = [row.met for row in rows]
    text = f"{met.count(True)} of {len(met)} targets are met, {met.count(False)} are missed"
    return f"{text}, {met.count(None)} were not measured" if None in met else text


def progress(total: int) -> Callable[[str], None]:
    """Return a function that says on standard error what begins now, and how far the run is."""
    begin, done = time.monotonic(), itertools.count(1)
    return lambda text: print(
        f"[{next(done):3}/{total}] {time.monotonic() - begin:4.0f} s  {text}", file=sys.stderr, flush=True
    )


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


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
