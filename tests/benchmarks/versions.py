"""The same rows with two versions of the library in one run: each round is measured with one, then with the other.

Each version works in a process of its own, with servers of its own, and waits there for its turn; see `rounds.turn`.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks import rounds
from tests.benchmarks.children import Child, ChildError
from tests.benchmarks.picture import is_ours
from tests.benchmarks.rounds import FULL, QUICK, interval
from tests.benchmarks.rows import Step, take

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROUNDS = 9
# The editable installation would add the modules of this version that the old one lacks, in this process and its own.
_ALONE = 'import sys\nsys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in each.__module__]\n'


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
            options = ("--serve", f"{group}:{number}", *(["--quick"] if quick else []))
            yield from _changes(step.targets[0].what, *_alternated(places, options))


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
    (folder / "sitecustomize.py").write_text(_ALONE)
    return folder


def _alternated(places: Sequence[Path], options: Sequence[str]) -> list[dict[str, Any]]:
    """Give turns, each beginning in its turn, until all have finished; returns what they found."""
    with ExitStack() as stack:
        results: dict[Path, dict[str, Any]] = {}
        children = {
            place: stack.enter_context(
                Child(sys.executable, HERE / "bench.py", *options, env={**os.environ, "PYTHONPATH": str(place)})
            )
            for place in places
        }
        for number, place in ((turn, each) for turn in itertools.count() for each in rounds.rotated(places, turn)):
            if place not in results:
                try:
                    answer = children[place].ask("next") if number else children[place].answer()
                except ChildError as error:
                    answer = {"note": str(error), "series": {}}
                if "series" in answer:
                    results[place] = answer
            if len(results) == len(places):
                break
    return [results[place] for place in places]


def _changes(what: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    notes = [f"{name}: {each['note']}" for name, each in (("old", old), ("new", new)) if not each["series"]]
    if notes:
        yield Change(what, "", None, note=notes[0])
    for name in filter(is_ours, new["series"]):
        pairs = zip(old["series"].get(name, ()), new["series"][name], strict=False)
        if ratios := [before / after for before, after in pairs]:
            yield Change(what, name, statistics.median(ratios), *interval(ratios))


def serve(step: Step, *, quick: bool) -> None:
    """Measure one step, each round when standard input has a line; prints the seconds of each round as JSON."""
    from tests.benchmarks.lab import Lab

    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a client prints

    def turn() -> None:
        out.write("{}\n")
        if not sys.stdin.readline():
            sys.exit(1)

    rounds.turn = turn
    with Lab(QUICK if quick else replace(FULL, seconds=0, least=ROUNDS, most=ROUNDS)) as lab:
        found = take(step, lab)[0]
    series = {each.name: [sample.seconds for sample in each.samples] for each in found.series}
    out.write(json.dumps({"note": found.note, "series": series}) + "\n")
