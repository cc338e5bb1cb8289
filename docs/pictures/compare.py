"""Draw the pictures of "Choosing a strategy" and write its results, from the results in this folder.

make compare
cp compare-results/embedded.json docs/pictures/compare-embedded.json
python docs/pictures/compare.py

The other results are ``compare-kafka.json`` and ``compare-pulsar.json``; those that are missing are left out.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))

from tests.benchmarks.compare.model import Comparison, Series, from_json  # noqa: E402
from tests.benchmarks.compare.plots import draw  # noqa: E402

IMAGES = HERE.parent / "images"
PAGE = HERE.parent / "guides" / "strategies.md"
BROKERS = ("embedded", "kafka", "pulsar")
SHOWN = ("produce_throughput", "consume_throughput", "consumer_memory", "cost")
STRATEGIES = ("external", "chunking")


def results() -> dict[str, Comparison]:
    """Return the results by broker."""
    files = {name: HERE / f"compare-{name}.json" for name in BROKERS}
    return {name: from_json(Comparison, json.loads(file.read_text())) for name, file in files.items() if file.exists()}


def picture(comparison: Comparison, path: Path) -> None:
    """Draw throughput, memory and cost side by side."""
    from matplotlib.figure import Figure

    found = {series.name: series for each in comparison.experiments for series in each.series}
    shown = [found[name] for name in SHOWN if name in found]
    figure = Figure(figsize=(10.6, 3.5 * -(-len(shown) // 2)))
    figure.subplots_adjust(left=0.065, right=0.875, bottom=0.06, top=0.93, wspace=0.55, hspace=0.34)
    for place, series in enumerate(shown, 1):
        axes = figure.add_subplot(-(-len(shown) // 2), 2, place)
        draw(axes, series)
        axes.set_title(_title(series), loc="left", fontsize=11.5, fontweight="bold", pad=10)
    figure.savefig(path, dpi=150, facecolor="white")


def table(comparison: Comparison) -> Iterator[str]:
    """Yield the lines of the table: what was published and what was measured of each strategy."""
    yield "| | strategy | published | measured |"
    yield "|---|---|---|---|"
    for each in comparison.experiments:
        for number, name in enumerate(STRATEGIES if each.claimed else ()):
            title = each.title if number == 0 else f"*{_JUDGED[each.verdict]}*"
            texts = [each.claimed.get(name, ""), each.measured.get(name, "") or "not measured"]
            yield f"| {title} | `{name}` | " + " | ".join(map(_cell, texts)) + " |"


_JUDGED = {
    "agrees": "published: right",
    "partly": "published: partly right",
    "disagrees": "published: not right",
    "not measured": "not measured",
}


def differences(comparison: Comparison) -> str:
    """Return a list of the rows in which the measurement does not agree, with the reasons."""
    found = [each for each in comparison.experiments if each.claimed and each.verdict in ("partly", "disagrees")]
    return "\n".join(f"- **{each.title}.** {_cell(each.explanation)}" for each in found)


def write_results(found: dict[str, Comparison]) -> None:
    """Replace the results on the page, each between two comments."""
    text = PAGE.read_text()
    for name, comparison in found.items():
        lines = [
            f"### {comparison.broker[:1].upper()}{comparison.broker[1:]}",
            f"Store: {_cell(comparison.store)}. {comparison.rounds} rounds.",
            f"![{comparison.broker}: throughput, memory and cost by payload size](../images/compare-{name}.png)",
            "\n".join(table(comparison)),
            "Where the measurement differs, and why:",
            differences(comparison),
        ]
        block, made = rf"(<!-- compare: {name} -->\n).*?(<!-- end -->)", "\n\n".join(lines)
        text, count = re.subn(
            block, lambda match, made=made: f"{match[1]}\n{made}\n\n{match[2]}", text, flags=re.DOTALL
        )
        if not count:
            raise SystemExit(f"{PAGE} has no place for {name}")
    PAGE.write_text(text)


def _title(series: Series) -> str:
    return f"{series.title} ({series.y_label})"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    known = results()
    for broker, comparison in known.items():
        picture(comparison, IMAGES / f"compare-{broker}.png")
    write_results(known)
