"""What expires first: a payload by its lifetime in the store, or its message by the topic's retention."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from claimcheck._operate.sweep import Sweep
from claimcheck.errors import ScanNotSupportedError
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import CompareError, Experiment, Mode, Row, Tally, Verdict
from tests.benchmarks.compare.payloads import MIN_BYTES

CLAIMED = {
    "external": "expiry is maintained separately from the topic's retention; a pointer can outlive its payload",
    "chunking": "expires with the topic's retention",
}

SHORT_SECONDS = 2.0
"""The lifetime in one case and the retention in the other; in each the other one is much longer."""

LIFETIME, RETENTION = "short lifetime", "short retention"
_WATCH_SECONDS = {LIFETIME: 3.0, RETENTION: 7.0}  # beyond that
_KEPT_SECONDS = 1.0  # beyond the lifetime; a store that still has the payload then does not delete by itself
_EXPIRE_SECONDS = 2.0  # between requests to the broker
_PAUSE_SECONDS = 0.25
_FLUSH_SECONDS = 60.0
_FIRST_SECONDS = 30.0
_JOIN_SECONDS = 60.0
_AGAIN_SECONDS = 4.0  # how long to wait for a payload that was readable before; Pulsar pauses after a seek
_TOGETHER_SECONDS = _AGAIN_SECONDS + 1.0  # two looks can be so far apart


def run(lab: Lab) -> Experiment:
    """Send one payload in each mode and case, and read all of them again and again until something is missing."""
    cases: list[tuple[Mode, str]] = [(mode, LIFETIME) for mode in lab.modes if mode in ("external", "hybrid")]
    if lab.broker.retention_source is not None:
        cases += [(mode, RETENTION) for mode in lab.modes]
    with contextlib.ExitStack() as stack:
        lab.progress("connecting")
        swept = threading.Event()
        watchers = [_Watcher(lab, mode, case, stack, swept) for mode, case in cases]
        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(watchers))))  # so that none waits for another
        list(pool.map(_Watcher.join, watchers))
        lab.progress(f"reading again and again for {SHORT_SECONDS + max(_WATCH_SECONDS.values()):g} s")
        list(pool.map(_Watcher.observe, watchers))
        return judge(Tally([watcher.row() for watcher in watchers]), retention=lab.broker.retention_source)


class _Watcher:
    """Looks after one payload and its messages, in a topic of its own.

    Its first messages are small ones, with which the consumer waits until it has joined its group: that can take longer
    than the payload, or such a message, lives.
    """

    payload_lost: float | None = None
    messages_lost: float | None = None

    def __init__(self, lab: Lab, mode: Mode, case: str, stack: contextlib.ExitStack, swept: threading.Event) -> None:
        self._lab, self._mode, self._case, self._swept = lab, mode, case, swept
        self._expire_at = SHORT_SECONDS
        size = 2 * lab.broker.limit_bytes + 1  # so that every mode has to do something
        settings = lab.settings(mode, size)
        if case == RETENTION:
            settings = replace(settings, retention_seconds=SHORT_SECONDS)
        self.topic = lab.topic(mode, "expiry", settings)
        stack.callback(lab.delete_topic, self.topic)
        options: dict[str, Any] = {"ttl_seconds": SHORT_SECONDS} if case == LIFETIME else {}
        self._cc = cc = stack.enter_context(lab.claimcheck(mode, **options))
        self._consumer = lab.broker.consumer(mode, self.topic, cc, group=self.topic)
        stack.callback(self._consumer.close)
        self._producer = lab.broker.producer(mode, self.topic, cc, max_message_bytes=settings.max_message_bytes)
        stack.callback(self._producer.close)
        self._payload = lab.payload(size, 1)
        self._small = lab.broker.producer("native", self.topic, cc)
        stack.callback(self._small.close)

    def join(self) -> None:
        """Send small messages until one arrives."""
        end = time.monotonic() + _JOIN_SECONDS
        while True:
            self._small.send(self._lab.payload(MIN_BYTES, 0))
            self._small.flush(_FLUSH_SECONDS)
            if self._consumer.receive(_PAUSE_SECONDS) is not None:
                return
            if time.monotonic() > end:
                raise CompareError(f"a consumer of {self.topic} received nothing within {_JOIN_SECONDS:g} s")

    def observe(self) -> None:
        """Send the payload, and look at it until something is missing, or nothing will be."""
        self._send()
        while not self._look():
            time.sleep(_PAUSE_SECONDS)
        self._watched = self._elapsed()

    def row(self) -> Row:
        """Return what was seen; seconds are counted from the moment when the payload was sent."""
        swept = self._case == LIFETIME and self._swept.is_set()
        return {
            "mode": self._mode,
            "case": self._case,
            "payload lost after (s)": _rounded(self.payload_lost),
            "messages lost after (s)": _rounded(self.messages_lost),
            "watched (s)": round(self._watched, 2),
            "lost first": _first(self.payload_lost, self.messages_lost),
            "swept": "yes" if swept else "no",
        }

    def _send(self) -> None:
        """Send the payload, and read it for the first time."""
        self._began = time.monotonic()
        self._producer.send(self._payload)
        self._producer.flush(_FLUSH_SECONDS)
        first = self._consumer.receive(_FIRST_SECONDS)
        while first is not None and first.payload is not None and len(first.payload) == MIN_BYTES:
            first = self._consumer.receive(_FIRST_SECONDS)
        if first is None or first.payload != self._payload:
            error = None if first is None else first.error
            raise CompareError(f"a payload that was just sent to {self.topic} could not be read: {error}")
        self._partition, self._position = first.partition, first.position

    def _look(self) -> bool:
        """Note what is readable now; returns whether everything is known."""
        now, known = self._elapsed(), self.payload_lost
        if self._case == RETENTION and now > self._expire_at:
            self._lab.broker.expire(self.topic)
            self._expire_at = self._elapsed() + _EXPIRE_SECONDS
        is_empty = self._is_empty()
        if self.payload_lost is None:
            self.payload_lost = now if is_empty else self._lost_at()
        if self.messages_lost is None and (is_empty or self._is_empty()):  # again: reading took a while
            is_same_look = known is None and self.payload_lost is not None  # which was first is not known
            self.messages_lost = self.payload_lost if is_same_look else self._elapsed()
        if self.payload_lost is None:
            self._sweep_late()
        needed = (self.payload_lost,) if self._case == LIFETIME else (self.payload_lost, self.messages_lost)
        return None not in needed or now >= SHORT_SECONDS + _WATCH_SECONDS[self._case]

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _sweep_late(self) -> None:
        """Sweep the store if the payload should be gone by now; that deletes the payloads of all watchers."""
        name = self._lab.space.name
        if name is None or self._case != LIFETIME or self._elapsed() < SHORT_SECONDS + _KEPT_SECONDS:
            return
        store = self._cc.store(name)
        with contextlib.suppress(ScanNotSupportedError):
            next(iter(store.scan()), None)  # raises if it is not supported
            self._swept.set()
            Sweep(dry_run=False, grace_seconds=0).run(store)

    def _is_empty(self) -> bool:
        return not self._lab.broker.readable_messages(self.topic)

    def _lost_at(self) -> float | None:
        """Read the payload again; returns since when it is lost, ``None`` if it is not."""
        begin = self._elapsed()
        self._consumer.seek(self._partition, self._position)
        received = self._consumer.receive(_AGAIN_SECONDS)
        if received is None:
            return begin
        return None if received.payload == self._payload else self._elapsed()


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


# The result ----------------------------------------------------------------------------------------------------


def judge(tally: Tally, *, retention: str | None) -> Experiment:
    """Return the result for what was observed; ``retention`` says what deletes messages."""
    found = {(row["mode"], row["case"]): row for row in tally.rows}
    outlived, separate = _pointer_outlived(found.get(("external", LIFETIME)))
    together, with_topic = _expired_together(found.get(("chunking", RETENTION)))
    holds = [each for each in (separate, with_topic) if each is not None]
    verdict: Verdict = "agrees" if holds == [True, True] else "partly" if any(holds) else "disagrees"
    why = f"The retention is {retention}."
    if retention is None:
        why = "Topics of this broker cannot be given a retention, so only the lifetime was measured."
    return tally.experiment(
        "expiry",
        "Expiry",
        CLAIMED,
        lambda mode: "; ".join(_line(row) for row in tally.rows if row["mode"] == mode),
        verdict if holds else "not measured",
        " ".join(filter(None, (outlived, together, why))),
    )


def _pointer_outlived(row: Mapping[str, Any] | None) -> tuple[str, bool | None]:
    """Return a sentence, and whether the claim holds; ``None`` if that was not observed."""
    if row is None:
        return "There is no store whose payloads could expire.", None
    payload, messages, swept = row["payload lost after (s)"], row["messages lost after (s)"], row["swept"] == "yes"
    if payload is None:
        why = "although it was swept" if swept else "and cannot be swept: a lifecycle rule has to delete it"
        return f"The store kept the payload beyond its lifetime, {why}.", None
    if payload < SHORT_SECONDS - _PAUSE_SECONDS:
        return f"The payload was lost after {payload:.1f} s, before its lifetime ended.", False
    if messages is not None and messages <= payload:
        return "The pointer was lost no later than its payload.", False
    if swept:
        return "The store kept the payload until it was swept; the pointer to it was still readable then.", True
    return f"The pointer was still readable when its payload expired after {payload:.1f} s.", True


def _expired_together(row: Mapping[str, Any] | None) -> tuple[str, bool | None]:
    if row is None:
        return "", None
    payload, messages = row["payload lost after (s)"], row["messages lost after (s)"]
    if payload is None and messages is None:
        late = f"The broker still had the chunks {row['watched (s)'] - SHORT_SECONDS:.0f} s after their retention"
        text = f"{late}: it deletes at intervals (Kafka: log.retention.check.interval.ms, 5 minutes by default)."
        return text, None
    if payload is None or messages is None:
        return "Chunks were lost without their payload, or the payload without its chunks.", False
    return f"The chunks and their payload were lost after {messages:.1f} s.", True


def _line(row: Mapping[str, Any]) -> str:
    what, limit = row["case"].removeprefix("short "), f"{SHORT_SECONDS:g} s"
    lost = row["payload lost after (s)" if row["case"] == LIFETIME else "messages lost after (s)"]
    if lost is None:
        return f"{what} {limit}: readable to the end of the test, {row['watched (s)']:.0f} s"
    return (
        f"{what} {limit}: {row['lost first']} lost after {lost:.1f} s{', by a sweep' if row['swept'] == 'yes' else ''}"
    )
