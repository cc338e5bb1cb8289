"""The report: one HTML page that needs no network."""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from claimcheck._texts import number_text, printable, size_text
from tests.benchmarks.compare.model import MODES, Comparison, Experiment, Series
from tests.benchmarks.compare.plots import svg

# The order of the plots; those of other experiments follow.
_PLOTS_FIRST = ("speed", "memory", "partition", "cost")


def render(comparison: Comparison) -> str:
    """Return the report as HTML that is also well-formed XML."""
    script = _text("report.js")
    rows = [each for each in comparison.experiments if each.claimed]
    return _template().render(  # type: ignore[no-any-return]
        run=comparison,
        facts=_run_facts(comparison),
        plots=[
            {"series": each, "by": _by(each), "note": note, "svg": Markup(svg(each, f"plot-{number}"))}
            for number, (each, note) in enumerate(_plots(comparison.experiments))
        ],
        modes=MODES,
        rows=rows,
        summary=_summary(rows),
        numeric=_numeric,
        cell_text=_cell_text,
        css=Markup(_text("report.css")),
        script=Markup(script),
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _template() -> Any:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, finalize=_finalize
    )
    return environment.from_string(_text("report.html.jinja"))


def _finalize(value: object) -> object:
    """Replace control characters in every value, except in the parts of the page itself."""
    return printable(value, keep="\n") if type(value) is str else value


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _run_facts(comparison: Comparison) -> dict[str, str]:
    sizes = [size_text(size) for size in comparison.sizes]
    return {
        "Broker": comparison.broker,
        "Store": comparison.store,
        "Payloads": ", ".join(sizes) if len(sizes) <= 6 else f"{len(sizes)} sizes, {sizes[0]} to {sizes[-1]}",
        "Rounds": str(comparison.rounds),
        "Duration": _duration(comparison.seconds),
        "Date": _date(comparison.made),
    }


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _date(text: str) -> str:
    try:
        return f"{datetime.datetime.fromisoformat(text):%B %d, %Y, %H:%M %Z}".strip()
    except ValueError:
        return text


def _plots(experiments: Sequence[Experiment]) -> Iterator[tuple[Series, str]]:
    """The plots that have points, the most important first, with the assumptions of computed ones."""
    places = {name: place for place, name in enumerate(_PLOTS_FIRST)}
    for each in sorted(experiments, key=lambda each: places.get(each.name, len(places))):
        note = each.explanation if each.name == "cost" else ""
        yield from ((series, note) for series in each.series if any(series.points.values()))


def _by(series: Series) -> str:
    """The name of the horizontal axis, whose ticks have units."""
    return re.sub(r"^payload( size)? (\(bytes\)|in bytes)$", "payload size", series.x_label)


def _summary(rows: Sequence[Experiment]) -> str:
    counts = Counter[str](each.verdict for each in rows)
    texts = (
        ("agrees", "agrees with the measurement", "agree with the measurement"),
        ("partly", "agrees in part", "agree in part"),
        ("disagrees", "disagrees", "disagree"),
        ("not measured", "was not measured", "were not measured"),
    )
    parts = [f"{counts[name]} {one if counts[name] == 1 else more}" for name, one, more in texts if counts[name]]
    return f"Of its {len(rows)} rows, {', '.join(parts)}."


def _numeric(experiment: Experiment) -> set[int]:
    """The columns of the detailed table that hold numbers."""
    columns = list(zip(*experiment.rows, strict=False))
    return {
        index
        for index, cells in enumerate(columns)
        if any(cell is not None for cell in cells) and not any(isinstance(cell, str) for cell in cells)
    }


def _cell_text(cell: str | float | int | None) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:,}" if isinstance(cell, int) else number_text(cell)
