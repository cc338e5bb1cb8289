"""Experiment ``rollback``: what stays in the topic and in the store when a producer fails, at every possible point."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from claimcheck._client import ClaimCheck
from claimcheck._texts import size_text
from claimcheck._wire.envelope import Envelope
from claimcheck.testing._faults import FaultyStore, When
from tests.benchmarks.compare.faults import KillingStore, SendingClaimCheck, with_faulty_stores
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Mode, Verdict
from tests.benchmarks.compare.process import Worker
from tests.benchmarks.compare.trial import Trial, until_killed

CLAIMED = {
    "external": "the payload must be deleted if the send fails",
    "chunking": "incomplete chunks stay in the topic until retention",
}
_ROLLBACK_SECONDS = 3.0
_READ_SECONDS = 20.0
_LATE_SECONDS = 0.2
_STEP_SECONDS = 0.005

Kind = Literal["store", "refused", "undeleted", "unknown", "killed"]

_DEFINITE: tuple[Kind, ...] = ("store", "refused")
_WHAT: dict[Kind, str] = {
    "store": "the write to the store fails",
    "refused": "the broker refuses a message",
    "undeleted": "the broker refuses a message, and the store refuses to delete",
    "unknown": "the outcome of a message is unknown",
    "killed": "the process is killed",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What one failed send left behind.

    Attributes:
        mode: How the payload was sent.
        kind: What failed.
        point: When, in a few words.
        sent: Whether the payload was sent in spite of the failure.
        messages: Messages of this payload in the topic, if it was not sent.
        size: The bytes that the topic grew by, if it was not sent.
        objects: Payloads in the store that no message points to; ``None`` if the store cannot be listed.
        seconds: Time after the failure until there were none; ``None`` if some stay, or this is not known.
    """

    mode: Mode
    kind: Kind
    point: str
    sent: bool
    messages: int
    size: int
    objects: int | None
    seconds: float | None

    @property
    def is_wrong(self) -> bool:
        """Whether a payload stayed that must be deleted, or was deleted although a message may point to it."""
        if self.objects is None or self.mode in ("chunking", "native"):
            return False
        if self.kind in _DEFINITE:
            return self.objects > 0
        return self.kind == "unknown" and not self.sent and self.objects == 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What a consumer of all these topics received.

    Attributes:
        expected: Payloads that were sent.
        delivered: Those of them that were received.
        wrong: Other bytes, and payloads whose send failed.
    """

    expected: int
    delivered: int
    wrong: int


def run(lab: Lab) -> Experiment:
    """Let sends fail at every point, in each mode, and look at the topic and the store."""
    failures: list[Failure] = []
    readings: dict[Mode, Reading] = {}
    for mode in lab.modes:
        lab.progress(f"{mode}, a producer that fails at every point")
        with Trial.of(lab, mode, "rollback") as trial:
            bench = _Bench(trial)
            failures += bench.failures()
            readings[mode] = bench.read()
    return judge(failures, readings, has_retention=lab.broker.has_retention)


class _Bench:
    """Fails one send after the other, and compares topic and store before and after."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._number = 0
        self._sent: set[int] = set()

    def failures(self) -> Iterator[Failure]:
        """Fail at every point."""
        if self._trial.mode == "native":
            yield self._failure("refused", "it is over the topic's limit", self._send_too_large)
            return
        total = self._count_messages()
        if self._trial.mode in ("external", "hybrid"):
            yield from self._store_failures()
        for number in range(total):
            point = f"message {number + 1} of {total}"
            yield self._failure("refused", point, partial(self._send_refused, number))
            yield self._failure("unknown", point, partial(self._send_refused, number, unknown=True))
        yield from self._kills(total)

    def read(self) -> Reading:
        """Send one payload more, and receive until it arrives."""
        with ClaimCheck(self._trial.config) as cc:
            self._trial.send_all(cc, [self._next()])
            self._sent.add(self._number)
            with self._trial.consumer(cc, group="rollback") as consumer:
                found = self._trial.receive(
                    consumer, lambda found: self._sent <= {each.number for each in found}, seconds=_READ_SECONDS
                )
                found += self._trial.receive(consumer, lambda found: False, seconds=_LATE_SECONDS)
        numbers = {each.number for each in found if each.number is not None}
        wrong = sum(each.is_wrong for each in found) + len(numbers - self._sent)
        return Reading(len(self._sent), len(numbers & self._sent), wrong)

    # Points ----------------------------------------------------------------------------------------------------

    def _store_failures(self) -> Iterator[Failure]:
        moments: tuple[When, ...] = ("before", "during", "after")
        for when in moments:
            yield self._failure("store", f"{when} the write", partial(self._send_with_store, when))
        yield self._failure("undeleted", "message 1 of 1", self._send_undeleted)

    def _send_with_store(self, when: When) -> object:
        with ClaimCheck(with_faulty_stores(self._trial.config)) as cc:
            _faulty(cc).fail("write", when=when)
            return self._send(cc)

    def _send_undeleted(self) -> object:
        with SendingClaimCheck(with_faulty_stores(self._trial.config), self._refusing(0)) as cc:
            _faulty(cc).fail("rollback")
            return self._send(cc)

    def _send_refused(self, number: int, *, unknown: bool = False) -> object:
        with SendingClaimCheck(self._trial.config, self._refusing(number), unknown=unknown) as cc:
            return self._send(cc)

    def _send_too_large(self) -> object:
        limit = self._trial.settings.max_message_bytes or self._trial.lab.broker.limit_bytes
        with ClaimCheck(self._trial.config) as cc, self._trial.producer(cc) as producer:
            return self._trial.send(producer, self._next(), size=2 * limit)

    def _send(self, cc: ClaimCheck) -> object:
        with self._trial.producer(cc) as producer:
            return self._trial.send(producer, self._next())

    def _refusing(self, number: int) -> Callable[[int, Envelope], Envelope]:
        """Return a function that makes one message larger than any broker of this limit accepts."""
        size = 2 * self._trial.lab.broker.limit_bytes

        def refuse(each: int, envelope: Envelope) -> Envelope:
            return replace(envelope, data=bytes(size)) if each == number else envelope

        return refuse

    def _kills(self, total: int) -> Iterator[Failure]:
        workers = [(f"before message {n + 1} of {total}", self._killed_worker(n)) for n in range(total)]
        if self._trial.mode in ("external", "hybrid"):
            workers.insert(0, ("during the write to the store", self._killed_worker(None)))
        for point, worker in workers:
            worker.ready()
            yield self._failure("killed", point, partial(self._send_killed, worker))

    def _killed_worker(self, kill_after: int | None) -> Worker:
        """Start a producer that is killed after some messages, or in the middle of its write to the store."""
        config = self._trial.config
        if kill_after is None:
            stores = {name: KillingStore.around(store) for name, store in config.stores.items()}
            config = replace(config, stores=stores)
        mode, topic = self._trial.mode, self._trial.topic
        return self._trial.lab.worker("producer", mode, topic, kill_after=kill_after, config=config, wait=False)

    def _send_killed(self, worker: Worker) -> object:
        send = partial(worker.send, self._trial.size, self._next(), 1, one_by_one=True)
        until_killed(worker, send)
        return RuntimeError("the process was killed")

    # Before and after ------------------------------------------------------------------------------------------

    def _count_messages(self) -> int:
        """Send one payload, and return of how many messages it consists."""
        before = self._messages()
        with ClaimCheck(self._trial.config) as cc:
            result = self._send(cc)
        if isinstance(result, Exception):
            raise result
        self._sent.add(self._number)
        return self._messages() - before

    def _failure(self, kind: Kind, point: str, fail: Callable[[], object]) -> Failure:
        messages, size, objects = self._messages(), self._bytes(), self._objects()
        sent = not isinstance(fail(), Exception)
        seconds = self._clean_after(objects) if kind in _DEFINITE else None
        left = self._objects()
        if sent:
            self._sent.add(self._number)
        ours = kind == "store" or not sent  # else the payload in the store is the one that was sent
        return Failure(
            mode=self._trial.mode,
            kind=kind,
            point=point,
            sent=sent,
            messages=0 if sent else self._messages() - messages,
            size=0 if sent else max(0, self._bytes() - size),
            objects=None if left is None or objects is None else (left - objects) * ours,
            seconds=seconds,
        )

    def _clean_after(self, objects: int | None) -> float | None:
        """Wait until the store has as many payloads as before: transports delete in the background."""
        if objects is None:
            return None
        clock = self._trial.lab.clock
        begin = clock()
        while (now := clock()) - begin < _ROLLBACK_SECONDS:
            if (self._objects() or 0) <= objects:
                return now - begin
            time.sleep(_STEP_SECONDS)
        return None

    def _messages(self) -> int:
        return self._trial.lab.broker.readable_messages(self._trial.topic)

    def _bytes(self) -> int:
        return sum(self._trial.lab.broker.topic_bytes(self._trial.topic))

    def _objects(self) -> int | None:
        return self._trial.lab.store_objects()

    def _next(self) -> int:
        self._number += 1
        return self._number


