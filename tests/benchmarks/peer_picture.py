"""claimcheck and other libraries: throughput by payload size, one panel for each kind of store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.peer_results import Results
from tests.benchmarks.picture import BLUES, GRAY, pyplot
from tests.benchmarks.rounds import size_text

STORES = {"redis": "Redis", "s3": "S3", "file": "Files"}


@dataclass(frozen=True, slots=True)
class Line:
    """One library.

    Attributes:
        name: Written at the line's end.
        panel: The panel it belongs to, such as ``redis``.
        rates: MB/s by payload size.
    """

    name: str
    panel: str
    rates: Mapping[int, float]

    @property
    def is_ours(self) -> bool:
        """Whether it is a line of claimcheck."""
        return self.name.startswith("claimcheck")


def draw(results: Results, path: Path) -> None:
    """Draw what a run has measured."""
    draw_lines([_line(results, name) for name in results.rounds], path)


def draw_lines(
    lines: Sequence[Line],
    path: Path,
    *,
    panels: Mapping[str, str] = STORES,
    title: str = "Writing a payload and reading it back, on one 2-core machine",
    rate: str = "MB of payload per second, write and read together",
) -> None:
    """Draw panels with lines: ours in blue, other libraries in gray, names at the ends of the lines."""
    drawn = [panel for panel in panels if any(line.panel == panel for line in lines)]
    plt = pyplot()
    figure, grid = plt.subplots(
        1, len(drawn), figsize=(11, 6), layout="constrained", sharey=True, squeeze=False,
        width_ratios=[1.4 if panel == "s3" else 1 for panel in drawn],
    )  # fmt: skip
    for axes, panel in zip(grid.flat, drawn, strict=True):
        _panel(axes, panels[panel], [line for line in lines if line.panel == panel])
    grid[0, 0].set_ylabel(rate, fontsize=10)
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _line(results: Results, name: str) -> Line:
    sizes = sorted(results.rounds[name])
    rates = {size: size / results.seconds(name, size) / 1e6 for size in sizes}
    return Line(results.label(name), results.stores[name], rates)


def _panel(axes: Any, title: str, lines: Sequence[Line]) -> None:
    blues = iter(BLUES)
    sizes = sorted({size for line in lines for size in line.rates})
    ends = []
    for line in sorted(lines, key=lambda line: line.is_ours):
        color = next(blues) if line.is_ours else GRAY
        places = [sizes.index(size) for size in line.rates]
        axes.plot(places, list(line.rates.values()), marker="o", markersize=6 if line.is_ours else 3.5, color=color,
                  linewidth=2.8 if line.is_ours else 1.3)  # fmt: skip
        ends.append((line.rates[max(line.rates)], line, color))
    axes.set_yscale("log")
    axes.set(ylim=(4, 5000), xlim=(-0.2, len(sizes) + 1.9))
    axes.set_xticks(range(len(sizes)), [size_text(size) for size in sizes], fontsize=8.5)
    axes.set_yticks([5, 10, 20, 50, 100, 200, 500, 1000, 2000], [5, 10, 20, 50, 100, 200, 500, "1,000", "2,000"])
    axes.minorticks_off()
    axes.tick_params(left=False)
    axes.grid(axis="y", color="#eceff1")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)
    _names(axes, sorted(ends, key=lambda end: end[0]), len(sizes) - 1)


def _names(axes: Any, ends: Sequence[tuple[float, Line, str]], last: int) -> None:
    """Write the names at the ends of the lines, far enough apart to be read."""
    for (rate, line, color), place in zip(ends, _apart([rate for rate, _, _ in ends]), strict=True):
        shade, weight = (color, "bold") if line.is_ours else ("#5f6368", "normal")
        line_to = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
        axes.annotate(line.name, (last, rate), (last + 0.45, place), color=shade, fontsize=8.5, fontweight=weight,
                      va="center", arrowprops=line_to)  # fmt: skip


def _apart(rates: Sequence[float], factor: float = 1.19) -> list[float]:
    """Return ascending rates, moved as little as it takes to have at least this factor between neighbors."""
    logs, gap = [math.log(rate) for rate in rates], math.log(factor)
    for _ in range(300):
        for i in range(len(logs) - 1):
            overlap = gap - (logs[i + 1] - logs[i])
            if overlap > 0:
                logs[i], logs[i + 1] = logs[i] - overlap / 2, logs[i + 1] + overlap / 2
    return [math.exp(each) for each in logs]
