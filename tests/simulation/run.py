"""Runs schedules, minimizes the first that fails, and replays it: see ``make simulate``."""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.simulation import kafka, kafka_actors, pulsar_actors, pulsar_model
from tests.simulation.scheduler import HangError, Scheduler, scheduled

STEPS = 40
RUNS: dict[str, tuple[Any, Any]] = {
    "kafka": (kafka_actors.KafkaRun, kafka.CLIENTS),
    "pulsar": (pulsar_actors.PulsarRun, pulsar_model.CLIENTS),
}


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
        build, clients = RUNS[self.broker]
        try:
            with scheduled(scheduler, clients):
                run = build(scheduler)
                for _ in range(self.steps):
                    run.step()
                    if scheduler.violations:
                        break
                else:
                    scheduler.is_faulty = False
                    run.finish()
        except (Exception, HangError):
            scheduler.violated(traceback.format_exc(limit=-6))
        return Result(self, scheduler.violations[0] if scheduler.violations else "", scheduler.faults)


@dataclass(frozen=True)
class Result:
    """What a schedule led to: what was wrong first, and the faults that happened, in order."""

    schedule: Schedule
    wrong: str
    faults: list[str]


def minimized(result: Result) -> Result:
    """Drop steps and faults while the schedule still fails."""
    schedule = result.schedule
    for steps in range(0, schedule.steps, 4):
        shorter = Schedule(schedule.broker, schedule.seed, steps, schedule.dropped).run()
        if _kind(shorter) == _kind(result):
            result = shorter
            break
    number, kind = 0, _kind(result)
    while number < len(result.faults):
        if number not in result.schedule.dropped:
            kept = result.schedule
            fewer = Schedule(kept.broker, kept.seed, kept.steps, kept.dropped | {number}).run()
            result = fewer if _kind(fewer) == kind else result
        number += 1
    return result


def _kind(result: Result) -> str:
    """What went wrong, without its numbers."""
    return re.sub(r"\d+|\W+", " ", result.wrong)[:60]


def report(result: Result) -> str:
    kept = [fault for number, fault in enumerate(result.faults) if number not in result.schedule.dropped]
    return f"{result.wrong}\nfaults: {', '.join(kept) or 'none'}\nreplay: make simulate SEED={result.schedule}"


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
