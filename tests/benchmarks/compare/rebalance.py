"""Experiment ``rebalance``: a consumer is killed between the messages of a payload, and another one takes over."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial

from claimcheck._client import ClaimCheck
from claimcheck._wire.envelope import Envelope
from tests.benchmarks.compare.broker import Consumer
from tests.benchmarks.compare.faults import SendingClaimCheck
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Mode, Verdict
from tests.benchmarks.compare.process import Worker
from tests.benchmarks.compare.trial import CHUNKS, Delivery, Trial, until_killed

CLAIMED = {
    "external": "unproblematic",
    "chunking": "the chunks that the old consumer has read are missing for the new one",
}
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


@dataclass(frozen=True, slots=True)
class Takeover:
    """What two consumers of one group received, of which the first was killed.

    Attributes:
        mode: How payloads were sent.
        killed_after: Messages that the first consumer had read.
        inside: Whether a payload was incomplete then.
        sent: The numbers of the payloads in the topic.
        first: The numbers of the payloads that the application of the first consumer received.
        second: The same for the second consumer.
        wrong: How often either received bytes that no one sent, or an error.
    """

    mode: Mode
    killed_after: int
    inside: bool
    sent: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]
    wrong: int = 0

    def _times(self) -> list[int]:
        counts = Counter((*self.first, *self.second))
        return [counts[number] for number in self.sent]

    @property
    def once(self) -> int:
        """Payloads that were received once."""
        return sum(times == 1 for times in self._times())

    @property
    def twice(self) -> int:
        """Payloads that were received more than once."""
        return sum(times > 1 for times in self._times())

    @property
    def lost(self) -> int:
        """Payloads that neither received."""
        return sum(times == 0 for times in self._times())


def run(lab: Lab) -> Experiment:
    """Kill consumers at exact points, in each mode, and let others take over."""
    with ExitStack() as stack:
        groups: list[_Group] = []
        for mode in lab.modes:
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
        return set(self.trial.sizes) <= {*self.first, *(each.number for each in self.found)}

    def takeover(self) -> Takeover:
        """Return the result."""
        return Takeover(
            mode=self.trial.mode,
            killed_after=self.killed_after,
            inside=self.inside,
            sent=tuple(self.trial.sizes),
            first=self.first,
            second=tuple(each.number for each in self.found if each.number is not None),
            wrong=self.wrong + sum(each.number is None for each in self.found),
        )


def _killed(trial: Trial) -> list[_Group]:
    """Send payloads, and kill one consumer in each of several groups."""
    _send_in_pairs(trial)
    # Where no wrapper sees the messages, the process can be killed between payloads only.
    messages = _PAYLOADS if trial.mode == "native" else len(trial.lab.broker.positions(trial.topic, 0))
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
            if number + 1 not in trial.sizes:
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


def _take_over(lab: Lab, groups: Sequence[_Group]) -> list[Takeover]:
    """Receive in all groups at the same time: each has to wait until its dead member is removed."""
    with ExitStack() as stack:
        clients = {
            mode: stack.enter_context(ClaimCheck(group.trial.config))
            for mode, group in {group.trial.mode: group for group in groups}.items()
        }
        consumers = [stack.enter_context(closing(_consumer(group, clients[group.trial.mode]))) for group in groups]
        pairs = list(zip(groups, consumers, strict=True))
        _receive(lab, pairs, _TAKEOVER_SECONDS, until_complete=True)
        _receive(lab, pairs, _LATE_SECONDS, until_complete=False)
    return [group.takeover() for group in groups]


def _consumer(group: _Group, cc: ClaimCheck) -> Consumer:
    trial = group.trial
    return trial.lab.broker.consumer(
        trial.mode, trial.topic, cc, group=group.name, session_seconds=_SESSION_SECONDS
    )  # fmt: skip


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


# The result ----------------------------------------------------------------------------------------------------


def judge(takeovers: Sequence[Takeover]) -> Experiment:
    """Return the result for what was received."""
    modes = list(dict.fromkeys(each.mode for each in takeovers))
    by_mode = {mode: [each for each in takeovers if each.mode == mode] for mode in modes}
    return Experiment(
        name="rebalance",
        title="Group switch in the middle",
        claimed=CLAIMED,
        measured={mode: _line(by_mode[mode]) for mode in modes},
        verdict=_verdict(by_mode),
        explanation=_explanation(by_mode),
        columns=("mode", "killed after messages", "inside a payload", "once", "twice", "lost", "wrong"),
        rows=tuple(map(_row, sorted(takeovers, key=lambda each: (modes.index(each.mode), each.killed_after)))),
        facts={name: value for mode in modes for name, value in _facts(mode, by_mode[mode]).items()},
    )


def _sums(takeovers: Sequence[Takeover]) -> tuple[int, int, int, int]:
    return (
        sum(each.once for each in takeovers), sum(each.twice for each in takeovers),
        sum(each.lost for each in takeovers), sum(each.wrong for each in takeovers),
    )  # fmt: skip


def _line(takeovers: Sequence[Takeover]) -> str:
    once, twice, lost, wrong = _sums(takeovers)
    where = "inside a payload" if takeovers[0].inside else "before the application had the payload"
    line = f"{len(takeovers)} kills {where}: {once} payloads received once, {twice} twice, {lost} lost"
    return f"{line}, {wrong} wrong" if wrong else line


def _verdict(by_mode: dict[Mode, list[Takeover]]) -> Verdict:
    chunking = by_mode.get("chunking", [])
    if not any(each.inside for each in chunking):
        return "not measured"
    _, _, lost, wrong = _sums(chunking)
    others = any(each.lost or each.wrong for each in by_mode.get("external", ()))
    return "agrees" if (lost or wrong) and not others else "disagrees"


def _explanation(by_mode: dict[Mode, list[Takeover]]) -> str:
    faulty = [mode for mode, takeovers in by_mode.items() if any(each.lost or each.wrong for each in takeovers)]
    if faulty:
        return f"After a consumer was killed, payloads were lost or wrong ({', '.join(faulty)})."
    twice = _sums([each for takeovers in by_mode.values() for each in takeovers])[1]
    text = (
        "The consumer never commits beyond the first chunk of an incomplete payload, so the new consumer reads all"
        " chunks again, and nothing is lost."
    )
    return f"{text} {twice} payloads were received twice: delivery is at least once." if twice else text


def _row(each: Takeover) -> tuple[str | float | int | None, ...]:
    inside = "yes" if each.inside else "no"
    return each.mode, each.killed_after, inside, each.once, each.twice, each.lost, each.wrong


def _facts(mode: Mode, takeovers: Sequence[Takeover]) -> dict[str, float]:
    names = ("once", "twice", "lost", "wrong")
    counts = {f"{name}/{mode}": float(count) for name, count in zip(names, _sums(takeovers), strict=True)}
    return {f"kills/{mode}": float(len(takeovers)), **counts}
