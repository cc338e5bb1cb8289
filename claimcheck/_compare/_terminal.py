"""The summary of a comparison for a terminal: it fits one screen of 100 x 40 and ends with the recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from claimcheck._compare._model import MODES, Comparison, Experiment, Recommendation, Series, size_text

__all__ = ["show"]

_RATES = ("produce_throughput", "consume_throughput")
_MOST_REASONS = 3
_MOST_SIZES = 5
_STYLES = {"agrees": "green", "partly": "yellow", "disagrees": "red", "not measured": "dim"}


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
    what = f"{comparison.broker}; store {comparison.store}"
    return Text(f"{what}\n{sizes}; {comparison.rounds} rounds, {comparison.seconds:.0f} s", overflow="ellipsis")


def _table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=False)
    for title in titles:
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    return table


def _rows(experiments: Sequence[Experiment]) -> Table:
    """One line for each row of the published table; long cells are cut off."""
    modes = [mode for mode in MODES if any(mode in each.measured for each in experiments)]
    table = _table("", *modes, "published table")
    for each in experiments:
        cells = [Text(each.measured.get(mode, "")) for mode in modes]
        table.add_row(Text(each.title), *cells, Text(each.verdict, style=_STYLES[each.verdict]))
    table.columns[0].max_width = 22
    return table


def _speed(experiment: Experiment) -> Table:
    series = {each.name: each for each in experiment.series if each.name in _RATES}
    modes = [mode for mode in MODES if mode in experiment.measured]
    table = _table("MB/s, produce / consume", *modes)
    for column in table.columns[1:]:
        column.justify = "right"
    sizes = sorted({point.x for each in series.values() for line in each.points.values() for point in line})
    for size in sizes[-_MOST_SIZES:]:
        cells = [" / ".join(_rate(series.get(name), mode, size) for name in _RATES) for mode in modes]
        table.add_row(size_text(size), *cells)
    return table


def _rate(series: Series | None, mode: str, size: float) -> str:
    line = series.points.get(mode, ()) if series is not None else ()
    return next((f"{point.y:,.0f}" for point in line if point.x == size), "-")


def _recommendation(recommendation: Recommendation) -> Group:
    table = Table.grid(padding=(0, 1))
    for text in _sentences(recommendation):
        table.add_row("-", Text(text))
    title = Text.assemble(("Recommendation", "bold"), f" ({recommendation.confidence})")
    return Group(title, table, Text(""), Text(recommendation.yaml.rstrip(), style="bold"))


def _sentences(recommendation: Recommendation) -> Iterator[str]:
    yield from recommendation.reasons[:_MOST_REASONS]
    yield from recommendation.crossovers[:1]
