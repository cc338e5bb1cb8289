"""Experiment ``services``: which services sending and receiving need, and what happens while the store is down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from claimcheck._client import ClaimCheck
from claimcheck.hooks import Event, FallbackEvent, OperationEvent
from tests.benchmarks.compare.faults import without_stores
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Mode, Verdict
from tests.benchmarks.compare.trial import Trial

CLAIMED = {
    "external": "a store is needed in addition to the broker",
    "chunking": "no service besides the broker",
}
_PAYLOADS = 4
_SECONDS = 20.0
_LATE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Outage:
    """What happened in one mode before, during and after an outage of the store.

    Attributes:
        mode: How payloads were sent.
        before: Payloads sent while the store worked.
        writes: Writes to the store for them.
        attempts: Payloads whose send was tried during the outage.
        sent: Those of them that were sent.
        as_chunks: Those of them that were sent as chunks, because the store failed.
        slowest_seconds: The longest of these sends, also if it failed.
        readable: Payloads in the topic during the outage.
        read: Those of them that a consumer received.
        read_errors: Errors that it received instead.
        read_after: Payloads that a consumer of the same group received after the outage.
        wrong: Payloads that no one sent, at any time.
    """

    mode: Mode
    before: int
    writes: int
    attempts: int
    sent: int
    as_chunks: int
    slowest_seconds: float
    readable: int
    read: int
    read_errors: int
    read_after: int
    wrong: int

    @property
    def lost(self) -> int:
        """Payloads in the topic that could not be received after the outage."""
        return self.readable - self.read_after

    @property
    def needs_store(self) -> bool:
        """Whether the outage affected sends or reads."""
        return self.sent < self.attempts or self.read < self.readable

    def __str__(self) -> str:
        chunks = f" ({self.as_chunks} as chunks)" if self.as_chunks else ""
        text = f"store down: {self.sent} of {self.attempts} sent{chunks}, {self.read} of {self.readable} read"
        if self.lost or self.wrong:
            text += f"; afterwards {self.lost} lost, {self.wrong} wrong"
        elif self.read < self.readable:
            text += f"; afterwards all {self.readable}"
        return text


def run(lab: Lab) -> Experiment:
    """Send and receive before, during and after an outage of the store, in each mode."""
    outages = []
    for mode in lab.modes:
        lab.progress(f"{mode} while the store is down")
        with Trial.of(lab, mode, "services") as trial:
            outages.append(_outage(trial))
    return judge(outages)


def _outage(trial: Trial) -> Outage:
    counted = _Counter()
    with ClaimCheck(trial.config, hooks=[counted]) as cc:
        trial.send_all(cc, range(_PAYLOADS))
        with without_stores(trial.config, hooks=[counted.during]) as down:
            sends, slowest = _send_timed(trial, down)
            readable = _PAYLOADS + sum(not isinstance(each, Exception) for each in sends)
            during = _read(trial, down, readable)
        after = _read(trial, cc, readable)
    return Outage(
        mode=trial.mode,
        before=_PAYLOADS,
        writes=counted.writes,
        attempts=len(sends),
        sent=readable - _PAYLOADS,
        as_chunks=counted.fallbacks,
        slowest_seconds=slowest,
        readable=readable,
        read=during.read,
        read_errors=during.errors,
        read_after=after.read,
        wrong=during.wrong + after.wrong,
    )


class _Counter:
    """Counts writes to the store, and payloads that were sent as chunks instead."""

    def __init__(self) -> None:
        self.writes = 0
        self.fallbacks = 0

    def __call__(self, event: Event) -> None:
        """Count a write while the store works."""
        if isinstance(event, OperationEvent) and event.phase == "completed" and event.operation == "write":
            self.writes += 1

    def during(self, event: Event) -> None:
        """Count a payload that was sent as chunks during the outage."""
        self.fallbacks += isinstance(event, FallbackEvent)


def _send_timed(trial: Trial, cc: ClaimCheck) -> tuple[list[object], float]:
    results: list[object] = []
    slowest = 0.0
    with trial.producer(cc) as producer:
        for number in range(_PAYLOADS, 2 * _PAYLOADS):
            begin = trial.lab.clock()
            results.append(trial.send(producer, number))
            slowest = max(slowest, trial.lab.clock() - begin)
    return results, slowest


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one consumer received; a payload that it received twice counts once."""

    read: int
    errors: int
    wrong: int


