"""The table: what must be true, how much of it is, and why not where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.lab import Lab
from tests.benchmarks.reasons import REASONS
from tests.benchmarks.series import Series

FAR = 10.0  # nothing is shown as further above its target than this


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the table.

    Attributes:
        key: Short, for JSON and for `REASONS`.
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

    @property
    def reason(self) -> str:
        """Why a target is missed, as far as it is known."""
        if self.met is not False:
            return ""
        return REASONS.get(self.target.key, "the reason is not known yet")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        target = self.target
        bound = {"target": target.bound, "at_most": target.at_most, "unit": target.unit}
        found = {"measured": self.measured, "ratio": self.ratio, "met": self.met}
        behind = {"note": self.note, "reason": self.reason, "series": [series.as_dict() for series in self.series]}
        return {"key": target.key, "what": target.what, **bound, **found, **behind}


def take(step: Step, lab: Lab) -> list[Row]:
    """Take one step; whatever goes wrong costs its rows and not the run."""
    try:
        found = step.measure(lab)
    except Exception as error:
        note = f"not measured: {type(error).__name__}: {error}"
        return [Row(target, None, note=note) for target in step.targets]
    pairs = zip(step.targets, found.measured, strict=True)
    return [Row(target, measured, found.series, found.note) for target, measured in pairs]
