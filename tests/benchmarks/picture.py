"""Bars that compare claimcheck with what people use instead: ours in blue, all else in gray."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.rows import Row
from tests.benchmarks.series import Series

GRAY, INK = "#9aa0a6", "#202124"
BLUES = (
    "#0072b2",
    "#56b4e9",
    "#004c78",
    "#8fb8d0",
)  # distinguishable from each other and from gray with any color vision
_OURS = re.compile(r"claimcheck|^chunks$|^pointers|^cc\.|^store\.|^decorated")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        name: Written to its left.
        value: Its length.
        label: Written at its end.
    """

    name: str
    value: float
    label: str

    @property
    def color(self) -> str:
        """Blue if it is ours; light blue for chunks."""
        if not _OURS.search(self.name):
            return GRAY
        return BLUES[1] if "chunks" in self.name else BLUES[0]


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars under one title."""

    title: str
    bars: tuple[Bar, ...]


def pyplot() -> Any:
    """Return matplotlib's pyplot, which draws without a display."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK})
    from matplotlib import pyplot as plt

    return plt


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draw the rates of every run."""
    panels = []
    shown: tuple[Series, ...] = ()
    for row in rows:
        if row.series and row.series is not shown:
            panels.append(
                Panel(re.split(r", (?:against|of|added)\b", row.target.what)[0], tuple(map(_bar, row.series)))
            )
            shown = row.series
    if panels:
        draw_panels(panels, path, title, columns=1)


def draw_panels(
    panels: Sequence[Panel], path: Path, title: str, *, columns: int = 2, shared: bool = False, note: str = ""
) -> None:
    """Draw panels of bars side by side."""
    lines = -(-len(panels) // columns)
    height = 0.9 + sum(
        0.45 + 0.3 * max(len(panel.bars) for panel in panels[i * columns : (i + 1) * columns]) for i in range(lines)
    )
    plt = pyplot()
    figure, grid = plt.subplots(lines, columns, figsize=(8.6, height), layout="constrained", squeeze=False)
    most = max(bar.value for panel in panels for bar in panel.bars)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, panel, most if shared else max(bar.value for bar in panel.bars))
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    if note:
        figure.supxlabel(note, fontsize=8.5, x=0.01, ha="left", color="#5f6368")
    figure.savefig(path, dpi=200)
    plt.close(figure)


def _panel(axes: Any, panel: Panel, most: float) -> None:
    places = range(len(panel.bars))
    axes.set_axis_on()
    axes.barh(places, [bar.value for bar in panel.bars], height=0.72, color=[bar.color for bar in panel.bars])
    for place, bar in zip(places, panel.bars, strict=True):
        weight = "bold" if bar.color != GRAY else "normal"
        axes.text(bar.value + most * 0.02, place, bar.label, va="center", fontsize=9.5, fontweight=weight)
    axes.set_yticks(places, [bar.name for bar in panel.bars], fontsize=9.5)
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.set(xlim=(0, most * 1.45), ylim=(len(panel.bars) - 0.5, -0.6))
    axes.set_title(panel.title, loc="left", fontsize=10.5)
    axes.spines[:].set_visible(False)


def _bar(series: Series) -> Bar:
    if series.counts == "bytes":
        return Bar(series.name, series.rate * 1000, f"{series.rate * 1000:,.0f} MB/s")
    return Bar(series.name, series.rate, f"{series.rate:,.0f} per second")
