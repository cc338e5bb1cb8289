"""What expires first: a payload by its lifetime in the store, or its message by the topic's retention."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from claimcheck._client import ClaimCheck
from claimcheck._operate.sweep import Sweep
from claimcheck.errors import ScanNotSupportedError
from tests.benchmarks.compare.broker import Consumer, Producer, Received, deliver
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import CompareError, Experiment, Mode, Row, Tally, Verdict, agreement
from tests.benchmarks.compare.payloads import MIN_BYTES, make

SHORT_SECONDS = 2.0
"""The lifetime in one case and the retention in the other; in each the other one is much longer."""

LIFETIME, RETENTION = "short lifetime", "short retention"
_WATCH_SECONDS = {LIFETIME: 3.0, RETENTION: 7.0}  # beyond that
_KEPT_SECONDS = 1.0  # beyond the lifetime; a store that still has the payload then does not delete by itself
_EXPIRE_SECONDS = 2.0  # between requests to the broker
_PAUSE_SECONDS = 0.25
_FIRST_SECONDS = 30.0
_JOIN_SECONDS = 60.0
_AGAIN_SECONDS = 4.0  # how long to wait for a payload that was readable before; Pulsar pauses after a seek
_TOGETHER_SECONDS = _AGAIN_SECONDS + 1.0  # two looks can be so far apart


def run(lab: Lab) -> Experiment:
    """Send one payload in each mode and case, and read all of them again and again until something is missing."""
    cases: list[tuple[Mode, str]] = [(mode, LIFETIME) for mode in lab.strategies if mode != "chunking"]
    if lab.broker.retention_source is not None:
        cases += [(mode, RETENTION) for mode in lab.strategies]
    swept = threading.Event()

    def watched(case: tuple[Mode, str]) -> Row:
        return _watched(lab, *case, swept)

    lab.progress(f"reading again and again for {SHORT_SECONDS + max(_WATCH_SECONDS.values()):g} s")
    with ThreadPoolExecutor(max(1, len(cases))) as pool:  # so that none waits for another
        rows = list(pool.map(watched, cases))
    return judge(Tally(rows), retention=lab.broker.retention_source)


def _watched(lab: Lab, mode: Mode, case: str, swept: threading.Event) -> Row:
    """Look after one payload and its messages, in a topic of its own."""
    size = 2 * lab.broker.limit_bytes + 1  # so that every mode has to do something
    settings = replace(lab.settings(mode, size), retention_seconds=SHORT_SECONDS if case == RETENTION else None)
    options = {"ttl_seconds": SHORT_SECONDS} if case == LIFETIME else {}
    with lab.topic(mode, "expiry", settings) as topic, lab.claimcheck(mode, **options) as cc:
        with (
            closing(lab.broker.consumer(mode, topic, cc, group=topic)) as consumer,
            closing(lab.broker.producer(mode, topic, cc)) as producer,
            closing(lab.broker.producer("native", topic, cc)) as small,
        ):
            _join(small, consumer)
            watcher = _Watcher(lab, case, topic, cc, consumer, make(size, 1), swept)
            watcher.observe(producer)
        return {"mode": mode, **watcher.row()}


def _join(small: Producer, consumer: Consumer) -> None:
    """Send small messages until one arrives: to join a group can take longer than the payload, or a message, lives."""
    end = time.monotonic() + _JOIN_SECONDS
    while True:
        deliver(small, [make(MIN_BYTES, 0)])
        if consumer.receive(_PAUSE_SECONDS) is not None:
            return
        if time.monotonic() > end:
            raise CompareError(f"a consumer received nothing within {_JOIN_SECONDS:g} s")


@dataclass(slots=True)
class _Watcher:
    """Looks again and again whether a payload and its messages are there."""

    lab: Lab
    case: str
    topic: str
    cc: ClaimCheck
    consumer: Consumer
    payload: bytes
    swept: threading.Event
    payload_lost: float | None = None
    messages_lost: float | None = None
    watched: float = 0.0
    began: float = field(default_factory=time.monotonic)
    expire_at: float = SHORT_SECONDS

    def observe(self, producer: Producer) -> None:
        """Send the payload, and look at it until something is missing, or nothing will be."""
        self.began = time.monotonic()
        deliver(producer, [self.payload])
        first = self._first()
        while not self._look(first):
            time.sleep(_PAUSE_SECONDS)
        self.watched = self._elapsed()

    def row(self) -> Row:
        """Return what was seen; seconds are counted from the moment when the payload was sent."""
        swept = self.case == LIFETIME and self.swept.is_set()
        return {
            "case": self.case,
            "payload lost after (s)": _rounded(self.payload_lost),
            "messages lost after (s)": _rounded(self.messages_lost),
            "watched (s)": round(self.watched, 2),
            "lost first": _first(self.payload_lost, self.messages_lost),
            "swept": "yes" if swept else "no",
        }

    def _first(self) -> Received:
        """Read the payload for the first time, behind the small messages."""
        while (first := self.consumer.receive(_FIRST_SECONDS)) and len(first.payload or b"") == MIN_BYTES:
            pass
        if first is None or first.payload != self.payload:
            error = None if first is None else first.error
            raise CompareError(f"a payload that was just sent to {self.topic} could not be read: {error}")
        return first

    def _look(self, first: Received) -> bool:
        """Note what is readable now; returns whether everything is known."""
        now, known = self._elapsed(), self.payload_lost
        if self.case == RETENTION and now > self.expire_at:
            self.lab.broker.expire(self.topic)
            self.expire_at = self._elapsed() + _EXPIRE_SECONDS
        is_empty = self._is_empty()
        if self.payload_lost is None:
            self.payload_lost = now if is_empty else self._lost_at(first)
        if self.messages_lost is None and (is_empty or self._is_empty()):  # again: reading took a while
            is_same_look = known is None and self.payload_lost is not None  # which was first is not known
            self.messages_lost = self.payload_lost if is_same_look else self._elapsed()
        if self.payload_lost is None:
            self._sweep_late()
        needed = (self.payload_lost,) if self.case == LIFETIME else (self.payload_lost, self.messages_lost)
        return None not in needed or now >= SHORT_SECONDS + _WATCH_SECONDS[self.case]

    def _elapsed(self) -> float:
        return time.monotonic() - self.began

    def _sweep_late(self) -> None:
        """Sweep the store if the payload should be gone by now; that deletes the payloads of all watchers."""
        name = self.lab.space.name
        if name is None or self.case != LIFETIME or self._elapsed() < SHORT_SECONDS + _KEPT_SECONDS:
            return
        store = self.cc.store(name)
        with contextlib.suppress(ScanNotSupportedError):
            next(iter(store.scan()), None)  # raises if it is not supported
            self.swept.set()
            Sweep(dry_run=False, grace_seconds=0).run(store)

    def _is_empty(self) -> bool:
        return not self.lab.broker.readable_messages(self.topic)

    def _lost_at(self, first: Received) -> float | None:
        """Read the payload again; returns since when it is lost, ``None`` if it is not."""
        begin = self._elapsed()
        self.consumer.seek(first.partition, first.position)
        received = self.consumer.receive(_AGAIN_SECONDS)
        if received is None:
            return begin
        return None if received.payload == self.payload else self._elapsed()


def _first(payload: float | None, messages: float | None) -> str:
    if messages is None:
        return "nothing" if payload is None else "payload"
    if payload is None:
        return "messages"
    if abs(payload - messages) <= _TOGETHER_SECONDS:
        return "both"
    return "payload" if payload < messages else "messages"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def judge(tally: Tally, *, retention: str | None) -> Experiment:
    """Return the result for what was observed; ``retention`` says what deletes messages."""
    rows = {(row["mode"], row["case"]): row for row in tally.rows}
    holds: list[bool] = []
    texts = [f"The retention is {retention}."]
    if retention is None:
        texts = ["Topics of this broker cannot be given a retention, so only the lifetime was measured."]
    if row := rows.get(("external", LIFETIME)):
        payload, messages = _lost(row)
        if payload is not None:  # else the store deletes neither by itself nor in a sweep
            holds.append(payload >= SHORT_SECONDS - _PAUSE_SECONDS and (messages is None or messages > payload))
        texts.append("A store that does not delete expired payloads by itself keeps them until they are swept.")
    if row := rows.get(("chunking", RETENTION)):
        payload, messages = _lost(row)
        if (payload, messages) != (None, None):
            holds.append(payload is not None and messages is not None)
        else:
            late = "The broker still had the chunks when the test ended: it deletes at intervals"
            texts.append(f"{late} (Kafka: log.retention.check.interval.ms, 5 minutes by default).")
    verdict: Verdict = "agrees" if holds == [True, True] else agreement(*holds, False) if holds else "not measured"
    lines = {mode: "; ".join(_line(row) for row in tally.rows if row["mode"] == mode) for mode in tally.modes}
    return tally.experiment("expiry", lines, verdict, " ".join(texts))


def _lost(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return row["payload lost after (s)"], row["messages lost after (s)"]


def _line(row: Mapping[str, Any]) -> str:
    lost = _lost(row)[row["case"] != LIFETIME]
    swept = ", by a sweep" if row["swept"] == "yes" else ""
    found = f"readable to the end of the test, {row['watched (s)']:.0f} s"
    if lost is not None:
        found = f"{row['lost first']} lost after {lost:.1f} s{swept}"
    return f"{row['case'].removeprefix('short ')} {SHORT_SECONDS:g} s: {found}"
