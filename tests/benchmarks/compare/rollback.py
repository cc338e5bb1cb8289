"""Experiment ``rollback``: what stays in the topic and in the store when a producer fails, at every possible point."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from claimcheck._client import ClaimCheck
from claimcheck._wire.envelope import Envelope
from claimcheck.testing import When
from tests.benchmarks.compare.faults import WatchedClaimCheck, faulty_store, with_faulty_stores
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Row, Tally
from tests.benchmarks.compare.trial import Trial, each_mode, numbers_of, until_killed
from tests.benchmarks.compare.worker import Worker

_ROLLBACK_SECONDS = 3.0
_READ_SECONDS = 20.0
_LATE_SECONDS = 0.2
_STEP_SECONDS = 0.005

_STORE = "the write to the store fails"
_REFUSED = "the broker refuses a message"
_UNDELETED = "the broker refuses a message, and the store refuses to delete"
_UNKNOWN = "the outcome of a message is unknown"
_KILLED = "the process is killed"
_DEFINITE = (_STORE, _REFUSED)


def run(lab: Lab) -> Experiment:
    """Let sends fail at every point, in each mode, and look at the topic and the store."""
    until = "until the topic is deleted" if lab.broker.retention_source is None else "until retention"
    return judge(each_mode(lab, "rollback", lambda trial: list(_Bench(trial).rows())), until)


class _Bench:
    """Fails one send after the other, and compares topic and store before and after."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._number = 0
        self._sent: set[int] = set()

    def rows(self) -> Iterator[Row]:
        """Fail at every point, and then read what was sent."""
        before = self._messages()
        with ClaimCheck(self._trial.config) as cc:
            self._send_one(cc)
        total = self._messages() - before
        if self._trial.mode in ("external", "hybrid"):
            yield from self._store_failures()
        for number in range(total):
            point = f"message {number + 1} of {total}"
            yield self._failure(_REFUSED, point, partial(self._send_refused, number))
            yield self._failure(_UNKNOWN, point, partial(self._send_refused, number, unknown=True))
        yield from self._kills(total)
        yield self._reading()

    def _send_one(self, cc: ClaimCheck) -> None:
        if error := self._send(cc):
            raise error
        self._sent.add(self._number)

    def _reading(self) -> Row:
        """Send one payload more, and receive until it arrives."""
        trial = self._trial
        with ClaimCheck(trial.config) as cc, trial.consumer(cc, "rollback") as consumer:
            self._send_one(cc)
            found = trial.receive(
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
            yield self._failure(_STORE, f"{when} the write", partial(self._send_with_store, when))
        yield self._failure(_UNDELETED, "message 1 of 1", self._send_undeleted)

    def _send_with_store(self, when: When) -> Exception | None:
        with ClaimCheck(with_faulty_stores(self._trial.config)) as cc:
            faulty_store(cc).fail("write", when=when)
            return self._send(cc)

    def _send_undeleted(self) -> Exception | None:
        with WatchedClaimCheck(with_faulty_stores(self._trial.config), change=self._refused(0)) as cc:
            faulty_store(cc).fail("rollback")
            return self._send(cc)

    def _send_refused(self, number: int, *, unknown: bool = False) -> Exception | None:
        with WatchedClaimCheck(self._trial.config, change=self._refused(number), unknown=unknown) as cc:
            return self._send(cc)

    def _send(self, cc: ClaimCheck) -> Exception | None:
        with self._trial.producer(cc) as producer:
            return self._trial.send(producer, self._next())

    def _refused(self, number: int) -> Callable[[int, Envelope], Envelope]:
        """Return a function that makes one message larger than any broker of this limit accepts."""
        size = 2 * self._trial.lab.broker.limit_bytes
        return lambda each, envelope: replace(envelope, data=bytes(size)) if each == number else envelope

    def _kills(self, total: int) -> Iterator[Row]:
        """Kill a process before each message; all of them start at the same time."""
        trial = self._trial
        with ExitStack() as stack:
            workers = [
                stack.enter_context(
                    trial.lab.worker("producer", trial.mode, trial.topic, kill_after=number, config=trial.config)
                )
                for number in range(total)
            ]
            for number, worker in enumerate(workers, 1):
                worker.ready()
                yield self._failure(_KILLED, f"before message {number} of {total}", partial(self._send_killed, worker))

    def _send_killed(self, worker: Worker) -> Exception:
        until_killed(worker, partial(worker.call, "produce", size=self._trial.size, first=self._next()))
        return RuntimeError("the process was killed")

    # Before and after ------------------------------------------------------------------------------------------

    def _failure(self, what: str, point: str, fail: Callable[[], Exception | None]) -> Row:
        """Fail, and return what the failed send left behind."""
        messages, size, objects = self._messages(), self._bytes(), self._objects()
        sent = fail() is None
        seconds = self._clean_after(objects) if what in _DEFINITE else None
        if sent:
            self._sent.add(self._number)
        found: Row = {"failures": 1, "payload sent": "yes" if sent else "no"}
        if not sent:
            found |= {"messages left": self._messages() - messages, "bytes left": max(0, self._bytes() - size)}
        left = self._objects()
        if left is None or objects is None or self._trial.mode == "chunking":
            return self._row(what, point, **found, **{"stored payloads left": None})
        # Of a payload that was sent nevertheless, the one in the store is the one that was sent.
        stay = (left - objects) * (what == _STORE or not sent)
        wrong = stay > 0 if what in _DEFINITE else what == _UNKNOWN and not sent and stay == 0
        found |= {"stored payloads left": stay, "wrong": int(wrong)}
        found["deleted after (s)"] = "" if seconds is None else f"{seconds:.2f}"
        return self._row(what, point, **found)

    def _clean_after(self, objects: int | None) -> float | None:
        """Wait until the store has as many payloads as before: transports delete in the background."""
        begin = time.monotonic()
        while objects is not None and (now := time.monotonic()) - begin < _ROLLBACK_SECONDS:
            if (self._objects() or 0) <= objects:
                return now - begin
            time.sleep(_STEP_SECONDS)
        return None

    def _messages(self) -> int:
        return self._trial.lab.broker.readable_messages(self._trial.topic)

    def _bytes(self) -> int:
        return sum(self._trial.lab.broker.topic_bytes(self._trial.topic))

    def _objects(self) -> int | None:
        return self._trial.lab.space.count()

    def _next(self) -> int:
        self._number += 1
        return self._number


def judge(tally: Tally, until: str) -> Experiment:
    """Return the result for what was left behind; ``until`` says how long messages stay."""
    lines = {}
    for mode in tally.modes:
        rows = [row for row in tally.rows if row["mode"] == mode]
        definite = sum(row["stored payloads left"] or 0 for row in rows if row["what fails"] in _DEFINITE)
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