def _faulty(cc: ClaimCheck) -> FaultyStore:
    store = cc.store(cc.config.store or "")
    assert isinstance(store, FaultyStore)
    return store


# The result ----------------------------------------------------------------------------------------------------


def judge(failures: Sequence[Failure], readings: dict[Mode, Reading], *, has_retention: bool) -> Experiment:
    """Return the result for what was left behind."""
    by_mode = {mode: [each for each in failures if each.mode == mode] for mode in readings}
    until = "until retention" if has_retention else "until the topic is deleted"
    return Experiment(
        name="rollback",
        title="Rollback",
        claimed=CLAIMED,
        measured={mode: _line(by_mode[mode], readings[mode], until) for mode in by_mode},
        verdict=_verdict(by_mode, readings),
        explanation=_explanation(by_mode, readings, until),
        columns=(
            "mode", "what fails", "point", "payload sent", "messages left", "bytes left", "messages are gone",
            "stored payloads left", "stored payloads are gone",
        ),
        rows=tuple(_row(each, until) for each in failures),
        facts={name: value for mode in by_mode for name, value in _facts(mode, by_mode[mode], readings[mode]).items()},
    )  # fmt: skip


def _line(failures: Sequence[Failure], reading: Reading, until: str) -> str:
    if all(each.sent for each in failures):
        return "no send failed: the client splits payloads over the limit"
    messages, size = sum(each.messages for each in failures), sum(each.size for each in failures)
    stay = f" {until}" if messages else ""
    count = "1 failure" if len(failures) == 1 else f"{len(failures)} failures"
    parts = [f"{count}: {messages} messages ({size_text(size)}) left{stay}"]
    rescued = sum(each.sent for each in failures)
    if rescued:
        parts.append(f"{rescued} payloads sent nevertheless")
    known = [each for each in failures if each.objects is not None]
    if failures and failures[0].mode in ("external", "hybrid"):
        parts.append(_objects_line(known) if known else "stored payloads cannot be counted")
    if reading.wrong or reading.delivered < reading.expected:
        parts.append(f"{reading.expected - reading.delivered} lost, {reading.wrong} wrong")
    return "; ".join(parts)


