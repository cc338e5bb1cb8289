"""Experiment ``services``: which services sending and receiving need, and what happens while the store is down."""

from __future__ import annotations

import time

from claimcheck._client import ClaimCheck
from claimcheck.hooks import Event, FallbackEvent, OperationEvent
from tests.benchmarks.compare.faults import without_stores
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Row, Tally, Verdict
from tests.benchmarks.compare.trial import Delivery, Trial, each_mode, numbers_of

CLAIMED = {
    "external": "a store is needed in addition to the broker",
    "chunking": "no service besides the broker",
}
_PAYLOADS = 4
_SECONDS = 20.0
_LATE_SECONDS = 0.3


def run(lab: Lab) -> Experiment:
    """Send and receive before, during and after an outage of the store, in each mode."""
    return judge(each_mode(lab, "services", _outage))


def _outage(trial: Trial) -> list[Row]:
    writes, fallbacks = list[Event](), list[Event]()

    def count(event: Event) -> None:
        if isinstance(event, FallbackEvent):
            fallbacks.append(event)
        elif isinstance(event, OperationEvent) and (event.phase, event.operation) == ("completed", "write"):
            writes.append(event)

    with ClaimCheck(trial.config, hooks=[count]) as cc:
        trial.send_all(cc, range(_PAYLOADS))
        with without_stores(trial.config, hooks=[count]) as down:
            sent, slowest = _send_timed(trial, down)
            during = _read(trial, down, _PAYLOADS + sent)
        after = _read(trial, cc, _PAYLOADS + sent)
    read, read_after, readable = len(set(numbers_of(during))), len(set(numbers_of(after))), _PAYLOADS + sent
    needs_store = sent < _PAYLOADS or read < readable
    return [
        {
            "mode": trial.mode,
            "services needed": "broker, store" if needs_store else "broker",
            "store writes": len(writes),
            "tried while down": _PAYLOADS,
            "sent while down": sent,
            "of these as chunks": len(fallbacks),
            "slowest send while down (s)": round(slowest, 3),
            "in the topic": readable,
            "read while down": read,
            "errors while down": sum(each.error is not None for each in during),
            "read afterwards": read_after,
            "lost": readable - read_after,
            "wrong": sum(each.is_wrong for each in (*during, *after)),
        }
    ]


def _send_timed(trial: Trial, cc: ClaimCheck) -> tuple[int, float]:
    """Send while the store is down; returns how many were sent, and the longest time of one."""
    sent, slowest = 0, 0.0
    with trial.producer(cc) as producer:
        for number in range(_PAYLOADS, 2 * _PAYLOADS):
            begin = time.monotonic()
            sent += not isinstance(trial.send(producer, number), Exception)
            slowest = max(slowest, time.monotonic() - begin)
    return sent, slowest


def _read(trial: Trial, cc: ClaimCheck, expected: int) -> list[Delivery]:
    """Receive as many payloads or errors as there should be, and those that follow soon, without a commit."""
    with trial.consumer(cc, "services") as consumer:
        return trial.receive(consumer, lambda found: len(found) >= expected, seconds=_SECONDS, late=_LATE_SECONDS)


# The result ----------------------------------------------------------------------------------------------------


def judge(tally: Tally) -> Experiment:
    """Return the result for what happened."""

    def line(mode: str) -> str:
        found = tally[mode]
        chunks = f" ({found['of these as chunks']} as chunks)" if found["of these as chunks"] else ""
        sent = f"{found['sent while down']} of {found['tried while down']} sent{chunks}"
        text = f"store down: {sent}, {found['read while down']} of {found['in the topic']} read"
        if found["lost"] or found["wrong"]:
            return f"{text}; afterwards {found['lost']} lost, {found['wrong']} wrong"
        waited = found["read while down"] < found["in the topic"]
        return f"{text}; afterwards all {found['in the topic']}" if waited else text

    verdict, why = _verdict(tally), _explanation(tally)
    return tally.experiment("services", "Additional services", CLAIMED, line, verdict, why)


def _needs_store(tally: Tally, mode: str) -> bool:
    found = tally[mode]
    return found["sent while down"] < found["tried while down"] or found["read while down"] < found["in the topic"]


def _verdict(tally: Tally) -> Verdict:
    if tally.faulty("lost", "wrong"):
        return "disagrees"
    if "external" not in tally.modes:
        return "not measured"
    chunks_need_none = not _needs_store(tally, "chunking") and not tally["chunking"]["store writes"]
    agreeing = _needs_store(tally, "external"), chunks_need_none
    return "agrees" if all(agreeing) else "partly" if any(agreeing) else "disagrees"


def _explanation(tally: Tally) -> str:
    if faulty := tally.faulty("lost", "wrong"):
        return f"After the outage payloads were missing or wrong ({', '.join(faulty)})."
    if "external" not in tally.modes:
        return "The configuration has no store: sends and reads need the broker only."
    hybrid = tally["hybrid"]
    if hybrid["sent while down"] < hybrid["tried while down"]:
        sent = f"{hybrid['sent while down']} of {hybrid['tried while down']}"
        return f"Hybrid sent {sent} payloads while the store was down: the rest failed."
    return (
        "External sends and reads fail while the store is down, and the payloads in the topic are readable"
        f" afterwards. Hybrid sends {hybrid['of these as chunks']} of {hybrid['tried while down']} payloads as chunks"
        " meanwhile; only payloads that are in the store have to wait for it."
    )
