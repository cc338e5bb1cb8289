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
from tests.benchmarks.compare.lab import Lab, Trial, each_mode, numbers_of, until_killed
from tests.benchmarks.compare.model import Experiment, Row
from tests.benchmarks.compare.worker import Worker

_ROLLBACK_SECONDS = 3.0
_STEP_SECONDS = 0.005

_STORE = "the write to the store fails"
_REFUSED = "the broker refuses a message"
_KILLED = "the process is killed"
_DEFINITE = (_STORE, _REFUSED)


class _Bench:
    """Fails one send after the other, and compares topic and store before and after."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._broker = trial, trial.lab.broker
        self._number = 0
        self._arrive: set[int] = set()

    def rows(self) -> Iterator[Row]:
        """Fail at every point, and then read what was sent."""
        with ClaimCheck(self._trial.config) as cc:
            self._send(cc)
        total = self._broker.readable_messages(self._trial.topic)
        moments: tuple[When, ...] = ("before", "during", "after")
        for when in moments if self._trial.mode in ("external", "hybrid") else ():
            yield self._failure(_STORE, f"{when} the write", partial(self._send_with_store, when))
        for number in range(total):
            yield self._failure(_REFUSED, f"message {number + 1} of {total}", partial(self._send_refused, number))
        yield from self._kills(total)
        yield self._reading()

    # Points ----------------------------------------------------------------------------------------------------

    def _send_with_store(self, when: When) -> None:
        with ClaimCheck(with_faulty_stores(self._trial.config)) as cc:
            faulty_store(cc).fail("write", when=when)
            self._send(cc)

    def _send_refused(self, refused: int) -> None:
        """Send a payload of which one message is larger than any broker of this limit accepts."""
        size = 2 * self._broker.limit_bytes

        def change(number: int, envelope: Envelope) -> Envelope:
            return replace(envelope, data=bytes(size)) if number == refused else envelope

        with WatchedClaimCheck(self._trial.config, change=change) as cc:
            self._send(cc)

    def _send(self, cc: ClaimCheck) -> None:
        [result] = self._trial.try_to_send(cc, [self._next()])
        if not isinstance(result, Exception):
            self._arrive.add(self._number)

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

    def _send_killed(self, worker: Worker) -> None:
        until_killed(worker, partial(worker.call, "produce", size=self._trial.size, first=self._next()))

    def _next(self) -> int:
        self._number += 1
        return self._number

    # Before and after ------------------------------------------------------------------------------------------

    def _failure(self, what: str, point: str, fail: Callable[[], None]) -> Row:
        """Fail, and return what the failed send left behind."""
        (messages, size), objects = self._in_topic(), self._trial.lab.space.count()
        fail()
        is_sent = self._number in self._arrive
        row = self._row(what, point) | {"failures": 1, "payload sent": "yes" if is_sent else "no"}
        if not is_sent:
            messages_after, size_after = self._in_topic()
            row |= {"messages left": messages_after - messages, "bytes left": max(0, size_after - size)}
        if objects is not None and self._trial.mode != "chunking":
            # Of a payload that was sent nevertheless, the one in the store is the one that was sent.
            left = self._objects_left(objects, wait=what in _DEFINITE) * (what == _STORE or not is_sent)
            row |= {"stored payloads left": left, "wrong": int(left > 0 and what in _DEFINITE)}
        return row

    def _row(self, what: str, point: str) -> Row:
        row = {"mode": self._trial.mode, "what fails": what, "point": point, "failures": 0, "payload sent": ""}
        return row | {"messages left": 0, "bytes left": 0, "stored payloads left": None, "lost": 0, "wrong": 0}

    def _in_topic(self) -> tuple[int, int]:
        topic = self._trial.topic
        return self._broker.readable_messages(topic), sum(self._broker.topic_bytes(topic))

    def _objects_left(self, before: int, *, wait: bool) -> int:
        """Return how many payloads more the store has; waits until it has none: transports delete in the background."""
        end = time.monotonic() + _ROLLBACK_SECONDS
        while (left := (self._trial.lab.space.count() or 0) - before) > 0 and wait and time.monotonic() < end:
            time.sleep(_STEP_SECONDS)
        return left

    def _reading(self) -> Row:
        """Send one payload more, and receive until it arrives."""
        trial = self._trial
        with ClaimCheck(trial.config) as cc, trial.consumer(cc, "rollback") as consumer:
            self._send(cc)
            received = trial.receive(consumer, lambda found: self._arrive <= set(numbers_of(found)))
        numbers = set(numbers_of(received))
        wrong = sum(each.is_wrong for each in received) + len(numbers - self._arrive)
        found = {"stored payloads left": 0, "lost": len(self._arrive - numbers), "wrong": wrong}
        return self._row("nothing", "afterwards") | found


def run(lab: Lab) -> Experiment:
    """Let sends fail at every point, in each mode, and look at the topic and the store."""
    until = "until the topic is deleted" if lab.broker.retention_source is None else "until retention"
    tally = each_mode(lab, "rollback", lambda trial: list(_Bench(trial).rows()))
    lines = {}
    for mode in tally.modes:
        rows = [row for row in tally.rows if row["mode"] == mode]
        definite = sum(row["stored payloads left"] or 0 for row in rows if row["what fails"] in _DEFINITE)
        lines[mode] = f"{{failures}} failures: {{messages left}} messages ({{bytes left:,}} bytes) left {until}"
        if mode in ("external", "hybrid"):
            left = f"{{stored payloads left}} stored payloads left, {definite} of them after definite failures"
            is_counted = all(row["stored payloads left"] is not None for row in rows)
            lines[mode] += f"; {left if is_counted else 'stored payloads cannot be counted'}"
    most = max((row["messages left"] for row in tally.rows if row["mode"] == "chunking"), default=0)
    why = (
        "claimcheck deletes the stored payload if the send definitely failed. It keeps the payload if a message may"
        " point to it; then, and after a crash, it stays until it expires or is swept. A chunked send that fails leaves"
        f" up to {most} messages in the topic {until}; readers skip them."
    )
    right = tally["chunking"]["messages left"] and not tally["external"]["messages left"]
    return tally.experiment("rollback", lines, "agrees" if right else "partly", why)
