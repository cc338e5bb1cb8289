"""Experiment ``rollback``: what stays in the topic and in the store when a producer fails, at every possible point."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

from claimcheck._client import ClaimCheck
from claimcheck._wire.envelope import Envelope
from claimcheck.testing import FaultyStore, When
from tests.benchmarks.compare.faults import KillingStore, SendingClaimCheck, with_faulty_stores
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Row, Tally
from tests.benchmarks.compare.trial import Trial, each_mode, numbers_of, until_killed
from tests.benchmarks.compare.worker import Worker

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


def run(lab: Lab) -> Experiment:
    """Let sends fail at every point, in each mode, and look at the topic and the store."""
    until = "until retention" if lab.broker.has_retention else "until the topic is deleted"
    return judge(each_mode(lab, "rollback", lambda trial: list(_Bench(trial).rows())), until)


class _Bench:
    """Fails one send after the other, and compares topic and store before and after."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._number = 0
        self._sent: set[int] = set()

    def rows(self) -> Iterator[Row]:
        """Fail at every point, and then read what was sent."""
        yield from self._failures()
        yield self._reading()

    def _failures(self) -> Iterator[Row]:
        total = self._count_messages()
        if self._trial.mode in ("external", "hybrid"):
            yield from self._store_failures()
        for number in range(total):
            point = f"message {number + 1} of {total}"
            yield self._failure("refused", point, partial(self._send_refused, number))
            yield self._failure("unknown", point, partial(self._send_refused, number, unknown=True))
        yield from self._kills(total)

    def _reading(self) -> Row:
        """Send one payload more, and receive until it arrives."""
        with ClaimCheck(self._trial.config) as cc:
            self._trial.send_all(cc, [self._next()])
            self._sent.add(self._number)
            with self._trial.consumer(cc, "rollback") as consumer:
                found = self._trial.receive(
                    consumer,
                    lambda found: self._sent <= set(numbers_of(found)),
                    seconds=_READ_SECONDS,
                    late=_LATE_SECONDS,
                )
        numbers = set(numbers_of(found))
        wrong = sum(each.is_wrong for each in found) + len(numbers - self._sent)
        return self._row("nothing", "afterwards", lost=len(self._sent - numbers), wrong=wrong)

    def _row(self, what: str, point: str, **found: float | str | None) -> Row:
        row: Row = {"mode": self._trial.mode, "what fails": what, "point": point, "failures": 0, "payload sent": ""}
        row |= {"messages left": 0, "bytes left": 0, "stored payloads left": 0, "deleted after (s)": ""}
        return row | {"lost": 0, "wrong": 0} | found

    # Points ----------------------------------------------------------------------------------------------------

    def _store_failures(self) -> Iterator[Row]:
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

    def _send(self, cc: ClaimCheck) -> object:
        with self._trial.producer(cc) as producer:
            return self._trial.send(producer, self._next())

    def _refusing(self, number: int) -> Callable[[int, Envelope], Envelope]:
        """Return a function that makes one message larger than any broker of this limit accepts."""
        size = 2 * self._trial.lab.broker.limit_bytes

        def refuse(each: int, envelope: Envelope) -> Envelope:
            return replace(envelope, data=bytes(size)) if each == number else envelope

        return refuse

    def _kills(self, total: int) -> Iterator[Row]:
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

    def _failure(self, kind: Kind, point: str, fail: Callable[[], object]) -> Row:
        """Fail, and return what the failed send left behind."""
        messages, size, objects = self._messages(), self._bytes(), self._objects()
        sent = not isinstance(fail(), Exception)
        seconds = self._clean_after(objects) if kind in _DEFINITE else None
        if sent:
            self._sent.add(self._number)
        found: Row = {"failures": 1, "payload sent": "yes" if sent else "no"}
        if not sent:
            found |= {"messages left": self._messages() - messages, "bytes left": max(0, self._bytes() - size)}
        left = self._objects()
        if left is None or objects is None or self._trial.mode == "chunking":
            return self._row(_WHAT[kind], point, **found, **{"stored payloads left": None})
        # Of a payload that was sent nevertheless, the one in the store is the one that was sent.
        stay = (left - objects) * (kind == "store" or not sent)
        wrong = stay > 0 if kind in _DEFINITE else kind == "unknown" and not sent and stay == 0
        found |= {"stored payloads left": stay, "wrong": int(wrong)}
        found["deleted after (s)"] = "" if seconds is None else f"{seconds:.2f}"
        return self._row(_WHAT[kind], point, **found)

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


# The result ------------------------------------------------------------------------------------------------------


def judge(tally: Tally, until: str) -> Experiment:
    """Return the result for what was left behind; ``until`` says how long messages stay."""
    lines = {}
    for mode in tally.modes:
        rows = [row for row in tally.rows if row["mode"] == mode]
        failed = [_WHAT[kind] for kind in _DEFINITE]
        definite = sum(row["stored payloads left"] or 0 for row in rows if row["what fails"] in failed)
        lines[mode] = f"{{failures}} failures: {{messages left}} messages ({{bytes left:,}} bytes) left {until}"
        if mode in ("external", "hybrid"):
            left = f"{{stored payloads left}} stored payloads left, {definite} of them after definite failures"
            counted = all(row["stored payloads left"] is not None for row in rows)
            lines[mode] += f"; {left if counted else 'stored payloads cannot be counted'}"
    most = max((row["messages left"] for row in tally.rows if row["mode"] == "chunking"), default=0)
    why = (
        "claimcheck deletes the stored payload if the send definitely failed. It keeps the payload if a message may"
        " point to it; then, and after a crash, it stays until it expires or is swept. A chunked send that fails leaves"
        f" up to {most} messages in the topic {until}; readers skip them."
    )
    right = tally["chunking"]["messages left"] and not tally["external"]["messages left"]
    return tally.experiment("rollback", lines, "agrees" if right else "partly", why)
