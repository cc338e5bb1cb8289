"""Experiment ``seek``: what a consumer receives after its position was moved into the middle of a payload, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from claimcheck._client import ClaimCheck
from tests.benchmarks.compare.broker import Consumer
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Row, Tally, Verdict
from tests.benchmarks.compare.trial import Trial, each_mode, numbers_of

CLAIMED = {
    "external": "unproblematic: each message is whole",
    "chunking": "a jump into the middle of a payload loses it, or needs care",
}
_PAYLOADS = 4
_SECONDS = 10.0
_LATE_SECONDS = 0.05
_INSIDE, _BEGIN = "into a payload", "to its beginning"

Target = tuple[int | str, int, str]
"""Where to move: the position of a message, the number of its payload, and whether it is inside of that."""


def run(lab: Lab) -> Experiment:
    """Move a consumer into the middle of payloads and back to their beginning, in each mode."""
    return judge(each_mode(lab, "seek", _jumps))


def _jumps(trial: Trial) -> list[Row]:
    broker, ends = trial.lab.broker, list[int]()
    with ClaimCheck(trial.config) as cc:
        with trial.producer(cc) as producer:
            for number in range(_PAYLOADS):
                trial.send_or_raise(producer, number)
                ends.append(len(broker.positions(trial.topic, 0)))
        targets = plan(broker.positions(trial.topic, 0), ends)
        with trial.consumer(cc, "seek") as consumer:
            return [_jump(trial, consumer, target) for target in targets]


def plan(positions: Sequence[int | str], ends: Sequence[int]) -> list[Target]:
    """Return where to move: into the middle of each payload, to its last message, and back to its beginning.

    The last payload is not a target: receiving it shows that nothing else follows.
    """
    targets: list[Target] = []
    for number, (place, following) in enumerate(pairwise([0, *ends[:-1]])):
        inside = sorted({(place + following) // 2, following - 1} - {place})
        targets += [(positions[at], number, _INSIDE) for at in inside]
        targets.append((positions[place], number, _BEGIN))
    return targets


def _jump(trial: Trial, consumer: Consumer, target: Target) -> Row:
    position, payload, where = target
    whole = set(range(payload + (where == _INSIDE), _PAYLOADS))  # those that begin at or behind the position
    consumer.seek(0, position)
    found = trial.receive(consumer, lambda found: whole <= set(numbers_of(found)), seconds=_SECONDS, late=_LATE_SECONDS)
    received = numbers_of(found)
    delivered = sum(number >= payload for number in set(received))
    skipped = int(where == _INSIDE and payload not in received)
    misplaced = len(received) - len(set(received)) + sum(number < payload for number in set(received))
    return {
        "mode": trial.mode,
        "seek": where,
        "seeks": 1,
        "payloads at or behind it": _PAYLOADS - payload,
        "delivered": delivered,
        "skipped": skipped,
        "lost": _PAYLOADS - payload - delivered - skipped,
        "wrong": sum(each.is_wrong for each in found) + misplaced,
        "errors": sum(each.error is not None for each in found),
    }


# The result ----------------------------------------------------------------------------------------------------


def judge(tally: Tally) -> Experiment:
    """Return the result for what was received."""

    def line(mode: str) -> str:
        inside, begin = (tally.where(mode=mode, seek=where) for where in (_INSIDE, _BEGIN))
        both = f"{tally[mode]['lost']} lost, {tally[mode]['wrong']} wrong"
        if not inside["seeks"]:
            return f"no message is inside a payload; {begin['seeks']} seeks: {begin['delivered']} delivered, {both}"
        return (
            f"{inside['seeks']} seeks into a payload: {inside['skipped']} of these payloads skipped, {both};"
            f" {begin['seeks']} seeks back: {begin['delivered']} of {begin['payloads at or behind it']} delivered"
        )

    verdict, why = _judged(tally)
    return tally.experiment("seek", "Offset moved explicitly", CLAIMED, line, verdict, why)


def _judged(tally: Tally) -> tuple[Verdict, str]:
    if faulty := tally.faulty("lost", "wrong"):
        return "disagrees", (
            f"After a seek payloads were missing or wrong ({', '.join(faulty)}): the consumer is faulty."
        )
    chunking = tally.where(mode="chunking", seek=_INSIDE)
    if not chunking["skipped"]:
        return "disagrees", (
            "A seek into the middle of a chunked payload loses nothing: the consumer returns to the first chunk, which"
            " is still in the topic."
        )
    return "agrees" if chunking["skipped"] == chunking["seeks"] else "partly", (
        f"After {chunking['skipped']} of {chunking['seeks']} seeks into a chunked payload, this payload was not"
        " delivered, because its first chunks are before the position. No payload behind it was affected, and a seek"
        " to its first chunk delivers it completely."
    )
