"""Experiment ``rebalance``: a consumer is killed between the messages of a payload, and another one takes over."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from claimcheck._client import ClaimCheck
from claimcheck._wire.envelope import Envelope
from tests.benchmarks.compare.broker import Consumer
from tests.benchmarks.compare.faults import SendingClaimCheck
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Row, Tally, Verdict
from tests.benchmarks.compare.trial import CHUNKS, Delivery, Trial, numbers_of, until_killed
from tests.benchmarks.compare.worker import Worker

_PAYLOADS = 4
_KILLS = 20
_OTHER_KILLS = 5
_QUICK_KILLS = 2
_WORKERS = 10
_SESSION_SECONDS = 2.0
_KILL_SECONDS = 60.0
_TAKEOVER_SECONDS = 60.0
_LATE_SECONDS = 0.3
_STEP_SECONDS = 0.02


def run(lab: Lab) -> Experiment:
    """Kill consumers at exact points, in each mode, and let others take over."""
    with ExitStack() as stack:
        groups: list[_Group] = []
        for mode in lab.strategies:
            lab.progress(f"{mode}, consumers that are killed")
            groups += _killed(stack.enter_context(Trial.of(lab, mode, "rebalance")))
        lab.progress(f"{len(groups)} consumers take over")
        return judge(_take_over(lab, groups))


def kill_points(messages: int, payloads: int, count: int, rng: random.Random) -> list[int]:
    """Return after how many messages to kill: while a payload is incomplete, if payloads have several messages."""
    pair = 2 * messages // payloads
    points = [number for number in range(1, messages) if number % pair] if pair > 2 else list(range(1, payloads + 1))
    rng.shuffle(points)
    return [points[number % len(points)] for number in range(count)]


# The consumers that are killed ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """One consumer group: its first consumer was killed."""

    trial: Trial
    name: str
    killed_after: int
    inside: bool
    first: tuple[int, ...]
    wrong: int
    found: list[Delivery] = field(default_factory=list)

    def is_complete(self) -> bool:
        """Whether every payload was received by one of the consumers."""
        return self.trial.sent <= {*self.first, *numbers_of(self.found)}

    def row(self) -> Row:
        """Return what both consumers received."""
        counts = Counter((*self.first, *numbers_of(self.found)))
        times = [counts[number] for number in self.trial.sent]
        return {
            "mode": self.trial.mode,
            "killed after messages": str(self.killed_after),
            "inside a payload": "yes" if self.inside else "no",
            "kills": 1,
            "once": times.count(1),
            "twice": sum(each > 1 for each in times),
            "lost": times.count(0),
            "wrong": self.wrong + sum(each.number is None for each in self.found),
        }


def _killed(trial: Trial) -> list[_Group]:
    """Send payloads, and kill one consumer in each of several groups."""
    _send_in_pairs(trial)
    messages = len(trial.lab.broker.positions(trial.topic, 0))
    chunked = messages > _PAYLOADS
    count = _QUICK_KILLS if trial.lab.quick else _KILLS if chunked else _OTHER_KILLS
    points = list(enumerate(kill_points(messages, _PAYLOADS, count, trial.lab.rng)))
    groups: list[_Group] = []
    for begin in range(0, len(points), _WORKERS):
        if groups and trial.lab.is_late:
            break
        workers = [_started(trial, number, point) for number, point in points[begin : begin + _WORKERS]]
        with ThreadPoolExecutor(_WORKERS) as threads:
            groups += threads.map(partial(_killed_one, trial, chunked), workers)
    return groups


def _send_in_pairs(trial: Trial) -> None:
    """Send the second payload of each pair between the chunks of the first one.

    So a consumer commits the second while the first is incomplete. Payloads without chunks are sent in turn.
    """
    with ClaimCheck(trial.config) as cc, trial.producer(cc) as other:
        for number in range(0, _PAYLOADS, 2):
            second = partial(trial.send_or_raise, other, number + 1)
            with SendingClaimCheck(trial.config, partial(_between, second)) as pairing:
                trial.send_all(pairing, [number])
            if number + 1 not in trial.sent:
                second()


def _between(send: Callable[[], None], number: int, envelope: Envelope) -> Envelope:
    if number == CHUNKS // 2:
        send()
    return envelope


def _started(trial: Trial, number: int, point: int) -> Worker:
    return trial.lab.worker(
        "consumer",
        trial.mode,
        trial.topic,
        group=f"{trial.topic}-{number}",
        kill_after=point,
        session_seconds=_SESSION_SECONDS,
        config=trial.config,
        wait=False,
    )


def _killed_one(trial: Trial, inside: bool, worker: Worker) -> _Group:
    """Receive until the consumer is killed; return what it had delivered."""
    worker.ready()
    until_killed(worker, partial(worker.receive, _PAYLOADS, idle=_KILL_SECONDS, commit="each"))
    numbers = [each.number for each in worker.delivered if each.correct and each.number is not None]
    wrong = len(worker.delivered) - len(numbers)
    return _Group(trial, worker.spec.group, worker.spec.kill_after or 0, inside, tuple(numbers), wrong)


# The consumers that take over ----------------------------------------------------------------------------------


def _take_over(lab: Lab, groups: Sequence[_Group]) -> Tally:
    """Receive in all groups at the same time: each has to wait until its dead member is removed."""
    with ExitStack() as stack:
        clients = {
            mode: stack.enter_context(ClaimCheck(group.trial.config))
            for mode, group in {group.trial.mode: group for group in groups}.items()
        }
        consumers = [
            stack.enter_context(group.trial.consumer(clients[group.trial.mode], group.name, _SESSION_SECONDS))
            for group in groups
        ]
        pairs = list(zip(groups, consumers, strict=True))
        _receive(lab, pairs, _TAKEOVER_SECONDS, until_complete=True)
        _receive(lab, pairs, _LATE_SECONDS, until_complete=False)
    return Tally([group.row() for group in groups])


def _receive(lab: Lab, pairs: Sequence[tuple[_Group, Consumer]], seconds: float, *, until_complete: bool) -> None:
    end = lab.clock() + seconds
    while lab.clock() < end:
        waiting = [pair for pair in pairs if not (until_complete and pair[0].is_complete())]
        if not waiting:
            return
        for group, consumer in waiting:
            received = consumer.receive(_STEP_SECONDS)
            if received is not None:
                group.found.append(group.trial.identify(received))
                consumer.commit(received)


# The result ------------------------------------------------------------------------------------------------------


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
