"""What a run says at its end: the table, what is behind it, and why a target is missed."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from tests.benchmarks.rows import Row, Target
from tests.benchmarks.series import GIGA, Series

METHOD = (
    "Each row is one interleaved run: its variants take turns, round by round, and who begins rotates. A ratio is the "
    "median over the rounds of the ratio within each round. 1 GB is 10^9 bytes."
)


def table(rows: Sequence[Row]) -> list[str]:
    """The table of the targets, as Markdown that reads well as it is."""
    cells = [("what", "measured", "target", "met"), *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def behind(rows: Iterable[Row]) -> list[str]:
    """The medians and spreads behind each row."""
    lines: list[str] = []
    shown: tuple[Series, ...] | None = None
    for row in rows:
        lines += ["", f"{row.target.what}: {_measured(row)}, target {_bound(row.target)}, {_verdict(row)}"]
        lines += [f"  {row.note}"] if row.note else []
        if row.series:
            lines += ["  (the run above)"] if row.series is shown else map(_rounds, row.series)
        shown = row.series
    return lines


def progress(total: int) -> Callable[[str], None]:
    """Return a function that says on standard error what begins now, and how far the run is."""
    begin, done = time.monotonic(), itertools.count(1)

    def show(text: str) -> None:
        print(f"[{next(done):3}/{total}] {time.monotonic() - begin:4.0f} s  {text}", file=sys.stderr, flush=True)

    return show


def count(rows: Sequence[Row]) -> str:
    """Say it in one line."""
    met = [row.met for row in rows]
    text = f"{met.count(True)} of {len(met)} targets are met, {met.count(False)} are missed"
    return f"{text}, {met.count(None)} were not measured" if None in met else text


def _cells(row: Row) -> tuple[str, str, str, str]:
    return row.target.what, _measured(row), _bound(row.target), _verdict(row)


def _measured(row: Row) -> str:
    return "-" if row.measured is None else _figure(row.measured) + _unit(row.target)


def _bound(target: Target) -> str:
    return f"{_sign(target)} {_figure(target.bound)}{_unit(target)}"


def _sign(target: Target) -> str:
    return "<=" if target.at_most else ">="


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _unit(target: Target) -> str:
    return "x" if target.unit == "x" else f" {target.unit}"


def _verdict(row: Row) -> str:
    return {True: "yes", False: "NO", None: "not measured"}[row.met]


def _rounds(series: Series) -> str:
    seconds, scale = series.seconds, series.amount / (GIGA if series.counts == "bytes" else 1)
    unit, per = ("GB/s", "GB") if series.counts == "bytes" else ("/s", "1000")
    number = "9.2f" if series.counts == "bytes" else "9.0f"
    rates = [f"{scale / moment:{number}}" for moment in (seconds.median, seconds.high, seconds.low, seconds.best)]
    return (
        f"  {series.name:<30}{rates[0]} {unit} (half of the rounds {rates[1].strip()} to {rates[2].strip()}, "
        f"best {rates[3].strip()})  CPU {series.cpu_ms:5.0f} ms/{per}  {len(series.samples)} rounds"
    )
