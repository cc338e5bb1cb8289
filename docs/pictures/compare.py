"""Draw the pictures of the comparison in "Performance", from the results in this folder.

make compare
cp compare-results/embedded.json docs/pictures/compare-embedded.json
python docs/pictures/compare.py

The other results are ``compare-kafka.json`` and ``compare-pulsar.json``; those that are missing are left out. The table
of that page has the verdicts of Kafka: correct it by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))

from tests.benchmarks.compare.report import draw  # noqa: E402

IMAGES = HERE.parent / "images"
BROKERS = ("embedded", "kafka", "pulsar")
SHOWN = ("produce_throughput", "consume_throughput", "consumer_memory", "partition_bytes")


def results() -> dict[str, dict[str, Any]]:
    """Return the results by broker."""
    files = {name: HERE / f"compare-{name}.json" for name in BROKERS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


if __name__ == "__main__":
    for each, values in results().items():
        draw(values, IMAGES / f"compare-{each}.png", only=SHOWN)
