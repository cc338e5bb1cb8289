"""The same rows with two versions of the library in one run: each round is measured with one, then with the other.

Each version works in a process of its own, with servers of its own, and waits there for its turn; see `rounds.turn`.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks import rounds
from tests.benchmarks.children import ROOT, Child, ChildError
from tests.benchmarks.picture import is_ours
from tests.benchmarks.rounds import Effort, interval
from tests.benchmarks.rows import steps_of, take

ROUNDS = 9
# The editable installation would add the modules of this version that the old one lacks.
_ALONE = 'import sys\nsys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in each.__module__]\n'


class Found(NamedTuple):
    """The seconds of each round by series, or a note: the figure of a row without rounds, or why there is none."""

    series: dict[str, list[float]]
    note: str = ""


class Change(NamedTuple):
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


def compare(old: str, groups: Sequence[str], effort: Effort) -> Iterator[Change]:
    """Measure the rows of some groups with a revision or checkout and with this one."""
    with tempfile.TemporaryDirectory(prefix="claimcheck-versions-") as folder:
        places = [install(version, Path(folder, name)) for name, version in (("old", old), ("new", str(ROOT)))]
        for group in groups:
            for number, step in enumerate(steps_of(group, effort)):
                print(f"{group}: {step.rows[0]}", file=sys.stderr, flush=True)
                yield from _changes(step.rows[0], *_alternated(places, group, number, effort))


def install(version: str, folder: Path) -> Path:
    """Copy the library of a checkout or a revision into a folder that can be imported from."""
    source = Path(version)
    if not source.is_dir():
        source = folder / "revision"
        source.mkdir(parents=True)
        command = ["git", "-C", str(ROOT), "archive", version, "claimcheck", "stores"]
        archive = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    shutil.copytree(source / "claimcheck", folder / "claimcheck")
    shutil.copytree(source / "stores", folder / "claimcheck" / "stores", dirs_exist_ok=True)
    (folder / "sitecustomize.py").write_text(_ALONE)
    return folder


def _alternated(places: Sequence[Path], group: str, number: int, effort: Effort) -> list[Found]:
    """Give turns, each beginning in its turn, until all have finished; returns what they found."""
    results: dict[Path, Found] = {}
    with ExitStack() as stack:
        children = {place: stack.enter_context(Child(serve, group, number, effort, path=(place,))) for place in places}
        for turn in itertools.count():
            for place in rounds.rotated(places, turn):
                if place not in results and (found := _turn(children[place], is_first=not turn)):
                    results[place] = found
            if len(results) == len(places):
                break
    return [results[place] for place in places]


def _turn(child: Child, *, is_first: bool) -> Found | None:
    """Let a child measure one round; returns what it found, once it has finished."""
    try:
        if not is_first:
            child.send("next")
        answer = child.answer()
    except ChildError as error:
        return Found({}, str(error))
    return answer if isinstance(answer, Found) else None


def _changes(what: str, old: Found, new: Found) -> Iterator[Change]:
    notes = [f"{name}: {each.note}" for name, each in (("old", old), ("new", new)) if not each.series]
    if notes:
        yield Change(what, "", None, note="; ".join(notes))
    for name in filter(is_ours, new.series):
        pairs = zip(old.series.get(name, ()), new.series[name], strict=False)
        if ratios := [before / after for before, after in pairs]:
            yield Change(what, name, statistics.median(ratios), *interval(ratios))


def serve(pipe: Connection, group: str, number: int, effort: Effort) -> None:
    """Measure one step, each round when the parent sends something, and send what was found."""
    from tests.benchmarks.lab import Lab

    def turn() -> None:
        pipe.send("ready")
        pipe.recv()

    rounds.turn = turn
    if not effort.is_quick:
        effort = replace(effort, seconds=0, least=ROUNDS, most=ROUNDS)
    with Lab(effort) as lab:
        row = take(steps_of(group, effort)[number], lab)[0]
    note = row.note if row.series or row.measured is None else row.figure
    pipe.send(Found({each.name: [sample.seconds for sample in each.samples] for each in row.series}, note))
