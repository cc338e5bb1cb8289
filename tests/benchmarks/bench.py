"""Measure what the stores cost, print it against its targets, and write it down.

    python tests/benchmarks/bench.py [--quick] [--only redis,s3] [--out FOLDER] [--old VERSION]

It starts its own servers and stops them again; redis-server and cc must be on PATH, or the rows that need them are not
measured and say so. A missed target is a result, not a failure.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

from tests.benchmarks import (
    check_rows,
    kafka_rows,
    line_rows,
    many_rows,
    memory_rows,
    network,
    path_rows,
    pause_rows,
    pulsar_rows,
    redis_rows,
    s3_rows,
    spark_rows,
    spark_source_rows,
    versions,
)
from tests.benchmarks.lab import Lab
from tests.benchmarks.machine import machine
from tests.benchmarks.picture import draw
from tests.benchmarks.report import METHOD, behind, count, progress, table
from tests.benchmarks.rounds import FULL, QUICK, Effort
from tests.benchmarks.rows import Row, Rows, take

GROUPS: dict[str, Rows] = {
    "redis": redis_rows.ROWS,
    "s3": s3_rows.ROWS,
    "file": check_rows.FILE,
    "checks": check_rows.CHECKS,
    "memory": memory_rows.ROWS,
    "path": path_rows.ROWS,
    "many": many_rows.ROWS,
    "pauses": pause_rows.ROWS,
    "line": line_rows.ROWS,
    "pulsar": pulsar_rows.ROWS,
    "kafka": kafka_rows.ROWS,
    "spark": spark_rows.ROWS,
    "spark-source": spark_source_rows.ROWS,
}
# The others need more than that, or longer: make bench-line, bench-many, bench-pulsar, bench-kafka, bench-spark.
USUAL = [name for name in GROUPS if name not in ("line", "many", "pauses", "pulsar", "kafka", "spark", "spark-source")]
NO_MEANING = "Quick: few rounds and small payloads, to try the machinery. The figures mean nothing."


def main(arguments: Sequence[str]) -> int:
    """Measure and report."""
    options = _options(arguments)
    if options.serve:
        group, number = options.serve.split(":")
        versions.serve(GROUPS[group].steps(QUICK if options.quick else FULL)[int(number)], quick=options.quick)
        return 0
    where = network.enter()  # nothing before this line is done only once
    for number in (signal.SIGINT, signal.SIGTERM):  # a run that is broken off still stops its servers
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    effort = QUICK if options.quick else FULL
    facts = machine(where)
    print(
        *(f"{name}: {value}" for name, value in facts.items()),
        *([NO_MEANING] if options.quick else []),
        "",
        sep="\n",
        flush=True,
    )
    if options.old:
        return _compare_versions(options)
    rows = _measure(effort, options.only)
    print(METHOD, "", *table(rows), *behind(rows), "", count(rows), sep="\n")
    document = {"machine": facts, "method": METHOD, "quick": options.quick, "groups": options.only}
    _write_down(rows, {"made": datetime.now(UTC).isoformat(timespec="seconds"), **document}, options.out)
    return 0


def _compare_versions(options: argparse.Namespace) -> int:
    """Measure each step with another version of the library, too, and print how many times as fast this one is."""
    effort = QUICK if options.quick else FULL
    steps = [(name, *step) for name in options.only for step in enumerate(GROUPS[name].steps(effort))]
    changes = []
    for change in versions.compare(options.old, steps, quick=options.quick):
        print(change, flush=True)
        changes.append(asdict(change))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "versions.json").write_text(json.dumps({"old": options.old, "changes": changes}, indent=1) + "\n")
    return 0


def _measure(effort: Effort, groups: Sequence[str]) -> list[Row]:
    steps = [step for group in groups for step in GROUPS[group].steps(effort)]
    rows: list[Row] = []
    show = progress(len(steps))
    with Lab(effort) as lab:
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
    parser.add_argument("--old", metavar="VERSION", help="compare with the library of a git revision or a checkout")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # see versions.py
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON and PNG")
    return parser.parse_args(arguments)


def _groups(text: str) -> list[str]:
    unknown = set(text.split(",")) - set(GROUPS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
