"""What expires first: a payload by its lifetime in the store, or its message by the topic's retention."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

from claimcheck._client import ClaimCheck
from claimcheck._operate.sweep import Sweep
from claimcheck.errors import ScanNotSupportedError
from tests.benchmarks.compare.broker import MIN_BYTES, Consumer, Producer, deliver, make
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import CompareError, Experiment, Mode, Row, Tally, agreement

SHORT_SECONDS = 2.0
"""The lifetime in one case and the retention in the other; in each the other one is much longer."""

LIFETIME, RETENTION = "lifetime", "retention"
_WATCH_SECONDS = {LIFETIME: 3.0, RETENTION: 7.0}  # beyond that
_KEPT_SECONDS = 1.0  # beyond the lifetime; a store that still has the payload then does not delete by itself
_EXPIRE_SECONDS = 2.0  # between requests to the broker
_PAUSE_SECONDS = 0.25
_FIRST_SECONDS = 30.0
_JOIN_SECONDS = 60.0
_AGAIN_SECONDS = 4.0  # how long to wait for a payload that was readable before; Pulsar pauses after a seek


def run(lab: Lab) -> Experiment:
    """Send one payload in each mode and case, and look again and again until it, or its messages, are lost."""
    cases: list[tuple[Mode, str]] = [(mode, LIFETIME) for mode in lab.strategies if mode != "chunking"]
    if lab.broker.retention_source is not None:
        cases += [(mode, RETENTION) for mode in lab.strategies]

    lab.progress(f"looking again and again for {SHORT_SECONDS + max(_WATCH_SECONDS.values()):g} s")
    with ThreadPoolExecutor(max(1, len(cases))) as pool:  # so that none waits for another
        rows = list(pool.map(lambda case: _watched(lab, *case), cases))
    tally, retention = Tally(rows), lab.broker.retention_source
    found = {(row["mode"], row["case"]): row for row in tally.rows}
    holds: list[bool] = []
    texts = [f"The retention is {retention}."]
    if retention is None:
        texts = ["Topics of this broker cannot be given a retention, so only the lifetime was measured."]
    if row := found.get(("external", LIFETIME)):
        if row["lost"] == "yes":  # else the store deletes neither by itself nor in a sweep
            holds.append(row["after (s)"] >= SHORT_SECONDS - _PAUSE_SECONDS and row["messages left"] > 0)
        texts.append("A store that does not delete expired payloads by itself keeps them until they are swept.")
    if row := found.get(("chunking", RETENTION)):
        if row["lost"] == "yes":
            holds.append(True)
        else:
            late = "The broker still had the chunks when the test ended: it deletes at intervals"
            texts.append(f"{late} (Kafka: log.retention.check.interval.ms, 5 minutes by default).")
    verdict = "agrees" if holds == [True, True] else agreement(*holds, False) if holds else "not measured"
    lines = {mode: "; ".join(_line(row) for row in tally.rows if row["mode"] == mode) for mode in tally.modes}
    return tally.experiment("expiry", lines, verdict, " ".join(texts))


def _watched(lab: Lab, mode: Mode, case: str) -> Row:
    """Look after one payload and its messages, in a topic of its own."""
    payload = make(2 * lab.broker.limit_bytes + 1, 1)  # so that every mode has to do something
    settings = lab.settings(mode, len(payload))
    options: dict[str, object] = {"ttl_seconds": SHORT_SECONDS}
    if case == RETENTION:
        settings, options = replace(settings, retention_seconds=SHORT_SECONDS), {}
    with (
        lab.topic(mode, "expiry", settings) as topic,
        lab.claimcheck(mode, **options) as cc,
        closing(lab.broker.consumer(mode, topic, cc, group=topic)) as consumer,
        closing(lab.broker.producer(mode, topic, cc)) as producer,
    ):
        if case == LIFETIME:
            with closing(lab.broker.producer("native", topic, cc)) as small:
                _join(small, consumer)
        begin = time.monotonic()
        deliver(producer, [payload])
        if case == LIFETIME:
            is_swept = _lose_payload(lab, cc, consumer, payload, begin)
            lost, how = is_swept is not None, ", by a sweep" if is_swept else ""
        else:
            lost, how = _lose_messages(lab, topic, begin), ""
        seconds, left = round(time.monotonic() - begin, 2), lab.broker.readable_messages(topic)
        return {"mode": mode, "case": case, "lost": "yes" if lost else "no", "how": how, "after (s)": seconds,
                "messages left": left}  # fmt: skip


def _join(small: Producer, consumer: Consumer) -> None:
    """Send small messages until one arrives: to join a group can take longer than the payload lives."""
    end = time.monotonic() + _JOIN_SECONDS
    while True:
        deliver(small, [make(MIN_BYTES, 0)])
        if consumer.receive(_PAUSE_SECONDS) is not None:
            return
        if time.monotonic() > end:
            raise CompareError(f"a consumer received nothing within {_JOIN_SECONDS:g} s")


def _lose_payload(lab: Lab, cc: ClaimCheck, consumer: Consumer, payload: bytes, begin: float) -> bool | None:
    """Read a payload until it cannot be read any more; returns whether it was swept, ``None`` if it stayed."""
    while (first := consumer.receive(_FIRST_SECONDS)) and len(first.payload or b"") == MIN_BYTES:
        pass  # the messages of `_join`
    if first is None or first.payload != payload:
        raise CompareError(f"a payload that was just sent could not be read: {first and first.error}")
    is_swept = False
    while (elapsed := time.monotonic() - begin) < SHORT_SECONDS + _WATCH_SECONDS[LIFETIME]:
        consumer.seek(first.partition, first.position)
        again = consumer.receive(_AGAIN_SECONDS)
        if again is None or again.payload != payload:
            return is_swept
        if elapsed > SHORT_SECONDS + _KEPT_SECONDS:
            is_swept = True
            with contextlib.suppress(ScanNotSupportedError):
                Sweep(dry_run=False, grace_seconds=0).run(cc.store(lab.space.name or ""))
        time.sleep(_PAUSE_SECONDS)
    return None


def _lose_messages(lab: Lab, topic: str, begin: float) -> bool:
    """Wait until the broker has deleted the messages; returns whether it did."""
    expire_at = begin + SHORT_SECONDS
    while (now := time.monotonic()) - begin < SHORT_SECONDS + _WATCH_SECONDS[RETENTION]:
        if now > expire_at:
            lab.broker.expire(topic)
            expire_at = time.monotonic() + _EXPIRE_SECONDS
        if not lab.broker.readable_messages(topic):
            return True
        time.sleep(_PAUSE_SECONDS)
    return False


def _line(row: Row) -> str:
    what = "payload" if row["case"] == LIFETIME else "messages"
    found = f"{what} lost after {row['after (s)']:.1f} s{row['how']}"
    if row["lost"] == "no":
        found = f"{what} there until the end of the test, {row['after (s)']:.0f} s"
    return f"{row['case']} {SHORT_SECONDS:g} s: {found}"
