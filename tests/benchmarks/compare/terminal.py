"""The summary of a comparison for a terminal: it fits one screen of 100 x 40 and ends with the recommendation."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from claimcheck._texts import printable, size_text
from tests.benchmarks.compare.model import MODES, Comparison, Experiment, Mode, Recommendation, Series

_WIDTH, _TITLE, _VERDICT, _CELL = 100, 18, 9, 32
_MOST_LINES, _MOST_SIZES, _MOST_REASONS, _MOST_CROSSOVERS = 2, 4, 2, 1
_PUBLISHED: tuple[Mode, ...] = ("external", "chunking")
_RATES = ("produce_throughput", "consume_throughput")
_NOTHING = "-"
_VERDICTS = {
    "agrees": Text("agrees", "green"),
    "partly": Text("partly", "yellow"),
    "disagrees": Text("disagrees", "red"),
    "measured": Text("measured", "dim"),
    "not measured": Text("-", "dim"),
}


def show(comparison: Comparison, console: Console) -> None:
    """Print the summary: what was compared, the published rows with numbers, throughput, the recommendation."""
    parts: list[RenderableType] = [_head(comparison)]
    rows = [each for each in comparison.experiments if each.claimed]
    if rows:
        parts.append(_rows(rows))
    speed = next((each for each in comparison.experiments if each.name == "speed"), None)
    if speed is not None:
        parts.append(_speed(speed))
    if comparison.recommendation is not None:
        parts.append(_recommendation(comparison.recommendation))
    console.print(Group(*parts), highlight=False)


def _head(comparison: Comparison) -> Text:
    sizes = ", ".join(size_text(size) for size in comparison.sizes)
    what = printable(f"{comparison.broker}; store {comparison.store}")
    text = f"{what}\n{sizes}; {comparison.rounds} rounds, {comparison.seconds:.0f} s"
    return Text(text, no_wrap=True, overflow="ellipsis")


def _rows(experiments: Sequence[Experiment]) -> Table:
    """Two lines for each row of the published table, which has two columns; longer texts are cut off."""
    modes = [mode for mode in _PUBLISHED if any(mode in each.measured for each in experiments)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=False)
    table.add_column("published table", width=_TITLE)
    table.add_column("", width=_VERDICT)
    for mode in modes:
        table.add_column(mode, width=_CELL)
    for each in experiments:
        texts = (each.measured.get(mode) or _NOTHING for mode in modes)
        cells = [_two_lines(text, _CELL) for text in texts]
        table.add_row(_two_lines(each.title, _TITLE), _VERDICTS[each.verdict], *cells)
    return table


def _two_lines(text: str, width: int) -> str:
    lines = textwrap.wrap(printable(text), width, max_lines=_MOST_LINES, placeholder="…")
    return escape("\n".join(lines))


def _speed(experiment: Experiment) -> Table:
    series = {each.name: each for each in experiment.series if each.name in _RATES}
    modes = [mode for mode in MODES if mode in experiment.measured]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=False)
    table.add_column("MB/s, produce / consume")
    for mode in modes:
        table.add_column(mode, justify="right")
    sizes = sorted({point.x for each in series.values() for line in each.points.values() for point in line})
    for size in sizes[-_MOST_SIZES:]:
        cells = [" / ".join(_rate(series.get(name), mode, size) for name in _RATES) for mode in modes]
        table.add_row(size_text(size), *cells)
    return table


def _rate(series: Series | None, mode: str, size: float) -> str:
    line = series.points.get(mode, ()) if series is not None else ()
    return next((f"{point.y:,.0f}" for point in line if point.x == size), "-")


def _recommendation(recommendation: Recommendation) -> Group:
    sentences = [*recommendation.reasons[:_MOST_REASONS], *recommendation.crossovers[:_MOST_CROSSOVERS]]
    reasons = Table.grid(padding=(0, 1))
    for sentence in sentences:
        reasons.add_row("-", _two_lines(sentence, _WIDTH - 2))
    confidence = _two_lines(f"Recommendation, confidence {recommendation.confidence}", _WIDTH)
    lines = (printable(line) for line in recommendation.yaml.rstrip().split("\n"))
    yaml = Text("\n".join(lines), style="bold", no_wrap=True, overflow="ignore")
    return Group(Text.from_markup(confidence), reasons, yaml)
