"""Measure what the stores cost, print it against its targets, and write it down.

    python tests/benchmarks/bench.py [--quick] [--only redis,s3] [--out FOLDER] [--old VERSION]

It starts its own servers and stops them again; redis-server and cc must be on PATH, or the rows that need them are not
measured and say so. A missed target is a result, not a failure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

from tests.benchmarks import versions
from tests.benchmarks.machine import enter_network, machine
from tests.benchmarks.picture import draw, draw_ways
from tests.benchmarks.rounds import FULL, QUICK, Effort
from tests.benchmarks.rows import METHOD, Row, Step, behind, count, progress, table, take

# Where the rows of each group are: a process that measures one group imports no other.
GROUPS = {
    "redis": "redis_rows.ROWS",
    "s3": "s3_rows.ROWS",
    "file": "path_rows.FILE",
    "memory": "memory_rows.ROWS",
    "path": "path_rows.ROWS",
    "many": "many_rows.ROWS",
    "pauses": "pause_rows.ROWS",
    "line": "line_rows.ROWS",
    "pulsar": "pulsar_rows.ROWS",
    "kafka": "kafka_rows.ROWS",
    "spark": "spark_rows.ROWS",
    "spark-source": "spark_source_rows.ROWS",
}
# The others need more than that, or longer: make bench-line, bench-many, bench-pulsar, bench-kafka, bench-spark.
USUAL = ["redis", "s3", "file", "memory", "path"]
NO_MEANING = "Quick: few rounds and small payloads, to try the machinery. The figures mean nothing."


def steps_of(group: str, effort: Effort) -> list[Step]:
    module, _, name = GROUPS[group].partition(".")
    steps: list[Step] = getattr(importlib.import_module(f"tests.benchmarks.{module}"), name).steps(effort)
    return steps


def main(arguments: Sequence[str]) -> int:
    """Measure and report."""
    options = _options(arguments)
    effort = QUICK if options.quick else FULL
    if options.serve:
        group, number = options.serve.split(":")
        versions.serve(steps_of(group, effort)[int(number)], quick=options.quick)
        return 0
    facts = begin({"note": NO_MEANING} if options.quick else {})
    steps = [(name, number, step) for name in options.only for number, step in enumerate(steps_of(name, effort))]
    if options.old:
        return _compare_versions(options, steps)
    rows = _measure(effort, [step for *_, step in steps])
    print(METHOD, "", *table(rows), *behind(rows), "", count(rows), sep="\n")
    document = {"machine": facts, "method": METHOD, "quick": options.quick, "groups": options.only}
    document["rows"] = [row.as_dict() for row in rows]
    write_down(document, options.out / "bench.json")
    try:
        pictures = {
            "bench.png": draw(rows, options.out / "bench.png"),
            "ways.png": draw_ways(rows, options.out / "ways.png"),
        }
    except ImportError as error:
        print(f"No picture: {error}; pip install 'claimcheck-messaging[bench]'")
    else:
        print(*(f"Drawn: {options.out / name}" for name, is_drawn in pictures.items() if is_drawn), sep="\n")
    return 0


def begin(more: dict[str, str]) -> dict[str, str]:
    """Enter a network of the run's own, and say where that is; nothing before is done only once."""
    facts = machine(enter_network())
    for number in (signal.SIGINT, signal.SIGTERM):  # a run that is broken off still stops its servers
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    print(*(f"{name}: {value}" for name, value in {**facts, **more}.items()), "", sep="\n", flush=True)
    return facts


def write_down(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    path.write_text(json.dumps({"made": made, **document}, indent=1) + "\n")
    print(f"Written: {path}")


def _compare_versions(options: argparse.Namespace, steps: Sequence[tuple[str, int, Step]]) -> int:
    """Measure each step with another version of the library, too, and print how many times as fast this one is."""
    changes = []
    for change in versions.compare(options.old, steps, quick=options.quick):
        print(change, flush=True)
        changes.append(asdict(change))
    write_down({"old": options.old, "changes": changes}, options.out / "versions.json")
    return 0


def _measure(effort: Effort, steps: Sequence[Step]) -> list[Row]:
    from tests.benchmarks.lab import Lab

    rows: list[Row] = []
    show = progress(len(steps))
    with Lab(effort) as lab:
        for step in steps:
            show(step.targets[0].what)
            rows += take(step, lab)
    return rows


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what the stores cost.")
    parser.add_argument("--quick", action="store_true", help="few rounds and small payloads, to try it")
    parser.add_argument("--only", type=_groups, default=USUAL, metavar="GROUPS", help=f"of {','.join(GROUPS)}")
    parser.add_argument("--old", metavar="VERSION", help="compare with the library of a git revision or a checkout")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # see versions.py
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON and PNG")
    return parser.parse_args(arguments)


def _groups(text: str) -> list[str]:
    if unknown := set(text.split(",")) - set(GROUPS):
        raise argparse.ArgumentTypeError(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
