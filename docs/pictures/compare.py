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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))

from tests.benchmarks.compare.report import cell, differences, draw, table  # noqa: E402

IMAGES = HERE.parent / "images"
PAGE = HERE.parent / "guides" / "strategies.md"
BROKERS = ("embedded", "kafka", "pulsar")
SHOWN = ("produce_throughput", "consume_throughput", "consumer_memory", "partition_bytes")


def results() -> dict[str, dict[str, Any]]:
    """Return the results by broker."""
    files = {name: HERE / f"compare-{name}.json" for name in BROKERS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def write_results(found: dict[str, dict[str, Any]]) -> None:
    """Replace the results on the page, each between two comments."""
    text = PAGE.read_text()
    for name, run in found.items():
        broker = run["broker"]
        lines = [
            f"### {broker[:1].upper()}{broker[1:]}",
            f"Store: {cell(run['store'])}. {run['rounds']} rounds.",
            f"![{broker}: throughput, memory and bytes in the broker by payload size](../images/compare-{name}.png)",
            "\n".join(table(run)),
            "Where the measurement differs, and why:",
            differences(run),
        ]
        block, made = rf"(<!-- compare: {name} -->\n).*?(<!-- end -->)", "\n\n".join(lines)
        text, count = re.subn(
            block, lambda match, made=made: f"{match[1]}\n{made}\n\n{match[2]}", text, flags=re.DOTALL
        )
        if not count:
            raise SystemExit(f"{PAGE} has no place for {name}")
    PAGE.write_text(text)


if __name__ == "__main__":
    known = results()
    for each, values in known.items():
        draw(values, IMAGES / f"compare-{each}.png", only=SHOWN)
    write_results(known)
