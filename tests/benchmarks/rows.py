"""The table: what is measured, what must be reached, and what was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.benchmarks.lab import Lab
from tests.benchmarks.rounds import Effort, Variant, compare, size_text
from tests.benchmarks.series import Series, times_as_fast

FAR = 10.0  # nothing is shown as further above its target than this


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the table.

    Attributes:
        key: Short, for JSON.
        what: As it is printed.
        bound: What must be reached.
        unit: ``x`` for a ratio.
        at_most: Whether less is better.
    """

    key: str
    what: str
    bound: float
    unit: str = "x"
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """What one step found.

    Attributes:
        measured: One figure for each target of the step.
        series: The rounds behind them.
        note: Anything that a reader must know.
    """

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
        """Whether the target is met; ``None`` where nothing was measured."""
        return None if self.ratio is None else self.ratio >= 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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


Prepare = Callable[[Lab, int], Sequence[Variant]]
"""Opens what variants need, for payloads of a size; the first variant is what the last one is compared with."""
Measure = Callable[..., Findings]


class Rows:
    """The rows of one group, as they are declared."""

    def __init__(self) -> None:
        self._makers: list[Callable[[Effort], Iterator[Step]]] = []

    def steps(self, effort: Effort) -> list[Step]:
        """List the runs."""
        return [step for make in self._makers for step in make(effort)]

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
                self.findings(Target(key.format(_short(mib)), what, bound), mib=mib)(measure)
            return prepare

        return register

    def findings(self, *targets: Target, mib: float = 0) -> Callable[[Measure], Measure]:
        """Declare rows that one run finds out, with ``{size}`` in what they say."""

        def register(measure: Measure) -> Measure:
            def make(effort: Effort) -> Iterator[Step]:
                size = effort.size(mib)
                said = tuple(replace(each, what=each.what.format(size=size_text(size))) for each in targets)
                yield Step(said, partial(measure, size=size))

            self._makers.append(make)
            return measure

        return register


def _short(mib: float) -> str:
    return f"{int(mib)}" if mib >= 1 else f"{int(mib * 1024)}k"
