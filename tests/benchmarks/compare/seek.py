"""Experiment ``seek``: what a consumer receives after its position was moved into the middle of a payload, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from claimcheck._client import ClaimCheck
from tests.benchmarks.compare.broker import Consumer
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import MODES, Experiment, Mode, Verdict
from tests.benchmarks.compare.trial import Delivery, Trial

CLAIMED = {
    "external": "unproblematic: each message is whole",
    "chunking": "a jump into the middle of a payload loses it, or needs care",
}
_PAYLOADS = 4
_SECONDS = 10.0
_LATE_SECONDS = 0.05

Position = int | str


@dataclass(frozen=True, slots=True)
class Target:
    """Where to move the consumer.

    Attributes:
        position: Of a message.
        payload: The number of the payload that the message belongs to.
        inside: Whether it is a later message of that payload, not its first.
    """

    position: Position
    payload: int
    inside: bool


@dataclass(frozen=True, slots=True)
class Jump:
    """What a consumer received after one seek.

    Attributes:
        mode: How payloads were sent.
        target: Where it was moved.
        last: The number of the topic's last payload.
        received: The numbers of the payloads that it received, in order.
        wrong: How often it received bytes that no one sent.
        errors: How often it received an error instead of a payload.
    """

    mode: Mode
    target: Target
    last: int
    received: tuple[int, ...]
    wrong: int = 0
    errors: int = 0

    @property
    def expected(self) -> int:
        """Payloads of which at least one message is at or behind the position."""
        return self.last - self.target.payload + 1

    @property
    def delivered(self) -> int:
        """Those of them that were received."""
        return sum(number >= self.target.payload for number in set(self.received))

    @property
    def skipped(self) -> int:
        """1 if the payload that the seek led into was not received."""
        return int(self.target.inside and self.target.payload not in self.received)

    @property
    def lost(self) -> int:
        """Payloads that begin at or behind the position and were not received."""
        return self.expected - self.delivered - self.skipped

    @property
    def misplaced(self) -> int:
        """Payloads that end before the position, or were received more than once."""
        repeated = sum(count - 1 for count in Counter(self.received).values())
        return repeated + sum(number < self.target.payload for number in set(self.received))


def run(lab: Lab) -> Experiment:
    """Move a consumer into the middle of payloads and back to their beginning, in each mode."""
    jumps: list[Jump] = []
    for mode in lab.modes:
        lab.progress(f"{mode}, into the middle of a payload and back")
        with Trial.of(lab, mode, "seek") as trial:
            jumps += _jumps(trial)
    return judge(jumps)


def _jumps(trial: Trial) -> list[Jump]:
    broker = trial.lab.broker
    ends = []
    with ClaimCheck(trial.config) as cc:
        with trial.producer(cc) as producer:
            for number in range(_PAYLOADS):
                trial.send_or_raise(producer, number)
                ends.append(len(broker.positions(trial.topic, 0)))
        targets = plan(broker.positions(trial.topic, 0), ends)
        with trial.consumer(cc, group="seek") as consumer:
            return [_jump(trial, consumer, target) for target in targets]


def plan(positions: Sequence[Position], ends: Sequence[int]) -> list[Target]:
    """Return where to move: into the middle of each payload, to its last message, and back to its beginning.

    The last payload is not a target: receiving it shows that nothing else follows.
    """
    targets = []
    for number, (place, following) in enumerate(pairwise([0, *ends[:-1]])):
        inside = sorted({(place + following) // 2, following - 1} - {place})
        targets += [Target(positions[at], number, inside=True) for at in inside]
        targets.append(Target(positions[place], number, inside=False))
    return targets


def _jump(trial: Trial, consumer: Consumer, target: Target) -> Jump:
    last = _PAYLOADS - 1
    consumer.seek(0, target.position)
    found = trial.receive(consumer, lambda found: _is_complete(found, target), seconds=_SECONDS)
    found += trial.receive(consumer, lambda found: False, seconds=_LATE_SECONDS)
    numbers = tuple(each.number for each in found if each.number is not None)
    wrong, errors = sum(each.is_wrong for each in found), sum(each.error is not None for each in found)
    return Jump(trial.mode, target, last, numbers, wrong, errors)


def _is_complete(found: list[Delivery], target: Target) -> bool:
    """Whether every payload that begins at or behind the position was received."""
    begin = target.payload + target.inside
    return set(range(begin, _PAYLOADS)) <= {each.number for each in found}


# The result ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sum:
    """The counts of all jumps of one mode, into payloads or to their beginning."""

    jumps: int
    expected: int
    delivered: int
    skipped: int
    lost: int
    wrong: int
    errors: int

    @classmethod
    def of(cls, jumps: Sequence[Jump]) -> _Sum:
        return cls(
            jumps=len(jumps),
            expected=sum(each.expected for each in jumps),
            delivered=sum(each.delivered for each in jumps),
            skipped=sum(each.skipped for each in jumps),
            lost=sum(each.lost for each in jumps),
            wrong=sum(each.wrong + each.misplaced for each in jumps),
            errors=sum(each.errors for each in jumps),
        )


def judge(jumps: Sequence[Jump]) -> Experiment:
    """Return the result for what was received."""
    modes = [mode for mode in MODES if any(each.mode == mode for each in jumps)]
    inside = {mode: _Sum.of([each for each in jumps if each.mode == mode and each.target.inside]) for mode in modes}
    begin = {mode: _Sum.of([each for each in jumps if each.mode == mode and not each.target.inside]) for mode in modes}
    return Experiment(
        name="seek",
        title="Offset moved explicitly",
        claimed=CLAIMED,
        measured={mode: _line(inside[mode], begin[mode]) for mode in modes},
        verdict=_verdict(inside, begin),
        explanation=_explanation(inside, begin),
        columns=(
            "mode", "seek", "seeks", "payloads at or behind it", "delivered", "skipped: the seek led into it", "lost",
            "wrong", "errors",
        ),
        rows=tuple(_rows(inside, begin)),
        facts=_facts(inside, begin),
    )  # fmt: skip


def _line(inside: _Sum, begin: _Sum) -> str:
    both = f"{inside.lost + begin.lost} lost, {inside.wrong + begin.wrong} wrong"
    if not inside.jumps:
        return f"no message is inside a payload; {begin.jumps} seeks: {begin.delivered} delivered, {both}"
    return (
        f"{inside.jumps} seeks into a payload: {inside.skipped} of these payloads skipped, {both};"
        f" {begin.jumps} seeks back: {begin.delivered} of {begin.expected} delivered"
    )


def _verdict(inside: dict[Mode, _Sum], begin: dict[Mode, _Sum]) -> Verdict:
    if any(each.lost or each.wrong for each in (*inside.values(), *begin.values())):
        return "disagrees"
    chunking = inside["chunking"]
    return "agrees" if chunking.skipped == chunking.jumps else "partly" if chunking.skipped else "disagrees"


def _explanation(inside: dict[Mode, _Sum], begin: dict[Mode, _Sum]) -> str:
    faulty = [mode for mode in begin if any((part[mode].lost or part[mode].wrong) for part in (inside, begin))]
    if faulty:
        return f"After a seek payloads were missing or wrong ({', '.join(faulty)}): the consumer is faulty."
    chunking = inside["chunking"]
    if not chunking.skipped:
        return (
            "A seek into the middle of a chunked payload loses nothing: the consumer returns to the first chunk, which"
            " is still in the topic."
        )
    return (
        f"After {chunking.skipped} of {chunking.jumps} seeks into a chunked payload, this payload was not delivered,"
        " because its first chunks are before the position. No payload behind it was affected, and a seek to its"
        " first chunk delivers it completely."
    )


def _rows(inside: dict[Mode, _Sum], begin: dict[Mode, _Sum]) -> list[tuple[str | float | int | None, ...]]:
    rows: list[tuple[str | float | int | None, ...]] = []
    for mode in begin:
        for where, each in (("into a payload", inside[mode]), ("to its beginning", begin[mode])):
            counts = (each.expected, each.delivered, each.skipped, each.lost, each.wrong, each.errors)
            if each.jumps:
                rows.append((mode, where, each.jumps, *counts))
    return rows


def _facts(inside: dict[Mode, _Sum], begin: dict[Mode, _Sum]) -> dict[str, float]:
    facts: dict[str, float] = {}
    for mode in begin:
        facts[f"skipped/{mode}"] = inside[mode].skipped
        facts[f"lost/{mode}"] = inside[mode].lost + begin[mode].lost
        facts[f"wrong/{mode}"] = inside[mode].wrong + begin[mode].wrong
    return facts
