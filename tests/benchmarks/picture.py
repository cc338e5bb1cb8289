"""Lines that compare claimcheck with what people use instead: ours in blue, all else in gray."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRAY, INK, _NOTE = "#9aa0a6", "#202124", "#5f6368"
BLUES = ("#0072b2", "#56b4e9", "#004c78", "#8fb8d0")  # distinguishable, also from gray, with any color vision
MODES = {"external": "#2f6fde", "chunking": "#b85a00", "hybrid": "#00502f", "native": "#6b7280"}
_LEAST = 1e-3  # drawn in place of nothing
_OURS = re.compile(r"claimcheck|^chunks$|^pointers|^cc\.|^store\.|^decorated")


def number_text(value: float) -> str:
    """Return a number without an exponent, with at least three significant digits: ``1,234``, ``12.3``, ``0.0456``."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def is_ours(name: str) -> bool:
    """Whether a variant of this name is claimcheck's."""
    return bool(_OURS.search(name))


def pyplot() -> Any:
    """Return matplotlib's pyplot, which draws without a display."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK})
    from matplotlib import pyplot as plt

    return plt


def draw_grid(
    panels: Sequence[Any], path: Path, title: str, note: str, one: Callable[[Any, Any], None], **grid: Any
) -> None:
    """Draw panels into a grid of axes, with a title and a note."""
    plt = pyplot()
    figure, places = plt.subplots(layout="constrained", squeeze=False, **grid)
    for axes in places.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(places.flat, panels, strict=False):
        one(axes, panel)
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    if note:
        figure.supxlabel(note, fontsize=8.5, x=0.01, ha="left", color=_NOTE)
    figure.savefig(path, dpi=200)
    plt.close(figure)


# Lines -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines under one title, on a logarithmic scale, with their names at the right.

    Attributes:
        title: With the unit.
        points: Of each line, by rising x: x, y, and the ends of its interval.
        x_text: Writes an x.
    """

    title: str
    points: Mapping[str, Sequence[tuple[float, float, float, float]]]
    x_text: Callable[[float], str]


def draw_lines(panels: Sequence[Lines], path: Path, title: str, *, columns: int = 2, shared: bool = False) -> None:
    """Draw panels with lines: modes in their colors, claimcheck in blue, other libraries in gray."""
    rows, most = -(-len(panels) // columns), max(len(panel.points) for panel in panels)
    size = (max(8.6, 5.3 * columns), rows * max(4.2 if rows == 1 else 3.2, 0.42 * most))
    draw_grid(panels, path, title, "", _draw_lines, nrows=rows, ncols=columns, figsize=size, sharey=shared)


def _draw_lines(axes: Any, panel: Lines) -> None:
    from matplotlib.ticker import LogLocator

    xs, blues = sorted({point[0] for points in panel.points.values() for point in points}), iter(BLUES * 3)
    ends = []
    for name, points in panel.points.items():
        color = MODES.get(name.partition(",")[0]) or (next(blues) if is_ours(name) else GRAY)
        at = [xs.index(point[0]) for point in points]
        y, low, high = ([max(point[n], _LEAST) for point in points] for n in (1, 2, 3))
        width = 1.3 if color == GRAY else 2.4
        axes.fill_between(at, low, high, color=color, alpha=0.16, linewidth=0)
        axes.plot(at, y, marker="o", markersize=2 * width, color=color, linewidth=width)
        ends.append((y[-1], at[-1], name, color))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.yaxis.set_major_formatter(lambda value, _: number_text(value))
    axes.minorticks_off()
    axes.set_xticks(range(len(xs)), [panel.x_text(x) for x in xs], fontsize=8.5)
    axes.grid(axis="y", color="#eceff1")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(panel.title, loc="left", fontsize=10.5)
    _name_ends(axes, sorted(ends), len(xs) - 0.85)


def _name_ends(axes: Any, ends: Sequence[tuple[float, int, str, str]], x: float) -> None:
    low, high = axes.get_ylim()
    factor = (high / low) ** (0.06 if len(ends) < 9 else 0.042)
    for (y, last, name, color), place in zip(ends, apart([end[0] for end in ends], factor), strict=True):
        weight, shade = ("normal", _NOTE) if color == GRAY else ("bold", color)
        line_to = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
        axes.annotate(name, (last, y), (x, place), color=shade, fontsize=8.5, fontweight=weight, va="center",
                      arrowprops=line_to)  # fmt: skip


def apart(values: Sequence[float], factor: float = 1.19) -> list[float]:
    """Return ascending values, moved as little as it takes to have at least this factor between neighbors."""
    logs, gap = [math.log(value) for value in values], math.log(factor)
    for _ in range(300):
        for i in range(len(logs) - 1):
            overlap = gap - (logs[i + 1] - logs[i])
            if overlap > 0:
                logs[i], logs[i + 1] = logs[i] - overlap / 2, logs[i + 1] + overlap / 2
    return [math.exp(each) for each in logs]
