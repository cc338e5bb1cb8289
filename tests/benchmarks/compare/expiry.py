"""What expires first: a payload by its lifetime in the store, or its message by the topic's retention."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from claimcheck._operate.sweep import Sweep
from claimcheck.errors import ScanNotSupportedError
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import CompareError, Experiment, Mode, Verdict
from tests.benchmarks.compare.payloads import MIN_BYTES

CLAIMED = {
    "external": "expiry is maintained separately from the topic's retention; a pointer can outlive its payload",
    "chunking": "expires with the topic's retention",
}

SHORT_SECONDS = 2.0
"""The lifetime in one case and the retention in the other; in each the other one is much longer."""

Case = Literal["short lifetime", "short retention"]

_WATCH_SECONDS: dict[Case, float] = {"short lifetime": 3.0, "short retention": 7.0}  # beyond that
_KEPT_SECONDS = 1.0  # beyond the lifetime; a store that still has the payload then does not delete by itself
_EXPIRE_SECONDS = 2.0  # between requests to the broker
_PAUSE_SECONDS = 0.25
_FLUSH_SECONDS = 60.0
_FIRST_SECONDS = 30.0
_JOIN_SECONDS = 60.0
_AGAIN_SECONDS = 4.0  # how long to wait for a payload that was readable before; Pulsar pauses after a seek
_TOGETHER_SECONDS = _AGAIN_SECONDS + 1.0  # two looks can be so far apart


@dataclass(frozen=True, slots=True)
class Watch:
    """One payload and its messages over time. Seconds are counted from the moment when the payload was sent.

    Attributes:
        mode: How it traveled.
        case: Which of lifetime and retention was short.
        payload_lost: When it was no longer readable by a consumer; ``None`` if it was to the end.
        messages_lost: When the topic had no readable message left; ``None`` if it had to the end.
        watched: How long this was observed.
        swept: Whether the store was swept after the lifetime, because a payload was still there.
    """

    mode: Mode
    case: Case
    payload_lost: float | None
    messages_lost: float | None
    watched: float
    swept: bool = False


def run(lab: Lab) -> Experiment:
    """Send one payload in each mode and case, and read all of them again and again until something is missing."""
    cases: list[tuple[Mode, Case]] = [(mode, "short lifetime") for mode in lab.modes if mode in ("external", "hybrid")]
    if lab.broker.retention_source is not None:
        cases += [(mode, "short retention") for mode in lab.modes]
    before = lab.store_objects()
    with contextlib.ExitStack() as stack:
        lab.progress("connecting")
        swept = threading.Event()
        watchers = [_Watcher(lab, mode, case, stack, swept) for mode, case in cases]
        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(watchers))))  # so that none waits for another
        list(pool.map(_Watcher.join, watchers))
        lab.progress(f"reading again and again for {SHORT_SECONDS + max(_WATCH_SECONDS.values()):g} s")
        list(pool.map(_Watcher.observe, watchers))
        watches = [watcher.watch for watcher in watchers]
        after = lab.store_objects()
        stored = None if after is None or before is None else after - before
        return result(watches, retention=lab.broker.retention_source, stored=stored)


class _Watcher:
    """Looks after one payload and its messages, in a topic of its own.

    Its first messages are small ones, with which the consumer waits until it has joined its group: that can take longer
    than the payload, or such a message, lives.
    """

    def __init__(self, lab: Lab, mode: Mode, case: Case, stack: contextlib.ExitStack, swept: threading.Event) -> None:
        self.watch = Watch(mode, case, None, None, 0.0)
        self._lab, self._swept, self._expire_at = lab, swept, SHORT_SECONDS
        size = 2 * lab.broker.limit_bytes + 1  # so that every mode has to do something
        settings = lab.settings(mode, size)
        if case == "short retention":
            settings = replace(settings, retention_seconds=SHORT_SECONDS)
        self.topic = lab.topic(mode, "expiry", settings)
        stack.callback(lab.delete_topic, self.topic)
        options: dict[str, Any] = {"ttl_seconds": SHORT_SECONDS} if case == "short lifetime" else {}
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
        end = self._lab.clock() + _JOIN_SECONDS
        while True:
            self._small.send(self._lab.payload(MIN_BYTES, 0))
            self._small.flush(_FLUSH_SECONDS)
            if self._consumer.receive(_PAUSE_SECONDS) is not None:
                return
            if self._lab.clock() > end:
                raise CompareError(f"a consumer of {self.topic} received nothing within {_JOIN_SECONDS:g} s")

    def observe(self) -> None:
        """Send the payload, and look at it until something is missing, or nothing will be."""
        self._send()
        while not self._look():
            time.sleep(_PAUSE_SECONDS)

    def _send(self) -> None:
        """Send the payload, and read it for the first time."""
        self._began = self._lab.clock()
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
        watch, now = self.watch, self._elapsed()
        if watch.case == "short retention" and now > self._expire_at:
            self._lab.broker.expire(self.topic)
            self._expire_at = self._elapsed() + _EXPIRE_SECONDS
        payload_lost, messages_lost = watch.payload_lost, watch.messages_lost
        is_empty = self._is_empty()
        if payload_lost is None:
            payload_lost = now if is_empty else self._lost_at()
        if messages_lost is None and (is_empty or self._is_empty()):  # again: reading took a while
            is_same_look = watch.payload_lost is None and payload_lost is not None  # which was first is not known
            messages_lost = payload_lost if is_same_look else self._elapsed()
        if payload_lost is None:
            self._sweep_late()
        self.watch = Watch(watch.mode, watch.case, payload_lost, messages_lost, self._elapsed(), self._is_swept())
        needed = (payload_lost,) if watch.case == "short lifetime" else (payload_lost, messages_lost)
        return None not in needed or now >= SHORT_SECONDS + _WATCH_SECONDS[watch.case]

    def _elapsed(self) -> float:
        return self._lab.clock() - self._began

    def _sweep_late(self) -> None:
        """Sweep the store if the payload should be gone by now; that deletes the payloads of all watchers."""
        name = self._lab.space.name
        is_late = self._elapsed() >= SHORT_SECONDS + _KEPT_SECONDS
        if name is None or self.watch.case != "short lifetime" or not is_late:
            return
        store = self._cc.store(name)
        with contextlib.suppress(ScanNotSupportedError):
            next(iter(store.scan()), None)  # raises if it is not supported
            self._swept.set()
            Sweep(dry_run=False, grace_seconds=0).run(store)

    def _is_swept(self) -> bool:
        return self.watch.case == "short lifetime" and self._swept.is_set()

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


def result(watches: Sequence[Watch], *, retention: str | None, stored: int | None = None) -> Experiment:
    """Return the experiment for what was observed."""
    verdict, why = judge(watches)
    if retention is None:
        why += " Topics of this broker cannot be given a retention, so only the lifetime was measured."
    else:
        why += f" The retention is {retention}."
    modes = dict.fromkeys(watch.mode for watch in watches)
    facts = {}
    for each in watches:
        case = each.case.replace(" ", "_")
        for name, value in (("payload", each.payload_lost), ("messages", each.messages_lost)):
            if value is not None:
                facts[f"{name}_lost_seconds/{each.mode}/{case}"] = value
    if (orphans := _orphans(watches, stored)) is not None:
        facts["stored_without_message"] = orphans
        if orphans:
            why += f" {orphans} stored payloads outlived their messages, and stay for the rest of their lifetime."
    return Experiment(
        name="expiry",
        title="Expiry",
        claimed=CLAIMED,
        measured={mode: "; ".join(_line(watch) for watch in watches if watch.mode == mode) for mode in modes},
        verdict=verdict,
        explanation=why,
        columns=("mode", "case", "payload lost after, s", "messages lost after, s", "watched, s", "lost first"),
        rows=tuple(map(_row, watches)),
        facts=facts,
    )


def judge(watches: Sequence[Watch]) -> tuple[Verdict, str]:
    """Compare what was observed with the published table; returns the verdict and one or two sentences."""
    found = {(each.mode, each.case): each for each in watches}
    external, chunks = found.get(("external", "short lifetime")), found.get(("chunking", "short retention"))
    outlived, separate = _pointer_outlived(external)
    together, with_topic = _expired_together(chunks)
    holds = [each for each in (separate, with_topic) if each is not None]
    why = " ".join(filter(None, (outlived, together)))
    if not holds:
        return "not measured", why
    if all(holds):
        return ("agrees" if len(holds) == 2 else "partly"), why
    return ("partly" if any(holds) else "disagrees"), why


def _pointer_outlived(watch: Watch | None) -> tuple[str, bool | None]:
    """Return a sentence, and whether the claim holds; ``None`` if that was not observed."""
    if watch is None:
        return "There is no store whose payloads could expire.", None
    if watch.payload_lost is None:
        why = "although it was swept" if watch.swept else "and cannot be swept: a lifecycle rule has to delete it"
        text = f"The store kept the payload beyond its lifetime, {why}."
        return text, None
    if watch.payload_lost < SHORT_SECONDS - _PAUSE_SECONDS:
        return f"The payload was lost after {watch.payload_lost:.1f} s, before its lifetime ended.", False
    if watch.messages_lost is not None and watch.messages_lost <= watch.payload_lost:
        return "The pointer was lost no later than its payload.", False
    if watch.swept:
        return "The store kept the payload until it was swept; the pointer to it was still readable then.", True
    return f"The pointer was still readable when its payload expired after {watch.payload_lost:.1f} s.", True


def _expired_together(watch: Watch | None) -> tuple[str, bool | None]:
    if watch is None:
        return "", None
    if watch.payload_lost is None and watch.messages_lost is None:
        late = f"The broker still had the chunks {watch.watched - SHORT_SECONDS:.0f} s after their retention"
        text = f"{late}: it deletes at intervals (Kafka: log.retention.check.interval.ms, 5 minutes by default)."
        return text, None
    if watch.payload_lost is None or watch.messages_lost is None:
        return "Chunks were lost without their payload, or the payload without its chunks.", False
    return f"The chunks and their payload were lost after {watch.messages_lost:.1f} s.", True


def _line(watch: Watch) -> str:
    what, limit = watch.case.removeprefix("short "), f"{SHORT_SECONDS:g} s"
    lost = watch.payload_lost if watch.case == "short lifetime" else watch.messages_lost
    if lost is None:
        return f"{what} {limit}: readable to the end of the test, {watch.watched:.0f} s"
    return f"{what} {limit}: {_first(watch)} lost after {lost:.1f} s{', by a sweep' if watch.swept else ''}"


def _row(watch: Watch) -> tuple[str | float | None, ...]:
    times = (_round(seconds) for seconds in (watch.payload_lost, watch.messages_lost, watch.watched))
    return (watch.mode, watch.case, *times, _first(watch))


def _orphans(watches: Sequence[Watch], stored: int | None) -> int | None:
    """Return the number of stored payloads without a readable message; ``None`` if it is not known."""
    if stored is None:
        return None
    kept = [each for each in watches if each.mode in ("external", "hybrid") and each.messages_lost is None]
    return max(0, stored - sum(each.payload_lost is None for each in kept))


def _first(watch: Watch) -> str:
    if watch.payload_lost is None and watch.messages_lost is None:
        return "nothing"
    if watch.messages_lost is None:
        return "payload"
    if watch.payload_lost is None:
        return "messages"
    if abs(watch.payload_lost - watch.messages_lost) <= _TOGETHER_SECONDS:
        return "both"
    return "payload" if watch.payload_lost < watch.messages_lost else "messages"


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
