"""Latency against throughput, one line for each way to have payloads in Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.benchmarks.rows import Row
from tests.benchmarks.series import Series

__all__ = ["draw_ways"]

_KEYS = ("spark-hand-1024k-", "spark-naive-")
_OURS = "claimcheck"


def draw_ways(rows: Sequence[Row], path: Path) -> bool:
    """Draw it, if there are rows of Spark with payloads of 1 MiB; says whether there were.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ways = _ways(rows)
    if not ways:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    latencies = sorted({at for points in ways.values() for at in points})
    for name, points in sorted(ways.items(), key=lambda way: way[0] == _OURS):
        ours = name == _OURS
        style = {"color": "#2e7d32", "linewidth": 3} if ours else {"linewidth": 1.2}
        places = sorted(points)
        axes.plot(
            [latencies.index(at) for at in places], [points[at] for at in places], marker="o", label=name, **style
        )
    axes.set_xticks(range(len(latencies)), [f"{at} ms" for at in latencies])
    axes.set(xlabel="round trip to the store", ylabel="MB/s into Spark", ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Payloads of 1 MiB, two cores: what a longer way to the store costs", fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True


def _ways(rows: Iterable[Row]) -> dict[str, dict[int, float]]:
    """From way to latency to rate, in MB/s; ours from the runs against those by hand."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        prefix = next((key for key in _KEYS if row.target.key.startswith(key)), None)
        if prefix is None:
            continue
        at = int(row.target.key.removeprefix(prefix).removesuffix("ms"))
        for series in row.series:
            if prefix == _KEYS[0] or series.name != _OURS:
                found.setdefault(series.name, {})[at] = _rate(series)
    return found


def _rate(series: Series) -> float:
    return series.rate * 1000
