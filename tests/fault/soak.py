"""Senders and receivers for hours, with lines that break and stores that go away: does anything grow?

    python -m tests.fault.soak --hours 2 --out soak.png

Kafka with Redis and Pulsar with S3, a sender and a receiver in one process each. Every minute a line is cut or a store
is out of reach for some seconds, which the strategy `hybrid` bridges with chunks; a sweep deletes expired payloads.
Memory, descriptors, sockets, threads and what is allocated are read every five seconds. SIGTERM ends it early.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.picture import pyplot
from tests.fault.pipeline import THRESHOLD_BYTES, Journal, Pipeline
from tests.fault.random_faults import Lab, lab

EVERY_SECONDS = 5.0
FAULT_EVERY_SECONDS = 60.0
TTL_SECONDS = 120
WARM_UP = 0.15  # of the time, which no slope includes
RAPID = 10_500  # payloads in chunks at the beginning: a consumer remembers 10,000 that it has delivered
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
BLOCK = 24  # samples whose mean counts as one, since neighbors depend on each other
QUANTITIES: dict[str, Callable[[int], float]] = {
    "memory (MiB)": lambda pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 2**20,
    "descriptors": lambda pid: len(os.listdir(f"/proc/{pid}/fd")),
    "sockets": lambda pid: sum(target.startswith("socket") for target in _targets(pid)),
    "threads": lambda pid: len(os.listdir(f"/proc/{pid}/task")),
}
TOLD = {"allocated by malloc (MiB)": ("malloc", 2.0**20), "Python's blocks": ("blocks", 1.0)}
"""What the process tells of itself, and the unit."""


def _targets(pid: int) -> list[str]:
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(each.readlink()))
    return found


class Soak:
    """One process that sends and receives, and what was measured of it."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        topic = f"soak-{lab.name}-{time.time_ns()}"
        lab.prepare(topic)
        given = asdict(lab.pipeline(topic, seed))
        given["config"] |= {"strategy": "hybrid", "chunking": {"expire_after_seconds": 30}}
        given["config"]["hybrid"] = {"chunk_below_bytes": THRESHOLD_BYTES + 100}
        given["config"]["stores"]["m"]["ttl_seconds"] = TTL_SECONDS
        self.pipeline = Pipeline(**given | {"pause": 0.4, "rapid": RAPID})
        self.journal = Journal(self.pipeline.journal)
        specification = lab.folder / "soak.json"
        specification.write_text(json.dumps(asdict(self.pipeline)))
        self._log = (lab.folder / "soak.log").open("wb")
        command = [sys.executable, "-m", "tests.fault.pipeline", "both", str(specification)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self.samples: dict[str, list[float]] = {name: [] for name in (*QUANTITIES, *TOLD)}

    def sample(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"the process has ended:\n{(self.lab.folder / 'soak.log').read_text()[-3000:]}")
        for name, read in QUANTITIES.items():
            self.samples[name].append(read(self.process.pid))
        with contextlib.suppress(IndexError):  # nothing was told yet
            counts = self.counts()[1]
            for name, (key, unit) in TOLD.items():
                self.samples[name].append(counts[key] / unit)

    def disturb(self, rng: random.Random) -> None:
        """Cut a line, or let the store be out of reach; then delete what has expired."""
        line = rng.choice([self.lab.broker_line, self.lab.store_line])
        if rng.random() < 0.3:
            line = self.lab.store_line
            line.die()
            time.sleep(rng.uniform(1, 5))
            line.revive()
        elif rng.random() < 0.5:
            line.cut()
        else:
            line.reset()
        if self.lab.name != "kafka":
            self.pipeline.cc.sweep("m", grace_seconds=0, dry_run=False)

    def counts(self) -> tuple[int, dict[str, int]]:
        """Return how many are on their way, and how many were sent and received."""
        _, (waiting, counts) = self.journal.lines("counts", "end")[-1]
        return int(waiting), json.loads(counts)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


def slope(values: list[float]) -> tuple[float, float]:
    """Return the growth per hour and half the width of its 95 % interval, after the time of warming up."""
    kept = values[int(len(values) * WARM_UP) :]
    means = [statistics.fmean(kept[at : at + BLOCK]) for at in range(0, len(kept) - BLOCK + 1, BLOCK)]
    if len(means) < 4:
        return math.nan, math.nan
    hours = [at * BLOCK * EVERY_SECONDS / 3600 for at in range(len(means))]
    growth, start = statistics.linear_regression(hours, means)
    rest = [value - start - growth * hour for hour, value in zip(hours, means, strict=True)]
    spread = math.sqrt(sum(each**2 for each in rest) / (len(means) - 2))
    width = 2.1 * spread / math.sqrt(sum((hour - statistics.fmean(hours)) ** 2 for hour in hours))
    return growth, width


def draw(soaks: list[Soak], path: Path, hours: float) -> None:
    """One panel for each quantity, one line for each process."""
    figure, places = pyplot().subplots(len(soaks[0].samples), 1, figsize=(9, 10), layout="constrained", sharex=True)
    for axes, name in zip(places, soaks[0].samples, strict=True):
        for soak, color in zip(soaks, ("#0072b2", "#b85a00"), strict=False):
            values = soak.samples[name]
            growth, width = slope(values)
            label = f"{soak.lab.__doc__} {growth:+.2g} ± {width:.2g} per hour"
            axes.plot([at * EVERY_SECONDS / 60 for at in range(len(values))], values, color=color, lw=1, label=label)
        axes.set_ylim(bottom=0)
        axes.set_title(name, loc="left", fontsize=10)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8, frameon=False, borderpad=0)
    places[-1].set_xlabel("minutes")
    figure.suptitle(f"{hours:g} hours of sending and receiving with a fault every minute", x=0.01, ha="left")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hours", type=float, default=0.05)
    parser.add_argument("--out", default="soak.png")
    options = parser.parse_args()
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    rng, wrong = random.Random(0), []
    with contextlib.ExitStack() as stack:
        soaks = [Soak(stack.enter_context(lab(name)), 0) for name in ("kafka", "pulsar")]
        for soak in soaks:
            stack.callback(soak.stop)
        ending: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
        begin = time.monotonic()
        end, fault, number = begin + options.hours * 3600, begin + FAULT_EVERY_SECONDS, 0
        while (now := time.monotonic()) < end and not ending:
            for soak in soaks:
                soak.sample()
            number += 1
            if now > fault:
                fault += FAULT_EVERY_SECONDS
                rng.choice(soaks).disturb(rng)
                line = "; ".join(f"{soak.lab.name} {soak.counts()}" for soak in soaks)
                print(f"{(now - begin) / 60:6.1f} min  {line}", flush=True)
            time.sleep(max(0.0, begin + number * EVERY_SECONDS - time.monotonic()))
        for soak in soaks:
            soak.stop()
            waiting, counts = soak.counts()
            if waiting or counts.get("wrong"):
                wrong.append(f"{soak.lab.name}: {waiting} never came, {counts.get('wrong', 0)} are wrong")
            print(f"{soak.lab.name}: {counts}, {waiting} never came")
        draw(soaks, Path(options.out), round((time.monotonic() - begin) / 3600, 1))
    print("| | slope per hour, with its 95 % interval |\n|---|---|")
    found: dict[str, Any] = {}
    for soak in soaks:
        for name, values in soak.samples.items():
            growth, width = slope(values)
            found[f"{soak.lab.name} {name}"] = values
            print(f"| {soak.lab.name}, {name} | {growth:+.3g} ± {width:.2g} (mean {statistics.fmean(values):.1f}) |")
    Path(options.out).with_suffix(".json").write_text(json.dumps(found))
    sys.exit("; ".join(wrong) or 0)


if __name__ == "__main__":
    main()