def _objects_line(known: Sequence[Failure]) -> str:
    left = sum(each.objects or 0 for each in known)
    definite = [each for each in known if each.kind in _DEFINITE]
    stay = sum(each.objects or 0 for each in definite)
    line = f"{stay} stored payloads left after {len(definite)} definite failures"
    return f"{line}, {left - stay} after the others until they expire or are swept"


def _verdict(by_mode: dict[Mode, list[Failure]], readings: dict[Mode, Reading]) -> Verdict:
    if any(each.is_wrong for failures in by_mode.values() for each in failures):
        return "disagrees"
    if any(each.wrong or each.delivered < each.expected for each in readings.values()):
        return "disagrees"
    chunks_stay = any(each.messages for each in by_mode.get("chunking", ()))
    pointers_stay = any(each.messages for each in by_mode.get("external", ()))
    return "agrees" if chunks_stay and not pointers_stay else "partly"


def _explanation(by_mode: dict[Mode, list[Failure]], readings: dict[Mode, Reading], until: str) -> str:
    wrong = [each for failures in by_mode.values() for each in failures if each.is_wrong]
    if wrong:
        points = "; ".join(sorted({f"{each.mode}: {_WHAT[each.kind]}, {each.point}" for each in wrong}))
        return f"The store does not have what it should have after a failed send ({points})."
    faulty = [mode for mode, each in readings.items() if each.wrong or each.delivered < each.expected]
    if faulty:
        return f"After the failures a consumer received payloads whose send failed, or not all others: {faulty}."
    most = max((each.messages for each in by_mode.get("chunking", ())), default=0)
    text = f"A chunked send that fails leaves up to {most} messages in the topic {until}; readers skip them."
    if "external" not in by_mode:
        return text
    return (
        "claimcheck deletes the stored payload if the send definitely failed. It keeps the payload if a message may"
        f" point to it; then, and after a crash, it stays until it expires or is swept. {text}"
    )


def _row(each: Failure, until: str) -> tuple[str | float | int | None, ...]:
    gone = None if each.seconds is None else f"after {each.seconds:.2f} s"
    stays = "when they expire or are swept" if each.objects else gone if each.mode in ("external", "hybrid") else None
    return (
        each.mode, _WHAT[each.kind], each.point, "yes" if each.sent else "no", each.messages, each.size,
        until if each.messages else None, each.objects, stays,
    )  # fmt: skip


def _facts(mode: Mode, failures: Sequence[Failure], reading: Reading) -> dict[str, float]:
    facts = {
        f"messages_left/{mode}": float(sum(each.messages for each in failures)),
        f"bytes_left/{mode}": float(sum(each.size for each in failures)),
        f"lost/{mode}": float(reading.expected - reading.delivered),
        f"wrong/{mode}": float(reading.wrong + sum(each.is_wrong for each in failures)),
    }
    if all(each.objects is not None for each in failures):
        facts[f"objects_left/{mode}"] = float(sum(each.objects or 0 for each in failures))
    return facts
