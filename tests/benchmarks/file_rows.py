"""The file system store against a plain file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.benchmarks.lab import Lab
from tests.benchmarks.redis_rows import OURS
from tests.benchmarks.rounds import Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast


def steps(effort: Effort) -> list[Step]:
    """List the runs."""
    what = f"file write {size_text(effort.size(64))} without fsync, against open().write"
    return [Step((Target("file-write-64", what, 1.3),), partial(_write, size=effort.size(64)))]


def _write(lab: Lab, size: int) -> Findings:
    store, path, payload = lab.file_store(), lab.folder / "plain", payload_of(size)
    base, ours = compare(
        lab.effort,
        size,
        Variant("open().write", lambda: _plain(path, payload), lambda _: path.unlink()),
        Variant(OURS, lambda: store.write(payload), store.rollback),
    )
    return Findings((times_as_fast(ours, base),), (base, ours), f"on {_kind_of(lab.folder)}; a new file each time")


def _plain(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)


def _kind_of(folder: Path) -> str:
    """The file system that a folder lies on, as the kernel calls it."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [(len(point), kind) for _, point, kind, *_ in mounts if folder.resolve().is_relative_to(point)]
    return max(above)[1]
