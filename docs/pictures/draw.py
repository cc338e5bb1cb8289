"""Draw the pictures of the documentation into docs/images, from the figures in this folder.

python docs/pictures/draw.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))

from tests.benchmarks.compare import draw as draw_comparison  # noqa: E402
from tests.benchmarks.picture import (  # noqa: E402
    BLUES,
    GRAY,
    INK,
    Lines,
    draw_grid,
    draw_lines,
    is_ours,
    pyplot,
)
from tests.benchmarks.rounds import size_text  # noqa: E402

IMAGES = HERE.parent / "images"
ORANGE = "#d55e00"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: the text to its left, its length, and the text behind it."""

    name: str
    value: float
    label: str

    @property
    def color(self) -> str:
        """Blue if it is ours; light blue for chunks."""
        if not is_ours(self.name):
            return GRAY
        return BLUES[1] if "chunks" in self.name else BLUES[0]


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars under one title."""

    title: str
    bars: tuple[Bar, ...]


def draw_panels(
    panels: Sequence[Panel], path: Path, title: str, *, columns: int = 2, shared: bool = False, note: str = ""
) -> None:
    """Draw panels of bars side by side; with one scale if it is shared."""
    lines = -(-len(panels) // columns)
    most = [max(len(panel.bars) for panel in panels[i * columns : (i + 1) * columns]) for i in range(lines)]
    longest = max(bar.value for panel in panels for bar in panel.bars) if shared else None
    size = (8.6, 0.9 + sum(0.45 + 0.3 * count for count in most))
    draw_grid(panels, path, title, note, lambda axes, panel: _panel(axes, panel, longest),
          nrows=lines, ncols=columns, figsize=size)  # fmt: skip


def _panel(axes: Any, panel: Panel, longest: float | None) -> None:
    places, most = range(len(panel.bars)), longest or max(bar.value for bar in panel.bars)
    axes.barh(places, [bar.value for bar in panel.bars], height=0.72, color=[bar.color for bar in panel.bars])
    for place, bar in zip(places, panel.bars, strict=True):
        weight = "bold" if bar.color != GRAY else "normal"
        axes.text(bar.value + most * 0.02, place, bar.label, va="center", fontsize=9.5, fontweight=weight)
    axes.set_yticks(places, [bar.name for bar in panel.bars], fontsize=9.5)
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.set(xlim=(0, most * 1.45), ylim=(len(panel.bars) - 0.5, -0.6))
    axes.set_title(panel.title, loc="left", fontsize=10.5)
    axes.spines[:].set_visible(False)


def lines_of(title: str, values: Mapping[str, Mapping[int, float]], x_text: Callable[[float], str]) -> Lines:
    """Return lines of values without intervals, by x."""
    points = {name: [(x, y, y, y) for x, y in sorted(each.items())] for name, each in values.items()}
    return Lines(title, points, x_text)


def figures(name: str) -> Any:
    """Return the figures of one picture."""
    return json.loads((HERE / f"{name}.json").read_text())


def kafka() -> None:
    """Draw throughput and seconds beside whole records."""
    panels = []
    for title, seconds in figures("kafka")["seconds"].items():
        amount = int(title.split()[1]) * 1.048576
        bars = [
            Bar(name, amount / each, f"{amount / each:,.0f} MB/s, {each * 1000:.0f} ms")
            for name, each in seconds.items()
        ]
        panels.append(Panel(title, tuple(bars)))
    note = "Broker, clients and Redis share two cores. Whole records need raised limits on brokers and clients."
    draw_panels(panels, IMAGES / "kafka.png", "Kafka: throughput and time per payload", shared=True, note=note)


def pulsar() -> None:
    """Draw throughput beside the client's own chunking."""
    panels = [
        Panel(title, tuple(Bar(name, each, f"{each:.1f}x") for name, each in relative.items()))
        for title, relative in figures("pulsar")["relative"].items()
    ]
    note = "Broker, clients and Redis share two cores."
    draw_panels(
        panels, IMAGES / "pulsar.png", "Pulsar: throughput relative to its own chunking", shared=True, note=note
    )


