"""The same rows with two versions of the library in one run: each round is measured with one, then with the other.

Each version works in a process of its own, with servers of its own, and waits there for its turn; see `rounds.turn`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks import rounds
from tests.benchmarks.compare.stats import interval
from tests.benchmarks.lab import HERE, Lab
from tests.benchmarks.picture import is_ours
from tests.benchmarks.rounds import FULL, QUICK, Effort
from tests.benchmarks.rows import Step, take

ROOT = HERE.parents[1]
ROUNDS = 9
_READY = "ready"


@dataclass(frozen=True, slots=True)
class Change:
    """How many times as fast the new version is in one series, with its 95 % interval; or why that is not known."""

    what: str
    series: str
    ratio: float | None
    low: float = 0.0
    high: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        found = self.note if self.ratio is None else f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"
        return f"{self.what} | {self.series} | {found}"


def compare(old: str, steps: Sequence[tuple[str, int, Step]], *, quick: bool) -> Iterator[Change]:
    """Measure steps, given by group and number, with a revision or checkout and with this one."""
    with tempfile.TemporaryDirectory(prefix="claimcheck-versions-") as folder:
        places = [install(version, Path(folder, name)) for name, version in (("old", old), ("new", str(ROOT)))]
        for group, number, step in steps:
            print(f"{group}: {step.targets[0].what}", file=sys.stderr, flush=True)
            results = _alternated([_Child(place, f"{group}:{number}", quick=quick) for place in places])
            yield from _changes(step.targets[0].what, *results)


def install(version: str, folder: Path) -> Path:
    """Copy the library of a checkout or a revision into a folder that can be imported from."""
    source = Path(version)
    if not source.is_dir():
        source = folder / "revision"
        source.mkdir(parents=True)
        archive = subprocess.run(["git", "-C", ROOT, "archive", version, "claimcheck", "stores"], check=True,
                                 stdout=subprocess.PIPE)  # fmt: skip
        subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    shutil.copytree(source / "claimcheck", folder / "claimcheck")
    shutil.copytree(source / "stores", folder / "claimcheck" / "stores", dirs_exist_ok=True)
    return folder


class _Child:
    """A process that measures one step with the library of a folder, one round whenever it is told to."""

    def __init__(self, folder: Path, step: str, *, quick: bool) -> None:
        command = [sys.executable, str(HERE / "bench.py"), "--serve", step, *(["--quick"] if quick else [])]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self.result: dict[str, Any] | None = None

    def wait(self) -> None:
        """Wait until it is ready for another round, or has finished."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line != _READY:
            self.result = json.loads(line) if line else {"note": "its process ended", "series": {}}

    def round(self) -> None:
        """Have it measure one round."""
        assert self._process.stdin is not None
        if self.result is None:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self.wait()

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def _alternated(children: Sequence[_Child]) -> list[dict[str, Any]]:
    """Give turns, each beginning in its turn, until all have finished; returns what they found."""
    for child in children:
        child.wait()
    order = list(children)
    while any(child.result is None for child in children):
        for child in order:
            child.round()
        order.reverse()
    for child in children:
        child.close()
    return [child.result or {} for child in children]


def _changes(what: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    notes = [each["note"] for each in (old, new) if not each["series"]]
    if notes:
        yield Change(what, "", None, note=notes[0])
    for name in filter(is_ours, new["series"]):
        pairs = zip(old["series"].get(name, ()), new["series"][name], strict=False)
        ratios = [before / after for before, after in pairs]
        if ratios:
            yield Change(
                what, name, statistics.median(ratios), *interval([[each] for each in ratios], statistics.median)
            )


def serve(step: Step, *, quick: bool) -> None:
    """Measure one step, each round when standard input has a line; prints the seconds of each round as JSON."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a client prints

    def turn() -> None:
        out.write(_READY + "\n")
        if not sys.stdin.readline():
            sys.exit(1)

    rounds.turn = turn
    effort: Effort = QUICK if quick else replace(FULL, seconds=0, least=ROUNDS, most=ROUNDS)
    with Lab(effort) as lab:
        found = take(step, lab)[0]
    series = {each.name: [sample.seconds for sample in each.samples] for each in found.series}
    out.write(json.dumps({"note": found.note, "series": series}) + "\n")
