"""Experiment ``rebalance``: a consumer is killed between the messages of a payload, and another one takes over."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from claimcheck._client import ClaimCheck
from tests.benchmarks.compare.lab import Lab, Trial, each_mode, numbers_of, until_killed
from tests.benchmarks.compare.model import Experiment, Row, Tally, Verdict
from tests.benchmarks.compare.payloads import Delivery

_PAYLOADS = 4
_KILLS = 20
_OTHER_KILLS = 5
_QUICK_KILLS = 2
_AT_ONCE = 10  # groups: each has to wait until its dead member is removed
_KILL_SECONDS = 60.0
_TAKEOVER_SECONDS = 60.0
_LATE_SECONDS = 0.3


def run(lab: Lab) -> Experiment:
    """Kill consumers at exact points, in each mode, and let others take over."""
    return judge(each_mode(lab, "rebalance", _kills))


def _kills(trial: Trial) -> list[Row]:
    """Send payloads, and kill one consumer in each of several groups."""
    with ClaimCheck(trial.config) as cc:
        trial.send(cc, range(_PAYLOADS))
    messages = len(trial.lab.broker.positions(trial.topic, 0))
    is_chunked = messages > _PAYLOADS
    count = _QUICK_KILLS if trial.lab.quick else _KILLS if is_chunked else _OTHER_KILLS
    points = kill_points(messages, _PAYLOADS, count, trial.lab.rng)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(partial(_take_over, trial, is_chunked), range(count), points))


def kill_points(messages: int, payloads: int, count: int, rng: random.Random) -> list[int]:
    """Return after how many messages to kill: while a payload is incomplete, if payloads have several messages."""
    each = messages // payloads
    points = [number for number in range(1, messages + 1) if each == 1 or number % each]
    rng.shuffle(points)
    return [points[number % len(points)] for number in range(count)]


def _take_over(trial: Trial, is_chunked: bool, number: int, point: int) -> Row:
    """Let a group's first consumer receive until it is killed, and then another one; return what both received."""
    group = f"{trial.topic}-{number}"
    worker = trial.lab.worker("consumer", trial.mode, trial.topic, group=group, kill_after=point, config=trial.config)
    until_killed(worker, lambda: worker.ready().call("receive", count=_PAYLOADS, idle=_KILL_SECONDS))
    found = [trial.checked(each) for each in worker.delivered]

    def is_complete(more: list[Delivery]) -> bool:
        return trial.sent <= set(numbers_of([*found, *more]))

    with ClaimCheck(trial.config) as cc, trial.consumer(cc, group) as consumer:
        found += trial.receive(consumer, is_complete, seconds=_TAKEOVER_SECONDS, late=_LATE_SECONDS, commit=True)
    counts = Counter(numbers_of(found))
    times = [counts[number] for number in trial.sent]
    return {
        "mode": trial.mode,
        "killed after messages": str(point),
        "inside a payload": "yes" if is_chunked else "no",
        "kills": 1,
        "once": times.count(1),
        "twice": sum(each > 1 for each in times),
        "lost": times.count(0),
        "wrong": sum(each.number is None for each in found),
    }


def judge(tally: Tally) -> Experiment:
    """Return the result for what was received."""
    inside = {row["mode"] for row in tally.rows if row["inside a payload"] == "yes"}
    line = "{kills} kills%s: {once} payloads received once, {twice} twice, {lost} lost, {wrong} wrong"
    lines = {mode: line.replace("%s", " inside a payload" if mode in inside else "") for mode in tally.modes}
    faulty = tally.faulty("lost", "wrong")
    verdict: Verdict = "agrees" if "chunking" in faulty and "external" not in faulty else "disagrees"
    why = (
        "The consumer never commits beyond the first chunk of an incomplete payload, so the new consumer reads all"
        " chunks again, and nothing is lost; what was not committed is received twice."
    )
    if faulty:
        why = f"After a consumer was killed, payloads were lost or wrong ({', '.join(faulty)})."
    return tally.experiment("rebalance", lines, verdict if "chunking" in inside else "not measured", why, faults=())