def line() -> None:
    """Draw throughput of S3 over a line like a cloud's, beside other libraries."""
    found = figures("line")
    panels = [
        lines_of(
            f"{way.capitalize()}: MB of payload per second",
            {name: dict(zip(found["sizes"], rates, strict=True)) for name, rates in libraries.items()},
            lambda size: size_text(int(size)),
        )
        for way, libraries in found["rates"].items()
    ]
    title = "S3 with a round trip of 16 ms and 90 MB/s per connection, all with their default options"
    draw_lines(panels, IMAGES / "line.png", title, shared=True)


def spark() -> None:
    """Draw throughput by the distance to the store."""
    rates = figures("spark")["rates"]
    distances = {way: {int(at): rate for at, rate in points.items()} for way, points in rates.items()}
    panel = lines_of("MB of payload per second, by the round trip to the store", distances, lambda at: f"{at:g} ms")
    title = "Reading 1 MiB payloads from Redis in Spark, on one 2-core machine"
    draw_lines([panel], IMAGES / "spark.png", title, columns=1)


def compare() -> None:
    """Draw what ``make compare`` has written, copied to ``compare-kafka.json`` and so on."""
    for broker in ("embedded", "kafka", "pulsar"):
        draw_comparison(figures(f"compare-{broker}"), IMAGES / f"compare-{broker}.png")


def idea() -> None:
    """Draw how a payload travels."""
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8.6, 2.9))
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set(xlim=(0, 86), ylim=(0, 29))
    axes.set_axis_off()

    def box(x: float, y: float, width: float, text: str, detail: str, color: str) -> None:
        shape = FancyBboxPatch(
            (x, y),
            width,
            7.4,
            boxstyle="round,pad=0,rounding_size=1.2",
            linewidth=1.6,
            edgecolor=color,
            facecolor="white",
        )
        axes.add_patch(shape)
        axes.text(x + width / 2, y + 4.6, text, ha="center", va="center", fontsize=12, fontweight="bold")
        axes.text(x + width / 2, y + 1.9, detail, ha="center", va="center", fontsize=9, color="#5f6368")

    def arrow(start: tuple[float, float], end: tuple[float, float], color: str, width: float) -> None:
        axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=18, color=color, linewidth=width, shrinkA=0, shrinkB=0
            )
        )

    def label(x: float, y: float, text: str, color: str, align: str = "center") -> None:
        axes.text(x, y, text, ha=align, va="center", fontsize=10, color=color, fontweight="bold")

    box(1.5, 2.5, 18, "Producer", "cc.offload", INK)
    box(34, 2.5, 18, "Kafka, Pulsar", "limit 1 MB, 5 MiB", GRAY)
    box(66.5, 2.5, 18, "Consumer", "cc.resolve, Spark", INK)
    box(34, 19.5, 18, "Store", "Redis, S3, files", BLUES[0])
    arrow((14, 10.1), (33.7, 22.6), BLUES[0], 4.5)
    arrow((52.3, 22.6), (72, 10.1), BLUES[0], 4.5)
    arrow((19.7, 6.2), (33.7, 6.2), ORANGE, 1.8)
    arrow((52.3, 6.2), (66.2, 6.2), ORANGE, 1.8)
    label(22, 18.2, "1. payload, 50 MB", BLUES[0], "right")
    label(64, 18.2, "3. payload, verified", BLUES[0], "left")
    label(26.7, 7.9, "2. pointer", ORANGE)
    label(26.7, 4.4, "300 bytes", ORANGE)
    label(59.2, 7.9, "pointer", ORANGE)
    figure.savefig(IMAGES / "idea.png", dpi=200)
    plt.close(figure)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for draw in (idea, kafka, pulsar, line, spark, compare):
        draw()
