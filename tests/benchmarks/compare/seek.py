"""Experiment ``seek``: what a consumer receives after its position was moved into the middle of a payload, and back."""

from __future__ import annotations

from itertools import pairwise

from claimcheck._client import ClaimCheck
from tests.benchmarks.compare.broker import Consumer
from tests.benchmarks.compare.lab import Lab, Trial, each_mode, numbers_of
from tests.benchmarks.compare.model import Experiment, Row, Tally, agreement

_PAYLOADS = 4
_SECONDS = 10.0
_LATE_SECONDS = 0.05
_INSIDE, _BEGIN = "into a payload", "to its beginning"


def run(lab: Lab) -> Experiment:
    """Move a consumer into the middle of payloads and back to their beginning, in each mode."""
    return judge(each_mode(lab, "seek", _jumps))


def _jumps(trial: Trial) -> list[Row]:
    """Move into the middle of each payload, to its last message, and back to its beginning.

    The last payload is not a target: receiving it shows that nothing else follows.
    """
    broker, ends, rows = trial.lab.broker, [0], list[Row]()
    with ClaimCheck(trial.config) as cc:
        for number in range(_PAYLOADS):
            trial.send(cc, [number])
            ends.append(len(broker.positions(trial.topic, 0)))
        positions = broker.positions(trial.topic, 0)
        with trial.consumer(cc, "seek") as consumer:
            for number, (begin, end) in enumerate(pairwise(ends[:-1])):
                inside = sorted({(begin + end) // 2, end - 1} - {begin})
                rows += [_jump(trial, consumer, positions[at], number, _INSIDE) for at in inside]
                rows.append(_jump(trial, consumer, positions[begin], number, _BEGIN))
    return rows


def _jump(trial: Trial, consumer: Consumer, position: int | str, payload: int, where: str) -> Row:
    """Move to a message of a payload, and receive what follows."""
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
    }


def judge(tally: Tally) -> Experiment:
    """Return the result for what was received."""
    inside = tally.where(mode="chunking", seek=_INSIDE)
    why = (
        "After {skipped} of {seeks} seeks into a chunked payload, this payload was not delivered, because its first"
        " chunks are before the position. A seek to its first chunk delivers it completely."
    )
    if not inside["skipped"]:
        why = "The consumer returns to the first chunk, which is still in the topic."
    verdict = agreement(inside["skipped"] == inside["seeks"], inside["skipped"] > 0)
    line = "{seeks} seeks: {skipped} payloads skipped, {delivered} delivered, {lost} lost, {wrong} wrong"
    return tally.experiment("seek", line, verdict, why.format_map(inside))
