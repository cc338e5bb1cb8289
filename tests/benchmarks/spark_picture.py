"""Throughput of a Spark job by the distance to the store, one line for each way to read payloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.picture import BLUES, GRAY, pyplot
from tests.benchmarks.rows import Row

__all__ = ["draw_lines", "draw_ways"]

_KEYS = ("spark-hand-1024k-", "spark-naive-")
_OURS = "claimcheck"


def draw_ways(rows: Sequence[Row], path: Path) -> bool:
    """Draw the Spark rows with payloads of 1 MiB; returns whether there are any."""
    ways = _ways(rows)
    if ways:
        draw_lines(ways, path)
    return bool(ways)


def draw_lines(ways: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Draw MB/s by round trip in milliseconds, ours in blue."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8.6, 4.4), layout="constrained")
    latencies = sorted({at for points in ways.values() for at in points})
    place, apart = float("-inf"), max(rate for points in ways.values() for rate in points.values()) / 20
    for name, points in sorted(ways.items(), key=lambda way: way[1][max(way[1])]):
        ours = name == _OURS
        color = BLUES[0] if ours else GRAY
        at = sorted(points)
        axes.plot([latencies.index(each) for each in at], [points[each] for each in at], marker="o", color=color,
                  markersize=6 if ours else 4, linewidth=3 if ours else 1.4, zorder=3 if ours else 2)  # fmt: skip
        place = max(points[at[-1]], place + apart)
        axes.text(len(latencies) - 0.92, place, name, va="center", fontsize=9.5, color=color if ours else "#5f6368",
                  fontweight="bold" if ours else "normal")  # fmt: skip
    axes.set_xticks(range(len(latencies)), [f"{at} ms" for at in latencies])
    axes.set(xlim=(-0.15, len(latencies) - 0.05), ylim=(0, None))
    axes.set_xlabel("round trip to the store")
    axes.set_ylabel("MB of payload per second")
    axes.grid(axis="y", color="#eceff1")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle("Reading 1 MiB payloads from Redis in Spark, on one 2-core machine", fontsize=12, fontweight="bold",
                    x=0.01, ha="left")  # fmt: skip
    figure.savefig(path, dpi=200)
    plt.close(figure)


def _ways(rows: Iterable[Row]) -> dict[str, dict[int, float]]:
    """Return MB/s by way and round trip; ours from the runs against code by hand."""
    rates: dict[str, dict[int, float]] = {}
    for row in rows:
        prefix = next((key for key in _KEYS if row.target.key.startswith(key)), None)
        if prefix is None:
            continue
        at = int(row.target.key.removeprefix(prefix).removesuffix("ms"))
        for series in row.series:
            if prefix == _KEYS[0] or series.name != _OURS:
                rates.setdefault(series.name, {})[at] = series.rate * 1000
    return rates
