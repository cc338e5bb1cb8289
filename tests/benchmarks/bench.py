"""Measure what the library costs, print it, and write it down.

    python tests/benchmarks/bench.py [--quick] [--only redis,s3] [--out FOLDER] [--old VERSION]

It starts its own servers and stops them again; rows whose servers or programs are missing say so.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

from tests.benchmarks import versions
from tests.benchmarks.children import machine
from tests.benchmarks.rounds import FULL, QUICK, Effort
from tests.benchmarks.rows import GROUPS, METHOD, Row, report, steps_of, take

# The others need more servers, or longer: make bench-line, bench-many, bench-pulsar, bench-kafka, bench-spark.
USUAL = ["redis", "s3", "file", "memory", "path"]
NO_MEANING = "Quick: few rounds and small payloads, to try the machinery. The figures mean nothing."


def main(arguments: Sequence[str]) -> None:
    """Measure and report."""
    options = _options(arguments)
    facts = machine()
    end_on_signals()
    print(*(f"{name}: {value}" for name, value in facts.items()), *([NO_MEANING] if options.quick else []), sep="\n")
    effort = QUICK if options.quick else FULL
    if options.old:
        _compare_versions(options, effort)
        return
    rows = _measure(effort, options.only)
    print("", METHOD, "", *report(rows), sep="\n")
    found = {"method": METHOD, "quick": options.quick, "groups": options.only, "rows": [row.as_dict() for row in rows]}
    write({"machine": facts, **found}, options.out / "bench.json")


def end_on_signals() -> None:
    """End with what signals ask for: a run that is broken off still stops its servers and removes what it made."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # further ones must not interrupt that
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def _compare_versions(options: argparse.Namespace, effort: Effort) -> None:
    """Measure each step with another version of the library, too, and print how many times as fast this one is."""
    changes = []
    for change in versions.compare(options.old, options.only, effort):
        print(change, flush=True)
        changes.append(change._asdict())
    write({"old": options.old, "changes": changes}, options.out / "versions.json")


def _measure(effort: Effort, groups: Sequence[str]) -> list[Row]:
    from tests.benchmarks.lab import Lab

    rows: list[Row] = []
    steps, begin = [step for group in groups for step in steps_of(group, effort)], time.monotonic()
    with Lab(effort) as lab:
        for number, step in enumerate(steps, 1):
            state = f"[{number:3}/{len(steps)}] {time.monotonic() - begin:4.0f} s"
            print(f"{state}  {step.rows[0]}", file=sys.stderr, flush=True)
            rows += take(step, lab)
    return rows


def write(document: dict[str, Any], path: Path) -> None:
    """Write a run's results, and when it ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    path.write_text(json.dumps({"made": made, **document}, indent=1) + "\n")
    print(f"Written: {path}")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what the library costs.")
    parser.add_argument("--quick", action="store_true", help="few rounds and small payloads, to try it")
    parser.add_argument("--only", type=_groups, default=USUAL, metavar="GROUPS", help=f"of {','.join(GROUPS)}")
    parser.add_argument("--old", metavar="VERSION", help="compare with the library of a git revision or a checkout")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for the JSON")
    return parser.parse_args(arguments)


def _groups(text: str) -> list[str]:
    if unknown := set(text.split(",")) - set(GROUPS):
        raise argparse.ArgumentTypeError(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    return text.split(",")


if __name__ == "__main__":
    main(sys.argv[1:])
