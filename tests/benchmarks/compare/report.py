"""The report of a comparison: Markdown, and one picture with every plot. Its input is what a run writes as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from claimcheck._texts import printable, size_text
from tests.benchmarks.picture import Lines, draw_lines, number_text

Run = dict[str, Any]
"""The values of a run, as in its JSON file."""

STRATEGIES = ("external", "chunking")
_PICTURED_FIRST = ("speed", "memory", "partition")
_VERDICTS = {
    "agrees": "published: right",
    "partly": "published: partly right",
    "disagrees": "published: not right",
    "not measured": "not measured",
}
_MODES = """\
- `external`: the payload is stored, and a pointer is sent.
- `chunking`: the payload is sent as several messages.
- `hybrid`: as `external`; as `chunking` while the store is down.
- `native`: whole messages or the client's own chunking, without claimcheck."""


def render(run: Run, picture: str) -> str:
    """Return the report, which shows the picture of this name."""
    parts = [summary(run), "## Measurements", _MODES]
    parts += [f"![Measurements]({picture})", "Lines are medians, and bands 95 % confidence intervals.", "## Details"]
    for each in run["experiments"]:
        parts += [f"### {cell(each['title'])}", cell(each["explanation"])]
        parts += ["\n".join(_bullets([f"{mode}: {text}" for mode, text in each["measured"].items() if text]))]
        parts += ["\n".join(_rows(each["columns"], each["rows"]))] if each["rows"] else []
    parts += ["## Machine", "\n".join(_bullets([f"{name}: {value}" for name, value in run["machine"].items()]))]
    return "\n\n".join(filter(None, parts)) + "\n"


def summary(run: Run) -> str:
    """Return the beginning of the report: what was measured, the recommendation, and the published table."""
    sizes = ", ".join(map(size_text, run["sizes"]))
    what = f"{run['broker']}; store {run['store']}; {sizes}; {run['rounds']} rounds, {run['seconds']:.0f} s"
    parts = ["# Large payloads: chunks or a store?", f"{cell(what)}; {cell(run['made'])}", *_recommendation(run)]
    published = [each for each in run["experiments"] if each["claimed"]]
    if published:
        counts = Counter(each["verdict"] for each in published)
        verdicts = ", ".join(f"{text} in {counts[name]}" for name, text in _VERDICTS.items() if counts[name])
        parts += ["## The published comparison, measured", f"Of {len(published)} rows: {verdicts}."]
        parts += ["\n".join(table(run)), differences(run)]
    return "\n\n".join(filter(None, parts))


def _recommendation(run: Run) -> Iterator[str]:
    advice = run["recommendation"]
    yield "## Recommendation"
    if advice is None:
        yield "None: the recommendation needs the experiment `speed`, which this run did not include."
        return
    yield "```yaml\n" + printable(advice["yaml"].rstrip(), keep="\n").replace("```", "") + "\n```"
    yield "\n".join(_bullets([*advice["reasons"], *advice["crossovers"], f"Confidence {advice['confidence']}"]))


def table(run: Run) -> Iterator[str]:
    """Yield the lines of the table: what was published and what was measured of each strategy."""
    yield "| | strategy | published | measured |"
    yield "|---|---|---|---|"
    for each in run["experiments"]:
        for number, name in enumerate(STRATEGIES if each["claimed"] else ()):
            title = f"*{_VERDICTS[each['verdict']]}*" if number else cell(each["title"])
            texts = [each["claimed"].get(name, ""), each["measured"].get(name, "") or "not measured"]
            yield f"| {title} | `{name}` | " + " | ".join(map(cell, texts)) + " |"


def differences(run: Run) -> str:
    """Return a list of the rows in which the measurement does not agree, with the reasons."""
    found = [each for each in run["experiments"] if each["claimed"] and each["verdict"] in ("partly", "disagrees")]
    return "\n".join(f"- **{cell(each['title'])}.** {cell(each['explanation'])}" for each in found)


def cell(value: str | float | int | None) -> str:
    """Return a value as text on one line in which nothing is read as Markdown of a table or as HTML."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else number_text(value)
    return re.sub(r"\s+", " ", printable(text)).replace("|", "\\|").replace("<", "&lt;")


def _bullets(texts: Sequence[str]) -> Iterator[str]:
    return (f"- {cell(text)}" for text in texts)


def _rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield "| " + " | ".join(map(cell, columns)) + " |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield "| " + " | ".join(map(cell, row)) + " |"


def draw(run: Run, path: Path, *, only: Sequence[str] = ()) -> None:
    """Draw the series of a run that have points, the most important first, or those of some names."""
    places = {name: place for place, name in enumerate(_PICTURED_FIRST)}
    experiments = sorted(run["experiments"], key=lambda each: places.get(each["name"], len(places)))
    series = [each for experiment in experiments for each in experiment["series"] if any(each["points"].values())]
    found = {each["name"]: each for each in series}
    panels = [_panel(found[name]) for name in only or found if name in found]
    if panels:
        draw_lines(panels, path, printable(run["broker"]))


def _panel(series: dict[str, Any]) -> Lines:
    points = {
        printable(mode): [(each["x"], each["y"], each["low"], each["high"]) for each in line]
        for mode, line in series["points"].items()
        if line
    }
    in_bytes = re.search(r"\bbytes\b|\bsize\b", series["x_label"])
    title = f"{series['title']}, {series['y_label']}" + ("" if in_bytes else f", by {series['x_label']}")
    return Lines(printable(title), points, lambda x: size_text(int(x)) if in_bytes else number_text(x))
