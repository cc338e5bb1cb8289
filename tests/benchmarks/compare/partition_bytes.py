"""What is put into the broker: the bytes of a payload in its partition, in each mode and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from claimcheck._texts import size_text
from tests.benchmarks.compare.broker import deliver, make
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Mode, NotMeasuredError, Point, Series, Tally, Verdict, agreement

PARTITION_BYTES = 10_000_000_000
"""The partition whose filling is calculated."""

_SENT_BYTES = 16 << 20  # at most, unless one payload is larger
_MOST_PAYLOADS = 16
_POINTER_BYTES = 4096
_JUDGED_FROM = 64 << 10
_WHOLE = (0.95, 1.5)  # chunks carry envelopes, and their broker adds framing

Points = Mapping[str, Sequence[Point]]
"""Bytes in the partition for each payload, by mode, and by rising payload size."""


def run(lab: Lab) -> Experiment:
    """Send payloads of each size in each mode to topics of their own, and read the topics' sizes."""
    measured: dict[str, list[Point]] = {}
    missing: list[str] = []
    for mode in lab.modes:
        for size in lab.sizes:
            lab.progress(f"bytes in the broker: {mode}, {size_text(size)}")
            try:
                found = _measure(lab, mode, size)
            except NotMeasuredError as error:  # whole records of this size
                missing.append(f"Without {mode}, {size_text(size)}: {error}.")
            else:
                measured.setdefault(mode, []).append(Point(size, found, found, found))
    return judge(measured, [f"Measured from {lab.broker.bytes_source}.", *missing])


def _measure(lab: Lab, mode: Mode, size: int) -> float:
    settings, count = lab.settings(mode, size), max(1, min(_MOST_PAYLOADS, _SENT_BYTES // size))
    with lab.topic(mode, "bytes", settings) as topic, lab.claimcheck(mode) as cc:
        before = sum(lab.broker.topic_bytes(topic))
        with closing(lab.broker.producer(mode, topic, cc)) as producer:
            deliver(producer, (make(size, number) for number in range(count)))
        return (sum(lab.broker.topic_bytes(topic)) - before) / count


def judge(measured: Points, texts: Sequence[str]) -> Experiment:
    """Return the experiment for bytes in the partition that were measured."""
    full = f"payloads until a partition of {PARTITION_BYTES // 10**9} GB is full"
    rows = [
        {"mode": mode, "payload": size_text(each.x), "bytes in the partition": round(each.y),
         "factor": round(each.y / each.x, 6), full: _capacity(each.y)}
        for mode, points in measured.items()
        for each in points
    ]  # fmt: skip
    lines = {}
    for mode, points in measured.items():
        size, found = points[-1].x, points[-1].y
        share = f"{size_text(size)} takes {found:,.0f} bytes ({100 * found / size:.3g} % of the payload)"
        lines[mode] = f"{share}; {_capacity(found):,} payloads fill {PARTITION_BYTES // 10**9} GB"
    verdict, why = _judged(measured)
    title = "Bytes in the partition for each payload"
    plot = {mode: tuple(points) for mode, points in measured.items()}
    series = Series("partition_bytes", title, "payload size (bytes)", "bytes in the partition", plot)
    return Tally(rows).experiment("partition", lines, verdict, " ".join([why, *texts]), series=(series,))


def _capacity(found: float) -> int:
    return int(PARTITION_BYTES / max(found, 1))


def _judged(measured: Points) -> tuple[Verdict, str]:
    """Compare the bytes in the partition with the published table; returns the verdict and one sentence."""
    pointers = [each.y for each in measured.get("external", ()) if each.x >= _JUDGED_FROM]
    factors = [each.y / each.x for each in measured.get("chunking", ()) if each.x >= _JUDGED_FROM]
    if not pointers or not factors:
        return "not measured", f"The table is about payloads of at least {size_text(_JUDGED_FROM)}, in both strategies."
    why = (
        f"A pointer takes at most {max(pointers):,.0f} bytes, whatever its payload's size; chunks take "
        f"{min(factors):.3f} to {max(factors):.3f} times the payload."
    )
    is_small = 0 < max(pointers) <= _POINTER_BYTES
    return agreement(is_small, _WHOLE[0] <= min(factors) and max(factors) <= _WHOLE[1]), why