def _read(trial: Trial, cc: ClaimCheck, expected: int) -> _Reading:
    """Receive as many payloads or errors as there should be, and those that follow soon, without a commit."""
    with trial.consumer(cc, group="services") as consumer:
        deliveries = trial.receive(consumer, lambda found: len(found) >= expected, seconds=_SECONDS)
        deliveries += trial.receive(consumer, lambda found: False, seconds=_LATE_SECONDS)
    numbers = Counter(each.number for each in deliveries if each.number is not None)
    errors = sum(each.error is not None for each in deliveries)
    return _Reading(len(numbers), errors, sum(each.is_wrong for each in deliveries))


def judge(outages: Sequence[Outage]) -> Experiment:
    """Return the result for what was counted."""
    by_mode = {each.mode: each for each in outages}
    return Experiment(
        name="services",
        title="Additional services",
        claimed=CLAIMED,
        measured={each.mode: str(each) for each in outages},
        verdict=_verdict(by_mode),
        explanation=_explanation(by_mode),
        columns=(
            "mode", "services needed", "store writes per payload", "sent while down", "of these as chunks",
            "slowest send while down (s)", "read while down", "errors while down", "read afterwards", "lost", "wrong",
        ),
        rows=tuple(map(_row, outages)),
        facts={name: value for each in outages for name, value in _facts(each).items()},
    )  # fmt: skip


def _verdict(by_mode: dict[Mode, Outage]) -> Verdict:
    if any(each.lost or each.wrong for each in by_mode.values()):
        return "disagrees"
    if "external" not in by_mode:
        return "not measured"
    external, chunking = by_mode["external"], by_mode["chunking"]
    agreeing = external.needs_store, not chunking.needs_store and not chunking.writes
    return "agrees" if all(agreeing) else "partly" if any(agreeing) else "disagrees"


def _explanation(by_mode: dict[Mode, Outage]) -> str:
    hybrid = by_mode.get("hybrid")
    broken = [each for each in by_mode.values() if each.lost or each.wrong]
    if broken:
        names = ", ".join(each.mode for each in broken)
        return f"After the outage payloads were missing or wrong ({names})."
    if "external" not in by_mode:
        return "The configuration has no store: sends and reads need the broker only."
    if hybrid is None:
        return "Hybrid was not measured."
    if hybrid.sent == hybrid.attempts:
        return (
            "External sends and reads fail while the store is down, and the payloads in the topic are readable"
            f" afterwards. Hybrid sends {hybrid.as_chunks} of {hybrid.attempts} payloads as chunks meanwhile; only"
            " payloads that are in the store have to wait for it."
        )
    return f"Hybrid sent {hybrid.sent} of {hybrid.attempts} payloads while the store was down: the rest failed."


def _row(each: Outage) -> tuple[str | float | int | None, ...]:
    return (
        each.mode, "broker, store" if each.needs_store else "broker", each.writes / each.before,
        f"{each.sent} of {each.attempts}", each.as_chunks, round(each.slowest_seconds, 3),
        f"{each.read} of {each.readable}", each.read_errors, f"{each.read_after} of {each.readable}", each.lost,
        each.wrong,
    )  # fmt: skip


def _facts(each: Outage) -> dict[str, float]:
    return {
        f"sent_while_down/{each.mode}": each.sent / each.attempts,
        f"read_while_down/{each.mode}": each.read / each.readable,
        f"lost_after_outage/{each.mode}": each.lost,
        f"wrong/{each.mode}": each.wrong,
    }
