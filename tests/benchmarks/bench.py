"""Measure what the stores cost, print it against its targets, and write it down.

    python tests/benchmarks/bench.py [--quick] [--only redis,s3] [--out FOLDER]

It starts its own servers and stops them again; redis-server and cc must be on PATH, or the rows that need them are not
measured and say so. A missed target is a result, not a failure.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

from tests.benchmarks import (
    content_rows,
    file_rows,
    integrity_rows,
    kafka_rows,
    line_rows,
    many_rows,
    memory_rows,
    network,
    path_rows,
    pulsar_rows,
    redis_rows,
    s3_rows,
    spark_rows,
    spark_source_rows,
)
from tests.benchmarks.lab import Lab
from tests.benchmarks.machine import lines, machine
from tests.benchmarks.picture import draw
from tests.benchmarks.progress import progress
from tests.benchmarks.report import METHOD, behind, count, table
from tests.benchmarks.rounds import FULL, QUICK, Effort
from tests.benchmarks.rows import Row, Step, take

GROUPS: dict[str, Callable[[Effort], list[Step]]] = {
    "redis": redis_rows.steps,
    "s3": s3_rows.steps,
    "file": file_rows.steps,
    "integrity": integrity_rows.steps,
    "content": content_rows.steps,
    "memory": memory_rows.steps,
    "many": many_rows.steps,
    "path": path_rows.steps,
    "line": line_rows.steps,
    "pulsar": pulsar_rows.steps,
    "kafka": kafka_rows.steps,
    "spark": spark_rows.steps,
    "spark-source": spark_source_rows.steps,
}
# The others need more than that, or longer: make bench-line, bench-many, bench-pulsar, bench-kafka, bench-spark.
USUAL = [name for name in GROUPS if name not in ("line", "many", "pulsar", "kafka", "spark", "spark-source")]
NO_MEANING = "Quick: few rounds and small payloads, to try the machinery. The figures mean nothing."


def main(arguments: Sequence[str]) -> int:
    """Measure and report."""
    options = _options(arguments)
    where = network.enter()  # nothing before this line is done only once
    for number in (signal.SIGINT, signal.SIGTERM):  # a run that is broken off still stops its servers
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    effort = QUICK if options.quick else FULL
    facts = machine(where)
    print(*lines(facts), *([NO_MEANING] if options.quick else []), "", sep="\n", flush=True)
    rows = _measure(effort, options.only)
    print(METHOD, "", *table(rows), *behind(rows), "", count(rows), sep="\n")
    document = {"machine": facts, "method": METHOD, "quick": options.quick, "groups": options.only}
    _write_down(rows, {"made": datetime.now(UTC).isoformat(timespec="seconds"), **document}, options.out)
    return 0


def _measure(effort: Effort, groups: Sequence[str]) -> list[Row]:
    steps = [step for group in groups for step in GROUPS[group](effort)]
    rows: list[Row] = []
    with Lab(effort) as lab, progress(len(steps)) as show:
        for step in steps:
            show(step.targets[0].what)
            rows += take(step, lab)
    return rows


def _write_down(rows: Sequence[Row], document: dict[str, object], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(
        json.dumps({**document, "rows": [row.as_dict() for row in rows]}, indent=1) + "\n"
    )
    print(f"Written: {folder / 'bench.json'}")
    try:
        draw(rows, folder / "bench.png", "claimcheck and what it is compared with")
        if spark_rows.draw_ways(rows, folder / "ways.png"):
            print(f"Drawn: {folder / 'ways.png'}")
    except ImportError as error:
        print(f"No picture: {error}; pip install 'claimcheck-messaging[bench]'")
    else:
        print(f"Drawn: {folder / 'bench.png'}")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what the stores cost.")
    parser.add_argument("--quick", action="store_true", help="few rounds and small payloads, to try it")
    parser.add_argument("--only", type=_groups, default=USUAL, metavar="GROUPS", help=f"of {','.join(GROUPS)}")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON and PNG")
    return parser.parse_args(arguments)


def _groups(text: str) -> list[str]:
    unknown = set(text.split(",")) - set(GROUPS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
