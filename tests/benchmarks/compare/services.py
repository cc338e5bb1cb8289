"""Experiment ``services``: which services sending and receiving need, and what happens while the store is down."""

from __future__ import annotations

from claimcheck._client import ClaimCheck
from claimcheck.hooks import Event, FallbackEvent
from tests.benchmarks.compare.faults import without_stores
from tests.benchmarks.compare.lab import Lab, Trial, each_mode, numbers_of
from tests.benchmarks.compare.model import Experiment, Row, Tally, agreement
from tests.benchmarks.compare.payloads import Delivery

_PAYLOADS = 4
_SECONDS = 20.0
_LATE_SECONDS = 0.3


def run(lab: Lab) -> Experiment:
    """Send and receive before, during and after an outage of the store, in each mode."""
    return judge(each_mode(lab, "services", _outage))


def _outage(trial: Trial) -> list[Row]:
    fallbacks = list[Event]()

    def note(event: Event) -> None:
        if isinstance(event, FallbackEvent):
            fallbacks.append(event)

    with ClaimCheck(trial.config) as cc, without_stores(trial.config, hooks=[note]) as down:
        trial.send(cc, range(_PAYLOADS))
        results = trial.try_to_send(down, range(_PAYLOADS, 2 * _PAYLOADS))
        sent = sum(not isinstance(each, Exception) for each in results)
        during, after = (_read(trial, each, _PAYLOADS + sent) for each in (down, cc))
    readable, read_after = _PAYLOADS + sent, len(set(numbers_of(after)))
    row = {
        "mode": trial.mode,
        "tried while down": _PAYLOADS,
        "sent while down": sent,
        "of these as chunks": len(fallbacks),
        "in the topic": readable,
        "read while down": len(set(numbers_of(during))),
        "read afterwards": read_after,
        "lost": readable - read_after,
        "wrong": sum(each.is_wrong for each in (*during, *after)),
    }
    return [row]


def _read(trial: Trial, cc: ClaimCheck, expected: int) -> list[Delivery]:
    """Receive as many payloads or errors as there should be, and those that follow soon, without a commit."""
    with trial.consumer(cc, "services") as consumer:
        return trial.receive(consumer, lambda found: len(found) >= expected, seconds=_SECONDS, late=_LATE_SECONDS)


_LINE = (
    "store down: {sent while down} of {tried while down} sent ({of these as chunks} as chunks),"
    " {read while down} of {in the topic} read; afterwards {lost} lost, {wrong} wrong"
)


def judge(tally: Tally) -> Experiment:
    """Return the result for what happened."""

    def waits(mode: str) -> bool:
        found = tally[mode]
        return found["sent while down"] < found["tried while down"] or found["read while down"] < found["in the topic"]

    if "external" not in tally.modes:
        why = "The configuration has no store: sends and reads need the broker only."
        return tally.experiment("services", _LINE, "not measured", why)
    hybrid = "Hybrid sends {of these as chunks} of {tried while down} payloads as chunks".format_map(tally["hybrid"])
    why = f"A payload in the store has to wait for it, to be sent and to be read. {hybrid} while the store is down."
    return tally.experiment("services", _LINE, agreement(waits("external"), not waits("chunking")), why)
