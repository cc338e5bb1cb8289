"""The table as a picture: one bar for each row, and a line where the target is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.report import outcome
from tests.benchmarks.rows import Row

_SHOWN = 2.0  # longer bars end here
_MET, _MISSED, _UNKNOWN = "#2e7d32", "#c62828", "#9e9e9e"
_COLOURS = {True: _MET, False: _MISSED, None: _UNKNOWN}


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draw how far each target is reached.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11.5, 1.4 + 0.27 * len(rows)), layout="constrained")
    places = range(len(rows))
    axes.barh(places, [min(row.ratio or 0, _SHOWN) for row in rows], color=[_COLOURS[row.met] for row in rows])
    for place, row in zip(places, rows, strict=True):
        axes.text(_SHOWN + 0.03, place, outcome(row), va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(places, [row.target.what for row in rows], fontsize=8)
    axes.set(xlim=(0, _SHOWN + 0.85), ylim=(len(rows) - 0.4, -0.6))
    axes.set_xticks([0, 0.5, 1, 1.5, 2], ["0", "0.5", "the target", "1.5", "2 times or more"])
    figure.suptitle(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
