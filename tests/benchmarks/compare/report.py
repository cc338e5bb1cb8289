"""The report of a comparison: Markdown, and one picture with every plot. Its input is what a run writes as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claimcheck._texts import printable, size_text
from tests.benchmarks.picture import Lines, draw_lines, number_text

Run = dict[str, Any]
"""The values of a run, as in its JSON file."""

_MODES = """\
- `external`: the payload is stored, and a pointer is sent.
- `chunking`: the payload is sent as several messages.
- `hybrid`: as `external`; as `chunking` while the store is down.
- `native`: whole messages or the client's own chunking, without claimcheck."""


def render(run: Run, picture: str) -> str:
    """Return the report, which shows the picture of this name."""
    parts = [summary(run), _MODES, f"![Measurements]({picture})"]
    parts += ["Lines are medians, and bands 95 % confidence intervals. The JSON file has every figure."]
    parts += [_bullets([f"{each['title']}: {each['explanation']}" for each in run["measures"]])]
    parts += ["## Machine", _bullets([f"{name}: {value}" for name, value in run["machine"].items()])]
    return "\n\n".join(parts) + "\n"


def summary(run: Run) -> str:
    """Return the beginning of the report: what was measured, the recommendation, and a sentence for each mode."""
    sizes = ", ".join(map(size_text, run["sizes"]))
    what = f"{run['broker']}; store {run['store']}; {sizes}; {run['rounds']} rounds, {run['seconds']:.0f} s"
    parts = ["# Large payloads: chunks or a store?", f"{cell(what)}; {cell(run['made'])}", "## Recommendation"]
    advice = run["recommendation"]
    if advice is None:
        parts += ["None: the recommendation needs `speed`, which this run did not measure."]
    else:
        parts += ["```yaml\n" + printable(advice["yaml"].rstrip(), keep="\n").replace("```", "") + "\n```"]
        parts += [_bullets([*advice["reasons"], f"Confidence {advice['confidence']}"])]
    said = [f"| {cell(each['title'])} | `{mode}` | {cell(text)} |"
            for each in run["measures"] for mode, text in each["measured"].items()]  # fmt: skip
    return "\n\n".join([*parts, "## Measurements", "\n".join(["| | mode | |", "|---|---|---|", *said])])


def cell(text: str) -> str:
    """Return a text on one line in which nothing is read as Markdown of a table or as HTML."""
    return re.sub(r"\s+", " ", printable(text)).replace("|", "\\|").replace("<", "&lt;")


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {cell(text)}" for text in texts)


def draw(run: Run, path: Path, *, only: Sequence[str] = ()) -> None:
    """Draw the series of a run, or those of some names in their order."""
    found = {each["name"]: each for measure in run["measures"] for each in measure["series"]}
    panels = [_panel(found[name]) for name in only or found if name in found]
    if panels:
        draw_lines(panels, path, printable(run["broker"]))


def _panel(series: dict[str, Any]) -> Lines:
    points = {
        printable(mode): [(each["x"], each["y"], each["low"], each["high"]) for each in line]
        for mode, line in series["points"].items()
        if line
    }
    in_bytes = "bytes" in series["x_label"]
    title = f"{series['title']}, {series['y_label']}" + ("" if in_bytes else f", by {series['x_label']}")
    return Lines(printable(title), points, lambda x: size_text(int(x)) if in_bytes else number_text(x))
