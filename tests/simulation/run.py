"""Runs schedules, minimizes the first that fails, and replays it: see ``make simulate``."""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tests.harness import kafka_model
from tests.harness.scheduler import HangError, Scheduler, scheduled
from tests.simulation.kafka_actors import KafkaRun
from tests.simulation.pulsar_actors import PulsarRun

STEPS = 40
RUNS: dict[str, Any] = {"kafka": KafkaRun, "pulsar": PulsarRun}


@dataclass(frozen=True)
class Schedule:
    """A run that can be repeated: ``kafka-17``, or ``kafka-17-40-3.5`` with 40 steps and without faults 3 and 5."""

    broker: str
    seed: int
    steps: int = STEPS
    dropped: frozenset[int] = frozenset()

    def __str__(self) -> str:
        dropped = ".".join(map(str, sorted(self.dropped)))
        return f"{self.broker}-{self.seed}" + (f"-{self.steps}-{dropped}" if dropped or self.steps != STEPS else "")

    @staticmethod
    def parse(text: str) -> Schedule:
        broker, seed, *rest = text.split("-")
        steps = int(rest[0]) if rest else STEPS
        return Schedule(broker, int(seed), steps, frozenset(map(int, filter(None, "".join(rest[1:]).split(".")))))

    def run(self) -> Result:
        scheduler = Scheduler(self.seed, self.dropped)
        try:
            with scheduled(scheduler, kafka_model.CLIENTS):
                scheduler.run(lambda: self._run(scheduler))
        except (Exception, HangError) as error:
            scheduler.violations.append(f"{error!r}\n{traceback.format_exc(limit=-6)}")
        return Result(self, scheduler.violations[0] if scheduler.violations else "", scheduler.faults)

    def _run(self, scheduler: Scheduler) -> None:
        run = RUNS[self.broker](scheduler)
        for _ in range(self.steps):
            run.step()
            if scheduler.violations:
                return
        run.finish()


@dataclass(frozen=True)
class Result:
    """What a schedule led to: what was wrong first, and the faults that happened, in order."""

    schedule: Schedule
    wrong: str
    faults: list[str]

    @property
    def kept(self) -> list[str]:
        """The faults that were not dropped."""
        return [fault for number, fault in enumerate(self.faults) if number not in self.schedule.dropped]


def minimized(result: Result) -> Result:
    """Drop steps and faults while the schedule still fails."""

    def fails(**changes: Any) -> bool:
        nonlocal result
        smaller = replace(result.schedule, **changes).run()
        result, is_same = (smaller, True) if _kind(smaller) == _kind(result) else (result, False)
        return is_same

    any(fails(steps=steps) for steps in range(0, result.schedule.steps, 4))
    number = 0
    while number < len(result.faults):
        _ = number in result.schedule.dropped or fails(dropped=result.schedule.dropped | {number})
        number += 1
    return result


def _kind(result: Result) -> str:
    """What went wrong, without its numbers."""
    return re.sub(r"\d+|\W+", " ", result.wrong)[:60]


def report(result: Result) -> str:
    return f"{result.wrong}\nfaults: {', '.join(result.kept) or 'none'}\nreplay: make simulate SEED={result.schedule}"


def failure(broker: str, seeds: Iterable[int]) -> str:
    """Run schedules until one fails; returns a report about it."""
    for seed in seeds:
        result = Schedule(broker, seed).run()
        if result.wrong:
            return f"{result.schedule} failed: {result.wrong}\n\nminimized:\n{report(minimized(result))}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="", help="a number to begin at, or a schedule to replay")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--broker", choices=list(RUNS), action="append")
    options = parser.parse_args()
    sys.unraisablehook = lambda unraisable: None  # about coroutines of processes that died
    if "-" in options.seed:
        result = Schedule.parse(options.seed).run()
        print(report(result) if result.wrong else "nothing went wrong")
        sys.exit(bool(result.wrong))
    first = int(options.seed or 0)
    for broker in options.broker or RUNS:
        begin = time.perf_counter()
        if text := failure(broker, range(first, first + options.runs)):
            sys.exit(text)
        rate = options.runs / (time.perf_counter() - begin)
        print(f"{broker}: {options.runs} seeds, nothing went wrong; {rate:.0f} a second")


if __name__ == "__main__":
    main()
